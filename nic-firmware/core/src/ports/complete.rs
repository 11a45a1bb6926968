//! Completion counters: exact at the NIC, shadowed in host memory every 32 and at fences (thesis
//! 5.3.1).
//!
//! The application writes the count it waits for into its fence word and rings the doorbell. The
//! NIC looks at the fence words in each turn of the port, and at what it then remembers on each
//! completion. **No wake-up is lost:** a fence that comes before the look is remembered, and the
//! completion that reaches it publishes and interrupts; one that comes after the look is found in
//! the port's next turn, and the sleep protocol asks [`fence_reached`](Port::fence_reached) after its
//! barrier before it sleeps. The shadow is stored before the interrupt, so a woken waiter sees it.

use super::{Completion, Count, Port};
use crate::env::Env;
use crate::platform::Platform;
use netvm_abi::bar::port::{DOORBELL, READ_FENCE, TAKEN_FENCE, WRITE_FENCE};
use netvm_abi::port_area::{AREA_WORDS, READS_DONE, REPLY_SLOTS, Reply, SHADOW_STEP, TAKEN, WRITES_DONE};
use netvm_abi::storage::Storage;
use netvm_abi::words::{Part, SharedWords};
use netvm_abi::{ReplySlot, WordIndex};

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
    pub(super) const fn due(&self) -> bool {
        self.done.wrapping_sub(self.shadow) >= SHADOW_STEP || self.fenced(self.fence)
    }
}

impl Port {
    /// One more operation is done.
    #[inline]
    pub(crate) fn complete<P: Platform, S: Storage>(&mut self, p: &mut P, env: &mut Env<S>, count: Count) {
        let counter = self.count(count);
        counter.done = counter.done.wrapping_add(1);
        self.publish(p, env, count);
    }

    #[inline]
    pub(super) fn count(&mut self, count: Count) -> &mut Completion {
        let [taken, writes, reads] = &mut self.counts;
        match count {
            Count::Taken => taken,
            Count::Writes => writes,
            Count::Reads => reads,
        }
    }

    /// Refreshes a shadow counter if its step or a fence is reached.
    #[inline]
    pub(crate) fn publish<P: Platform, S: Storage>(&mut self, p: &mut P, env: &mut Env<S>, count: Count) {
        if self.count(count).due() {
            self.refresh(p, env, count);
        }
    }

    /// Refreshes a shadow counter.
    #[inline(never)]
    pub(crate) fn refresh<P: Platform, S: Storage>(&mut self, p: &mut P, env: &mut Env<S>, count: Count) {
        let area = env.shared.port_area(self.id);
        let counter = self.count(count);
        let fenced = counter.fenced(counter.fence);
        counter.shadow = counter.done;
        let word = match count {
            Count::Taken => TAKEN,
            Count::Writes => WRITES_DONE,
            Count::Reads => READS_DONE,
        };
        p.shared().store_release(area.plus(word.0), counter.done);
        if fenced {
            env.counters.fences += 1;
            env.interrupt_port(p, self.id);
        }
    }

    /// The counts of which the application wants to hear exactly, as far as the NIC knows.
    #[inline]
    pub(crate) fn fences(&self) -> [u32; 3] {
        self.counts.map(|count| count.fence)
    }

    /// Remembers the fences, and tells what they ask for if it is there already.
    #[inline(never)]
    pub(crate) fn fences_moved<P: Platform, S: Storage>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        fences: [u32; 3],
    ) {
        for (count, fence) in [Count::Taken, Count::Writes, Count::Reads]
            .into_iter()
            .zip(fences)
        {
            self.count(count).fence = fence;
            self.publish(p, env, count);
        }
    }

    /// Whether a fence word of the port asks for what could be told at once.
    pub(crate) fn fence_reached<P: Platform, S: Storage>(&self, p: &P, env: &Env<S>) -> bool {
        let fences = Looked::at(p.bar(), env.bar.port(self.id)).fences;
        self.is_open()
            && fences
                .into_iter()
                .zip(&self.counts)
                .any(|(fence, counter)| counter.fenced(fence))
    }

    /// Writes the result of a round trip into the port's reply slot. Returns whether it named one.
    pub(crate) fn store_reply<P: Platform, S: Storage>(
        &self,
        p: &P,
        env: &Env<S>,
        slot: ReplySlot,
        reply: Reply,
    ) -> bool {
        if slot.0 >= REPLY_SLOTS {
            return false;
        }
        let area = Part::new(p.shared(), env.shared.port_area(self.id), AREA_WORDS);
        reply.store(&area, slot.0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(done: u32, shadow: u32, fence: u32) -> Completion {
        Completion { done, shadow, fence }
    }

    /// Counts begin anywhere, also where the next step or fence lies beyond the largest number.
    #[test]
    fn fences_and_steps_hold_across_the_wrap_of_the_count() {
        for start in [0, 7, i32::MAX as u32 - 10, u32::MAX - 40, u32::MAX - 1] {
            for fence in 1..=40 {
                let fence = start.wrapping_add(fence);
                for done in 0..=40 {
                    let counter = at(start.wrapping_add(done), start, fence);
                    let reached = done >= fence.wrapping_sub(start);
                    assert_eq!(counter.fenced(fence), reached, "{counter:?}");
                    assert_eq!(counter.due(), reached || done >= SHADOW_STEP, "{counter:?}");
                }
            }
            let told = at(
                start.wrapping_add(5),
                start.wrapping_add(5),
                start.wrapping_add(3),
            );
            assert!(!told.due(), "the application knows: {told:?}");
        }
    }
}
