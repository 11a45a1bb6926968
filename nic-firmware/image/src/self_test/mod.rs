//! What the image tests of itself when whoever started it asks for it.

mod end;
mod host;
pub(crate) mod instructions;
pub(crate) mod loopback;
pub(crate) mod network;
mod pair;
pub(crate) mod sleep;

use crate::host::Shared;
