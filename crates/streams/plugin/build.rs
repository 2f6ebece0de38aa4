//! The emulator defines the plugin interface when it loads the plugin. The executables that cargo
//! makes for tests are never loaded by it; they may leave those names open.

fn main() {
    println!("cargo::rustc-link-arg=-Wl,--unresolved-symbols=ignore-all");
    println!("cargo::rerun-if-changed=build.rs");
}
