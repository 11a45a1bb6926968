//! Shared queues: messages from many ports to one.

use std::ffi::{c_char, c_int, c_void};

use netvm::{SharedConfig, SharedReceiver, SharedSender};
use parking_lot::Mutex;

use crate::argument::{bytes, bytes_mut, fill, out, set, text, timeout, waited};
use crate::call::call;
use crate::channel::{NETVM_CHANNEL_NODE, NETVM_CHANNEL_PORT, netvm_channel_info, netvm_channel_options};
use crate::fault::{Fault, Result};
use crate::handle::{self, handles};
use crate::pending::BUSY;
use crate::port::netvm_port;

/// A sending end of a shared queue.
pub struct netvm_shared_sender;
/// The receiving end of a shared queue. It serves one thread at a time.
pub struct netvm_shared_receiver;

handles! {
    netvm_shared_sender = 12: SharedSender;
    netvm_shared_receiver = 13: Mutex<SharedReceiver>;
}

fn config(options: &netvm_channel_options) -> Result<SharedConfig> {
    if options.refill != 0 {
        return Err(Fault::argument(
            libc::EINVAL,
            "a shared queue gives each place back at once: `refill` is 0",
        ));
    }
    let mut config = SharedConfig::default();
    if options.message_bytes > 0 {
        config = config.message_bytes(options.message_bytes);
    }
    if options.capacity > 0 {
        config = config.capacity(options.capacity);
    }
    if options.notification > 0 {
        config = config.notification(options.notification);
    }
    if options.flags & NETVM_CHANNEL_PORT != 0 {
        config = config.from_port(options.node.into(), options.port.into());
    } else if options.flags & NETVM_CHANNEL_NODE != 0 {
        config = config.from_node(options.node.into());
    }
    Ok(config)
}

/// Makes a shared queue in the port's memory and exports it under this name. `options` may be NULL. A port has one in its life.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_shared_receiver_open(
    port: *mut netvm_port,
    name: *const c_char,
    options: *const netvm_channel_options,
    receiver: *mut *mut netvm_shared_receiver,
) -> c_int {
    call(|| {
        let place = out(receiver, "receiver")?;
        // SAFETY: the header asks for such arguments, here and below.
        let (name, options) = unsafe { (text(name, "name")?, netvm_channel_options::read(options)?) };
        let opened = SharedReceiver::open(&*handle::get(port)?, name, config(&options)?)?;
        let made = handle::make(Mutex::new(opened))?;
        // SAFETY: as above.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Receives a message into a place of `size` bytes. `len`, `node` and `from` get its length and the port that has sent it; they may be NULL.
/// A message that does not fit is lost (-EMSGSIZE).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_shared_receiver_recv(
    receiver: *mut netvm_shared_receiver,
    into: *mut c_void,
    size: usize,
    len: *mut usize,
    node: *mut u16,
    from: *mut u16,
    timeout_ns: i64,
) -> c_int {
    call(|| {
        // SAFETY: the header asks for such arguments, here and below.
        let into = unsafe { bytes_mut(into, size, "into") }?;
        let receiver = handle::get(receiver)?;
        let mut receiver = receiver.try_lock().ok_or(BUSY)?;
        let message = waited(receiver.recv(timeout(timeout_ns)), timeout_ns)?;
        let (of, sender) = message.sender();
        let came = message.copy_to(into)?;
        // SAFETY: as above.
        unsafe {
            set(len, came);
            set(node, of.0);
            set(from, sender.0);
        }
        Ok(())
    })
}

/// What the receiver is, and has done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_shared_receiver_get_info(
    receiver: *mut netvm_shared_receiver,
    info: *mut netvm_channel_info,
) -> c_int {
    call(|| {
        let receiver = handle::get(receiver)?;
        let receiver = receiver.try_lock().ok_or(BUSY)?;
        let value = netvm_channel_info {
            message_bytes: receiver.message_bytes(),
            skipped: receiver.skipped(),
            notification: receiver.notification().id().0,
            capacity: receiver.capacity(),
            ..receiver.stats().into()
        };
        // SAFETY: the header asks for such a structure.
        unsafe { fill(info, &value, "info") }
    })
}

/// Ends a shared queue.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_shared_receiver_close(receiver: *mut netvm_shared_receiver) -> c_int {
    call(|| handle::close(receiver))
}

/// Joins the shared queue of this name at a port. Waits until it is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_shared_sender_join(
    port: *mut netvm_port,
    node: u16,
    at: u16,
    name: *const c_char,
    timeout_ns: i64,
    sender: *mut *mut netvm_shared_sender,
) -> c_int {
    call(|| {
        let place = out(sender, "sender")?;
        // SAFETY: the header asks for such arguments, here and below.
        let name = unsafe { text(name, "name") }?;
        let port = handle::get(port)?;
        let joined = SharedSender::join(&port, node.into(), at.into(), name, timeout(timeout_ns))?;
        let made = handle::make(joined)?;
        // SAFETY: as above.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Sends a message and returns when it has its place: one round trip. While the queue is full it is sent again; -ENOBUFS when there was no
/// room in time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_shared_sender_send(
    sender: *mut netvm_shared_sender,
    from: *const c_void,
    len: usize,
    timeout_ns: i64,
) -> c_int {
    call(|| {
        // SAFETY: the header asks for such memory.
        let from = unsafe { bytes(from, len, "from") }?;
        let sender = handle::get(sender)?;
        Ok(match timeout_ns {
            0 => sender.try_send(from),
            _ => sender.send(from, timeout(timeout_ns)),
        }?)
    })
}

/// Sends a message and does not wait to hear whether it has a place. If it gets none, neither does what this port sends to queues of the
/// node after it, until a later call has told (NETVM_STATUS_NO_PLACE). `op` gets its number; it may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_shared_sender_post(
    sender: *mut netvm_shared_sender,
    from: *const c_void,
    len: usize,
    op: *mut u32,
) -> c_int {
    call(|| {
        // SAFETY: the header asks for such arguments, here and below.
        let from = unsafe { bytes(from, len, "from") }?;
        let posted = handle::get(sender)?.post(from)?;
        // SAFETY: as above.
        unsafe { set(op, posted.0) };
        Ok(())
    })
}

/// Size of the largest message in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_shared_sender_message_bytes(
    sender: *mut netvm_shared_sender,
    message_bytes: *mut u64,
) -> c_int {
    call(|| {
        let place = out(message_bytes, "message_bytes")?;
        let limit = handle::get(sender)?.message_bytes();
        // SAFETY: the header asks for such a place.
        unsafe { place.set(limit) };
        Ok(())
    })
}

/// Leaves a shared queue.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_shared_sender_close(sender: *mut netvm_shared_sender) -> c_int {
    call(|| handle::close(sender))
}
