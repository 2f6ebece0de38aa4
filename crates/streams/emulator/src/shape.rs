//! What an access is, from the emulator's description of it.

use qemu_plugin_sys::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use strata_addr::Gva;
use strata_stream::{Access, AccessKind};

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

/// Kind and size of an access, without its address.
#[derive(Clone, Copy, Debug)]
pub struct Shape(u64);

impl Shape {
    /// The packed access of this shape at an address, as [`Access::bits`]; bits that an access
    /// leaves unused may be set.
    #[inline(always)]
    pub const fn at(self, at: u64) -> u64 {
        self.0 | Access::load(Gva::new(at), 1).bits()
    }

    /// The same as a load.
    #[inline(always)]
    pub const fn load_at(self, at: u64) -> u64 {
        self.at(at) & !STORE
    }

    /// Whether it is a load and a store.
    #[inline(always)]
    pub const fn is_twice(self) -> bool {
        self.0 & TWICE != 0
    }

    /// Whether it writes.
    #[inline(always)]
    pub const fn is_store(self) -> bool {
        self.0 & STORE != 0
    }
}

/// The shape of what the emulator describes so.
#[inline(always)]
pub fn shape(info: qemu_plugin_meminfo_t) -> Shape {
    let known = SHAPES.get(info as usize).map_or(0, |shape| shape.load(Relaxed));
    Shape(if known == 0 { shape_of(info) } else { known })
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
