//! NetVM's user library: write, read and notify remote memory without a system call and without
//! pinning a page.

pub mod backend;
mod node;
mod words;

pub use netvm_abi as abi;
pub use node::Node;
