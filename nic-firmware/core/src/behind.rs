//! What an operation does behind one of its stream that has failed, until the sending program knows
//! (promise P4; the table is in `docs/ABI.md`, chapter 10).
//!
//! An operation that asks for order says "everything before me has landed". Behind a failure that is not true, so
//! it must not act: other processes would take its effect for that word. A notification is dropped and the data of
//! its write still lands. An *ordered* write, an append and an ordered atomic are **held back**: they have no effect.
//! What asks for no order acts, and so does what stands alone ([`MessageFlags::REGARDLESS`]).
//!
//! An append that finds its queue full has not failed in this sense. It holds back appends alone
//! (`nic/appends.rs`).
//!
//! **One rule, two places.** The receiving card applies it where a message has failed over there
//! (`nic/receive.rs`). Of an operation that has failed at its source, or with the link, the receiver knows
//! nothing: there the sending card applies it, before the message takes a number (`nic/leave.rs`).

use crate::counters::Counters;
use netvm_abi::wire::{Kind, MessageFlags};

/// Whether an operation of this kind, with these flags, is held back behind one that has failed.
#[inline]
pub(crate) const fn is_held_back(kind: Kind, flags: MessageFlags) -> bool {
    let ordered = flags.intersects(MessageFlags::ORDERED.union(MessageFlags::APPEND));
    // A read or a flush changes nothing, and its answer goes to the sender alone.
    let acts = matches!(kind, Kind::Write | Kind::AtomicRequest);
    ordered && acts && !flags.contains(MessageFlags::REGARDLESS)
}

impl Counters {
    /// Counts an operation with these flags that is held back.
    pub(crate) const fn count_held(&mut self, flags: MessageFlags) {
        if flags.contains(MessageFlags::APPEND) {
            self.appends_held += 1;
        } else {
            self.ordered_held += 1;
        }
    }
}
