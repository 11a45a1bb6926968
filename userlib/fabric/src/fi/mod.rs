//! libfabric's C interface, as its headers have it (1.17), and its numbers in the types that they are used in.
//!
//! `bindings.in` is made by `generate.sh`. No function of libfabric is called: a provider is linked to none, so it builds and loads
//! wherever libfabric's library finds it.

#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    dead_code,
    unreachable_pub,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    reason = "generated"
)]

include!("bindings.in");

/// Not offered.
pub type fi_ops_collective = core::ffi::c_void;
/// Not offered.
pub type fid_mc = core::ffi::c_void;
/// Not offered.
pub type fi_collective_op = core::ffi::c_uint;
/// Not offered.
pub type fi_collective_attr = core::ffi::c_void;

/// No address.
pub const FI_ADDR_NOTAVAIL: fi_addr_t = u64::MAX;

/// Version of a provider, or of the interface.
pub const fn version(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

/// An error of libfabric: a positive number, as `fi_errno(3)` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    pub const NOENT: Self = Self(libc::ENOENT);
    pub const IO: Self = Self(libc::EIO);
    pub const AGAIN: Self = Self(libc::EAGAIN);
    pub const NOMEM: Self = Self(libc::ENOMEM);
    pub const ACCES: Self = Self(libc::EACCES);
    pub const FAULT: Self = Self(libc::EFAULT);
    pub const BUSY: Self = Self(libc::EBUSY);
    pub const INVAL: Self = Self(libc::EINVAL);
    pub const NOSYS: Self = Self(libc::ENOSYS);
    pub const NOMSG: Self = Self(libc::ENOMSG);
    pub const NODATA: Self = Self(libc::ENODATA);
    pub const MSGSIZE: Self = Self(libc::EMSGSIZE);
    pub const OPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    pub const TIMEDOUT: Self = Self(libc::ETIMEDOUT);
    pub const HOSTUNREACH: Self = Self(libc::EHOSTUNREACH);
    pub const CONNRESET: Self = Self(libc::ECONNRESET);
    pub const CANCELED: Self = Self(libc::ECANCELED);
    pub const KEYREJECTED: Self = Self(libc::EKEYREJECTED);
    pub const OTHER: Self = Self(FI_EOTHER as i32);
    pub const TOOSMALL: Self = Self(FI_ETOOSMALL as i32);
    pub const OPBADSTATE: Self = Self(FI_EOPBADSTATE as i32);
    pub const AVAIL: Self = Self(FI_EAVAIL as i32);
    pub const BADFLAGS: Self = Self(FI_EBADFLAGS as i32);
    pub const NOEQ: Self = Self(FI_ENOEQ as i32);
    pub const DOMAIN: Self = Self(FI_EDOMAIN as i32);
    pub const NOCQ: Self = Self(FI_ENOCQ as i32);
    pub const TRUNC: Self = Self(FI_ETRUNC as i32);
    pub const NOKEY: Self = Self(FI_ENOKEY as i32);
    pub const NOAV: Self = Self(FI_ENOAV as i32);
    pub const BADF: Self = Self(libc::EBADF);
}

/// What a call of libfabric gives.
pub type Answer<T = ()> = std::result::Result<T, Errno>;
