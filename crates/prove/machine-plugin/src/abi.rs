//! The emulator's side: entry point and callbacks. The crate's room for `unsafe`.

use crate::recorder::{Amount, Recorder};
use crate::windows::Windows;
use qemu_plugin_sys::*;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use strata_emulator::{Arguments, instructions_counted, shape};
use strata_stream::Access;
use strata_wire::machine::{ARM_AT, MARK_AT, MARK_BYTES, PATIENCE_SECONDS};

/// The interface version the emulator asks for before it installs the plugin.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = QEMU_PLUGIN_VERSION as c_int;

struct Plugin {
    id: qemu_plugin_id_t,
    windows: Windows,
    recorder: Mutex<Recorder>,
}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();

/// Instructions of user code, of whichever layer, since code is instrumented. The emulator itself
/// adds, without atomicity: right with one vCPU.
static INSTRUCTIONS: AtomicU64 = AtomicU64::new(0);

/// First address that no user code has with 4-level paging
/// (Documentation/arch/x86/x86_64/mm.rst).
const USER_END: u64 = 1 << 47;

fn plugin() -> &'static Plugin {
    PLUGIN.get().expect("callbacks are registered after the plugin was set up")
}

impl Plugin {
    /// While the recorder is held, a frozen machine's other vCPUs wait here too.
    fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// ---- per access ----

/// One callback for both directions: where code is generated inline, QEMU 7.2 takes loads for
/// stores and stores for both when it chooses among callbacks by direction.
unsafe extern "C" fn on_access(vcpu: c_uint, info: qemu_plugin_meminfo_t, at: u64, _: *mut c_void) {
    let is_mark = at.wrapping_sub(MARK_AT) < MARK_BYTES;
    if is_mark | plugin().windows.contains(at) {
        seen(vcpu, info, at, is_mark);
    }
}

#[inline(never)]
fn seen(vcpu: c_uint, info: qemu_plugin_meminfo_t, at: u64, is_mark: bool) {
    let plugin = plugin();
    let shape = shape(info);
    let mut recorder = plugin.recorder();
    let instructions = INSTRUCTIONS.load(Relaxed);
    if is_mark {
        if shape.is_store() {
            recorder.mark(at, instructions);
        }
        return;
    }
    let mut record = |word| {
        let place = || place(info, at);
        recorder.access(Access::from_bits(word), vcpu, instructions, place);
    };
    if shape.is_twice() {
        record(shape.load_at(at));
    }
    record(shape.at(at));
}

/// Where in the machine's RAM the access that is being told of is.
fn place(info: qemu_plugin_meminfo_t, at: u64) -> Option<u64> {
    // SAFETY: within the callback of this very access, the emulator's TLB has its page.
    unsafe {
        let place = qemu_plugin_get_hwaddr(info, at);
        (!place.is_null() && !qemu_plugin_hwaddr_is_io(place))
            .then(|| qemu_plugin_hwaddr_phys_addr(place))
    }
}

// ---- per translation ----

/// Nothing is instrumented: only looks whether the program asks to be watched.
unsafe extern "C" fn on_plain_translation(_: qemu_plugin_id_t, block: *mut qemu_plugin_tb) {
    // SAFETY: `block` is valid during this callback.
    let at = unsafe { qemu_plugin_tb_vaddr(block) };
    if at.wrapping_sub(ARM_AT) < MARK_BYTES && plugin().recorder().has_reader() {
        // SAFETY: called on a vCPU's thread, as the emulator demands; it drops all translations
        // when no vCPU runs, and calls back.
        unsafe { qemu_plugin_reset(plugin().id, Some(on_armed)) };
    }
}

unsafe extern "C" fn on_watched_translation(_: qemu_plugin_id_t, block: *mut qemu_plugin_tb) {
    // SAFETY: `block` and its instructions are valid during this callback.
    unsafe {
        if qemu_plugin_tb_vaddr(block) >= USER_END {
            return;
        }
        let count = instructions_counted(block);
        if count > 0 {
            qemu_plugin_register_vcpu_tb_exec_inline(
                block,
                qemu_plugin_op::QEMU_PLUGIN_INLINE_ADD_U64,
                INSTRUCTIONS.as_ptr().cast(),
                count as u64,
            );
        }
        for index in 0..qemu_plugin_tb_n_insns(block) {
            qemu_plugin_register_vcpu_mem_cb(
                qemu_plugin_tb_get_insn(block, index),
                Some(on_access),
                qemu_plugin_cb_flags::QEMU_PLUGIN_CB_NO_REGS,
                qemu_plugin_mem_rw::QEMU_PLUGIN_MEM_RW,
                ptr::null_mut(),
            );
        }
    }
}

unsafe extern "C" fn on_armed(id: qemu_plugin_id_t) {
    // SAFETY: the callback has the type the emulator expects.
    unsafe { qemu_plugin_register_vcpu_tb_trans_cb(id, Some(on_watched_translation)) };
    plugin().recorder().armed();
}

// ---- the start ----

/// Called by the emulator after loading the plugin, before the machine exists.
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
    let plugin = match set_up(id, &arguments) {
        Ok(plugin) => plugin,
        Err(reason) => {
            eprintln!("strata: {reason}");
            return 1;
        }
    };
    PLUGIN.get_or_init(|| plugin);
    if arguments.bytes("arm") == Some(b"start") {
        // SAFETY: as when the emulator calls it; no vCPU runs yet.
        unsafe { on_armed(id) };
    } else {
        // SAFETY: the callback has the type the emulator expects.
        unsafe { qemu_plugin_register_vcpu_tb_trans_cb(id, Some(on_plain_translation)) };
    }
    0
}

fn set_up(id: qemu_plugin_id_t, arguments: &Arguments) -> Result<Plugin, String> {
    let windows = Windows::parse(arguments.texts("window"))?;
    let socket = arguments.path("socket")?;
    let amount =
        Amount { limit: arguments.number("limit"), skip: arguments.number("skip").unwrap_or(0) };
    if amount.limit == Some(0) {
        return Err("limit=0 records nothing; leave it out or give a number".to_owned());
    }
    let patience =
        Duration::from_secs(arguments.number("patience").unwrap_or(PATIENCE_SECONDS).max(1));
    let recorder = Recorder::connect(&socket, amount, patience).map_err(|error| {
        format!("{}: {error}; start the reader before the machine", socket.display())
    })?;
    Ok(Plugin { id, windows, recorder: Mutex::new(recorder) })
}
