//! Why the last call failed.

use std::ffi::{CStr, c_char, c_int};

use netvm::Status;

use crate::argument::{Led, copy_text, fill};
use crate::call::call;
use crate::fault::{self, Fault};

/// An operation that failed.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct netvm_failure {
    /// `sizeof(struct netvm_failure)`.
    pub size: usize,
    /// The operation's number, as the call that posted it has told.
    pub op: u32,
    /// Why: NETVM_STATUS_...
    pub status: u32,
    /// The node that it went to.
    pub node: u16,
    /// The port there.
    pub port: u16,
    /// How many more operations to the same node are known to have failed.
    pub others: u32,
    /// The address, there or here, at which it failed.
    pub address: u64,
}

// SAFETY: integers.
unsafe impl Led for netvm_failure {
    const FIRST: usize = 32;
    const ZERO: Self = Self {
        size: 0,
        op: 0,
        status: 0,
        node: 0,
        port: 0,
        others: 0,
        address: 0,
    };
}

const _: () = assert!(size_of::<netvm_failure>() == netvm_failure::FIRST);

/// The last error of this thread in words, which say what to do about it. Never NULL; valid until the thread's next error.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_error_message() -> *const c_char {
    fault::last_text()
}

/// The status of a card or a driver behind the last error of this thread: NETVM_STATUS_..., or 0 where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_error_status() -> u32 {
    fault::last_status().code().into()
}

/// The operation that failed, if the last error of this thread is that: it may be one that was posted earlier. -ENODATA if
/// not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_error_failure(failure: *mut netvm_failure) -> c_int {
    let Some(last) = fault::last_failure() else {
        return -libc::ENODATA;
    };
    let value = netvm_failure {
        size: 0,
        op: last.op.0,
        status: last.status.code().into(),
        node: last.node.0,
        port: last.port.0,
        others: last.others,
        address: last.address.0,
    };
    // SAFETY: the header asks for such a structure.
    call(|| unsafe { fill(failure, &value, "failure") })
}

/// A status in words, into `text`, which has room for `size` bytes; 128 are enough. -EINVAL if there is no such status.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_status_text(status: u32, text: *mut c_char, size: usize) -> c_int {
    call(|| {
        let known = Status::ALL.iter().find(|known| u32::from(known.code()) == status);
        let known = known.ok_or(Fault::argument(libc::EINVAL, "there is no such status"))?;
        // SAFETY: the header asks for the place.
        unsafe { copy_text(netvm::explain(*known), text, size) }
    })
}

/// The version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn netvm_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// It is done.
pub const NETVM_STATUS_OK: u32 = 0;
/// The descriptor or message makes no sense.
pub const NETVM_STATUS_MALFORMED: u32 = 1;
/// The operation is not offered by this firmware.
pub const NETVM_STATUS_UNSUPPORTED: u32 = 2;
/// No such node, or the node table does not know it.
pub const NETVM_STATUS_NO_SUCH_NODE: u32 = 3;
/// The port is not open, or has been closed since.
pub const NETVM_STATUS_NO_SUCH_PORT: u32 = 4;
/// The capability is unknown, revoked, of another holder, or its secret is wrong.
pub const NETVM_STATUS_CAPABILITY_REFUSED: u32 = 5;
/// Outside of the range that the capability names.
pub const NETVM_STATUS_OUT_OF_RANGE: u32 = 6;
/// The capability does not allow this kind of access.
pub const NETVM_STATUS_MODE_REFUSED: u32 = 7;
/// The capability's time is over.
pub const NETVM_STATUS_EXPIRED: u32 = 8;
/// The destination or source page is not mapped in the process.
pub const NETVM_STATUS_UNMAPPED: u32 = 9;
/// The process may only read the page.
pub const NETVM_STATUS_READ_ONLY: u32 = 10;
/// The host has no memory to page in with.
pub const NETVM_STATUS_NO_MEMORY: u32 = 11;
/// Past the end of the mapped file, or an IO error while paging in.
pub const NETVM_STATUS_BUS_ERROR: u32 = 12;
/// The one-shot part of the receiver's notification queue is full.
pub const NETVM_STATUS_QUEUE_FULL: u32 = 13;
/// The link to the node has failed; its fate is unknown.
pub const NETVM_STATUS_LINK_LOST: u32 = 14;
/// The message belongs to an earlier life of a node.
pub const NETVM_STATUS_STALE_INCARNATION: u32 = 15;
/// The local address is not registered, or crosses a page.
pub const NETVM_STATUS_LOCAL_ADDRESS: u32 = 16;
/// No export of that name.
pub const NETVM_STATUS_NO_SUCH_EXPORT: u32 = 17;
/// The allow-list of the export does not name the caller, or not with these modes.
pub const NETVM_STATUS_NOT_ALLOWED: u32 = 18;
/// A table is full.
pub const NETVM_STATUS_TABLE_FULL: u32 = 19;
/// It took longer than it may: an answer did not come, or a page of the target or of the source.
pub const NETVM_STATUS_TIMED_OUT: u32 = 20;
/// The card is gone or does not answer.
pub const NETVM_STATUS_CARD_GONE: u32 = 21;
/// The two sides speak different versions, or have different page sizes.
pub const NETVM_STATUS_VERSION_MISMATCH: u32 = 22;
/// The operation was cut off by a revocation or an unexport.
pub const NETVM_STATUS_REVOKED: u32 = 23;
/// Not carried out: it asked for order, and an earlier operation of its stream has failed.
pub const NETVM_STATUS_HELD_BACK: u32 = 24;
/// Not carried out: the shared queue has no free place. For its stream the append has not failed.
pub const NETVM_STATUS_NO_PLACE: u32 = 25;

/// The header's codes are the library's.
const CODES: [(u32, Status); 26] = [
    (NETVM_STATUS_OK, Status::Ok),
    (NETVM_STATUS_MALFORMED, Status::Malformed),
    (NETVM_STATUS_UNSUPPORTED, Status::Unsupported),
    (NETVM_STATUS_NO_SUCH_NODE, Status::NoSuchNode),
    (NETVM_STATUS_NO_SUCH_PORT, Status::NoSuchPort),
    (NETVM_STATUS_CAPABILITY_REFUSED, Status::CapabilityRefused),
    (NETVM_STATUS_OUT_OF_RANGE, Status::OutOfRange),
    (NETVM_STATUS_MODE_REFUSED, Status::ModeRefused),
    (NETVM_STATUS_EXPIRED, Status::Expired),
    (NETVM_STATUS_UNMAPPED, Status::Unmapped),
    (NETVM_STATUS_READ_ONLY, Status::ReadOnly),
    (NETVM_STATUS_NO_MEMORY, Status::NoMemory),
    (NETVM_STATUS_BUS_ERROR, Status::BusError),
    (NETVM_STATUS_QUEUE_FULL, Status::QueueFull),
    (NETVM_STATUS_LINK_LOST, Status::LinkLost),
    (NETVM_STATUS_STALE_INCARNATION, Status::StaleIncarnation),
    (NETVM_STATUS_LOCAL_ADDRESS, Status::LocalAddress),
    (NETVM_STATUS_NO_SUCH_EXPORT, Status::NoSuchExport),
    (NETVM_STATUS_NOT_ALLOWED, Status::NotAllowed),
    (NETVM_STATUS_TABLE_FULL, Status::TableFull),
    (NETVM_STATUS_TIMED_OUT, Status::TimedOut),
    (NETVM_STATUS_CARD_GONE, Status::CardGone),
    (NETVM_STATUS_VERSION_MISMATCH, Status::VersionMismatch),
    (NETVM_STATUS_REVOKED, Status::Revoked),
    (NETVM_STATUS_HELD_BACK, Status::HeldBack),
    (NETVM_STATUS_NO_PLACE, Status::NoPlace),
];

const _: () = {
    assert!(CODES.len() == Status::ALL.len());
    let mut rest: &[(u32, Status)] = &CODES;
    while let [(code, status), tail @ ..] = rest {
        assert!(*code == status.code() as u32);
        rest = tail;
    }
};
