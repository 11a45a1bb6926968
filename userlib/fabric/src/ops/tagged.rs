//! Messages with a tag, `fi_tagged(3)`.

use core::ffi::c_void;

use libc::iovec;

use super::endpoint::of;
use super::message::{Manner, Outgoing, send};
use crate::buffer::Buffer;
use crate::ep::matching::Receive;
use crate::ep::{Asked, Counted};
use crate::ffi::{array, call, given};
use crate::fi::*;

/// The calls.
pub(super) static OPS: fi_ops_tagged = fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
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

const RECV_FLAGS: u64 = FI_COMPLETION | FI_MORE | FI_PEEK | FI_CLAIM | FI_DISCARD;

/// What a receive is for.
struct Wanted {
    from: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
}

/// # Safety
/// `ep` is a handle, or null; the buffer stays until the receive has ended.
unsafe fn post(
    ep: *mut fid_ep,
    buffer: impl FnOnce() -> Answer<Buffer>,
    wanted: &Wanted,
    flags: Option<u64>,
) -> isize {
    call(|| {
        // SAFETY: the caller's promise.
        let endpoint = unsafe { of(ep)? };
        let has = |flag| flags.is_some_and(|flags| flags & flag != 0);
        if has(!RECV_FLAGS) || (has(FI_DISCARD) && !has(FI_PEEK | FI_CLAIM)) {
            return Err(Errno::BADFLAGS);
        }
        let asked = Asked {
            peek: has(FI_PEEK),
            claim: has(FI_CLAIM),
            discard: has(FI_DISCARD),
        };
        // A buffer that nothing goes to need not be one.
        let buffer = if asked.peek || asked.discard {
            Buffer::default()
        } else {
            buffer()?
        };
        let flags = flags.unwrap_or(endpoint.flags(Counted::Receive));
        let receive = Receive {
            buffer,
            context: wanted.context.expose_provenance(),
            from: wanted.from,
            tag: wanted.tag,
            ignore: wanted.ignore,
            completes: endpoint.completes(Counted::Receive, flags),
            multi: false,
            used: 0,
            several: 0,
        };
        endpoint.receive(true, receive, asked)
    }) as isize
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    from: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    let wanted = Wanted {
        from,
        tag,
        ignore,
        context,
    };
    // SAFETY: C's handle and buffer.
    unsafe { post(ep, || Buffer::one(buf, len), &wanted, None) }
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    let wanted = Wanted {
        from,
        tag,
        ignore,
        context,
    };
    // SAFETY: C's handle and buffers, as many as it says.
    unsafe { post(ep, || Buffer::of(array(iov, count)?), &wanted, None) }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: C's handle, and a message of its own.
    unsafe {
        let Some(msg) = given(msg) else {
            return -(Errno::INVAL.0 as isize);
        };
        let wanted = Wanted {
            from: msg.addr,
            tag: msg.tag,
            ignore: msg.ignore,
            context: msg.context,
        };
        let buffer = || Buffer::of(array(msg.msg_iov, msg.iov_count)?);
        post(ep, buffer, &wanted, Some(flags))
    }
}

unsafe extern "C" fn plain(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let message = || {
        Ok(Outgoing {
            buffer: Buffer::one(buf, len)?,
            to,
            context,
            tag: Some(tag),
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
    tag: u64,
    context: *mut c_void,
) -> isize {
    let message = || {
        Ok(Outgoing {
            // SAFETY: C passes as many elements as it says.
            buffer: Buffer::of(unsafe { array(iov, count)? })?,
            to,
            context,
            tag: Some(tag),
            data: None,
        })
    };
    // SAFETY: C's handle and buffers.
    unsafe { send(ep, Manner::Plain, message) }
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
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
            tag: Some(msg.tag),
            data: Some(msg.data),
        })
    };
    // SAFETY: C's handle and buffers.
    unsafe { send(ep, Manner::Flags(flags), message) }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    to: fi_addr_t,
    tag: u64,
) -> isize {
    let message = || {
        Ok(Outgoing {
            buffer: Buffer::one(buf, len)?,
            to,
            context: core::ptr::null_mut(),
            tag: Some(tag),
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
    tag: u64,
    context: *mut c_void,
) -> isize {
    let message = || {
        Ok(Outgoing {
            buffer: Buffer::one(buf, len)?,
            to,
            context,
            tag: Some(tag),
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
    tag: u64,
) -> isize {
    let message = || {
        Ok(Outgoing {
            buffer: Buffer::one(buf, len)?,
            to,
            context: core::ptr::null_mut(),
            tag: Some(tag),
            data: Some(data),
        })
    };
    // SAFETY: C's handle and buffer.
    unsafe { send(ep, Manner::Inject, message) }
}
