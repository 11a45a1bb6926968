//! Completion counters: exact at the NIC, shadowed in host memory every 32 and at fences (thesis
//! 5.3.1).
//!
//! The application writes the count it waits for into its fence word and rings the doorbell. The
//! NIC looks at the fence words in each turn of the port, and at what it then remembers on each
//! completion. **No wake-up is lost:** a fence that comes before the look is remembered, and the
//! completion that reaches it publishes and interrupts; one that comes after the look is found in
//! the port's next turn, and the sleep protocol asks [`fence_reached`](Nic::fence_reached) after its
//! barrier before it sleeps. The shadow is stored before the interrupt, so a woken waiter sees it.

use crate::nic::Nic;
use crate::platform::Platform;
use crate::port::{Completion, Count, Port, PortState};
use netvm_abi::atomic::AtomicResult;
use netvm_abi::bar::port::{DOORBELL, READ_FENCE, TAKEN_FENCE, WRITE_FENCE};
use netvm_abi::port_area::{READS_DONE, Reply, SHADOW_STEP, TAKEN, WRITES_DONE};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::words::{Part, SharedWords};
use netvm_abi::{OpId, PortId, ReplySlot, WordIndex};

/// The words that the NIC looks at in each turn of a port, copied in one go.
pub(crate) struct Looked {
    pub(crate) doorbell: u32,
    /// By [`Count`].
    pub(crate) fences: [u32; 3],
}

const _: () = assert!(DOORBELL.0 == 0);
const _: () = assert!(WRITE_FENCE.0 == 1);
const _: () = assert!(READ_FENCE.0 == 2);
const _: () = assert!(TAKEN_FENCE.0 == 5);

impl Looked {
    /// Of the block that starts at `block`.
    #[inline]
    pub(crate) fn at<W: SharedWords + ?Sized>(bar: &W, block: WordIndex) -> Self {
        let mut words = [0; 6];
        bar.load_slice(block, &mut words);
        let [doorbell, writes, reads, _, _, taken] = words;
        Self {
            doorbell,
            fences: [taken, writes, reads],
        }
    }
}

impl Completion {
    /// Whether the application has asked for a count that is reached and that it does not know.
    const fn fenced(&self, fence: u32) -> bool {
        let reached = self.done.wrapping_sub(fence) as i32 >= 0;
        let untold = fence.wrapping_sub(self.shadow) as i32 > 0;
        reached && untold
    }

    /// Whether the application should be told: every [`SHADOW_STEP`], and when it has asked.
    const fn due(&self) -> bool {
        self.done.wrapping_sub(self.shadow) >= SHADOW_STEP || self.fenced(self.fence)
    }
}

impl Port {
    /// A write has gone straight through the port's empty pipeline. Gives whether the counts of commands taken and of
    /// writes done are due.
    #[inline(always)]
    pub(crate) fn pass_through(&mut self) -> (bool, bool) {
        self.fetch.take();
        self.retire.take();
        let [taken, writes, _] = &mut self.counts;
        taken.done = self.retire.taken();
        writes.done = writes.done.wrapping_add(1);
        (taken.due(), writes.due())
    }
}

impl<S: Storage> Nic<S> {
    /// One more operation is done.
    #[inline]
    pub(crate) fn complete<P: Platform>(&mut self, p: &mut P, id: PortId, count: Count) {
        if let Some(counter) = self.count(id, count) {
            counter.done = counter.done.wrapping_add(1);
        }
        self.publish(p, id, count);
    }

    #[inline]
    fn count(&mut self, id: PortId, count: Count) -> Option<&mut Completion> {
        self.ports.get_mut(id.index())?.counts.get_mut(count as usize)
    }

    /// Refreshes a shadow counter if its step or a fence is reached.
    #[inline]
    pub(crate) fn publish<P: Platform>(&mut self, p: &mut P, id: PortId, count: Count) {
        if self.count(id, count).is_some_and(|counter| counter.due()) {
            self.refresh(p, id, count);
        }
    }

    #[inline(never)]
    pub(crate) fn refresh<P: Platform>(&mut self, p: &mut P, id: PortId, count: Count) {
        let area = self.env.shared.port_area(id);
        let Some(counter) = self.count(id, count) else {
            return;
        };
        let fenced = counter.fenced(counter.fence);
        counter.shadow = counter.done;
        let done = counter.done;
        let word = match count {
            Count::Taken => TAKEN,
            Count::Writes => WRITES_DONE,
            Count::Reads => READS_DONE,
        };
        p.shared().store_release(area.plus(word.0), done);
        if fenced {
            self.env.counters.fences += 1;
            self.env.interrupt_port(p, id);
        }
    }

    /// Remembers a port's fences, and tells what they ask for if it is there already.
    #[inline(never)]
    pub(crate) fn fences_moved<P: Platform>(&mut self, p: &mut P, id: PortId, fences: [u32; 3]) {
        for (count, fence) in [Count::Taken, Count::Writes, Count::Reads]
            .into_iter()
            .zip(fences)
        {
            if let Some(counter) = self.count(id, count) {
                counter.fence = fence;
            }
            self.publish(p, id, count);
        }
    }

    /// Whether a fence word of the port asks for what could be told at once.
    pub(crate) fn fence_reached<P: Platform>(&self, p: &P, id: PortId) -> bool {
        let Some(port) = self.ports.get(id.index()) else {
            return false;
        };
        let fences = Looked::at(p.bar(), self.env.bar.port(id)).fences;
        port.state == PortState::Open
            && fences
                .into_iter()
                .zip(&port.counts)
                .any(|(fence, counter)| counter.fenced(fence))
    }

    /// Writes the result of a round trip into the port's reply slot. Returns whether it named one.
    pub(crate) fn store_reply<P: Platform>(
        &mut self,
        p: &mut P,
        id: PortId,
        reply: ReplySlot,
        op: OpId,
        status: Status,
        result: AtomicResult,
    ) -> bool {
        if reply.0 >= netvm_abi::port_area::REPLY_SLOTS {
            return false;
        }
        let area = Part::new(
            p.shared(),
            self.env.shared.port_area(id),
            netvm_abi::port_area::AREA_WORDS,
        );
        let AtomicResult { value, second } = result;
        Reply {
            op,
            status,
            value,
            second,
        }
        .store(&area, reply.0);
        true
    }
}
