//! What the standard library has no name for: whose rights the process has, and CPUID. All unsafe code of the crate
//! is here.

/// Whether this process has the rights of root.
pub fn is_root() -> bool {
    // SAFETY: the call reads one number of this process and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// EAX, EBX, ECX and EDX as the instruction CPUID answers; `None` on processors without it.
pub fn cpuid(leaf: u32, subleaf: u32) -> Option<[u32; 4]> {
    #[cfg(target_arch = "x86_64")]
    {
        // Later compilers call it safe.
        #[allow(unused_unsafe)]
        // SAFETY: every x86-64 processor has the instruction, and it changes nothing.
        let found = unsafe { std::arch::x86_64::__cpuid_count(leaf, subleaf) };
        Some([found.eax, found.ebx, found.ecx, found.edx])
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (leaf, subleaf);
        None
    }
}
