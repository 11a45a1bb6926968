//! Signals over a bus that posts stores, where a full barrier does not wait for a store to land
//! (`docs/decisions/0015-posted-stores.md`).
//!
//! **Entries.** That an entry was taken may still be under way to the card, which then lets the entry stand for a new signal,
//! while the new count is still under way to here. The number has no entry then, and its count seems to hold nothing
//! new. So a number whose entry was taken is *unsure* until the library has read across the bus: its count
//! is then compared once more. The read pushes what this side has stored to the card, and its answer brings what the
//! card stored before it. Hence a signal that was raised over the old entry is seen by that comparison, and
//! later ones get an entry.
//!
//! The library reads when it runs dry: when a caller finds its list empty, or the dispatcher has nothing to do. While
//! a caller sleeps on the queue, it also reads when another one lets go of a number, because the card interrupts the
//! sleeper for new entries only. A program that is busy, or that waits for the counts of its numbers, never reads.
//!
//! **Interrupts.** A caller enables an interrupt, reads across the bus, and looks at counts and queue once more. A card
//! that raised a signal before the enable word landed stored the count before the read was answered: the caller sees
//! it. A card that raises one later interrupts.

use super::inbox::State;
use crate::port::PortInner;
use netvm_abi::words::SharedWords;

impl PortInner {
    /// Looks once more for signals of unsure numbers, if there are any. True if it has found some, which are announced
    /// then: callers that wait for them may have to be woken, once the lock is free.
    pub(super) fn make_sure(&self, state: &mut State) -> bool {
        !state.unsure.is_empty() && self.cross_bus(state)
    }

    /// The same from behind a read in any case: earlier stores to the block have landed when this returns.
    pub(super) fn cross_bus(&self, state: &mut State) -> bool {
        if !self.has_words() {
            return false;
        }
        self.block.bus_barrier();
        let mut found = false;
        for id in std::mem::take(&mut state.unsure).iter() {
            // One that is out is looked at when it is acknowledged.
            if self.pending(id) > 0 && !state.out.has(id) {
                self.announce(state, id);
                found = true;
            }
        }
        found
    }
}
