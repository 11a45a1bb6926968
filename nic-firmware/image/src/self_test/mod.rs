//! The image's tests of itself, on request at its start.

pub(crate) mod copies;
mod end;
pub(crate) mod instructions;
pub(crate) mod loopback;
pub(crate) mod network;
mod pair;
pub(crate) mod sleep;
pub(crate) mod stuck;
