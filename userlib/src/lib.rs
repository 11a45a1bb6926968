//! NetVM's user library: write, read and notify remote memory without a system call and without
//! pinning a page.

pub mod backend;
pub mod copy;
mod error;
mod export;
mod failure;
mod fence;
mod fragment;
mod import;
mod node;
mod notify;
mod port;
mod poster;
mod posting;
mod ranges;
mod read;
mod region;
mod replies;
mod staging;
mod stats;
mod timeout;
mod words;
mod write;

pub use error::{Error, Failure, Result, explain};
pub use export::{Access, Segment};
pub use import::RemoteSegment;
pub use netvm_abi as abi;
pub use netvm_abi::control::Modes;
pub use netvm_abi::{Nanos, NodeId, NotificationId, OpId, PortId, Status, VirtAddr};
pub use node::Node;
pub use notify::{Next, Notification, NotificationQueue, Ready};
pub use port::{Port, PortConfig};
pub use read::{Read, Target};
pub use region::{Region, RegionSlice, Word32, Word64};
pub use stats::PortStats;
pub use timeout::Timeout;
pub use write::{Source, Write};
