//! Switches `cfg(loom)` on for this package alone: no flags for the compiler, and no build of everything else with
//! them.

fn main() {
    println!("cargo::rustc-cfg=loom");
    println!("cargo::rerun-if-changed=build.rs");
}
