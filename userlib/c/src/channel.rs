//! Channels: messages from one port to another.

use std::ffi::{c_char, c_int, c_void};

use netvm::{ChannelConfig, ChannelStats, Receiver, ReceiverSet, Sender};
use parking_lot::Mutex;

use crate::argument::{Led, bytes, bytes_mut, fill, flags, out, set, structure, text, timeout, waited};
use crate::call::call;
use crate::fault::{Fault, Result};
use crate::handle::{self, handles};
use crate::memory::netvm_region;
use crate::pending::BUSY;
use crate::port::netvm_port;

/// The sending end of a channel. It serves one thread at a time.
pub struct netvm_sender;
/// The receiving end of a channel. It serves one thread at a time.
pub struct netvm_receiver;
/// Receivers of one port that are waited for together. It serves one thread at a time.
pub struct netvm_receiver_set;

handles! {
    netvm_sender = 9: Mutex<Option<Sender>>;
    netvm_receiver = 10: Mutex<Option<Receiver>>;
    netvm_receiver_set = 11: Mutex<ReceiverSet>;
}

/// Only ports of `node` may join.
pub const NETVM_CHANNEL_NODE: u32 = 1;
/// With NETVM_CHANNEL_NODE: only its port `port` may join.
pub const NETVM_CHANNEL_PORT: u32 = 2;

/// How to open a channel or a shared queue. What is 0 is left to the library.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct netvm_channel_options {
    /// `sizeof(struct netvm_channel_options)`.
    pub size: usize,
    /// Size of the largest message in bytes.
    pub message_bytes: u64,
    /// How many messages may wait or be under way.
    pub capacity: u32,
    /// How many entries the receiver of a channel gives back at a time.
    pub refill: u32,
    /// The event-count notification of the receiver's port that says that a message has come.
    pub notification: u32,
    /// NETVM_CHANNEL_...
    pub flags: u32,
    /// The node that may join, with NETVM_CHANNEL_NODE.
    pub node: u16,
    /// Its port, with NETVM_CHANNEL_PORT.
    pub port: u16,
    /// Not used; 0.
    pub reserved: u32,
}

// SAFETY: integers.
unsafe impl Led for netvm_channel_options {
    const FIRST: usize = 40;
    const ZERO: Self = Self {
        size: 0,
        message_bytes: 0,
        capacity: 0,
        refill: 0,
        notification: 0,
        flags: 0,
        node: 0,
        port: 0,
        reserved: 0,
    };
}

const _: () = assert!(size_of::<netvm_channel_options>() == netvm_channel_options::FIRST);

impl netvm_channel_options {
    /// Reads and checks one of the program.
    ///
    /// # Safety
    /// `from` is NULL or such a structure.
    pub(crate) unsafe fn read(from: *const Self) -> Result<Self> {
        // SAFETY: the caller's.
        let options = unsafe { structure(from) }?;
        let known = NETVM_CHANNEL_NODE | NETVM_CHANNEL_PORT;
        let of_port = flags(options.flags, known)? & known == NETVM_CHANNEL_PORT;
        if options.reserved != 0 || of_port {
            return Err(Fault::argument(
                libc::EINVAL,
                "what is not used of a structure must be 0, and NETVM_CHANNEL_PORT goes with NETVM_CHANNEL_NODE",
            ));
        }
        Ok(options)
    }

    fn config(&self) -> ChannelConfig {
        let mut config = ChannelConfig::default();
        if self.message_bytes > 0 {
            config = config.message_bytes(self.message_bytes);
        }
        if self.capacity > 0 {
            config = config.capacity(self.capacity);
        }
        if self.refill > 0 {
            config = config.refill(self.refill);
        }
        if self.notification > 0 {
            config = config.notification(self.notification);
        }
        if self.flags & NETVM_CHANNEL_PORT != 0 {
            config = config.from_port(self.node.into(), self.port.into());
        } else if self.flags & NETVM_CHANNEL_NODE != 0 {
            config = config.from_node(self.node.into());
        }
        config
    }
}

/// What an end of a channel or of a shared queue is, and has done.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct netvm_channel_info {
    /// `sizeof(struct netvm_channel_info)`.
    pub size: usize,
    /// Size of the largest message in bytes.
    pub message_bytes: u64,
    /// Messages sent or received.
    pub messages: u64,
    /// How often a call found nothing to receive, or no room to send, and waited.
    pub waits: u64,
    /// How often it looked whether the other side still is there.
    pub looks: u64,
    /// Replenishments sent, or found to have come.
    pub replenishments: u64,
    /// Of a sender: messages that the receiver is not known to have taken.
    pub outstanding: u64,
    /// Of a receiver of a shared queue: places whose messages could not be put there.
    pub skipped: u64,
    /// Of a receiver: the notification that says that a message has come.
    pub notification: u32,
    /// Of a receiver of a shared queue: how many messages it has room for.
    pub capacity: u32,
}

// SAFETY: integers.
unsafe impl Led for netvm_channel_info {
    const FIRST: usize = 72;
    const ZERO: Self = Self {
        size: 0,
        message_bytes: 0,
        messages: 0,
        waits: 0,
        looks: 0,
        replenishments: 0,
        outstanding: 0,
        skipped: 0,
        notification: 0,
        capacity: 0,
    };
}

const _: () = assert!(size_of::<netvm_channel_info>() == netvm_channel_info::FIRST);

impl From<ChannelStats> for netvm_channel_info {
    fn from(stats: ChannelStats) -> Self {
        Self {
            messages: stats.messages,
            waits: stats.waits,
            looks: stats.looks,
            replenishments: stats.replenishments,
            ..Self::ZERO
        }
    }
}

/// Works with an end of a channel, if no other thread does, and it is there.
fn with<T, R>(end: &Mutex<Option<T>>, work: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
    let mut end = end.try_lock().ok_or(BUSY)?;
    work(end.as_mut().ok_or(Fault::stale("channel"))?)
}

/// Makes a queue in the port's memory and exports it under this name, for one sender to join. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_receiver_open(
    port: *mut netvm_port,
    name: *const c_char,
    options: *const netvm_channel_options,
    receiver: *mut *mut netvm_receiver,
) -> c_int {
    call(|| {
        let place = out(receiver, "receiver")?;
        // SAFETY: the header asks for such arguments, here and below.
        let (name, options) = unsafe { (text(name, "name")?, netvm_channel_options::read(options)?) };
        let opened = Receiver::open(&*handle::get(port)?, name, options.config())?;
        let made = handle::make(Mutex::new(Some(opened)))?;
        // SAFETY: as above.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Receives a message into a place of `size` bytes. `len` gets its length; it may be NULL. A message that does not fit is lost (-EMSGSIZE).
/// -EPIPE: the sender has left, and everything was received. -ECONNRESET: it has died, or a message was lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_receiver_recv(
    receiver: *mut netvm_receiver,
    into: *mut c_void,
    size: usize,
    len: *mut usize,
    timeout_ns: i64,
) -> c_int {
    call(|| {
        // SAFETY: the header asks for such arguments, here and below.
        let into = unsafe { bytes_mut(into, size, "into") }?;
        let came = with(&*handle::get(receiver)?, |receiver| {
            recv(receiver, into, timeout_ns)
        })?;
        // SAFETY: as above.
        unsafe { set(len, came) };
        Ok(())
    })
}

fn recv(receiver: &mut Receiver, into: &mut [u8], timeout_ns: i64) -> Result<usize> {
    waited(receiver.recv_into(into, timeout(timeout_ns)), timeout_ns)
}

/// The port that has joined as the sender. -ENODATA if none has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_receiver_sender(
    receiver: *mut netvm_receiver,
    node: *mut u16,
    port: *mut u16,
) -> c_int {
    call(|| {
        let joined = with(&*handle::get(receiver)?, |receiver| Ok(receiver.sender()?))?;
        let (from, of) = joined.ok_or(Fault::argument(libc::ENODATA, "no sender has joined the channel"))?;
        // SAFETY: the header asks for such places, or NULL.
        unsafe {
            set(node, from.0);
            set(port, of.0);
        }
        Ok(())
    })
}

/// What the receiver is, and has done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_receiver_get_info(
    receiver: *mut netvm_receiver,
    info: *mut netvm_channel_info,
) -> c_int {
    call(|| {
        let value = with(&*handle::get(receiver)?, |receiver| {
            Ok(netvm_channel_info {
                message_bytes: receiver.message_bytes(),
                notification: receiver.notification().id().0,
                ..receiver.stats().into()
            })
        })?;
        // SAFETY: the header asks for such a structure.
        unsafe { fill(info, &value, "info") }
    })
}

/// Ends a channel: the sender is told, and what was not received is lost. Close it before its port.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_receiver_close(receiver: *mut netvm_receiver) -> c_int {
    call(|| handle::close(receiver))
}

/// Joins the channel of this name at a port, as its only sender. Waits until the channel is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_sender_join(
    port: *mut netvm_port,
    node: u16,
    at: u16,
    name: *const c_char,
    timeout_ns: i64,
    sender: *mut *mut netvm_sender,
) -> c_int {
    call(|| {
        let place = out(sender, "sender")?;
        // SAFETY: the header asks for such arguments, here and below.
        let name = unsafe { text(name, "name") }?;
        let joined = Sender::join(
            &*handle::get(port)?,
            node.into(),
            at.into(),
            name,
            timeout(timeout_ns),
        )?;
        let made = handle::make(Mutex::new(Some(joined)))?;
        // SAFETY: as above.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Sends a message, once there is room for it. Its bytes are copied before the call returns. -EPIPE: the receiver has left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_sender_send(
    sender: *mut netvm_sender,
    from: *const c_void,
    len: usize,
    timeout_ns: i64,
) -> c_int {
    call(|| {
        // SAFETY: the header asks for such memory.
        let from = unsafe { bytes(from, len, "from") }?;
        with(&*handle::get(sender)?, |sender| {
            waited(sender.send(from, timeout(timeout_ns)), timeout_ns)
        })
    })
}

/// The same from a region of the port: transferred from where it is. It must not change before netvm_flush_writes().
#[unsafe(no_mangle)]
pub extern "C" fn netvm_sender_send_region(
    sender: *mut netvm_sender,
    region: *mut netvm_region,
    offset: u64,
    len: usize,
    timeout_ns: i64,
) -> c_int {
    call(|| {
        let part = handle::get(region)?.part(offset, len)?;
        with(&*handle::get(sender)?, |sender| {
            waited(sender.send(&part, timeout(timeout_ns)), timeout_ns)
        })
    })
}

/// Waits until everything that was sent has landed. It may not have been received yet.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_sender_flush(sender: *mut netvm_sender) -> c_int {
    call(|| with(&*handle::get(sender)?, |sender| Ok(sender.flush()?)))
}

/// What the sender is, and has done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_sender_get_info(
    sender: *mut netvm_sender,
    info: *mut netvm_channel_info,
) -> c_int {
    call(|| {
        let value = with(&*handle::get(sender)?, |sender| {
            Ok(netvm_channel_info {
                message_bytes: sender.message_bytes(),
                outstanding: sender.outstanding(),
                ..sender.stats().into()
            })
        })?;
        // SAFETY: the header asks for such a structure.
        unsafe { fill(info, &value, "info") }
    })
}

/// Ends the channel and waits until everything that was sent has landed, with the word that it was all. The handle ends in any case, but
/// with -EBUSY.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_sender_close(sender: *mut netvm_sender) -> c_int {
    call(|| {
        let end = handle::get(sender)?;
        let taken = end.try_lock().ok_or(BUSY)?.take();
        drop(end);
        handle::close(sender)?;
        match taken {
            Some(sender) => Ok(sender.close()?),
            None => Ok(()),
        }
    })
}

/// Makes an empty set for receivers of a port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_receiver_set_open(
    port: *mut netvm_port,
    receivers: *mut *mut netvm_receiver_set,
) -> c_int {
    call(|| {
        let place = out(receivers, "receivers")?;
        let empty = ReceiverSet::new(&*handle::get(port)?);
        let made = handle::make(Mutex::new(empty))?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Moves a receiver into a set. Its handle ends by that, also if it is a receiver of another port, which is refused and closed. `index` gets
/// the number under which the set names it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_receiver_set_add(
    receivers: *mut netvm_receiver_set,
    receiver: *mut netvm_receiver,
    index: *mut usize,
) -> c_int {
    call(|| {
        let place = out(index, "index")?;
        let all = handle::get(receivers)?;
        let mut all = all.try_lock().ok_or(BUSY)?;
        let end = handle::get(receiver)?;
        let taken = end.try_lock().ok_or(BUSY)?.take();
        drop(end);
        handle::close(receiver)?;
        let at = all.add(taken.ok_or(Fault::stale("netvm_receiver"))?)?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(at) };
        Ok(())
    })
}

/// Waits until one of the receivers has a message, or its end, to tell: its next receive will not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_receiver_set_wait(
    receivers: *mut netvm_receiver_set,
    timeout_ns: i64,
    index: *mut usize,
) -> c_int {
    call(|| {
        let place = out(index, "index")?;
        let all = handle::get(receivers)?;
        let mut all = all.try_lock().ok_or(BUSY)?;
        let at = waited(all.wait(timeout(timeout_ns)), timeout_ns)?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(at) };
        Ok(())
    })
}

/// As netvm_receiver_recv(), from the receiver with this number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_receiver_set_recv(
    receivers: *mut netvm_receiver_set,
    index: usize,
    into: *mut c_void,
    size: usize,
    len: *mut usize,
    timeout_ns: i64,
) -> c_int {
    call(|| {
        // SAFETY: the header asks for such arguments, here and below.
        let into = unsafe { bytes_mut(into, size, "into") }?;
        let all = handle::get(receivers)?;
        let mut all = all.try_lock().ok_or(BUSY)?;
        let receiver = all.get_mut(index).ok_or(NOT_THERE)?;
        let came = recv(receiver, into, timeout_ns)?;
        // SAFETY: as above.
        unsafe { set(len, came) };
        Ok(())
    })
}

const NOT_THERE: Fault = Fault::Argument(libc::ENOENT, "the set has no receiver with this number");

/// Takes a receiver out of a set. It gets a handle again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_receiver_set_remove(
    receivers: *mut netvm_receiver_set,
    index: usize,
    receiver: *mut *mut netvm_receiver,
) -> c_int {
    call(|| {
        let place = out(receiver, "receiver")?;
        let all = handle::get(receivers)?;
        let taken = all.try_lock().ok_or(BUSY)?.remove(index);
        let made = handle::make(Mutex::new(Some(taken.ok_or(NOT_THERE)?)))?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Ends a set, and the channels of all its receivers.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_receiver_set_close(receivers: *mut netvm_receiver_set) -> c_int {
    call(|| handle::close(receivers))
}
