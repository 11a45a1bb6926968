// SPDX-License-Identifier: GPL-2.0

//! What a call fails with: an errno, and the status that its argument carries back.

use netvm_abi::Status;
use netvm_host::exports::ExportError;
use netvm_host::imports::ImportError;
use netvm_host::ports::PortError;
use netvm_host::segments::SegmentError;

/// A positive errno, as in `errno(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

macro_rules! errnos {
    ($($name:ident = $value:literal,)*) => { $(pub(crate) const $name: Errno = Errno($value);)* };
}

// asm-generic/errno-base.h and errno.h: the same on every machine that has a card.
errnos! {
    PERM = 1,
    NOENT = 2,
    INTR = 4,
    IO = 5,
    BADF = 9,
    AGAIN = 11,
    NOMEM = 12,
    ACCES = 13,
    FAULT = 14,
    BUSY = 16,
    EXIST = 17,
    NODEV = 19,
    INVAL = 22,
    NOTTY = 25,
    NOSPC = 28,
    PROTO = 71,
    OPNOTSUPP = 95,
    ADDRINUSE = 98,
    TIMEDOUT = 110,
    HOSTUNREACH = 113,
    DQUOT = 122,
}

/// Why a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) errno: Errno,
    pub(crate) status: Status,
}

impl Failure {
    /// An errno that says it all.
    pub(crate) const fn plain(errno: Errno) -> Self {
        Self {
            errno,
            status: Status::Ok,
        }
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        let status = match errno {
            NOMEM => Status::NoMemory,
            NODEV => Status::CardGone,
            _ => Status::Ok,
        };
        Self { errno, status }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        let errno = match status {
            Status::NoSuchNode | Status::NoSuchPort | Status::NoSuchExport => NOENT,
            Status::NotAllowed | Status::CapabilityRefused | Status::ModeRefused | Status::Expired => ACCES,
            Status::NoMemory => NOMEM,
            Status::TableFull | Status::QueueFull | Status::NoPlace => NOSPC,
            Status::TimedOut => TIMEDOUT,
            Status::CardGone => NODEV,
            Status::LinkLost | Status::StaleIncarnation => HOSTUNREACH,
            Status::VersionMismatch => PROTO,
            Status::Unsupported => OPNOTSUPP,
            Status::BusError => IO,
            _ => INVAL,
        };
        Self { errno, status }
    }
}

impl From<PortError> for Failure {
    fn from(error: PortError) -> Self {
        match error {
            PortError::NoSuchPort => Status::NoSuchPort.into(),
            PortError::InUse => Self {
                errno: ADDRINUSE,
                status: Status::NotAllowed,
            },
            PortError::AllInUse => Status::TableFull.into(),
            PortError::CardGone => Status::CardGone.into(),
        }
    }
}

impl From<SegmentError> for Failure {
    fn from(error: SegmentError) -> Self {
        match error {
            SegmentError::NoSuchPort => Status::NoSuchPort.into(),
            SegmentError::Empty | SegmentError::Unaligned => Status::Malformed.into(),
            SegmentError::OutOfRange => Status::OutOfRange.into(),
            SegmentError::Overlap(_) => Self {
                errno: EXIST,
                status: Status::OutOfRange,
            },
            SegmentError::TableFull => Status::TableFull.into(),
            SegmentError::NoSuchSegment => Self {
                errno: NOENT,
                status: Status::OutOfRange,
            },
        }
    }
}

impl From<ExportError> for Failure {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::NoSuchPort => Status::NoSuchPort.into(),
            ExportError::Empty | ExportError::BadNotifications | ExportError::BadQueue => {
                Status::Malformed.into()
            }
            ExportError::NotRegistered => Status::OutOfRange.into(),
            ExportError::NameTaken(_) => Self {
                errno: EXIST,
                status: Status::NotAllowed,
            },
            ExportError::TooManyAllowed | ExportError::TableFull => Status::TableFull.into(),
            ExportError::NoSuchExport => Status::NoSuchExport.into(),
        }
    }
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Self {
        match error {
            ImportError::NoSuchPort => Status::NoSuchPort.into(),
            ImportError::NoSuchNode => Status::NoSuchNode.into(),
            ImportError::TableFull => Status::TableFull.into(),
            ImportError::NoSuchImport => Self {
                errno: NOENT,
                status: Status::CapabilityRefused,
            },
            ImportError::CardGone => Status::CardGone.into(),
        }
    }
}
