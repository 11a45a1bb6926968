//! NetVM's user library: write, read and notify remote memory without a system call and without
//! pinning a page.
//!
//! | to | see |
//! |---|---|
//! | open an endpoint on a node | [`Port::open`] |
//! | have memory that the card can reach | [`Port::alloc`], [`Port::adopt`], [`Port::adopt_all`], [`Region`] |
//! | let others use it | [`Port::export`], [`Access`], [`Export`] |
//! | use theirs | [`Port::import`], [`RemoteSegment`] |
//! | ... for a time that ends by itself | [`Export::lend`], [`Port::use_lease`] |
//! | change their words atomically | [`RemoteSegment::word64`], [`RemoteSegment::atomic`] |
//! | write and read | [`RemoteSegment::write`], [`RemoteSegment::read`] |
//! | ... several pieces as one operation | [`Port::write_vector`], [`Port::read_vector`] |
//! | know when it is done here, received there, or landed there | [`Port::flush`], [`Port::flush_received`], [`Port::flush_remote`] |
//! | ... values of a type | [`RemoteArray`], [`RemoteBox`] |
//! | ... without waiting inside of a call | [`Write::try_post`], [`Write::begin`], [`Pending`], [`Port::room`], [`CompletionQueue`], [`Port::begin_import`] |
//! | ... from an event loop of the program's own | [`Port::events`], [`Events`] |
//! | be told | [`Notification`], [`NotificationQueue`] |
//! | send and receive messages | [`Sender`], [`Receiver`], [`ReceiverSet`] |
//! | ... as streams and sinks of an asynchronous program | [`Receiver::ready`], [`Sender::ready`]; with the feature `tokio`, `MessageStream`, `SharedStream`, `MessageSink`, `AsyncChannelReader`, `AsyncChannelWriter` |
//! | ... from many to one queue | [`SharedSender`], [`SharedReceiver`] |
//! | take locks, tokens and monitors, also without waiting inside of a call | [`sync`], [`PendingCall`] |
//!
//! A call becomes descriptors in the port's command queue, which lies in the card's memory
//! (`posting.rs`, nearly always by the shorter way of `short.rs`; cut at page boundaries in `fragment.rs`); the card answers in words that the library
//! polls (`fence.rs`, `replies.rs`, `failure.rs`, `notify/`). What differs between the kernel's
//! device, the emulator and the simulator is behind `backend`.
//!
//! Modules that this page does not list are public for the other crates of NetVM alone: `abi`, `backend`, `copy`,
//! `mapped`, `sync::protocol` and `sync::alock::machine`. They may change in any version.
//!
//! The library has no thread, clock or lock of its own across a wait: all three are the back end's.
//! Nothing it is given, by the program or by a card that has gone mad, makes it panic.

mod appends;
mod atomic;
#[doc(hidden)]
pub mod backend;
mod beside;
pub mod channel;
mod collected;
#[cfg(target_os = "linux")]
pub mod device;
mod error;
mod everything;
mod export;
mod failure;
mod fence;
mod fragment;
#[doc(hidden)]
pub mod guarded;
mod import;
mod importing;
mod label;
mod lease;
#[doc(hidden)]
pub mod mapped;
mod node;
mod notify;
mod number;
mod pending;
mod port;
mod poster;
mod posting;
mod ranges;
mod read;
mod region;
mod replies;
mod room;
mod short;
mod staging;
mod stats;
pub mod sync;
mod timeout;
mod typed;
mod vector;
mod words;
mod write;

pub use atomic::{AtomicOp, PendingAtomic, RemoteWord32, RemoteWord64, WordOp};
pub use backend::Refusal;
pub use beside::PendingCall;
#[cfg(feature = "tokio")]
pub use channel::{AsyncChannelReader, AsyncChannelWriter, MessageSink, MessageStream, SharedStream};
pub use channel::{
    ChannelConfig, ChannelReader, ChannelStats, ChannelWriter, Message, MessageReady, Receiver, ReceiverSet,
    RoomReady, Sender, SetReady, SharedConfig, SharedMessage, SharedReady, SharedReceiver, SharedSender,
};
pub use collected::{Completion, CompletionQueue, NextCompletion, Operation};
pub use error::{Error, Failure, Result, explain};
pub use export::{Access, Export};
pub use import::RemoteSegment;
pub use importing::PendingImport;
pub use label::Label;
pub use lease::{LeaseTerms, LeaseToken, Leased, Lent, PendingExtension, TimeLeft};
#[doc(hidden)]
pub use netvm_abi as abi;
pub use netvm_abi::control::Modes;
pub use netvm_abi::value::{ValueOp, ValueType};
pub use netvm_abi::{Nanos, NodeId, NotificationId, OpId, PortId, Status, VirtAddr};
#[doc(hidden)]
pub use netvm_memory::copy;
pub use node::Node;
pub use notify::{Events, NextNotification, Notification, NotificationQueue, NotificationReady, Sleep};
pub use number::{Number, OrderedNumber, RemoteNumber, WholeNumber};
pub use pending::Pending;
pub use port::{Port, PortConfig};
pub use read::{Read, Target};
pub use region::{Region, RegionSlice, Word32, Word64};
pub use room::{Lack, Room};
pub use stats::PortStats;
pub use timeout::Timeout;
pub use typed::{Plain, RemoteArray, RemoteBox};
pub use vector::{ReadVector, WriteVector};
pub use write::{Source, Write};
