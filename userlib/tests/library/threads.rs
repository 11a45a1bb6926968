//! What a thread may hand to another, and what several may use at once: held at compile time, since a field that is added somewhere
//! deep changes it without a word.

use netvm::sync::alock::OwnedAsymmetricGuard;
use netvm::sync::{Home, Lock, Monitor, OwnedGuard, OwnedInside, Semaphore, WaitQueue};
use netvm::{
    AtomicOp, CompletionQueue, Error, Events, Export, Failure, Node, Notification, NotificationQueue,
    Pending, PendingAtomic, PendingCall, PendingImport, Port, Read, ReadVector, Receiver, ReceiverSet,
    Region, RegionSlice, RemoteArray, RemoteBox, RemoteSegment, RemoteWord32, RemoteWord64, Room, Sender,
    SetReady, SharedReceiver, SharedSender, Word32, Word64, WordOp, Write, WriteVector,
};
use static_assertions::assert_impl_all;
use std::error::Error as StdError;

assert_impl_all!(Node: Send, Sync);
assert_impl_all!(Port: Send, Sync);
assert_impl_all!(Region: Send, Sync);
assert_impl_all!(Export: Send, Sync);
assert_impl_all!(RemoteSegment: Send, Sync);
assert_impl_all!(RemoteBox<u64>: Send, Sync);
assert_impl_all!(RemoteArray<u64>: Send, Sync);
assert_impl_all!(RemoteWord32: Send, Sync);
assert_impl_all!(RemoteWord64: Send, Sync);
assert_impl_all!(Word32: Send, Sync);
assert_impl_all!(Word64: Send, Sync);
assert_impl_all!(NotificationQueue: Send);
assert_impl_all!(Notification: Send, Sync);
assert_impl_all!(Sender: Send);
assert_impl_all!(Receiver: Send);
assert_impl_all!(ReceiverSet: Send);
#[cfg(feature = "tokio")]
assert_impl_all!(netvm::MessageStream: Send);
#[cfg(feature = "tokio")]
assert_impl_all!(netvm::SharedStream: Send);
#[cfg(feature = "tokio")]
assert_impl_all!(netvm::MessageSink: Send);
#[cfg(feature = "tokio")]
assert_impl_all!(netvm::AsyncChannelReader: Send);
#[cfg(feature = "tokio")]
assert_impl_all!(netvm::AsyncChannelWriter: Send);
assert_impl_all!(SharedSender: Send);
assert_impl_all!(SharedReceiver: Send);
assert_impl_all!(Home: Send, Sync);
assert_impl_all!(Lock: Send, Sync);
assert_impl_all!(Monitor: Send, Sync);
assert_impl_all!(Semaphore: Send, Sync);
assert_impl_all!(WaitQueue: Send, Sync);

// What is being posted, and what is under way: an executor may move them between threads at any await.
assert_impl_all!(Write<'static>: Send);
assert_impl_all!(Read<'static, RegionSlice>: Send);
assert_impl_all!(Read<'static, &'static mut [u8]>: Send);
assert_impl_all!(WriteVector<'static>: Send);
assert_impl_all!(ReadVector<'static, RegionSlice>: Send);
assert_impl_all!(ReadVector<'static, &'static mut [u8]>: Send);
assert_impl_all!(AtomicOp<'static>: Send);
assert_impl_all!(WordOp<'static, u64>: Send);
assert_impl_all!(Pending: Send, Sync);
assert_impl_all!(PendingAtomic: Send, Sync);
assert_impl_all!(PendingImport: Send, Sync);
assert_impl_all!(PendingCall<OwnedGuard>: Send, Sync);
assert_impl_all!(OwnedGuard: Send, Sync);
assert_impl_all!(OwnedInside: Send, Sync);
assert_impl_all!(OwnedAsymmetricGuard: Send, Sync);
assert_impl_all!(SetReady<'static>: Send);
assert_impl_all!(Room: Send);
assert_impl_all!(CompletionQueue<u64>: Send);
assert_impl_all!(Events: Send);

// Errors go where `anyhow` and `?` take them.
assert_impl_all!(Error: StdError, Send, Sync);
assert_impl_all!(Failure: Send, Sync);
