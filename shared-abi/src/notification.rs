//! Limits of notifications (thesis 6.1); the words are in [`crate::bar::port`] and
//! [`crate::port_area`].

use crate::units::{NotificationId, WordIndex};

/// Notification numbers with an event count: 1..=1023.
pub const EVENT_COUNTS: u32 = 1024;

/// Word (relative to a port block) and bit of a notification's interrupt enable flag; nothing for
/// one-shot numbers.
#[must_use]
pub const fn interrupt_bit(id: NotificationId) -> Option<(WordIndex, u32)> {
    if id.0 >= EVENT_COUNTS {
        return None;
    }
    Some((
        crate::bar::port::INTERRUPT_ENABLE.plus(id.0 / 32),
        1 << (id.0 % 32),
    ))
}

/// Entries of a queue of `entries` that one-shot notifications may take: what event counts, which
/// have at most one entry each, leave.
#[must_use]
pub const fn one_shot_room(entries: u32) -> u32 {
    entries - EVENT_COUNTS
}
