//! The machine's memory.

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use strata_addr::space::HostPhysical;
use strata_addr::{Frame, Hpa};
use strata_paging::ENTRIES;

/// The content of a page, as table entries.
pub type Page = [u64; ENTRIES];

const PAGE_BYTES: usize = 4096;
const FOUR_GIB: u64 = 4 << 30;

/// A physical address space that can be read page by page: the same code reads host physical memory and,
/// through tables, that of guests.
pub trait Pages<L> {
    /// The content of a frame; `None` where there is no memory.
    fn page(&self, frame: Frame<L>) -> Option<Arc<Page>>;
}

/// The whole RAM of a machine.
pub trait Ram: Pages<HostPhysical> {
    /// Shows every page, in the order of their addresses; pages of zeros may be left out.
    ///
    /// # Errors
    /// When memory cannot be read.
    fn scan(&self, visit: &mut dyn FnMut(Frame<HostPhysical>, &Page)) -> io::Result<()>;
}

/// Where a machine's RAM lies in its physical addresses. Devices have the last part of the first
/// 4 GiB; what RAM does not fit below goes on at 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    bytes: u64,
    below_4g: u64,
}

impl Layout {
    /// QEMU's machine `pc` with this much RAM (`hw/i386/pc_piix.c`, `pc_init1`): 3.5 GiB fit below
    /// the hole, and only 3 GiB of more.
    pub const fn pc(bytes: u64) -> Self {
        let below_4g = if bytes >= 0xe000_0000 { 0xc000_0000 } else { bytes };
        Self { bytes, below_4g }
    }

    /// QEMU's machine `q35` (`hw/i386/pc_q35.c`, `pc_q35_init`): 2.75 GiB fit, and only 2 GiB of
    /// more.
    pub const fn q35(bytes: u64) -> Self {
        let below_4g = if bytes >= 0xb000_0000 { 0x8000_0000 } else { bytes };
        Self { bytes, below_4g }
    }

    /// A machine whose RAM's file has each byte at its address: Bochs' with the lab's changes, whose hole
    /// for devices is in the file, too.
    pub const fn flat(bytes: u64) -> Self {
        Self { bytes, below_4g: bytes }
    }

    /// Bytes of RAM.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The address of a byte of RAM, counted from its beginning; `None` past its end.
    pub fn hpa(&self, offset: u64) -> Option<Hpa> {
        let hole = if offset < self.below_4g { 0 } else { FOUR_GIB - self.below_4g };
        (offset < self.bytes).then(|| Hpa::new(offset + hole))
    }

    /// Which byte of RAM is at an address; `None` where there is none.
    pub fn offset(&self, hpa: Hpa) -> Option<u64> {
        let hpa = hpa.get();
        if hpa < self.below_4g {
            return Some(hpa);
        }
        let offset = hpa.checked_sub(FOUR_GIB)? + self.below_4g;
        (offset < self.bytes).then_some(offset)
    }
}

/// RAM in a file (`-object memory-backend-file,share=on`). Keeps the pages it was asked for, so
/// it shows one moment of a machine that stands still.
#[derive(Debug)]
pub struct RamFile {
    file: File,
    layout: Layout,
    kept: RefCell<FxHashMap<Frame<HostPhysical>, Arc<Page>>>,
}

impl RamFile {
    /// Opens the file of a machine's RAM.
    ///
    /// # Errors
    /// When it cannot be opened or is not as long as the layout says.
    pub fn open(path: &Path, layout: Layout) -> io::Result<Self> {
        let file = File::open(path)?;
        if file.metadata()?.len() != layout.bytes {
            let message = "the file is not as long as the machine's RAM";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(Self { file, layout, kept: RefCell::default() })
    }
}

impl RamFile {
    /// Where memory that was ever written begins, from `offset` on: most of a machine's is not,
    /// and the machine stands still while it is read.
    fn data_from(&self, offset: u64) -> io::Result<Option<u64>> {
        let Ok(from) = i64::try_from(offset) else { return Ok(None) };
        match lseek(&self.file, from, Whence::SeekData) {
            Ok(data) => Ok(Some(data.cast_unsigned()).filter(|data| *data < self.layout.bytes)),
            // There is none.
            Err(Errno::ENXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn words(bytes: &[u8]) -> Page {
    let mut page = [0; ENTRIES];
    for (word, bytes) in page.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    }
    page
}

impl Pages<HostPhysical> for RamFile {
    fn page(&self, frame: Frame<HostPhysical>) -> Option<Arc<Page>> {
        if let Some(page) = self.kept.borrow().get(&frame) {
            return Some(page.clone());
        }
        let offset = self.layout.offset(Hpa::new(frame.get().checked_mul(PAGE_BYTES as u64)?))?;
        let mut bytes = [0; PAGE_BYTES];
        self.file.read_exact_at(&mut bytes, offset).ok()?;
        let page = Arc::new(words(&bytes));
        self.kept.borrow_mut().insert(frame, page.clone());
        Some(page)
    }
}

impl Ram for RamFile {
    fn scan(&self, visit: &mut dyn FnMut(Frame<HostPhysical>, &Page)) -> io::Result<()> {
        let mut bytes = vec![0; 1 << 20];
        let mut offset = 0;
        while let Some(data) = self.data_from(offset)? {
            offset = data & !(PAGE_BYTES as u64 - 1);
            let piece = (self.layout.bytes - offset).min(bytes.len() as u64) as usize;
            self.file.read_exact_at(&mut bytes[..piece], offset)?;
            for (page, at) in bytes[..piece].chunks_exact(PAGE_BYTES).zip((offset..).step_by(4096))
            {
                if let Some(hpa) = self.layout.hpa(at)
                    && page.iter().any(|byte| *byte != 0)
                {
                    visit(hpa.page(), &words(page));
                }
            }
            offset += piece as u64;
        }
        Ok(())
    }
}

/// RAM held in this process: for tests, and wherever pages come from elsewhere.
#[derive(Clone, Debug, Default)]
pub struct Image(std::collections::BTreeMap<Frame<HostPhysical>, Arc<Page>>);

impl Image {
    /// The page in a frame, for writing; zeros at first.
    pub fn page_mut(&mut self, frame: Frame<HostPhysical>) -> &mut Page {
        Arc::make_mut(self.0.entry(frame).or_insert_with(|| Arc::new([0; ENTRIES])))
    }
}

impl Pages<HostPhysical> for Image {
    fn page(&self, frame: Frame<HostPhysical>) -> Option<Arc<Page>> {
        self.0.get(&frame).cloned()
    }
}

impl Ram for Image {
    fn scan(&self, visit: &mut dyn FnMut(Frame<HostPhysical>, &Page)) -> io::Result<()> {
        self.0.iter().for_each(|(frame, page)| visit(*frame, page));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    proptest! {
        #[test]
        fn offsets_and_addresses_are_inverse(mib in 1u64..8192, at: u64) {
            for layout in [Layout::pc(mib << 20), Layout::q35(mib << 20)] {
                let offset = at % (mib << 20);
                let hpa = layout.hpa(offset).unwrap();
                prop_assert_eq!(layout.offset(hpa), Some(offset));
                prop_assert!(hpa.get() < 0xe000_0000 || hpa.get() >= FOUR_GIB);
                prop_assert_eq!(layout.hpa(mib << 20), None);
                prop_assert_eq!(layout.offset(Hpa::new(0xe000_0000)), None);
                prop_assert_eq!(layout.offset(Hpa::new(FOUR_GIB + (mib << 20))), None);
            }
        }
    }

    #[test]
    fn a_file_reads_as_it_was_written() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut bytes = vec![0; 3 * PAGE_BYTES];
        bytes[PAGE_BYTES + 8] = 7;
        file.write_all(&bytes).unwrap();
        let ram = RamFile::open(file.path(), Layout::pc(bytes.len() as u64)).unwrap();
        assert_eq!(ram.page(Frame::new(1)).unwrap()[1], 7);
        assert!(ram.page(Frame::new(3)).is_none());
        let mut shown = Vec::new();
        ram.scan(&mut |frame, page| shown.push((frame, page[1]))).unwrap();
        assert_eq!(shown, [(Frame::new(1), 7)]);
        assert!(RamFile::open(file.path(), Layout::pc(4096)).is_err());
    }
}
