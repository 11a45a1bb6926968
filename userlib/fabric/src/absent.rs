//! Calls that are not offered: they answer `-FI_ENOSYS`.
//!
//! libfabric's headers call most places of a table without a look whether there is anything. So each place that a program can come to has a
//! function.

use core::ffi::{c_char, c_int, c_void};

use crate::fi::*;

/// What every object has in common, without any of it.
pub(crate) const FID_OPS: fi_ops = fi_ops {
    size: size_of::<fi_ops>(),
    close: Some(close),
    bind: Some(bind),
    control: Some(control),
    ops_open: Some(ops_open),
    // The headers call neither.
    tostr: None,
    ops_set: None,
};

unsafe extern "C" fn close(_fid: *mut fid) -> c_int {
    -Errno::NOSYS.0
}

unsafe extern "C" fn bind(_fid: *mut fid, _other: *mut fid, _flags: u64) -> c_int {
    -Errno::NOSYS.0
}

unsafe extern "C" fn control(_fid: *mut fid, _command: c_int, _arg: *mut c_void) -> c_int {
    -Errno::NOSYS.0
}

unsafe extern "C" fn ops_open(
    _fid: *mut fid,
    _name: *const c_char,
    _flags: u64,
    _ops: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    -Errno::NOSYS.0
}

pub(crate) unsafe extern "C" fn getpeer(_ep: *mut fid_ep, _addr: *mut c_void, _len: *mut usize) -> c_int {
    -Errno::NOSYS.0
}

pub(crate) unsafe extern "C" fn connect(
    _ep: *mut fid_ep,
    _addr: *const c_void,
    _param: *const c_void,
    _len: usize,
) -> c_int {
    -Errno::NOSYS.0
}

pub(crate) unsafe extern "C" fn listen(_pep: *mut fid_pep) -> c_int {
    -Errno::NOSYS.0
}

pub(crate) unsafe extern "C" fn accept(_ep: *mut fid_ep, _param: *const c_void, _len: usize) -> c_int {
    -Errno::NOSYS.0
}

pub(crate) unsafe extern "C" fn reject(
    _pep: *mut fid_pep,
    _handle: fid_t,
    _param: *const c_void,
    _len: usize,
) -> c_int {
    -Errno::NOSYS.0
}

pub(crate) unsafe extern "C" fn shutdown(_ep: *mut fid_ep, _flags: u64) -> c_int {
    -Errno::NOSYS.0
}

pub(crate) unsafe extern "C" fn scalable_ep(
    _domain: *mut fid_domain,
    _info: *mut fi_info,
    _ep: *mut *mut fid_ep,
    _context: *mut c_void,
) -> c_int {
    -Errno::NOSYS.0
}

pub(crate) unsafe extern "C" fn stx_ctx(
    _domain: *mut fid_domain,
    _attr: *mut fi_tx_attr,
    _stx: *mut *mut fid_stx,
    _context: *mut c_void,
) -> c_int {
    -Errno::NOSYS.0
}

pub(crate) unsafe extern "C" fn srx_ctx(
    _domain: *mut fid_domain,
    _attr: *mut fi_rx_attr,
    _rx: *mut *mut fid_ep,
    _context: *mut c_void,
) -> c_int {
    -Errno::NOSYS.0
}

pub(crate) unsafe extern "C" fn tx_ctx(
    _ep: *mut fid_ep,
    _index: c_int,
    _attr: *mut fi_tx_attr,
    _tx: *mut *mut fid_ep,
    _context: *mut c_void,
) -> c_int {
    -Errno::NOSYS.0
}

pub(crate) unsafe extern "C" fn rx_ctx(
    _ep: *mut fid_ep,
    _index: c_int,
    _attr: *mut fi_rx_attr,
    _rx: *mut *mut fid_ep,
    _context: *mut c_void,
) -> c_int {
    -Errno::NOSYS.0
}

pub(crate) unsafe extern "C" fn passive_ep(
    _fabric: *mut fid_fabric,
    _info: *mut fi_info,
    _pep: *mut *mut fid_pep,
    _context: *mut c_void,
) -> c_int {
    -Errno::NOSYS.0
}

pub(crate) unsafe extern "C" fn wait_open(
    _fabric: *mut fid_fabric,
    _attr: *mut fi_wait_attr,
    _set: *mut *mut fid_wait,
) -> c_int {
    -Errno::NOSYS.0
}

/// `fi_ops_collective`: a size, and eleven calls.
#[repr(C)]
pub(crate) struct Collective {
    size: usize,
    calls: [unsafe extern "C" fn() -> isize; 11],
}

/// No operation of several endpoints.
pub(crate) static COLLECTIVE: Collective = Collective {
    size: size_of::<Collective>(),
    calls: [collective; 11],
};

/// Stands for calls with up to twelve arguments. It takes none of them: the caller of a C function takes back what it has put on the stack.
unsafe extern "C" fn collective() -> isize {
    -(Errno::NOSYS.0 as isize)
}
