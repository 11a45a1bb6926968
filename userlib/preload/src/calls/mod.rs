//! The calls of the C library that programs make on sockets.
//!
//! Each looks whether the descriptor is a connection that has moved, or may. If not, which is one load, it makes the real call.

mod bytes;
mod life;
mod ready;
mod streams;

/// Runs before the program does.
extern "C" fn begin() {
    life::inherit();
}

/// Runs when the process ends in an orderly way.
pub(crate) extern "C" fn end() {
    streams::flush_all();
    crate::network::leave();
}

/// What the loader calls when it has loaded the library.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
