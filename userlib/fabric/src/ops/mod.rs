//! The calls of an endpoint, as C makes them.

pub(crate) mod atomic;
pub(crate) mod endpoint;
mod message;
mod rma;
mod tagged;
