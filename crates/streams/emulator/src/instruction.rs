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

/// Whether a block may jump to itself or to what lies before it, or call that. Of all blocks that run again and
/// again one is such a block: returns lead on from a call, and a function that calls itself, or one that calls it,
/// calls what lies before.
///
/// # Safety
/// `block` is valid and not empty: called from a translation callback.
pub unsafe fn may_jump_back(block: *mut qemu_plugin_tb) -> bool {
    // SAFETY: by contract; the emulator gives the address and length of the instruction's bytes.
    unsafe {
        let last = qemu_plugin_tb_get_insn(block, qemu_plugin_tb_n_insns(block) - 1);
        let data: *const u8 = qemu_plugin_insn_data(last).cast();
        let bytes = std::slice::from_raw_parts(data, qemu_plugin_insn_size(last));
        jumps_back(bytes) || is_repeated_string(bytes)
    }
}

/// SDM volume 2, Jcc, JMP, CALL, LOOP, JRCXZ: jumps and calls with a negative distance, and those to an address
/// in a register or in memory.
fn jumps_back(bytes: &[u8]) -> bool {
    let is_prefix =
        |byte: &&u8| matches!(byte, 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf2 | 0xf3 | 0x40..=0x4f);
    let after = &bytes[bytes.iter().take_while(is_prefix).count()..];
    let is_negative = after.last().is_some_and(|byte| *byte >= 0x80);
    match *after {
        [0xeb | 0x70..=0x7f | 0xe0..=0xe3, ..] => is_negative,
        [0xe8 | 0xe9, ..] | [0x0f, 0x80..=0x8f, ..] => is_negative,
        [0xff, operand, ..] => matches!(operand >> 3 & 7, 2 | 4),
        _ => false,
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

    #[test]
    fn jumps_back_are_recognised() {
        let yes: [&[u8]; 9] = [
            &[0xe8, 0, 0, 0, 0xff],
            &[0xff, 0xd0],
            &[0x41, 0xff, 0x55, 0x18],
            &[0x75, 0xf0],
            &[0xeb, 0xfe],
            &[0xe9, 0, 0, 0, 0xff],
            &[0x0f, 0x84, 0, 0xff, 0xff, 0xff],
            &[0x3e, 0xff, 0xe0],
            &[0x41, 0xff, 0x24, 0xc5, 0, 0, 0, 0],
        ];
        let no: [&[u8]; 7] = [
            &[0x75, 0x10],
            &[0xe8, 0, 1, 0, 0],
            &[0xe9, 0, 1, 0, 0],
            &[0xc3],
            &[0xff, 0x30],
            &[0x0f, 0xaf, 0xc0],
            &[0x90],
        ];
        assert!(yes.into_iter().all(jumps_back));
        assert!(!no.into_iter().any(jumps_back));
    }
}
