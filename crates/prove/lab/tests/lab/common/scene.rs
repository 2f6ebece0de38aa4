//! Scenarios of the tests, put together from parts: what a test changes is named, not searched for in
//! text, and what a step printed is found by the step's id.

use super::{choices, run_chosen, run_scenario};
use std::collections::BTreeMap;
use strata_lab::{
    Choices, Kernel, KernelVariant, LabReport, Layer, Memory, Scenario, Step, StepReport, Stress,
};

/// A scenario in the making.
#[derive(Clone)]
pub struct Scene(pub Scenario);

impl Scene {
    /// These layers, L0 first, in which nothing happens yet.
    pub fn new(about: &str, layers: Vec<Layer>) -> Self {
        Self(Scenario { about: about.to_owned(), layers, steps: Vec::new(), stress: Vec::new() })
    }

    /// A scenario that comes with Strata.
    pub fn shipped(name: &str) -> Self {
        Self(Scenario::load(name).unwrap())
    }

    /// With a layer that is otherwise.
    pub fn layer(mut self, number: usize, change: impl FnOnce(&mut Layer)) -> Self {
        change(&mut self.0.layers[number]);
        self
    }

    /// With more steps at its end.
    pub fn then(mut self, steps: Steps) -> Self {
        self.0.steps.extend(steps.0);
        self
    }

    /// With these parameters of L0's KVM, as `NAME=VALUE`, from when all layers run: so the machine boots as others do, and
    /// one that is kept serves all of them.
    pub fn set(mut self, parameters: &str) -> Self {
        let writes = parameters.split_whitespace().fold(steps(), |steps, parameter| {
            let (name, value) = parameter.split_once('=').expect("it has a value");
            steps.write(0, &format!("/sys/module/kvm/parameters/{name}"), value)
        });
        self.0.steps.splice(..0, writes.0);
        self
    }

    /// With something done again and again under the steps that are to be stressed: every so many seconds,
    /// for the first time after so many.
    pub fn stressed_by(mut self, name: &str, every: f64, after: f64, steps: Steps) -> Self {
        self.0.stress.push(Stress { name: name.to_owned(), every, after, steps: steps.0 });
        self
    }

    /// With another value for an option of the program that the step of this name runs.
    pub fn option(mut self, step: &str, option: &str, value: &str) -> Self {
        let programs = self.0.steps.iter_mut().filter_map(|each| match each {
            Step::Run { id: Some(id), program, .. } if id == step => Some(program),
            _ => None,
        });
        let mut words = programs.flatten().filter(|word| word.starts_with(&format!("{option}=")));
        *words.next().expect("the step has the option") = format!("{option}={value}");
        self
    }

    /// With programs that touch so much memory each, such as `96M`: under emulation a page costs nearly three milliseconds
    /// where two kernels have to map it.
    pub fn touching(mut self, size: &str) -> Self {
        for word in self.touches().flatten().filter(|word| word.starts_with("--size=")) {
            *word = format!("--size={size}");
        }
        self
    }

    /// With programs that go on using the memory that they have touched: of what nobody uses, no entries of 512 pages
    /// come to be.
    pub fn reading_on(mut self) -> Self {
        let stay = |program: &&mut Vec<String>| program.iter().any(|word| word == "--stay");
        self.touches().filter(stay).for_each(|program| program.push("--read-on".to_owned()));
        self
    }

    /// The programs that touch memory, with their arguments.
    fn touches(&mut self) -> impl Iterator<Item = &mut Vec<String>> {
        self.0.steps.iter_mut().filter_map(|step| match step {
            Step::Run { program, .. } if program.get(1).is_some_and(|word| word == "touch") => {
                Some(program)
            }
            _ => None,
        })
    }

    /// The scenario, which makes sense.
    pub fn checked(self) -> Scenario {
        self.0.check().unwrap_or_else(|flaw| panic!("{flaw}: {:?}", self.0));
        self.0
    }

    /// Runs it to its end.
    pub fn run(self, name: &str) -> LabReport {
        run_scenario(name, self.checked())
    }

    /// The same, and its layers boot, whatever is kept of an earlier run.
    pub fn run_afresh(self, name: &str) -> LabReport {
        run_chosen(&Choices { afresh: true, ..choices(name, self.checked()) })
    }
}

/// Steps, one after the other. What is said of a step is said of the last one so far.
#[derive(Clone, Default)]
pub struct Steps(Vec<Step>);

/// Steps to come.
pub fn steps() -> Steps {
    Steps::default()
}

/// Seconds that a program may take if nothing else is said, as in a scenario's file.
const LIMIT: u64 = 600;

impl Steps {
    fn push(mut self, step: Step) -> Self {
        self.0.push(step);
        self
    }

    /// Runs a program to its end, in the innermost layer: its name and arguments in one line.
    pub fn run(self, line: &str) -> Self {
        self.program(line.split_whitespace())
    }

    /// The same, whose arguments may have spaces in them.
    pub fn program<W: Into<String>>(self, words: impl IntoIterator<Item = W>) -> Self {
        self.push(Step::Run {
            id: None,
            layer: None,
            program: words.into_iter().map(Into::into).collect(),
            stay: false,
            stress: false,
            count: false,
            limit: LIMIT,
        })
    }

    /// Runs a script of the shell in a layer.
    pub fn shell(self, in_layer: u8, script: &str) -> Self {
        self.program(["/bin/busybox", "sh", "-c", script]).layer(in_layer)
    }

    /// One more machine in a layer, and what runs in it.
    pub fn guest(self, in_layer: u8, memory: Memory, line: &str) -> Self {
        self.push(Step::Guest {
            layer: in_layer,
            memory,
            nested: None,
            cpus: 1,
            program: line.split_whitespace().map(Into::into).collect(),
            die: None,
            limit: LIMIT,
        })
    }

    /// Writes a file of a layer.
    pub fn write(self, layer: u8, path: &str, text: &str) -> Self {
        self.push(Step::Write { layer, path: path.to_owned(), text: text.to_owned() })
    }

    /// Sends a command without arguments to the VMM of the layer above.
    pub fn qmp(self, layer: u8, execute: &str) -> Self {
        self.push(Step::Qmp { layer, execute: execute.to_owned(), arguments: BTreeMap::new() })
    }

    /// Waits for so many seconds.
    pub fn sleep(self, seconds: f64) -> Self {
        self.push(Step::Sleep { seconds })
    }

    /// Takes a snapshot of each layer.
    pub fn scan(self) -> Self {
        self.push(Step::Scan)
    }

    /// All of them once more, so that they are done so often.
    pub fn times(self, number: usize) -> Self {
        Self(std::iter::repeat_n(self.0, number).flatten().collect())
    }

    /// And then these.
    pub fn then(mut self, more: Self) -> Self {
        self.0.extend(more.0);
        self
    }

    /// What the report calls the program that is run.
    pub fn id(mut self, name: &str) -> Self {
        let Some(Step::Run { id, .. }) = self.0.last_mut() else { panic!("{name} runs nothing") };
        *id = Some(name.to_owned());
        self
    }

    /// It runs in this layer.
    pub fn layer(mut self, number: u8) -> Self {
        let Some(Step::Run { layer, .. }) = self.0.last_mut() else { panic!("nothing is run") };
        *layer = Some(number);
        self
    }

    /// It stays: the next step begins when it has printed a line.
    pub fn stay(mut self) -> Self {
        let Some(Step::Run { stay, .. }) = self.0.last_mut() else { panic!("nothing is run") };
        *stay = true;
        self
    }

    /// The stressors are at work meanwhile.
    pub fn stressed(mut self) -> Self {
        let Some(Step::Run { stress, .. }) = self.0.last_mut() else { panic!("nothing is run") };
        *stress = true;
        self
    }

    /// It may take so many seconds.
    pub fn limit(mut self, seconds: u64) -> Self {
        let Some(Step::Run { limit, .. } | Step::Guest { limit, .. }) = self.0.last_mut() else {
            panic!("nothing is run")
        };
        *limit = seconds;
        self
    }

    /// The guest has a guest of its own with so much memory, and the program is in that one.
    pub fn nested(mut self, memory: Memory) -> Self {
        let Some(Step::Guest { nested, .. }) = self.0.last_mut() else { panic!("no guest") };
        *nested = Some(memory);
        self
    }

    /// The guest's VMM is killed after so many seconds.
    pub fn die(mut self, seconds: f64) -> Self {
        let Some(Step::Guest { die, .. }) = self.0.last_mut() else { panic!("no guest") };
        *die = Some(seconds);
        self
    }
}

/// The lab's kernel without code of ours.
pub const VANILLA: Kernel = Kernel::Lab(KernelVariant::Vanilla);

/// A layer with so many MiB of memory and this mode of transparent huge pages.
pub fn layer(kernel: Kernel, mib: u64, thp: &str) -> Layer {
    let mut layer = Layer::new(kernel, Memory::mib(mib));
    layer.thp = Some(thp.to_owned());
    layer
}

/// Gives KVM of a layer these parameters.
pub fn kvm(layer: &mut Layer, parameters: &str) {
    layer.modules.insert("kvm".to_owned(), parameters.to_owned());
}

/// Two layers of the lab's kernel.
pub fn two_layers() -> Scene {
    Scene::new("Two layers", vec![layer(VANILLA, 1200, "always"), layer(VANILLA, 400, "always")])
}

/// Three layers: L0's kernel and the parameters of its KVM, and the huge pages of L1 and L2.
pub fn three_layers(kernel: KernelVariant, parameters: &str, [l1_thp, l2_thp]: [&str; 2]) -> Scene {
    let l0 = layer(Kernel::Lab(kernel), 3000, "always");
    let layers = vec![l0, layer(Kernel::Debian, 1900, l1_thp), layer(VANILLA, 600, l2_thp)];
    Scene::new("Three layers", layers).layer(0, |l0| {
        l0.parameters = "loglevel=5".to_owned();
        kvm(l0, parameters);
    })
}

/// What a run's step of this name did.
pub fn step<'a>(report: &'a LabReport, id: &str) -> &'a StepReport {
    let found = report.steps.iter().find(|step| step.id.as_deref() == Some(id));
    found.unwrap_or_else(|| panic!("no step is called {id}: {:?}", report.steps))
}

/// The numbers that it printed, one a line.
pub fn numbers(report: &LabReport, id: &str) -> Vec<i64> {
    step(report, id).output.iter().map(|line| line.trim().parse().unwrap()).collect()
}

/// The counts that it printed as `FILE:COUNT`, one a line.
pub fn counts<'a>(report: &'a LabReport, id: &str) -> Vec<(&'a str, u64)> {
    let lines = step(report, id).output.iter().map(|line| line.rsplit_once(':').unwrap());
    lines.map(|(file, count)| (file, count.trim().parse().unwrap())).collect()
}
