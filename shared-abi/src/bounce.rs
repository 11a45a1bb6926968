//! Bounce pages and their records (thesis 5.6).
//!
//! A bounce page is named by a [`BounceId`]. Three groups follow one another, so that everything
//! that may need one owns one, and none can overflow:
//!
//! 1. slots of windows: `window * messages of a window + seq % messages`, owned by the message in that slot;
//! 2. read replies: one for each read slot of the requester, reserved when the read is issued;
//! 3. sources: one for each staging buffer, into which the host copies a page that the NIC could
//!    not map three times running.
//!
//! The record beside it is the message's header, written by the NIC before the event.

use crate::geometry::Geometry;
use crate::units::{BounceId, ReadSlot, StagingId};
use crate::wire::{HEADER_WORDS, Header, HeaderError};
use crate::words::SharedWords;

/// Words of a record: the header and room to grow.
pub const RECORD_WORDS: usize = 32;

/// What a bounce page is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BounceUse {
    /// A message in a slot of a window. Which node the window is for at the time, the message's header says.
    Window {
        /// The window.
        window: u16,
        /// `seq % messages of a window`.
        slot: u16,
    },
    /// The reply to a read.
    Reply(ReadSlot),
    /// The source of a message that waits in a staging buffer.
    Source(StagingId),
}

impl BounceUse {
    /// Its number.
    #[must_use]
    pub const fn id(self, geometry: &Geometry) -> BounceId {
        let windows = geometry.window_slots();
        BounceId(match self {
            Self::Window { window, slot } => window as u32 * geometry.window as u32 + slot as u32,
            Self::Reply(read) => windows + read.0 as u32,
            Self::Source(staging) => windows + geometry.reads as u32 + staging.0 as u32,
        })
    }

    /// From its number; nothing when there is no such page.
    #[must_use]
    pub const fn from_id(geometry: &Geometry, id: BounceId) -> Option<Self> {
        let messages = geometry.window as u32;
        let windows = geometry.window_slots();
        let reads = geometry.reads as u32;
        Some(if id.0 < windows {
            Self::Window {
                window: (id.0 / messages) as u16,
                slot: (id.0 % messages) as u16,
            }
        } else if id.0 < windows + reads {
            Self::Reply(ReadSlot((id.0 - windows) as u16))
        } else if id.0 < geometry.bounce_slots() {
            Self::Source(StagingId((id.0 - windows - reads) as u16))
        } else {
            return None;
        })
    }
}

/// Writes the record of a bounced message (NIC, before the event).
pub fn store_record<W: SharedWords + ?Sized>(shared: &W, at: crate::WordIndex, header: &Header) {
    shared.store_slice(at, &header.encode_words());
}

/// Reads the record of a bounced message (host driver, after the event).
///
/// # Errors
/// When the record is no header, which a working card never writes.
pub fn load_record<W: SharedWords + ?Sized>(shared: &W, at: crate::WordIndex) -> Result<Header, HeaderError> {
    let mut words = [0; HEADER_WORDS];
    shared.load_slice(at, &mut words);
    Header::decode_words(&words)
}
