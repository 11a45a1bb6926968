//! Where a synchronization object lies: a block in some port's memory, exported under a name.

use super::peers::look_by;
use super::rights::{self, Rights};
use crate::backend::Refusal;
use crate::error::{Error, Result};
use crate::export::{Access, Export};
use crate::import::RemoteSegment;
use crate::port::Port;
use crate::region::Region;
use crate::timeout::Timeout;
use netvm_abi::control::Modes;
use netvm_abi::{NodeId, PAGE_SIZE, PortId};
use std::fmt;

/// Offset of a lock's recovery word.
pub(super) const RECOVERY: u64 = 64;
/// Offset of a lock's count of recoveries.
pub(super) const RECOVERIES: u64 = 72;
/// Offset of the access list.
const RIGHTS: u64 = 128;
/// Offset of the table of a lock's members: 64-bit names, 0 for a free place.
pub(super) const MEMBERS: u64 = RIGHTS + rights::BYTES;
/// How many members there may be.
pub(super) const PLACES: usize = (PAGE_SIZE as usize - MEMBERS as usize) / 8;
/// Offset of the word that says what the block is.
const KIND: u64 = 40;
/// Offset of a semaphore's value.
const VALUE: u64 = 24;

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Lock = 1,
    Queue = 2,
    Semaphore = 3,
}

impl Kind {
    const fn otherwise(self) -> &'static str {
        match self {
            Self::Lock => "what is exported under that name is no lock",
            Self::Queue => "what is exported under that name is no wait queue",
            Self::Semaphore => "what is exported under that name is no semaphore",
        }
    }

    const fn word(self) -> u64 {
        u64::from_le_bytes(*b"NetVMs\x01\0") | (self as u64) << 56
    }
}

/// The home of a lock, wait queue or semaphore: as long as it lives, others can join. Any process may keep it;
/// it takes no part in anything, and on the paths of the algorithms only its card does.
///
/// Dropping it ends the object: participants then get an error, at the latest when they next need the home. A lock that
/// a holder hands to a waiter does not need the home; only the last holder does.
#[must_use = "dropping a home ends what lives there"]
pub struct Home {
    export: Export,
    _memory: Region,
}

impl Home {
    pub(super) fn new(port: &Port, name: &str, kind: Kind, value: u32, access: Access) -> Result<Self> {
        let memory = port.alloc(u64::from(PAGE_SIZE))?;
        Rights::of(&access)?.store(&memory, RIGHTS)?;
        memory.word32(VALUE)?.store(value)?;
        memory.word64(KIND)?.store(kind.word())?;
        Ok(Self {
            export: port.export(name, &memory, .., access)?,
            _memory: memory,
        })
    }

    /// The name under which others join.
    #[must_use]
    pub fn name(&self) -> &str {
        self.export.name()
    }
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Home({:?})", self.name())
    }
}

/// Binds to a block, and makes sure that it is one of this kind. Returns the access list.
pub(super) fn join(
    port: &Port,
    node: NodeId,
    exporter: PortId,
    name: &str,
    kind: Kind,
    timeout: Timeout,
) -> Result<(RemoteSegment, Rights)> {
    let deadline = timeout.deadline_of_trips(port.now());
    let block = port.import_with(node, exporter, name, Modes::READ | Modes::ATOMIC, timeout)?;
    let wrong = Error::Import {
        node,
        port: exporter,
        name: name.into(),
        reason: Refusal::Unsupported(kind.otherwise()),
    };
    if block.len() != u64::from(PAGE_SIZE) {
        return Err(wrong);
    }
    let mut bytes = [0; (MEMBERS - KIND) as usize];
    look_by(&block, KIND, &mut bytes, deadline)?;
    match (bytes.first_chunk(), bytes.last_chunk()) {
        (Some(word), Some(list)) if u64::from_le_bytes(*word) == kind.word() => {
            Ok((block, Rights::from_bytes(list)))
        }
        _ => Err(wrong),
    }
}
