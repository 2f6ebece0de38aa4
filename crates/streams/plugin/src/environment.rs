//! The program's variables under their true names: some came under false ones, so that they would
//! not act on the emulator (`strata_wire::Emulator::command`).
//!
//! ```text
//! low   argc | argv pointers | envp pointers | auxiliary vector | ... | strings   top of stack
//!                              pointer ------------------------------> STRATA_HELD_3=LD_DEBUG=all
//!                              becomes ---------------------------------------------^
//! ```

use strata_addr::{Range, space::Virtual};

const PAGE: u64 = 4096;

/// The words of the initial stack to be changed: address and new value. `read` reads memory.
pub fn corrections(
    stack: Range<Virtual>,
    read: impl Fn(u64, &mut [u8]) -> Option<()>,
) -> Vec<(u64, u64)> {
    let (start, content) = used_part(stack, read);
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    content
        .chunks_exact(8)
        .enumerate()
        .filter_map(|(index, bytes)| {
            let pointer = word(bytes);
            let at = pointer.checked_sub(start)? as usize;
            let skipped = strata_wire::false_name(content.get(at..)?)?;
            Some((start + 8 * index as u64, pointer + skipped as u64))
        })
        .collect()
}

/// The upper part of the stack that is in use at the start; all below is zero.
fn used_part(stack: Range<Virtual>, read: impl Fn(u64, &mut [u8]) -> Option<()>) -> (u64, Vec<u8>) {
    let (mut start, mut pages) = (stack.end.get(), Vec::new());
    while start > stack.start.get() {
        let mut page = vec![0; PAGE as usize];
        if read(start - PAGE, &mut page).is_none() || page.iter().all(|&byte| byte == 0) {
            break;
        }
        start -= PAGE;
        pages.push(page);
    }
    pages.reverse();
    (start, pages.concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_addr::Gva;

    #[test]
    fn only_pointers_to_false_names_are_corrected() {
        let base = 0x4000_0000u64;
        let mut memory = vec![0u8; 3 * PAGE as usize];
        let strings = b"A=1\0STRATA_HELD_0=LD_DEBUG=x\0STRATA_HELD_x\0";
        let at = 2 * PAGE as usize + 100;
        memory[at..at + strings.len()].copy_from_slice(strings);
        let address = base + at as u64;
        for (index, pointer) in [address, address + 4, address + 33, 5].into_iter().enumerate() {
            let word = PAGE as usize + 8 * index;
            memory[word..word + 8].copy_from_slice(&pointer.to_le_bytes());
        }
        let read = |from: u64, out: &mut [u8]| {
            let from = (from - base) as usize;
            out.copy_from_slice(&memory[from..from + out.len()]);
            Some(())
        };
        let stack = Range::sized(Gva::new(base), memory.len() as u64);
        assert_eq!(corrections(stack, read), [(base + PAGE + 8, address + 4 + 14)]);
    }
}
