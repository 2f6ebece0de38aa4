//! The emulator's side: entry point, callbacks, the per-access path. One of the crate's rooms for
//! `unsafe`.

use crate::calls::Call;
use crate::process::Process;
use crate::slots::{MAX_THREADS, SERIAL_INSTRUCTIONS, SLOTS};
use crate::{counting, death, environment, guest, image, observation, sampling, switch};
use qemu_plugin_sys::*;
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::*};
use strata_addr::{Gva, Range, space::Virtual};
use strata_emulator::{Arguments, instructions_counted, may_jump_back, shape};
use strata_stream::{Backing, Pid, Tid};
use strata_wire::{Emulator, Wire};

/// The interface version the emulator asks for before it installs the plugin.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = QEMU_PLUGIN_VERSION as c_int;

/// What the emulator calls this plugin.
static ID: OnceLock<qemu_plugin_id_t> = OnceLock::new();

static PROCESS: OnceLock<Box<Process>> = OnceLock::new();

// ---- per access ----

/// A load, a store or both. One callback for both directions: where code is generated inline, QEMU
/// 7.2 takes loads for stores and stores for both when it chooses among callbacks by direction.
unsafe extern "C" fn on_access(vcpu: c_uint, info: qemu_plugin_meminfo_t, at: u64, _: *mut c_void) {
    let shape = shape(info);
    if shape.is_twice() {
        record(vcpu, shape.load_at(at));
    }
    record(vcpu, shape.at(at));
}

#[inline(always)]
fn record(vcpu: c_uint, word: u64) {
    let slot = SLOTS[vcpu as usize % MAX_THREADS].load(Relaxed);
    // SAFETY: a vCPU that runs code has a slot, which only it fills; whenever that is full it is
    // replaced at once.
    if unsafe { (*slot).push(word) } {
        full(vcpu);
    }
}

#[cold]
fn full(vcpu: c_uint) {
    process().hand_over(vcpu);
}

/// Counts a translated block's instructions for its thread; `count` is a number, no address.
unsafe extern "C" fn on_block(vcpu: c_uint, count: *mut c_void) {
    let slot = SLOTS[vcpu as usize % MAX_THREADS].load(Relaxed);
    // SAFETY: as for `record`.
    unsafe { (*slot).retire(count as u64) };
}

/// The same in a sampled stream, where it may be time for an edge.
unsafe extern "C" fn on_sampled_block(vcpu: c_uint, count: *mut c_void) {
    // SAFETY: as for `on_block`.
    unsafe { on_block(vcpu, count) };
    process().look_as_one_of_many(vcpu, count as u64);
}

/// The same where blocks are counted; `block` is a bucket and a number of instructions.
unsafe extern "C" fn on_counted_block(vcpu: c_uint, block: *mut c_void) {
    let (bucket, count) = (block as u64 >> 32, block as u64 & u64::from(u32::MAX));
    counting::count(bucket as usize).fetch_add(count, Relaxed);
    // SAFETY: as for `on_block`.
    unsafe { on_sampled_block(vcpu, ptr::without_provenance_mut(count as usize)) };
}

/// A block of a lone thread, where it may be time for an edge of a sampled stream.
unsafe extern "C" fn on_look(vcpu: c_uint, _: *mut c_void) {
    if sampling::is_look_due() {
        process().look(vcpu, 0);
    }
}

// ---- per translation ----

unsafe extern "C" fn on_translation(_: qemu_plugin_id_t, block: *mut qemu_plugin_tb) {
    static LOADED: AtomicBool = AtomicBool::new(false);
    if !LOADED.swap(true, Relaxed) {
        program_loaded();
    }
    // SAFETY: `block` and its instructions are valid during this callback.
    unsafe {
        let length = qemu_plugin_tb_n_insns(block);
        count_instructions(block);
        if let (false, Some(range)) = (counting::is_counting(), pages_of(block)) {
            process().fetches(range);
        }
        if sampling::is_sampled() {
            look_at_clock(block);
            if counting::is_counting() || !switch::observes() {
                return;
            }
        }
        for index in 0..length {
            let instruction = qemu_plugin_tb_get_insn(block, index);
            let flags = qemu_plugin_cb_flags::QEMU_PLUGIN_CB_NO_REGS;
            qemu_plugin_register_vcpu_mem_cb(
                instruction,
                Some(on_access),
                flags,
                qemu_plugin_mem_rw::QEMU_PLUGIN_MEM_RW,
                ptr::null_mut(),
            );
        }
    }
}

/// The pages of a block's instructions.
///
/// # Safety
/// `block` is valid.
unsafe fn pages_of(block: *mut qemu_plugin_tb) -> Option<Range<Virtual>> {
    // SAFETY: by contract; the last instruction is one of the block's.
    let (first, last) = unsafe {
        let last = qemu_plugin_tb_n_insns(block).checked_sub(1)?;
        let instruction = qemu_plugin_tb_get_insn(block, last);
        let bytes = qemu_plugin_insn_size(instruction) as u64;
        (qemu_plugin_tb_vaddr(block), qemu_plugin_insn_vaddr(instruction) + bytes.max(1) - 1)
    };
    let (first, last) = (Gva::new(first), Gva::new(last));
    Some(Range::new(first.page().addr(), (last.page() + 1).addr()))
}

/// Inline addition spares a call for each block (a tenth of a whole capture of sqlite3), but all
/// vCPUs would add to one word without atomicity. So it serves while there is one thread; when a second is about to start, the
/// emulator itself discards all translated code, and what is translated then calls.
///
/// # Safety
/// `block` is valid.
unsafe fn count_instructions(block: *mut qemu_plugin_tb) {
    // SAFETY: by contract; the counter is a static, and the emulator's additions to it race with
    // nothing as long as there is one thread.
    unsafe {
        let count = instructions_counted(block);
        if count == 0 {
        } else if process().is_parallel() {
            let flags = qemu_plugin_cb_flags::QEMU_PLUGIN_CB_NO_REGS;
            let (each, told): (qemu_plugin_vcpu_udata_cb_t, usize) = match bucket_of(block) {
                Some(bucket) => (Some(on_counted_block), bucket << 32 | count),
                None if sampling::is_sampled() => (Some(on_sampled_block), count),
                None => (Some(on_block), count),
            };
            let told = ptr::without_provenance_mut(told);
            qemu_plugin_register_vcpu_tb_exec_cb(block, each, flags, told);
        } else {
            if let Some(bucket) = bucket_of(block) {
                qemu_plugin_register_vcpu_tb_exec_inline(
                    block,
                    qemu_plugin_op::QEMU_PLUGIN_INLINE_ADD_U64,
                    counting::count(bucket).as_ptr().cast(),
                    count as u64,
                );
            }
            qemu_plugin_register_vcpu_tb_exec_inline(
                block,
                qemu_plugin_op::QEMU_PLUGIN_INLINE_ADD_U64,
                SERIAL_INSTRUCTIONS.as_ptr().cast(),
                count as u64,
            );
        }
    }
}

/// The bucket that a block is counted in, if blocks are.
///
/// # Safety
/// `block` is valid.
unsafe fn bucket_of(block: *mut qemu_plugin_tb) -> Option<usize> {
    // SAFETY: by contract.
    counting::is_counting().then(|| counting::bucket_at(unsafe { qemu_plugin_tb_vaddr(block) }))
}

/// Lets a lone thread look at the clock of a sampled stream: where accesses are observed, in every block;
/// in a gap in those that no loop and no recursion can do without, which are those that may jump back.
///
/// # Safety
/// `block` is valid.
unsafe fn look_at_clock(block: *mut qemu_plugin_tb) {
    // SAFETY: by contract.
    unsafe {
        if !process().is_parallel() && (switch::observes() || may_jump_back(block)) {
            let flags = qemu_plugin_cb_flags::QEMU_PLUGIN_CB_NO_REGS;
            qemu_plugin_register_vcpu_tb_exec_cb(block, Some(on_look), flags, ptr::null_mut());
        }
    }
}

/// Makes the emulator drop what it has translated and translate anew without observation, as soon as
/// no thread runs translated code.
fn stop_observing() {
    let id = *ID.get().expect("set when the plugin was installed");
    // SAFETY: called on a vCPU's thread, as the emulator demands.
    unsafe { qemu_plugin_reset(id, Some(on_unobserved)) };
}

/// All callbacks are gone. Those on system calls return: calls under way hold the process's lock.
unsafe extern "C" fn on_unobserved(id: qemu_plugin_id_t) {
    // SAFETY: the callbacks have the types the emulator expects.
    unsafe {
        qemu_plugin_register_vcpu_syscall_cb(id, Some(on_call));
        qemu_plugin_register_vcpu_syscall_ret_cb(id, Some(on_return));
    }
    observation::has_ended();
}

// ---- everything else ----

fn process() -> &'static Process {
    PROCESS.get().expect("callbacks are registered after the process was set up")
}

fn when_alone(number: usize) {
    process().switch(number);
}

fn before_death() {
    if let Some(process) = PROCESS.get() {
        process.dies();
    }
}

fn program_loaded() {
    let mappings = image::mappings(&image::own_rows(), image::own_floor(), guest::read);
    for stack in mappings.iter().filter(|mapping| mapping.backing == Backing::Stack) {
        for (address, word) in environment::corrections(stack.range, guest::read) {
            guest::write_word(address, word);
        }
    }
    // SAFETY: yields a string that is never freed, or null.
    let path = unsafe { qemu_plugin_path_to_binary() };
    let path = (!path.is_null()).then(|| {
        // SAFETY: not null, zero-terminated.
        PathBuf::from(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()))
    });
    if let Some(path) = &path {
        counting::set_program(path.as_os_str().as_bytes());
    }
    // The first thread is vCPU 0.
    process().program_loaded(0, path, mappings);
    silence_emulator();
}

/// Sends what the emulator itself would print to nowhere: it announces the program's death by
/// signal on the program's own standard error. A memory stream takes no file descriptor, which
/// the program could notice.
fn silence_emulator() {
    unsafe extern "C" {
        static mut stderr: *mut libc::FILE;
    }
    // SAFETY: the C library lets the variable be assigned; no other thread runs yet.
    unsafe {
        let sink = libc::fmemopen(ptr::null_mut(), 4096, c"w".as_ptr());
        if !sink.is_null() {
            stderr = sink;
        }
    }
}

unsafe extern "C" fn on_vcpu_init(_: qemu_plugin_id_t, vcpu: c_uint) {
    assert!((vcpu as usize) < MAX_THREADS, "more than {MAX_THREADS} threads in one process");
    process().thread_starts(vcpu);
}

unsafe extern "C" fn on_vcpu_exit(_: qemu_plugin_id_t, vcpu: c_uint) {
    process().thread_ends(vcpu);
}

unsafe extern "C" fn on_exit(_: qemu_plugin_id_t, _: *mut c_void) {
    process().ends();
}

unsafe extern "C" fn on_call(
    _: qemu_plugin_id_t,
    vcpu: c_uint,
    number: i64,
    a1: u64,
    a2: u64,
    a3: u64,
    a4: u64,
    a5: u64,
    a6: u64,
    _: u64,
    _: u64,
) {
    process().call_starts(vcpu, Call { number, args: [a1, a2, a3, a4, a5, a6] });
}

unsafe extern "C" fn on_return(_: qemu_plugin_id_t, vcpu: c_uint, _: i64, result: i64) {
    process().call_ends(vcpu, result);
}

/// Called by the emulator after loading the plugin, before it loads the program.
///
/// # Safety
/// The emulator's: `argv` holds `argc` strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: qemu_plugin_id_t,
    _: *const qemu_info_t,
    argc: c_int,
    argv: *mut *mut c_char,
) -> c_int {
    // SAFETY: by contract.
    let arguments = unsafe { Arguments::new(argc, argv) };
    let process = match set_up(&arguments) {
        Ok(process) => process,
        Err(reason) => {
            eprintln!("strata: {reason}");
            return 1;
        }
    };
    ID.get_or_init(|| id);
    image::note_before();
    switch::call(when_alone);
    death::call(before_death);
    if let Some(name) = arguments.bytes("name") {
        guest::set_name(OsStr::from_bytes(name));
    }
    PROCESS.get_or_init(|| process);
    // SAFETY: the callbacks have the types the emulator expects.
    unsafe {
        qemu_plugin_register_vcpu_init_cb(id, Some(on_vcpu_init));
        qemu_plugin_register_vcpu_exit_cb(id, Some(on_vcpu_exit));
        qemu_plugin_register_vcpu_tb_trans_cb(id, Some(on_translation));
        qemu_plugin_register_vcpu_syscall_cb(id, Some(on_call));
        qemu_plugin_register_vcpu_syscall_ret_cb(id, Some(on_return));
        qemu_plugin_register_atexit_cb(id, Some(on_exit), ptr::null_mut());
    }
    0
}

fn set_up(arguments: &Arguments) -> Result<Box<Process>, String> {
    let path = |name| arguments.path(name);
    let emulator = Emulator { qemu: path("qemu")?, plugin: path("plugin")?, wire: path("wire")? };
    let wire = fs::File::options()
        .read(true)
        .write(true)
        .open(&emulator.wire)
        .and_then(|file| Wire::open(&file))
        .map_err(|error| format!("{}: {error}", emulator.wire.display()))?;
    let caller = match (arguments.number("pid"), arguments.number("tid"), arguments.number("image"))
    {
        (Some(pid), Some(tid), Some(image)) => Some((Pid(pid), Tid(tid), image)),
        _ => None,
    };
    if (wire.sampling().is_some() || wire.counting().is_some()) && !switch::is_possible() {
        return Err(format!(
            "{}: this emulator does not let itself be sampled, as it exports none of its functions; \
             take Debian 12's qemu-user, or leave --sample out",
            emulator.qemu.display()
        ));
    }
    Ok(Process::new(wire, emulator, caller, stop_observing))
}
