//! What L0 boots from: its kernel in memory, as a loader would have put it there.
//!
//! Bochs can put files into the machine's memory before it starts. So there is no loader, no file
//! system to load from, and no time for it: all that is left is to jump to the kernel's real-mode code
//! (Documentation/arch/x86/boot.rst), which the first sector of the disk does.

use crate::error::{LabError, on};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use strata_line::disk;

/// Where the kernel's real-mode code is, with its stack and its parameters.
const SETUP: u64 = 0x6_0000;
/// Where in that its stack ends, and its heap a little before (`heap_end_ptr`).
const STACK: u16 = 0xe000;
/// Where in that its parameters are.
const PARAMETERS: usize = 0xf000;
/// Bytes of the whole.
const SETUP_BYTES: usize = 0x1_0000;
/// Where the rest of the kernel is.
const KERNEL: u64 = 0x10_0000;
/// Devices have what is from here to 4 GiB; memory goes on there.
const HOLE: u64 = 3 << 30;
/// What the firmware keeps for itself below the end of memory or the hole.
const FIRMWARE: u64 = 2 << 20;
/// Heads and sectors of the disk's geometry, whose cylinders are its size (see [`CYLINDER`]).
pub(super) const HEADS: u64 = 16;
/// See [`HEADS`].
pub(super) const SECTORS: u64 = 63;
/// Bytes of a cylinder.
const CYLINDER: u64 = HEADS * SECTORS * 512;

/// The first sector of the disk, which the firmware starts: jumps to the real-mode code.
const FIRST_SECTOR: [u8; 22] = [
    0xfa, // cli
    0xb8, 0x00, 0x60, // mov ax, 0x6000
    0x8e, 0xd8, // mov ds, ax
    0x8e, 0xc0, // mov es, ax
    0x8e, 0xe0, // mov fs, ax
    0x8e, 0xe8, // mov gs, ax
    0x8e, 0xd0, // mov ss, ax
    0xbc, 0x00, 0xe0, // mov sp, 0xe000
    0xea, 0x00, 0x00, 0x20, 0x60, // jmp 0x6020:0
];

/// Fields of the kernel's header.
const SETUP_SECTORS: usize = 0x1f1;
const MAGIC: usize = 0x202;
const LOADER_TYPE: usize = 0x210;
const FLAGS: usize = 0x211;
const INITRD: usize = 0x218;
const INITRD_BYTES: usize = 0x21c;
const HEAP_END: usize = 0x224;
const PARAMETERS_AT: usize = 0x228;
const INITRD_LAST: usize = 0x22c;
/// Flag: the heap's end is given.
const CAN_USE_HEAP: u8 = 0x80;

/// A file and the address that the machine has it at.
pub(super) type Placed = (PathBuf, u64);

/// Cylinders of the disk.
pub(super) const CYLINDERS: u64 = disk::BYTES.div_ceil(CYLINDER);

/// Writes what is in the machine's memory before it starts into `directory`: a machine with so many
/// bytes of memory boots this kernel with these parameters.
pub(super) fn make(
    (kernel, initrd, parameters): (&Path, &Path, &str),
    memory: u64,
    directory: &Path,
) -> Result<[Placed; 3], LabError> {
    let bytes = on(kernel, fs::read(kernel))?;
    let initrd_bytes = on(initrd, fs::metadata(initrd))?.len();
    let wrong = |reason: String| LabError::Failed {
        what: format!("putting {} into the machine's memory", kernel.display()),
        reason,
    };
    let made = setup(&bytes, parameters, memory.min(HOLE), initrd_bytes).map_err(wrong)?;
    let path = |name: &str| directory.join(name);
    let (setup_at, kernel_at) = (path("l0.setup"), path("l0.kernel"));
    on(&setup_at, fs::write(&setup_at, &made.real))?;
    on(&kernel_at, fs::write(&kernel_at, &bytes[made.rest..]))?;
    Ok([(setup_at, SETUP), (kernel_at, KERNEL), (initrd.to_owned(), made.initrd)])
}

/// Bytes of addresses that so many bytes of memory take: with the hole for devices.
pub(crate) const fn with_hole(memory: u64) -> u64 {
    if memory > HOLE { memory + (4 << 30) - HOLE } else { memory }
}

/// The kernel's real-mode code, ready to run.
#[derive(Debug)]
struct Setup {
    real: Vec<u8>,
    /// Where in the kernel's file the rest begins.
    rest: usize,
    /// Where the initial file system belongs.
    initrd: u64,
}

fn setup(kernel: &[u8], parameters: &str, low: u64, initrd: u64) -> Result<Setup, String> {
    if kernel.get(MAGIC..MAGIC + 4) != Some(b"HdrS") {
        return Err("this is no Linux kernel".into());
    }
    let sectors = match kernel[SETUP_SECTORS] {
        0 => 4,
        sectors => sectors,
    };
    let rest = (usize::from(sectors) + 1) * 512;
    if rest > usize::from(STACK) / 2 || rest > kernel.len() || parameters.len() >= 0x1000 {
        return Err("its real-mode code or its parameters are too long".into());
    }
    let word = |at: usize| u32::from_le_bytes(kernel[at..at + 4].try_into().expect("four bytes"));
    let end = (low - FIRMWARE).min(u64::from(word(INITRD_LAST)) + 1);
    // The kernel unpacks itself below.
    let at = end.checked_sub(initrd).map(|at| at & !0xfff).filter(|at| *at >= low / 4);
    let Some(at) = at else {
        return Err(format!(
            "the layers' files are {} MiB, too much for L0's memory: give it more",
            initrd >> 20
        ));
    };
    let mut real = vec![0; SETUP_BYTES];
    real[..rest].copy_from_slice(&kernel[..rest]);
    // A loader without a number of its own.
    real[LOADER_TYPE] = 0xff;
    real[FLAGS] |= CAN_USE_HEAP;
    let mut put = |at: usize, value: u32| real[at..at + 4].copy_from_slice(&value.to_le_bytes());
    put(INITRD, at as u32);
    put(INITRD_BYTES, initrd as u32);
    put(PARAMETERS_AT, SETUP as u32 + PARAMETERS as u32);
    real[HEAP_END..HEAP_END + 2].copy_from_slice(&(STACK - 0x200).to_le_bytes());
    real[PARAMETERS..PARAMETERS + parameters.len()].copy_from_slice(parameters.as_bytes());
    Ok(Setup { real, rest, initrd: at })
}

/// A disk whose first sector starts the kernel.
pub(super) fn write_disk(path: &Path) -> std::io::Result<()> {
    let file = File::create(path)?;
    file.set_len(CYLINDERS * CYLINDER)?;
    file.write_all_at(&FIRST_SECTOR, 0)?;
    file.write_all_at(&[0x55, 0xaa], 510)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel() -> Vec<u8> {
        let mut kernel = vec![7; 20_000];
        kernel[SETUP_SECTORS] = 11;
        kernel[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        kernel[INITRD_LAST..INITRD_LAST + 4].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
        kernel
    }

    #[test]
    fn everything_is_where_the_kernel_looks_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("kernel"), kernel()).unwrap();
        fs::write(path("initrd"), vec![1; 10_000]).unwrap();
        let memory = 4000 << 20;
        let of = (path("kernel"), path("initrd"));
        let placed = make((&of.0, &of.1, "a=1 b"), memory, directory.path()).unwrap();
        assert_eq!(with_hole(memory), memory + (1 << 30), "as much above the hole as it takes");
        let real = fs::read(&placed[0].0).unwrap();
        let word = |at: usize| u32::from_le_bytes(real[at..at + 4].try_into().unwrap());
        assert_eq!(u64::from(word(INITRD)), placed[2].1);
        assert_eq!(word(INITRD_BYTES), 10_000);
        assert!(placed[2].1 + 10_000 <= 1 << 31 && placed[2].1.is_multiple_of(4096));
        let parameters = &real[(u64::from(word(PARAMETERS_AT)) - SETUP) as usize..];
        assert!(parameters.starts_with(b"a=1 b\0"));
        assert_eq!(fs::read(&placed[1].0).unwrap().len(), 20_000 - 12 * 512);
        let disk = path("disk");
        write_disk(&disk).unwrap();
        let disk = fs::read(&disk).unwrap();
        assert_eq!(disk.len() as u64, CYLINDERS * CYLINDER);
        assert!(disk.len() as u64 >= disk::BYTES && disk[510..512] == [0x55, 0xaa]);
        // The jump goes behind the header of the code that was placed.
        assert_eq!(FIRST_SECTOR[2..4], ((SETUP / 16) as u16).to_le_bytes());
        assert_eq!(FIRST_SECTOR[20..22], ((SETUP / 16) as u16 + 0x20).to_le_bytes()[..]);
        assert_eq!(FIRST_SECTOR[15..17], STACK.to_le_bytes());
    }

    #[test]
    fn what_cannot_boot_is_refused() {
        let of = |kernel: &[u8], initrd| setup(kernel, "", 1 << 30, initrd).unwrap_err();
        assert!(of(&[0; 1024], 1).contains("no Linux kernel"));
        assert!(of(&kernel(), 1 << 30).contains("1024 MiB, too much"));
    }
}
