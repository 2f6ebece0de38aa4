//! The emulator's side: entry point, callbacks, the per-access path. One of the crate's rooms for
//! `unsafe`.

use crate::calls::Call;
use crate::image::{self, Row};
use crate::process::{MAX_THREADS, Process, SERIAL_INSTRUCTIONS, SLOTS};
use crate::{environment, guest};
use qemu_plugin_sys::*;
use std::ffi::{CStr, OsStr, OsString, c_char, c_int, c_uint, c_void};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use strata_addr::Gva;
use strata_ring::{Emulator, Ring};
use strata_stream::{Access, AccessKind, Backing, Pid, Tid};

/// The interface version the emulator asks for before it installs the plugin.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = QEMU_PLUGIN_VERSION as c_int;

static PROCESS: OnceLock<Box<Process>> = OnceLock::new();

/// Host mappings when the plugin was installed.
static BEFORE: OnceLock<Vec<Row>> = OnceLock::new();

/// Packed kind and size of an access by the emulator's description of it
/// (`qemu_plugin_meminfo_t`), with [`KNOWN`], filled in as descriptions appear: saves calls into
/// the emulator per access.
static SHAPES: [AtomicU64; DESCRIPTIONS] = [const { AtomicU64::new(0) }; DESCRIPTIONS];

/// Descriptions of QEMU 7.2 have 18 bits: 2 of direction above 16 of operation and index.
const DESCRIPTIONS: usize = 1 << DIRECTION_AT << 2;
const DIRECTION_AT: u32 = 16;
/// Bits the packed form leaves unused. `KNOWN` marks an entry of `SHAPES` as filled in, `TWICE` an
/// atomic read-modify-write, described once but a load and a store.
const KNOWN: u64 = 1 << 60;
const TWICE: u64 = 1 << 61;

const STORE: u64 = Access::store(Gva::new(0), 1).bits();

// ---- per access ----

/// A load, a store or both. One callback for both directions: where code is generated inline, QEMU
/// 7.2 takes loads for stores and stores for both when it chooses among callbacks by direction.
unsafe extern "C" fn on_access(vcpu: c_uint, info: qemu_plugin_meminfo_t, at: u64, _: *mut c_void) {
    let known = SHAPES.get(info as usize).map_or(0, |shape| shape.load(Relaxed));
    let shape = if known == 0 { shape_of(info) } else { known };
    let word = shape | Access::load(Gva::new(at), 1).bits();
    if shape & TWICE != 0 {
        record(vcpu, word & !STORE);
    }
    record(vcpu, word);
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
fn shape_of(info: qemu_plugin_meminfo_t) -> u64 {
    // SAFETY: pure functions of their argument.
    let (shift, is_store) =
        unsafe { (qemu_plugin_mem_size_shift(info), qemu_plugin_mem_is_store(info)) };
    let kind = if is_store { AccessKind::Store } else { AccessKind::Load };
    let both = qemu_plugin_mem_rw::QEMU_PLUGIN_MEM_RW as u32;
    let twice = if info >> DIRECTION_AT == both { TWICE } else { 0 };
    let shape = Access::new(kind, Gva::new(0), 1 << shift.min(7)).bits() | KNOWN | twice;
    if let Some(entry) = SHAPES.get(info as usize) {
        entry.store(shape, Relaxed);
    }
    shape
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

// ---- per translation ----

unsafe extern "C" fn on_translation(_: qemu_plugin_id_t, block: *mut qemu_plugin_tb) {
    static LOADED: AtomicBool = AtomicBool::new(false);
    if !LOADED.swap(true, Relaxed) {
        program_loaded();
    }
    // SAFETY: `block` and its instructions are valid during this callback.
    unsafe {
        let length = qemu_plugin_tb_n_insns(block);
        count_instructions(block, length);
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

/// Inline addition spares a call for each block (a tenth of a whole capture of sqlite3), but all
/// vCPUs would add to one word without atomicity. So it serves while there is one thread; when a second is about to start, the
/// emulator itself discards all translated code, and what is translated then calls.
///
/// # Safety
/// `block` is valid.
unsafe fn count_instructions(block: *mut qemu_plugin_tb, length: usize) {
    // SAFETY: by contract; the counter is a static, and the emulator's additions to it race with
    // nothing as long as there is one thread.
    unsafe {
        let count = if length == 1 && repeats(block) { 0 } else { length };
        if count == 0 {
        } else if process().is_parallel() {
            let flags = qemu_plugin_cb_flags::QEMU_PLUGIN_CB_NO_REGS;
            let count = ptr::without_provenance_mut(count);
            qemu_plugin_register_vcpu_tb_exec_cb(block, Some(on_block), flags, count);
        } else {
            qemu_plugin_register_vcpu_tb_exec_inline(
                block,
                qemu_plugin_op::QEMU_PLUGIN_INLINE_ADD_U64,
                SERIAL_INSTRUCTIONS.as_ptr().cast(),
                count as u64,
            );
        }
    }
}

/// Whether a block's first instruction is a string instruction with a repeat prefix. The emulator
/// runs each repetition after the first as a block of its own, but it is one instruction.
///
/// # Safety
/// `block` is valid and not empty.
unsafe fn repeats(block: *mut qemu_plugin_tb) -> bool {
    // SAFETY: by contract; the emulator gives the address and length of the instruction's bytes.
    let bytes = unsafe {
        let instruction = qemu_plugin_tb_get_insn(block, 0);
        let data: *const u8 = qemu_plugin_insn_data(instruction).cast();
        std::slice::from_raw_parts(data, qemu_plugin_insn_size(instruction))
    };
    is_repeated_string(bytes)
}

/// SDM volume 2, REP/REPE/REPNE: a repeat prefix before one of INS, OUTS, MOVS, CMPS, STOS, LODS,
/// SCAS.
fn is_repeated_string(bytes: &[u8]) -> bool {
    let is_prefix = |byte: &&u8| matches!(byte, 0x66 | 0x67 | 0xf2 | 0xf3 | 0x40..=0x4f);
    let prefixes = bytes.iter().take_while(is_prefix).count();
    let repeat = bytes[..prefixes].iter().any(|byte| matches!(byte, 0xf2 | 0xf3));
    repeat && matches!(bytes.get(prefixes), Some(0x6c..=0x6f | 0xa4..=0xa7 | 0xaa..=0xaf))
}

// ---- everything else ----

fn process() -> &'static Process {
    PROCESS.get().expect("callbacks are registered after the process was set up")
}

fn maps() -> Vec<Row> {
    image::rows(&fs::read_to_string("/proc/self/maps").unwrap_or_default())
}

fn program_loaded() {
    let floor = image::floor(BEFORE.get().map_or(&[], Vec::as_slice));
    let mappings = image::mappings(&maps(), floor, guest::read);
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
    let arguments: Vec<_> = (0..argc as usize)
        // SAFETY: by contract.
        .map(|index| unsafe { CStr::from_ptr(*argv.add(index)) }.to_bytes())
        .collect();
    let process = match set_up(&arguments) {
        Ok(process) => process,
        Err(reason) => {
            eprintln!("strata: {reason}");
            return 1;
        }
    };
    BEFORE.get_or_init(maps);
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

fn set_up(arguments: &[&[u8]]) -> Result<Box<Process>, String> {
    let text = |name: &str| {
        let prefix = [name.as_bytes(), b"="].concat();
        arguments.iter().find_map(|argument| argument.strip_prefix(&prefix[..]))
    };
    let path = |name: &str| {
        let bytes = text(name).ok_or_else(|| format!("the plugin needs its argument {name}"))?;
        Ok::<_, String>(PathBuf::from(OsString::from_vec(bytes.to_vec())))
    };
    let number = |name| text(name).and_then(|text| str::from_utf8(text).ok()?.parse().ok());
    let emulator = Emulator { qemu: path("qemu")?, plugin: path("plugin")?, ring: path("ring")? };
    let ring = fs::File::options()
        .read(true)
        .write(true)
        .open(&emulator.ring)
        .and_then(|file| Ring::open(&file))
        .map_err(|error| format!("{}: {error}", emulator.ring.display()))?;
    let caller = match (number("pid"), number("tid"), number("image")) {
        (Some(pid), Some(tid), Some(image)) => Some((Pid(pid), Tid(tid), image)),
        _ => None,
    };
    Ok(Process::new(ring, emulator, caller))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_string_instructions_are_recognised() {
        let yes: [&[u8]; 4] =
            [&[0xf3, 0xa4], &[0xf3, 0x48, 0xab], &[0xf2, 0xae], &[0x66, 0xf3, 0xa5]];
        let no: [&[u8]; 4] = [&[0xa4], &[0xf3, 0x0f, 0x10, 0x00], &[0xf3, 0x90], &[0xf3]];
        assert!(yes.into_iter().all(is_repeated_string));
        assert!(!no.into_iter().any(is_repeated_string));
    }
}
