//! Instructions of a translated block.

use qemu_plugin_sys::*;

/// How many instructions one execution of a block retires.
///
/// The emulator runs each repetition of a string instruction after the first as a block of its
/// own, but it is one instruction; such blocks count as none.
///
/// # Safety
/// `block` is valid and not empty: called from a translation callback.
pub unsafe fn instructions_counted(block: *mut qemu_plugin_tb) -> usize {
    // SAFETY: by contract.
    unsafe {
        match qemu_plugin_tb_n_insns(block) {
            1 if repeats(block) => 0,
            count => count,
        }
    }
}

/// Whether a block's first instruction is a string instruction with a repeat prefix.
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
pub fn is_repeated_string(bytes: &[u8]) -> bool {
    let is_prefix = |byte: &&u8| matches!(byte, 0x66 | 0x67 | 0xf2 | 0xf3 | 0x40..=0x4f);
    let prefixes = bytes.iter().take_while(is_prefix).count();
    let repeat = bytes[..prefixes].iter().any(|byte| matches!(byte, 0xf2 | 0xf3));
    repeat && matches!(bytes.get(prefixes), Some(0x6c..=0x6f | 0xa4..=0xa7 | 0xaa..=0xaf))
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
