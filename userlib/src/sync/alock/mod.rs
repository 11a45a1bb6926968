//! A lock for which processes on its own node need no NIC: ALock.

pub mod machine;
