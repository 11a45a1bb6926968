//! How much a test does. What it finds is found with more cases, and a person who waits for it wants few.

/// Whether a variable is set, and neither empty nor 0.
fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0")
}

/// Whether all of its cases are wanted: in an optimised build, and by `cargo xtask test`. A build without optimisation is ten times
/// as slow, and makes a small part of them.
#[must_use]
pub fn is_whole() -> bool {
    !cfg!(debug_assertions) || is_set("NETVM_WHOLE")
}

/// Whether the versions are wanted that take minutes: `cargo xtask test --long`.
#[must_use]
pub fn is_long() -> bool {
    is_set("NETVM_LONG")
}
