//! The host core's errors, and the emulator's own, as the library's.

use crate::error::EmulatorError;
use netvm::Refusal;
use netvm_abi::Status;
use netvm_host::exports::ExportError;
use netvm_host::imports::ImportError;
use netvm_host::ports::PortError;
use netvm_host::segments::SegmentError;

pub(crate) fn port(error: PortError) -> Refusal {
    Refusal::Status(match error {
        PortError::NoSuchPort => Status::NoSuchPort,
        PortError::InUse => Status::NotAllowed,
        PortError::AllInUse => Status::TableFull,
        PortError::CardGone => Status::CardGone,
    })
}

pub(crate) fn segment(error: SegmentError) -> Refusal {
    Refusal::Status(match error {
        SegmentError::NoSuchPort => Status::NoSuchPort,
        SegmentError::TableFull => Status::TableFull,
        SegmentError::Empty
        | SegmentError::Unaligned
        | SegmentError::OutOfRange
        | SegmentError::Overlap(_)
        | SegmentError::NoSuchSegment => Status::OutOfRange,
    })
}

pub(crate) fn export(error: ExportError) -> Refusal {
    Refusal::Status(match error {
        ExportError::NoSuchPort => Status::NoSuchPort,
        ExportError::Empty
        | ExportError::NotRegistered
        | ExportError::BadNotifications
        | ExportError::BadQueue => Status::OutOfRange,
        ExportError::NameTaken(_) => Status::NotAllowed,
        ExportError::TooManyAllowed | ExportError::TableFull => Status::TableFull,
        ExportError::NoSuchExport => Status::NoSuchExport,
    })
}

pub(crate) fn import(error: ImportError) -> Refusal {
    Refusal::Status(match error {
        ImportError::NoSuchPort => Status::NoSuchPort,
        ImportError::NoSuchNode => Status::NoSuchNode,
        ImportError::TableFull => Status::TableFull,
        ImportError::NoSuchImport => Status::NoSuchExport,
        ImportError::CardGone => Status::CardGone,
    })
}

/// The operating system's answer to `what`.
pub(crate) fn io(what: &'static str, error: &std::io::Error) -> Refusal {
    Refusal::System {
        what,
        errno: error.raw_os_error().unwrap_or_default(),
    }
}

/// What the emulator can fail with while it serves a program.
pub(crate) fn emulator(error: &EmulatorError) -> Refusal {
    match error {
        EmulatorError::Os { what, errno } => Refusal::System {
            what,
            errno: errno.raw_os_error(),
        },
        EmulatorError::Io { what, source } => io(what, source),
        EmulatorError::UserfaultfdRefused(errno) => Refusal::System {
            what: "userfaultfd",
            errno: errno.raw_os_error(),
        },
        EmulatorError::UserfaultfdTooOld { .. } => {
            Refusal::Unsupported("this kernel's userfaultfd is too old")
        }
        EmulatorError::PageSize(_) => Refusal::Unsupported("this machine's pages are not of 4096 bytes"),
        EmulatorError::Config(_) => Refusal::Unsupported("the emulator's configuration makes no sense"),
    }
}
