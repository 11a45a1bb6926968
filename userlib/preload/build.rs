//! Builds the part that is in C.

fn main() {
    println!("cargo::rerun-if-changed=src/calls/print.c");
    cc::Build::new()
        .file("src/calls/print.c")
        .warnings_into_errors(true)
        .compile("netvm_preload_print");
}
