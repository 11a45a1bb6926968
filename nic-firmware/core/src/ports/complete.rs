//! Completion counters: exact at the NIC, shadowed in host memory every 32 and at fences (thesis
//! 5.3.1).
//!
//! The application writes the count it waits for into its fence word and rings the doorbell. The
//! NIC looks at the fence words in each turn of the port, and at what it then remembers on each
//! completion. **No wake-up is lost:** a fence that comes before the look is remembered, and the
//! completion that reaches it publishes and interrupts; one that comes after the look is found in
//! the port's next turn, and the sleep protocol asks [`fence_reached`](Port::fence_reached) after its
//! barrier before it sleeps. The shadow is stored before the interrupt, so a woken waiter sees it.
//!
//! A fence that the NIC sees for the first time interrupts also where the shadow has passed it. The application may have
//! looked at the shadow before that store reached it, and sleep now: it has to look once more.

use super::{Completion, Count, Port};
use crate::env::Env;
use crate::platform::Platform;
use core::sync::atomic::{Ordering, fence};
use netvm_abi::bar::port::{DOORBELL, READ_FENCE, TAKEN_FENCE, WRITE_FENCE};
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::port_area::{AREA_WORDS, READS_DONE, REPLY_SLOTS, Reply, SHADOW_STEP, TAKEN, WRITES_DONE};
use netvm_abi::storage::Storage;
use netvm_abi::words::{Part, SharedWords};
use netvm_abi::{ReplySlot, WordIndex};

/// The words that the NIC looks at in each turn of a port, copied in one go.
pub(crate) struct Looked {
    pub(crate) doorbell: u32,
    /// The fence of commands taken.
    pub(super) taken: u32,
    /// The fence of writes done.
    pub(super) writes: u32,
    /// The fence of reads, flushes and atomics done.
    pub(super) reads: u32,
}

/// Words from the first to the last of them.
const LOOKED_WORDS: usize = 6;

const _: () = assert!(DOORBELL.0 == 0);
const _: () = assert!(WRITE_FENCE.0 == 1);
const _: () = assert!(READ_FENCE.0 == 2);
const _: () = assert!(TAKEN_FENCE.0 == 5);

impl Looked {
    /// Of the block that starts at `block`, where the words are atomics in this machine's memory.
    #[inline(always)]
    pub(super) fn at_once<W: SharedWords + ?Sized>(bar: &W, block: WordIndex) -> Option<Self> {
        let words = bar.atomics(block, LOOKED_WORDS as u32)?;
        let [doorbell, writes, reads, _, _, taken] = words.first_chunk()?;
        let looked = Self {
            doorbell: doorbell.load(Ordering::Relaxed),
            taken: taken.load(Ordering::Relaxed),
            writes: writes.load(Ordering::Relaxed),
            reads: reads.load(Ordering::Relaxed),
        };
        fence(Ordering::Acquire);
        Some(looked)
    }

    /// Of the block that starts at `block`.
    pub(crate) fn at<W: SharedWords + ?Sized>(bar: &W, block: WordIndex) -> Self {
        let mut words = [0; LOOKED_WORDS];
        bar.load_slice(block, &mut words);
        let [doorbell, writes, reads, _, _, taken] = words;
        Self {
            doorbell,
            taken,
            writes,
            reads,
        }
    }
}

impl Completion {
    /// Of a port that opens, with all counts at `count`.
    pub(super) const fn starting_at(count: u32) -> Self {
        Self {
            done: count,
            shadow: count,
            fence: count,
            tell_at: count.wrapping_add(SHADOW_STEP),
        }
    }

    /// The application has asked to hear of this count. Whether it had not before, and the count is reached.
    const fn ask(&mut self, fence: u32) -> bool {
        let late = self.asks_late(fence);
        self.fence = fence;
        self.aim();
        late
    }

    /// Whether the application asks for a count that it has not asked for before, and that is reached.
    const fn asks_late(&self, fence: u32) -> bool {
        fence != self.fence && self.done.wrapping_sub(fence) as i32 >= 0
    }

    /// The application is told.
    const fn told(&mut self) {
        self.shadow = self.done;
        self.aim();
    }

    /// Finds the count at which it is told next.
    const fn aim(&mut self) {
        // Of a fence that is not past the shadow it has been told.
        let to_fence = self.fence.wrapping_sub(self.shadow);
        let step = if (to_fence as i32) > 0 && to_fence < SHADOW_STEP {
            to_fence
        } else {
            SHADOW_STEP
        };
        self.tell_at = self.shadow.wrapping_add(step);
    }

    /// Whether the application has asked for a count that is reached and that it does not know.
    const fn fenced(&self, fence: u32) -> bool {
        let reached = self.done.wrapping_sub(fence) as i32 >= 0;
        let untold = fence.wrapping_sub(self.shadow) as i32 > 0;
        reached && untold
    }

    /// Whether the application should be told: every [`SHADOW_STEP`], and when it has asked.
    #[inline]
    pub(super) const fn due(&self) -> bool {
        self.done.wrapping_sub(self.tell_at) as i32 >= 0
    }
}

impl Port {
    /// One more operation is done.
    #[inline]
    pub(crate) fn complete<P: Platform, S: Storage>(&mut self, p: &mut P, env: &mut Env<S>, count: Count) {
        let counter = self.count(count);
        counter.done = if mutant::is(Mutant::CountForgetsWrap) {
            counter.done.saturating_add(1)
        } else {
            counter.done.wrapping_add(1)
        };
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
        counter.told();
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

    /// Remembers the fences, and tells what they ask for if it is there already.
    #[inline(never)]
    pub(crate) fn fences_moved<P: Platform, S: Storage>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        words: &Looked,
    ) {
        for (count, fence) in [
            (Count::Taken, words.taken),
            (Count::Writes, words.writes),
            (Count::Reads, words.reads),
        ] {
            let late = self.count(count).ask(fence);
            let told = !self.count(count).fenced(fence);
            self.publish(p, env, count);
            if late && told {
                env.interrupt_port(p, self.id);
            }
        }
    }

    /// Whether a fence word of the port asks for what could be told at once, or for what is reached and was not asked for.
    pub(crate) fn fence_reached<P: Platform, S: Storage>(&self, p: &P, env: &Env<S>) -> bool {
        let words = Looked::at(p.bar(), env.bar.port(self.id));
        self.is_open()
            && [words.taken, words.writes, words.reads]
                .into_iter()
                .zip(&self.counts)
                .any(|(fence, counter)| counter.fenced(fence) || counter.asks_late(fence))
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
        let mut counter = Completion {
            done,
            shadow,
            ..Completion::starting_at(0)
        };
        counter.ask(fence);
        counter
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
