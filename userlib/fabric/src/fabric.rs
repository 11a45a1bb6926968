//! The fabric object: what domains and event queues are opened from.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::ffi::{Handle, call, given, table};
use crate::fi::*;
use crate::{absent, cntr, cq, domain, eq, info};

/// A fabric.
pub(crate) struct Fabric;

/// A fabric as C holds it.
type FabricHandle = Handle<fid_fabric, Fabric>;

static FID_OPS: fi_ops = fi_ops {
    close: Some(close),
    ..absent::FID_OPS
};

static OPS: fi_ops_fabric = fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: Some(domain::open),
    passive_ep: Some(absent::passive_ep),
    eq_open: Some(eq::open),
    wait_open: Some(absent::wait_open),
    trywait: Some(trywait),
    domain2: None,
};

/// `fabric` of the provider.
pub(crate) unsafe extern "C" fn open(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: C's pointers are null or what their types say.
        let attr = unsafe { given(attr) }.ok_or(Errno::INVAL)?;
        if fabric.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: a name is null or a string.
        let named = attr.name.is_null() || unsafe { core::ffi::CStr::from_ptr(attr.name) } == info::NAME;
        if !named {
            return Err(Errno::INVAL);
        }
        let face = fid_fabric {
            fid: fid {
                fclass: FI_CLASS_FABRIC as usize,
                context,
                ops: table(&FID_OPS),
            },
            ops: table(&OPS),
            api_version: attr.api_version,
        };
        // SAFETY: checked above.
        unsafe { *fabric = FabricHandle::give(face, FI_CLASS_FABRIC, Arc::new(Fabric))? };
        Ok(())
    })
}

/// The fabric behind a handle.
///
/// # Safety
/// As [`Handle::of`].
pub(crate) unsafe fn of<'a, P>(fabric: *mut P) -> Answer<&'a Arc<Fabric>> {
    // SAFETY: the caller's promise.
    unsafe { FabricHandle::of(fabric, FI_CLASS_FABRIC) }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    call(|| {
        // SAFETY: C closes a handle that it was given, and uses it no more.
        if Arc::strong_count(unsafe { of(fid)? }) > 1 {
            return Err(Errno::BUSY);
        }
        // SAFETY: as above.
        unsafe { FabricHandle::take(fid, FI_CLASS_FABRIC) }.map(drop)
    })
}

/// Whether a program may wait by the descriptors of all of these.
unsafe extern "C" fn trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    call(|| {
        let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
        // SAFETY: C's handles.
        let fids = unsafe {
            of(fabric)?;
            crate::ffi::array(fids.cast_const(), count)?
        };
        for &waited in fids {
            // SAFETY: as above.
            unsafe {
                match given(waited).ok_or(Errno::INVAL)?.fclass as u32 {
                    FI_CLASS_CQ => cq::of(waited)?.try_wait()?,
                    FI_CLASS_CNTR => cntr::of(waited)?.try_wait()?,
                    FI_CLASS_EQ => eq::of(waited)?.try_wait()?,
                    _ => return Err(Errno::INVAL),
                }
            }
        }
        Ok(())
    })
}
