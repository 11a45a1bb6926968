//! Which `errno` an error is. netvm(7) has the table.

use std::ffi::c_int;

use libc::{
    EACCES, EADDRINUSE, EADDRNOTAVAIL, EAGAIN, EBADF, EBUSY, ECANCELED, ECONNABORTED, ECONNREFUSED,
    ECONNRESET, EEXIST, EFAULT, EHOSTUNREACH, EINVAL, EIO, EKEYEXPIRED, EKEYREJECTED, EKEYREVOKED, EMSGSIZE,
    ENOBUFS, ENODEV, ENOENT, ENOMEM, ENOMSG, ENOSPC, ENOTRECOVERABLE, EOPNOTSUPP, EPERM, EPIPE, EPROTO,
    EPROTONOSUPPORT, EPROTOTYPE, ERANGE, EROFS, ESHUTDOWN, ESTALE, ETIME, ETIMEDOUT, EXDEV,
};
use netvm::{Error, Refusal, Status};
use netvm_process::soft::LinkError;
use netvm_process::{OpenError, SoftError};

/// Of an error of the library.
pub(crate) fn of(error: &Error) -> c_int {
    match error {
        Error::Failed(failure) => of_status(failure.status),
        Error::Memory { status, .. } => of_status(*status),
        Error::Refused { reason, .. } | Error::Import { reason, .. } => of_refusal(reason),
        Error::Export {
            reason: Refusal::Status(Status::NotAllowed),
            ..
        } => EEXIST,
        Error::Export { reason, .. } => of_refusal(reason),
        Error::FailuresLost { .. } => EIO,
        Error::StreamFailed { .. } => ECANCELED,
        Error::OutOfRange { .. } => ERANGE,
        Error::Empty { .. }
        | Error::Name { .. }
        | Error::Misaligned { .. }
        | Error::NotificationNumber { .. } => EINVAL,
        Error::ModeRefused { .. } | Error::NotificationRefused { .. } => EACCES,
        Error::NotificationTaken { .. } | Error::ChannelTaken => EBUSY,
        Error::NothingPending { .. } => ENOMSG,
        Error::ForeignRegion | Error::ForeignOperation | Error::ForeignPiece { .. } => EXDEV,
        Error::NoSuchNode { .. } => EHOSTUNREACH,
        Error::ChannelClosed => EPIPE,
        Error::ChannelBroken { .. } => ECONNRESET,
        Error::MessagesLost => ECONNABORTED,
        Error::NotAChannel { .. } => EPROTOTYPE,
        Error::QueueFull => ENOBUFS,
        Error::NoRoom { .. } => EAGAIN,
        Error::MessageTooLong { .. } => EMSGSIZE,
        Error::TimedOut => ETIMEDOUT,
        Error::LockLost { .. } => ENOTRECOVERABLE,
        Error::Released => EBADF,
        Error::PortClosed | Error::PortEnded { .. } => ESHUTDOWN,
        _ => EIO,
    }
}

fn of_refusal(refusal: &Refusal) -> c_int {
    match refusal {
        Refusal::Status(status) => of_status(*status),
        Refusal::Unsupported(_) => EOPNOTSUPP,
        Refusal::System { errno: 0, .. } => EIO,
        Refusal::System { errno, .. } => *errno,
    }
}

/// Of a status of a card or a driver.
pub(crate) const fn of_status(status: Status) -> c_int {
    match status {
        Status::Ok | Status::BusError => EIO,
        Status::Malformed => EPROTO,
        Status::Unsupported => EOPNOTSUPP,
        Status::NoSuchNode => EHOSTUNREACH,
        Status::NoSuchPort => ECONNREFUSED,
        Status::CapabilityRefused | Status::StaleIncarnation => ESTALE,
        Status::OutOfRange => ERANGE,
        Status::ModeRefused => EACCES,
        Status::Expired => EKEYEXPIRED,
        Status::Unmapped | Status::LocalAddress => EFAULT,
        Status::ReadOnly => EROFS,
        Status::NoMemory => ENOMEM,
        Status::QueueFull | Status::NoPlace => ENOBUFS,
        Status::LinkLost => ECONNRESET,
        Status::NoSuchExport => ENOENT,
        Status::NotAllowed => EPERM,
        Status::TableFull => ENOSPC,
        Status::TimedOut => ETIME,
        Status::CardGone => ENODEV,
        Status::VersionMismatch => EPROTONOSUPPORT,
        Status::Revoked => EKEYREVOKED,
        Status::HeldBack => ECANCELED,
    }
}

/// Of a node that does not start, or has no link.
pub(crate) fn of_node(error: &SoftError) -> c_int {
    match error {
        SoftError::Link(error) => of_link(error),
        SoftError::Config(_) => EINVAL,
        SoftError::Silent => ETIMEDOUT,
        SoftError::Forked => EBADF,
        SoftError::Address { source, .. } => source.raw_os_error().unwrap_or(EADDRNOTAVAIL),
        SoftError::Insecure(_) => EPERM,
        SoftError::System(_, errno) => errno.raw_os_error(),
        SoftError::Thread(error) => error.raw_os_error().unwrap_or(ENOMEM),
    }
}

const fn of_link(error: &LinkError) -> c_int {
    match error {
        LinkError::NoSuchNode => ENOENT,
        LinkError::BadName => EINVAL,
        LinkError::Taken | LinkError::NumberTaken { .. } => EADDRINUSE,
        LinkError::NoNumber => EADDRNOTAVAIL,
        LinkError::OtherUser(_) => EPERM,
        LinkError::Version(_) => EPROTONOSUPPORT,
        LinkError::Refused(_) => ECONNREFUSED,
        LinkError::Malformed => EPROTO,
        LinkError::NumberTooHigh { .. } => ERANGE,
        LinkError::WantsKey | LinkError::NoKey | LinkError::OtherKey => EKEYREJECTED,
        LinkError::TooLong(_) => EMSGSIZE,
        LinkError::NoUdp => EOPNOTSUPP,
        LinkError::TimedOut => ETIMEDOUT,
        _ => EIO,
    }
}

/// Of a choice of a node that leads to none.
pub(crate) fn of_choice(error: &OpenError) -> c_int {
    match error {
        OpenError::Soft(error) => of_node(error),
        OpenError::Insecure(_) => EPERM,
        OpenError::Key(_) => EKEYREJECTED,
        OpenError::Device { .. } => ENODEV,
        _ => EINVAL,
    }
}
