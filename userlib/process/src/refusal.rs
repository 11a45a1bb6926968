//! The host core's errors as the library's.

use netvm::Refusal;
use netvm_abi::Status;
use netvm_host::exports::ExportError;
use netvm_host::imports::ImportError;
use netvm_host::ports::PortError;
use netvm_host::segments::SegmentError;

/// Of opening a port.
#[must_use]
pub fn port(error: PortError) -> Refusal {
    Refusal::Status(match error {
        PortError::NoSuchPort => Status::NoSuchPort,
        PortError::InUse => Status::NotAllowed,
        PortError::AllInUse => Status::TableFull,
        PortError::CardGone => Status::CardGone,
    })
}

/// Of registering memory.
#[must_use]
pub fn segment(error: SegmentError) -> Refusal {
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

/// Of exporting.
#[must_use]
pub fn export(error: ExportError) -> Refusal {
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

/// Of importing.
#[must_use]
pub fn import(error: ImportError) -> Refusal {
    Refusal::Status(match error {
        ImportError::NoSuchPort => Status::NoSuchPort,
        ImportError::NoSuchNode => Status::NoSuchNode,
        ImportError::TableFull => Status::TableFull,
        ImportError::NoSuchImport => Status::NoSuchExport,
        ImportError::CardGone => Status::CardGone,
    })
}

/// The operating system's answer to `what`.
#[must_use]
pub fn io(what: &'static str, error: &std::io::Error) -> Refusal {
    Refusal::System {
        what,
        errno: error.raw_os_error().unwrap_or_default(),
    }
}
