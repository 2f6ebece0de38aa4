//! Physical memory of one level, byte by byte: what VMCS regions and VMCBs lie in.

use std::collections::BTreeMap;

/// Bytes of a page, and of a VMCS region or a VMCB.
pub const PAGE: u64 = 4096;

/// Memory. What was never written is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pages: BTreeMap<u64, Box<[u64; (PAGE / 8) as usize]>>,
}

impl Memory {
    /// The eight bytes at an address that is a multiple of eight.
    ///
    /// # Panics
    /// When the address is no multiple of eight.
    pub fn read(&self, address: u64) -> u64 {
        let (page, word) = Self::place(address);
        self.pages.get(&page).map_or(0, |page| page[word])
    }

    /// Writes eight bytes at an address that is a multiple of eight.
    ///
    /// # Panics
    /// When the address is no multiple of eight.
    pub fn write(&mut self, address: u64, value: u64) {
        let (page, word) = Self::place(address);
        let page = self.pages.entry(page);
        page.or_insert_with(|| Box::new([0; (PAGE / 8) as usize]))[word] = value;
    }

    /// The four bytes at an address that is a multiple of four.
    ///
    /// # Panics
    /// When the address is no multiple of four.
    pub fn read_u32(&self, address: u64) -> u32 {
        assert!(address.is_multiple_of(4), "{address:#x}");
        let word = self.read(address & !7);
        (if address & 4 == 0 { word } else { word >> 32 }) as u32
    }

    /// Writes four bytes at an address that is a multiple of four.
    ///
    /// # Panics
    /// When the address is no multiple of four.
    pub fn write_u32(&mut self, address: u64, value: u32) {
        assert!(address.is_multiple_of(4), "{address:#x}");
        let shift = 8 * (address & 4);
        let word = self.read(address & !7) & !(u64::from(u32::MAX) << shift);
        self.write(address & !7, word | u64::from(value) << shift);
    }

    fn place(address: u64) -> (u64, usize) {
        assert!(address.is_multiple_of(8), "{address:#x}");
        (address / PAGE, (address % PAGE / 8) as usize)
    }
}
