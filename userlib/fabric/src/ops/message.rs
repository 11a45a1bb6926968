//! Messages without a tag, `fi_msg(3)`.

use core::ffi::c_void;

use libc::iovec;

use super::endpoint::of;
use crate::buffer::Buffer;
use crate::ep::matching::Receive;
use crate::ep::send::{Level, Send};
use crate::ep::{Calls, Counted};
use crate::ffi::{array, call, given};
use crate::fi::*;
use crate::info::MAX_MESSAGE;
use crate::wire::{INJECT_BYTES, TAGGED, WITH_DATA};

/// Flags that a send may have.
const SEND_FLAGS: u64 = FI_REMOTE_CQ_DATA
    | FI_COMPLETION
    | FI_MORE
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_MATCH_COMPLETE;

/// A message, as the calls describe it.
pub(super) struct Outgoing {
    pub(super) buffer: Buffer,
    pub(super) to: fi_addr_t,
    pub(super) context: *mut c_void,
    pub(super) tag: Option<u64>,
    pub(super) data: Option<u64>,
}

/// How a call is made.
#[derive(Clone, Copy)]
pub(super) enum Manner {
    /// With the endpoint's flags.
    Plain,
    /// It has no completion, and its buffer may be used at once.
    Inject,
    /// With these flags.
    Flags(u64),
}

/// Sends a message.
///
/// # Safety
/// `ep` is a handle, or null.
pub(super) unsafe fn send(
    ep: *mut fid_ep,
    manner: Manner,
    message: impl FnOnce() -> Answer<Outgoing>,
) -> isize {
    call(|| {
        // SAFETY: the caller's promise.
        let endpoint = unsafe { of(ep)? };
        let message = message()?;
        let flags = match manner {
            Manner::Plain => endpoint.flags(Counted::Send),
            Manner::Inject => FI_INJECT | FI_INJECT_COMPLETE,
            Manner::Flags(flags) if flags & !SEND_FLAGS != 0 => return Err(Errno::BADFLAGS),
            Manner::Flags(flags) => flags,
        };
        let inject = flags & FI_INJECT != 0;
        let len = message.buffer.len();
        if len > MAX_MESSAGE || (inject && len > INJECT_BYTES) {
            return Err(Errno::MSGSIZE);
        }
        let data = message
            .data
            .filter(|_| !matches!(manner, Manner::Flags(flags) if flags & FI_REMOTE_CQ_DATA == 0));
        let mut kind = 0;
        if message.tag.is_some() {
            kind |= TAGGED;
        }
        if data.is_some() {
            kind |= WITH_DATA;
        }
        let completes = !matches!(manner, Manner::Inject) && endpoint.completes(Counted::Send, flags);
        let level = if matches!(manner, Manner::Inject) {
            Level::Staged
        } else {
            Level::of(flags)
        };
        let send = Send {
            buffer: message.buffer,
            context: message.context.expose_provenance(),
            tag: message.tag.unwrap_or(0),
            data: data.unwrap_or(0),
            flags: kind,
            level,
            completes,
            inject,
            calls: if flags & FI_MORE == 0 {
                Calls::Now
            } else {
                Calls::Later
            },
        };
        endpoint.send(message.to, send)
    }) as isize
}

/// The calls.
pub(super) static OPS: fi_ops_msg = fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
    recv: Some(recv),
    recvv: Some(recvv),
    recvmsg: Some(recvmsg),
    send: Some(plain),
    sendv: Some(sendv),
    sendmsg: Some(sendmsg),
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
};

const RECV_FLAGS: u64 = FI_COMPLETION | FI_MORE | FI_MULTI_RECV;

/// # Safety
/// `ep` is a handle, or null; the buffer stays until the receive has ended.
unsafe fn post(
    ep: *mut fid_ep,
    buffer: impl FnOnce() -> Answer<Buffer>,
    from: fi_addr_t,
    context: *mut c_void,
    flags: Option<u64>,
) -> isize {
    call(|| {
        // SAFETY: the caller's promise.
        let endpoint = unsafe { of(ep)? };
        let buffer = buffer()?;
        if flags.is_some_and(|flags| flags & !RECV_FLAGS != 0) {
            return Err(Errno::BADFLAGS);
        }
        let flags = flags.unwrap_or(endpoint.flags(Counted::Receive));
        let receive = Receive {
            buffer,
            context: context.expose_provenance(),
            from,
            tag: 0,
            ignore: u64::MAX,
            completes: endpoint.completes(Counted::Receive, flags),
            multi: flags & FI_MULTI_RECV != 0,
            used: 0,
            several: 0,
        };
        endpoint.receive(false, receive, crate::ep::Asked::default())
    }) as isize
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    from: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: C's handle and buffer.
    unsafe { post(ep, || Buffer::one(buf, len), from, context, None) }
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: C's handle and buffers, as many as it says.
    unsafe { post(ep, || Buffer::of(array(iov, count)?), from, context, None) }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: C's handle, and a message of its own.
    unsafe {
        let Some(msg) = given(msg) else {
            return -(Errno::INVAL.0 as isize);
        };
        let buffer = || Buffer::of(array(msg.msg_iov, msg.iov_count)?);
        post(ep, buffer, msg.addr, msg.context, Some(flags))
    }
}

unsafe extern "C" fn plain(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let message = || {
        Ok(Outgoing {
            buffer: Buffer::one(buf, len)?,
            to,
            context,
            tag: None,
            data: None,
        })
    };
    // SAFETY: C's handle and buffer.
    unsafe { send(ep, Manner::Plain, message) }
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let message = || {
        Ok(Outgoing {
            // SAFETY: C passes as many elements as it says.
            buffer: Buffer::of(unsafe { array(iov, count)? })?,
            to,
            context,
            tag: None,
            data: None,
        })
    };
    // SAFETY: C's handle and buffers.
    unsafe { send(ep, Manner::Plain, message) }
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    let message = || {
        // SAFETY: C's message, and as many elements as it says.
        let (msg, iov) = unsafe {
            let msg = given(msg).ok_or(Errno::INVAL)?;
            (msg, array(msg.msg_iov, msg.iov_count)?)
        };
        Ok(Outgoing {
            buffer: Buffer::of(iov)?,
            to: msg.addr,
            context: msg.context,
            tag: None,
            data: Some(msg.data),
        })
    };
    // SAFETY: C's handle and buffers.
    unsafe { send(ep, Manner::Flags(flags), message) }
}

unsafe extern "C" fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, to: fi_addr_t) -> isize {
    let message = || {
        Ok(Outgoing {
            buffer: Buffer::one(buf, len)?,
            to,
            context: core::ptr::null_mut(),
            tag: None,
            data: None,
        })
    };
    // SAFETY: C's handle and buffer.
    unsafe { send(ep, Manner::Inject, message) }
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let message = || {
        Ok(Outgoing {
            buffer: Buffer::one(buf, len)?,
            to,
            context,
            tag: None,
            data: Some(data),
        })
    };
    // SAFETY: C's handle and buffer.
    unsafe { send(ep, Manner::Plain, message) }
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: fi_addr_t,
) -> isize {
    let message = || {
        Ok(Outgoing {
            buffer: Buffer::one(buf, len)?,
            to,
            context: core::ptr::null_mut(),
            tag: None,
            data: Some(data),
        })
    };
    // SAFETY: C's handle and buffer.
    unsafe { send(ep, Manner::Inject, message) }
}
