//! Tells the linker where the board's memory is.

fn main() {
    let script = "src/board/qemu_virt/image.ld";
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo:rustc-link-arg-bins=-T{folder}/{script}");
    println!("cargo:rerun-if-changed={script}");
    println!("cargo:rerun-if-changed=build.rs");
}
