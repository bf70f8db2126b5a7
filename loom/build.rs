//! Enables `cfg(loom)` for this package alone, so that it needs no compiler flags and no separate build of the other
//! packages.

fn main() {
    println!("cargo::rustc-cfg=loom");
    println!("cargo::rerun-if-changed=build.rs");
}
