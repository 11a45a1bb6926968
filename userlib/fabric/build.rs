//! The provider stays mapped once it was loaded: its node's threads may outlive the call that unloads it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
