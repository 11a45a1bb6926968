//! The host core's errors as the library's.

use netvm::backend::Refusal;
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
        ExportError::Empty | ExportError::NotRegistered | ExportError::BadNotifications => Status::OutOfRange,
        ExportError::NameTaken(_) => Status::NotAllowed,
        ExportError::TooManyAllowed | ExportError::TableFull => Status::TableFull,
        ExportError::NoSuchExport => Status::NoSuchExport,
    })
}

pub(crate) fn import(error: ImportError) -> Refusal {
    Refusal::Status(match error {
        ImportError::NoSuchPort => Status::NoSuchPort,
        ImportError::NoSuchNode => Status::NoSuchNode,
        ImportError::TableFull | ImportError::Busy => Status::TableFull,
        ImportError::NoSuchImport => Status::NoSuchExport,
        ImportError::CardGone => Status::CardGone,
    })
}
