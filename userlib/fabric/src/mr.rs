//! Memory regions, `fi_mr(3)`: a name for a range of addresses. Nothing is pinned, mapped or even looked at.

use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::iovec;
use netvm::{Access, Error, Export, Modes, Status};

use crate::absent;
use crate::domain::{Child, Domain};
use crate::ffi::{Handle, array, call, given, table};
use crate::fi::*;

/// A memory region.
pub(crate) struct Mr {
    _child: Child,
    /// What others import it by; nothing, where it is for local use only.
    _export: Option<Export>,
}

/// A memory region as C holds it.
type MrHandle = Handle<fid_mr, Mr>;

/// The name under which a key is exported.
pub(crate) fn name(key: u64) -> String {
    format!("mr{key:x}")
}

const ACCESS: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

static FID_OPS: fi_ops = fi_ops {
    close: Some(close),
    // Neither counters of remote access (FI_RMA_EVENT) nor regions of an endpoint (FI_MR_ENDPOINT) are offered: nothing is bound.
    control: Some(control),
    ..absent::FID_OPS
};

/// The calls of a domain that make regions.
pub(crate) static OPS: fi_ops_mr = fi_ops_mr {
    size: size_of::<fi_ops_mr>(),
    reg: Some(reg),
    regv: Some(regv),
    regattr: Some(regattr),
};

/// What is to be registered.
struct Wanted<'a> {
    iov: &'a [iovec],
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    context: *mut c_void,
}

/// # Safety
/// `fid` is a domain's handle, `mr` null or room for a handle.
unsafe fn register(fid: *mut fid, wanted: &Wanted<'_>, mr: *mut *mut fid_mr) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let domain = unsafe { Domain::of(fid)? };
        let [piece] = wanted.iov else {
            return Err(Errno::INVAL);
        };
        if mr.is_null() || wanted.access & !ACCESS != 0 || wanted.offset != 0 {
            return Err(Errno::INVAL);
        }
        if wanted.flags & !FI_MORE != 0 {
            return Err(Errno::BADFLAGS);
        }
        let key = if domain.basic {
            domain.next_key.fetch_add(1, Ordering::Relaxed)
        } else {
            wanted.key
        };
        let object = Mr {
            _export: export(domain, piece, wanted.access, key)?,
            _child: domain.child(),
        };
        let face = fid_mr {
            fid: fid_of(wanted.context),
            mem_desc: core::ptr::null_mut(),
            key,
        };
        // SAFETY: checked above.
        unsafe { *mr = MrHandle::give(face, FI_CLASS_MR, Arc::new(object))? };
        Ok(())
    })
}

fn fid_of(context: *mut c_void) -> fid {
    fid {
        fclass: FI_CLASS_MR as usize,
        context,
        ops: table(&FID_OPS),
    }
}

fn export(domain: &Domain, piece: &iovec, access: u64, key: u64) -> Answer<Option<Export>> {
    let mut modes = Modes::empty();
    modes.set(Modes::READ, access & FI_REMOTE_READ != 0);
    modes.set(Modes::WRITE, access & FI_REMOTE_WRITE != 0);
    // A change of a word writes it, and answers with what was there.
    modes.set(Modes::ATOMIC, access & (FI_REMOTE_READ | FI_REMOTE_WRITE) != 0);
    if modes.is_empty() || piece.iov_len == 0 {
        return Ok(None);
    }
    let (start, len) = (piece.iov_base.expose_provenance() as u64, piece.iov_len as u64);
    let found = domain.everything.find(start, len);
    let (region, at) = found.map_err(|_| Errno::INVAL)?;
    let rights = Access::everyone().modes(modes);
    let exported = domain.memory.export(&name(key), region, at..at + len, rights);
    exported.map(Some).map_err(|error| match error {
        Error::Export { .. } => match error.status() {
            Some(Status::NotAllowed) => Errno::NOKEY,
            Some(Status::TableFull) => Errno::NOMEM,
            _ => Errno::OTHER,
        },
        Error::OutOfRange { .. } | Error::Empty { .. } => Errno::INVAL,
        _ => Errno::OTHER,
    })
}

unsafe extern "C" fn reg(
    fid: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let iov = [iovec {
        iov_base: buf.cast_mut(),
        iov_len: len,
    }];
    let wanted = Wanted {
        iov: &iov,
        access,
        offset,
        key: requested_key,
        flags,
        context,
    };
    // SAFETY: C's handle, and room for one.
    unsafe { register(fid, &wanted, mr) }
}

unsafe extern "C" fn regv(
    fid: *mut fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: C passes as many elements as it says.
    let Ok(iov) = (unsafe { array(iov, count) }) else {
        return -Errno::INVAL.0;
    };
    let wanted = Wanted {
        iov,
        access,
        offset,
        key: requested_key,
        flags,
        context,
    };
    // SAFETY: C's handle, and room for one.
    unsafe { register(fid, &wanted, mr) }
}

unsafe extern "C" fn regattr(
    fid: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    // SAFETY: C's pointer is null or what its type says.
    let Some(attr) = (unsafe { given(attr) }) else {
        return -Errno::INVAL.0;
    };
    // SAFETY: C passes as many elements as it says.
    let Ok(iov) = (unsafe { array(attr.mr_iov, attr.iov_count) }) else {
        return -Errno::INVAL.0;
    };
    let wanted = Wanted {
        iov,
        access: attr.access,
        offset: attr.offset,
        key: attr.requested_key,
        flags,
        context: attr.context,
    };
    // SAFETY: C's handle, and room for one.
    unsafe { register(fid, &wanted, mr) }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: C closes a handle that it was given, and uses it no more.
    call(|| unsafe { MrHandle::take(fid, FI_CLASS_MR) }.map(drop))
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, _arg: *mut c_void) -> c_int {
    call(|| {
        // SAFETY: C's handle.
        unsafe { MrHandle::of(fid, FI_CLASS_MR)? };
        match command.cast_unsigned() {
            FI_ENABLE => Ok(()),
            _ => Err(Errno::NOSYS),
        }
    })
}
