//! What the image tests of itself when whoever started it asks for it.

mod host;
pub(crate) mod instructions;
pub(crate) mod loopback;
mod pair;
pub(crate) mod sleep;
