//! Notes that the kernel's files are part of the program: a file that comes or goes builds it anew.

fn main() {
    println!("cargo::rerun-if-changed=../../linux");
    println!("cargo::rerun-if-changed=scenarios");
}
