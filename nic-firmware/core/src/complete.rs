//! Completion counters: exact at the NIC, shadowed in host memory every 32 and at fences (thesis
//! 5.3.1).
//!
//! The application writes the count it waits for into its fence word and rings the doorbell. The
//! NIC looks at the fence words in each turn of the port, and at what it then remembers on each
//! completion. **No wake-up is lost:** a fence that comes before the look is remembered, and the
//! completion that reaches it publishes and interrupts; one that comes after the look is found in
//! the port's next turn, and the sleep protocol asks [`fence_reached`](Nic::fence_reached) after its
//! barrier before it sleeps. The shadow is stored before the interrupt, so who is woken sees it.

use crate::nic::Nic;
use crate::platform::{Interrupt, Platform};
use crate::port::{Completion, Count, PortState};
use netvm_abi::bar::port::{READ_FENCE, TAKEN_FENCE, WRITE_FENCE};
use netvm_abi::port_area::{READS_DONE, Reply, SHADOW_STEP, TAKEN, WRITES_DONE};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::words::{Part, SharedWords};
use netvm_abi::{OpId, PortId, ReplySlot, WordIndex};

const COUNTS: [(Count, WordIndex, WordIndex); 3] = [
    (Count::Taken, TAKEN_FENCE, TAKEN),
    (Count::Writes, WRITE_FENCE, WRITES_DONE),
    (Count::Reads, READ_FENCE, READS_DONE),
];

impl Completion {
    /// Whether the application has asked for a count that is reached and that it does not know.
    const fn fenced(&self, fence: u32) -> bool {
        let reached = self.done.wrapping_sub(fence) as i32 >= 0;
        let untold = fence.wrapping_sub(self.shadow) as i32 > 0;
        reached && untold
    }
}

impl<S: Storage> Nic<S> {
    /// One more operation is done.
    pub(crate) fn complete<P: Platform>(&mut self, p: &mut P, id: PortId, count: Count) {
        if let Some(counter) = self.count(id, count) {
            counter.done = counter.done.wrapping_add(1);
        }
        self.publish(p, id, count);
    }

    fn count(&mut self, id: PortId, count: Count) -> Option<&mut Completion> {
        self.ports.get_mut(id.index())?.counts.get_mut(count as usize)
    }

    /// Refreshes a shadow counter if its step or a fence is reached.
    pub(crate) fn publish<P: Platform>(&mut self, p: &mut P, id: PortId, count: Count) {
        let area = self.shared.port_area(id);
        let Some(counter) = self.count(id, count) else {
            return;
        };
        let fenced = counter.fenced(counter.fence);
        if !fenced && counter.done.wrapping_sub(counter.shadow) < SHADOW_STEP {
            return;
        }
        counter.shadow = counter.done;
        let done = counter.done;
        let word = match count {
            Count::Taken => TAKEN,
            Count::Writes => WRITES_DONE,
            Count::Reads => READS_DONE,
        };
        p.shared().store_release(area.plus(word.0), done);
        if fenced {
            self.counters.fences += 1;
            self.interrupt_port(p, id);
        }
    }

    /// Looks at a port's fence words.
    pub(crate) fn read_fences<P: Platform>(&mut self, p: &mut P, id: PortId) {
        let block = self.bar.port(id);
        for (count, fence, _) in COUNTS {
            let asked = p.bar().load_acquire(block.plus(fence.0));
            let Some(counter) = self.count(id, count) else {
                return;
            };
            if counter.fence != asked {
                counter.fence = asked;
                self.publish(p, id, count);
            }
        }
    }

    /// Whether a fence word of the port asks for what could be told at once.
    pub(crate) fn fence_reached<P: Platform>(&self, p: &P, id: PortId) -> bool {
        let block = self.bar.port(id);
        let Some(port) = self.ports.get(id.index()) else {
            return false;
        };
        port.state == PortState::Open
            && COUNTS
                .iter()
                .zip(&port.counts)
                .any(|((_, fence, _), counter)| counter.fenced(p.bar().load_acquire(block.plus(fence.0))))
    }

    /// Writes the result of a round trip into the port's reply slot. Returns whether it named one.
    pub(crate) fn store_reply<P: Platform>(
        &mut self,
        p: &mut P,
        id: PortId,
        reply: ReplySlot,
        op: OpId,
        status: Status,
        value: u64,
    ) -> bool {
        if reply.0 >= netvm_abi::port_area::REPLY_SLOTS {
            return false;
        }
        let area = Part::new(
            p.shared(),
            self.shared.port_area(id),
            netvm_abi::port_area::AREA_WORDS,
        );
        Reply { op, status, value }.store(&area, reply.0);
        true
    }

    /// Interrupts an application that may sleep.
    pub(crate) fn interrupt_port<P: Platform>(&mut self, p: &mut P, id: PortId) {
        self.counters.port_interrupts += 1;
        p.interrupt(Interrupt::Port(id));
    }
}
