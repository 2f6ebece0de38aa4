//! What can be wrong with a scenario, each told in one line with what would be right.

use super::memory::Memory;
use crate::make::Make;

/// Why a scenario makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum Flaw {
    /// It cannot be read.
    #[error("line {line}: {message}")]
    Unreadable {
        /// Where, counted from 1.
        line: usize,
        /// What the reader of TOML says.
        message: String,
    },
    /// It has none or too many layers.
    #[error("it has {0} layers; there can be 1, 2 or 3")]
    Layers(usize),
    /// Two steps cannot be told apart.
    #[error("two steps have id = \"{0}\": give each its own")]
    SameId(String),
    /// A step is to be stressed by nothing.
    #[error("a step is to be under stress, and the scenario has none: add [[stress]]")]
    NoStress,
    /// A layer cannot be.
    #[error(transparent)]
    Layer(#[from] LayerFlaw),
    /// A step cannot be done.
    #[error(transparent)]
    Step(#[from] StepFlaw),
    /// Something cannot be done again and again.
    #[error(transparent)]
    Stress(#[from] StressFlaw),
    /// The layers cannot run on the emulated Intel machine.
    #[error(transparent)]
    Intel(#[from] IntelFlaw),
}

/// What a layer cannot be. Each names it by its number.
#[derive(Debug, thiserror::Error)]
pub enum LayerFlaw {
    /// The layer below would have to have more memory.
    #[error("L{0} cannot have more memory than the layer below")]
    MoreMemoryThanBelow(usize),
    /// No kernel starts in so little memory.
    #[error(
        "L{layer} has {memory} of memory, too little for a kernel and its programs: give it {least} \
         or more"
    )]
    LittleMemory {
        /// Its number.
        layer: usize,
        /// What it has.
        memory: Memory,
        /// What it needs.
        least: Memory,
    },
    /// No kernel runs without a CPU.
    #[error("L{0} has no CPU: cpus is 1 or more")]
    NoCpu(usize),
    /// Its memory has no node, or less than a MiB in each.
    #[error("L{0} has no node of memory: nodes is 1 or more")]
    NoNode(usize),
    /// Its fragmentation is no share.
    #[error("L{0}: fmfi and movable are numbers from 0 to 1")]
    Fragmentation(usize),
    /// The kernel has no such mode of transparent huge pages.
    #[error("L{layer}: thp is always, madvise or never, not {thp}")]
    Thp {
        /// Its number.
        layer: usize,
        /// What is no mode.
        thp: String,
    },
    /// It has no KVM, and parameters for its modules.
    #[error(
        "L{0} runs no machine and has no module to set: put what its kernel shall have into parameters"
    )]
    NoModules(usize),
    /// This computer has less memory than L0 is to have.
    #[error("L0 cannot have {memory} of memory: this computer has {} MiB", computer.in_mib())]
    MoreMemoryThanComputer {
        /// What it is to have.
        memory: Memory,
        /// What there is.
        computer: Memory,
    },
    /// No processors are of this make.
    #[error("L0's machine is amd or intel, not {0}")]
    Make(String),
    /// It has what a layer's VMM needs, and none runs it.
    #[error(
        "L0 is run by no layer: backend, launcher and the program of a VMM are for those above"
    )]
    RunByNone,
    /// Its memory would be in several nodes of this computer's.
    #[error(
        "L0 cannot have {0} nodes, which would be this computer's: give it the parameter numa=fake={0}U"
    )]
    NodesOfComputer(u8),
}

/// Why a step cannot be done. What is said of a guest ends with all that its step is.
#[derive(Debug, thiserror::Error)]
pub enum StepFlaw {
    /// The layer is not there.
    #[error("a step is for L{needed}, but the layers are L0 to L{last}")]
    NoLayer {
        /// The number of the layer.
        needed: usize,
        /// The innermost layer there is.
        last: usize,
    },
    /// No layer is above whose VMM could be told something.
    #[error("a step is for the VMM of a layer above L{layer}, but the layers are L0 to L{last}")]
    NoVmm {
        /// Where the VMM would run.
        layer: u8,
        /// The innermost layer there is.
        last: usize,
    },
    /// It names no program.
    #[error("a step runs no program: give its name and arguments")]
    NoProgram,
    /// Its program would be killed at once.
    #[error("a step gives {program} no time: limit is 1 second or more")]
    NoTime {
        /// The program.
        program: String,
    },
    /// It sleeps for ever, or not at all.
    #[error("a step cannot sleep {seconds} seconds: give a number from 0 to {most}")]
    Sleep {
        /// Seconds it is to sleep.
        seconds: f64,
        /// The most it can.
        most: f64,
    },
    /// A guest's end has no time.
    #[error("a guest dies after so many seconds: {0}")]
    GuestDies(String),
    /// A guest would have nothing to do.
    #[error("a guest runs no program: {0}")]
    GuestWithoutProgram(String),
    /// A guest's guest does not fit into it.
    #[error("a guest has less memory than its guest: {0}")]
    GuestOfLittleMemory(String),
    /// Of Debian's kernel, the lab would have to load KVM's modules first.
    #[error("a guest that has a guest needs a kernel of the lab's, not Debian's: {0}")]
    GuestOfDebian(String),
}

/// What cannot be done again and again. Each names the stressor.
#[derive(Debug, thiserror::Error)]
pub enum StressFlaw {
    /// Its clock makes no sense.
    #[error("stress '{0}': every and after are seconds")]
    Clock(String),
    /// It does nothing.
    #[error("stress '{0}' has no step")]
    NoStep(String),
    /// One of its steps can be done once only.
    #[error(
        "stress '{0}' can write, qmp, guest, and run with a layer and without stay and stress, \
         nothing else"
    )]
    OnceOnly(String),
}

/// What the emulated Intel machine cannot do, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum IntelFlaw {
    /// L0 has several processors.
    #[error(
        "L0 has {0} processors, and the emulated Intel machine has one: give it cpus = 1, or run it \
         with --machine amd"
    )]
    Processors(u8),
    /// A layer above has more processors than the machine.
    #[error(
        "L{layer} has {cpus} processors on a machine with one: on the emulated Intel machine all \
         layers have cpus = 1"
    )]
    ProcessorsAbove {
        /// The number of the layer.
        layer: usize,
        /// What it has.
        cpus: u8,
    },
    /// L0 has arguments of the other machine's emulator.
    #[error(
        "L0 has vmm = {0:?}, arguments of QEMU, which does not emulate the Intel machine: take them \
         out, or run it with --machine amd"
    )]
    Vmm(Vec<String>),
    /// Its firmware starts no kernel in so much or so little memory.
    #[error("L0 cannot have {memory} of memory: the emulated Intel machine has {least} to {most}")]
    Memory {
        /// What it is to have.
        memory: Memory,
        /// The least that it can have.
        least: Memory,
        /// The most.
        most: Memory,
    },
    /// A layer sets the module of the other make only.
    #[error(
        "L{layer} sets {} = \"{values}\", which is for the other make of processors: give it {} = \
         \"...\" as well, for the emulated Intel machine",
        Make::Intel.other_module(),
        Make::Intel.module()
    )]
    OtherModule {
        /// The number of the layer.
        layer: usize,
        /// What the module's parameters are to be.
        values: String,
    },
    /// A layer has a kernel parameter for the module of the other make.
    #[error(
        "L{layer} has the parameter {word}, which is for the other make of processors: put it into \
         modules, with one for {} beside it",
        Make::Intel.module()
    )]
    OtherParameter {
        /// The number of the layer.
        layer: usize,
        /// The parameter.
        word: String,
    },
}
