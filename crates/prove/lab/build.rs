//! Notes that files of the kernel and of the emulator are part of the program: a file that comes or goes builds it anew.

fn main() {
    println!("cargo::rerun-if-changed=../../../linux");
    println!("cargo::rerun-if-changed=../../../emulator");
    println!("cargo::rerun-if-changed=scenarios");
}
