//! Reads and writes of remote memory, `fi_rma(3)`.

use core::ffi::c_void;
use std::sync::Arc;

use libc::iovec;

use super::endpoint::of;
use super::message::Manner;
use crate::buffer::Buffer;
use crate::ep::{Counted, Endpoint};
use crate::ffi::{array, call, given};
use crate::fi::*;
use crate::info::MAX_MESSAGE;
use crate::rma::{Op, Target, What};
use crate::wire::INJECT_BYTES;

/// The calls.
pub(super) static OPS: fi_ops_rma = fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read: Some(read),
    readv: Some(readv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    writedata: Some(writedata),
    injectdata: Some(injectdata),
};

const FLAGS: u64 = FI_REMOTE_CQ_DATA
    | FI_COMPLETION
    | FI_MORE
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE;

/// Memory of another endpoint's domain.
#[derive(Clone, Copy)]
pub(super) struct Remote {
    pub(super) to: fi_addr_t,
    pub(super) at: u64,
    pub(super) key: u64,
}

impl Remote {
    /// What it is.
    ///
    /// # Errors
    /// The vector has no such address.
    pub(super) fn target(self, endpoint: &Endpoint) -> Answer<Target> {
        let av = endpoint.active()?.av.clone();
        let address = av.and_then(|av| av.address(self.to)).ok_or(Errno::INVAL)?;
        Ok(Target {
            address,
            key: self.key,
            at: self.at,
        })
    }
}

/// A call.
struct Call {
    buffer: Buffer,
    remote: Remote,
    context: *mut c_void,
    data: Option<u64>,
}

/// # Safety
/// `ep` is a handle, or null; the buffer stays until the operation has ended.
unsafe fn begin(ep: *mut fid_ep, reads: bool, manner: Manner, made: impl FnOnce() -> Answer<Call>) -> isize {
    call(|| {
        // SAFETY: the caller's promise.
        let endpoint: &Arc<Endpoint> = unsafe { of(ep)? };
        let made = made()?;
        let flags = match manner {
            Manner::Plain => endpoint.flags(Counted::Write),
            Manner::Inject => FI_INJECT,
            Manner::Flags(flags) if flags & !FLAGS != 0 => return Err(Errno::BADFLAGS),
            Manner::Flags(flags) => flags,
        };
        let len = made.buffer.len();
        // The flag says nothing to a read, whose buffer is its target.
        let inject = flags & FI_INJECT != 0 && !reads;
        if len > MAX_MESSAGE || (inject && len > INJECT_BYTES) {
            return Err(Errno::MSGSIZE);
        }
        let counted = if reads { Counted::Read } else { Counted::Write };
        let completes = !matches!(manner, Manner::Inject) && endpoint.completes(counted, flags);
        let tells = match manner {
            Manner::Flags(flags) if flags & FI_REMOTE_CQ_DATA == 0 => None,
            _ => made.data.map(|data| (made.remote.to, data)),
        };
        let target = made.remote.target(endpoint)?;
        let domain = endpoint.domain();
        domain.rma.begin(domain, &target, || {
            let what = if reads { What::Read } else { What::Write };
            let mut op = Op::new(
                endpoint,
                what,
                made.buffer,
                made.context.expose_provenance(),
                completes,
            );
            if inject {
                let mut copy = vec![0; len].into_boxed_slice();
                made.buffer.gather(0, &mut copy);
                op.copy = Some(copy);
            }
            op.tells = tells;
            op
        })
    }) as isize
}

unsafe extern "C" fn read(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    to: fi_addr_t,
    at: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let made = || {
        Ok(Call {
            buffer: Buffer::one(buf, len)?,
            remote: Remote { to, at, key },
            context,
            data: None,
        })
    };
    // SAFETY: C's handle and buffer.
    unsafe { begin(ep, true, Manner::Plain, made) }
}

unsafe extern "C" fn readv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    at: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let made = || {
        Ok(Call {
            // SAFETY: C passes as many elements as it says.
            buffer: Buffer::of(unsafe { array(iov, count)? })?,
            remote: Remote { to, at, key },
            context,
            data: None,
        })
    };
    // SAFETY: C's handle and buffers.
    unsafe { begin(ep, true, Manner::Plain, made) }
}

/// # Safety
/// `msg` is null or C's message, with as many elements as it says.
unsafe fn message(msg: *const fi_msg_rma) -> Answer<Call> {
    // SAFETY: the caller's promise.
    let (msg, iov, remote) = unsafe {
        let msg = given(msg).ok_or(Errno::INVAL)?;
        (
            msg,
            array(msg.msg_iov, msg.iov_count)?,
            array(msg.rma_iov, msg.rma_iov_count)?,
        )
    };
    let [remote] = remote else {
        return Err(Errno::INVAL);
    };
    let buffer = Buffer::of(iov)?;
    if remote.len != buffer.len() {
        return Err(Errno::INVAL);
    }
    Ok(Call {
        buffer,
        remote: Remote {
            to: msg.addr,
            at: remote.addr,
            key: remote.key,
        },
        context: msg.context,
        data: Some(msg.data),
    })
}

unsafe extern "C" fn readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: C's handle and message.
    unsafe { begin(ep, true, Manner::Flags(flags), || message(msg)) }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: C's handle and message.
    unsafe { begin(ep, false, Manner::Flags(flags), || message(msg)) }
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: fi_addr_t,
    at: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let made = || {
        Ok(Call {
            buffer: Buffer::one(buf, len)?,
            remote: Remote { to, at, key },
            context,
            data: None,
        })
    };
    // SAFETY: C's handle and buffer.
    unsafe { begin(ep, false, Manner::Plain, made) }
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    at: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let made = || {
        Ok(Call {
            // SAFETY: C passes as many elements as it says.
            buffer: Buffer::of(unsafe { array(iov, count)? })?,
            remote: Remote { to, at, key },
            context,
            data: None,
        })
    };
    // SAFETY: C's handle and buffers.
    unsafe { begin(ep, false, Manner::Plain, made) }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    to: fi_addr_t,
    at: u64,
    key: u64,
) -> isize {
    let made = || {
        Ok(Call {
            buffer: Buffer::one(buf, len)?,
            remote: Remote { to, at, key },
            context: core::ptr::null_mut(),
            data: None,
        })
    };
    // SAFETY: C's handle and buffer.
    unsafe { begin(ep, false, Manner::Inject, made) }
}

unsafe extern "C" fn writedata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    to: fi_addr_t,
    at: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let made = || {
        Ok(Call {
            buffer: Buffer::one(buf, len)?,
            remote: Remote { to, at, key },
            context,
            data: Some(data),
        })
    };
    // SAFETY: C's handle and buffer.
    unsafe { begin(ep, false, Manner::Plain, made) }
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: fi_addr_t,
    at: u64,
    key: u64,
) -> isize {
    let made = || {
        Ok(Call {
            buffer: Buffer::one(buf, len)?,
            remote: Remote { to, at, key },
            context: core::ptr::null_mut(),
            data: Some(data),
        })
    };
    // SAFETY: C's handle and buffer.
    unsafe { begin(ep, false, Manner::Inject, made) }
}
