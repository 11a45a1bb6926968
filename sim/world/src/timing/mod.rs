//! How long things take: drawn from the dice, for runs that look for errors, or modelled, for runs that measure.
//!
//! A modelled world has no chance in it, as far as its cards, links and waiting processes go: each step of a card takes
//! the instructions that were counted for it ([`Steps`]), and a card takes one step at a time, so that inputs queue
//! where there are many. What the kernel does (opening, exporting, importing) still takes drawn times.

mod steps;

use netvm_abi::Nanos;

pub use steps::Steps;

/// What things cost in a modelled world.
///
/// The thesis' prototype is of its time (a 132 MHz card, 528 MB/s of PCI: thesis 3.4), so the figures are those of a
/// present card with Arm cores on a 100 Gbit/s fabric, as their makers' data sheets and published measurements have
/// them, rounded. No conclusion may hang on one of them; ratios of what goes the same way do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// Instructions that a card's core carries out in a microsecond: one a cycle at 2 GHz.
    pub card_instructions_per_micro: u64,
    /// Instructions of each step of a card, as counted.
    pub steps: Steps,
    /// A DMA that reads host memory, from its start to its end, beside its bytes: a PCIe round trip to memory.
    pub dma_read: Nanos,
    /// A DMA that writes host memory, until it is seen there: one way over PCIe.
    pub dma_write: Nanos,
    /// Bytes that the bus between card and host carries in a microsecond: PCIe 3.0 x16, less its own needs.
    pub dma_bytes_per_micro: u64,
    /// From the last bit sent to the first bit received: two cables and a switch.
    pub link: Nanos,
    /// Bytes that a link carries in a microsecond: 100 Gbit/s.
    pub link_bytes_per_micro: u64,
    /// The same way from a card to itself.
    pub loopback: Nanos,
    /// What posting a command takes its process: 118 instructions counted, at three a nanosecond, and two stores that
    /// cross the bus.
    pub post: Nanos,
    /// From a doorbell's store to a card that sleeps: one way over PCIe.
    pub doorbell: Nanos,
    /// From the store that a spinning process waits for to its next instruction: a cache line from the bus.
    pub poll: Nanos,
    /// How long a process spins between two looks if nothing is stored: what one round of a spin loop counts for where
    /// a loop is bounded by rounds.
    pub spin: Nanos,
    /// One access of a process to memory that it shares: between a cache hit and a line of another core.
    pub word: Nanos,
    /// From a card's interrupt to the end of its handler.
    pub interrupt: Nanos,
    /// From there to the first instruction of a process that was blocked: the scheduler.
    pub wake: Nanos,
}

impl CostModel {
    /// The model that the evaluation uses, with the instruction counts committed beside it.
    ///
    /// # Errors
    /// `docs/evaluation/instructions.csv` lacks a step.
    pub fn committed() -> Result<Self, String> {
        Ok(Self {
            card_instructions_per_micro: 2_000,
            steps: Steps::committed()?,
            dma_read: Nanos(500),
            dma_write: Nanos(300),
            dma_bytes_per_micro: 12_000,
            link: Nanos(600),
            link_bytes_per_micro: 12_500,
            loopback: Nanos(50),
            post: Nanos(60),
            doorbell: Nanos(150),
            poll: Nanos(50),
            spin: Nanos(500),
            word: Nanos(40),
            interrupt: Nanos(2_000),
            wake: Nanos(1_500),
        })
    }

    /// Its parameters but for the counts, with their units, as a report shows them.
    #[must_use]
    pub const fn parameters(&self) -> [(&'static str, u64, &'static str); 13] {
        [
            ("card", self.card_instructions_per_micro, "instructions/us"),
            ("dma_read", self.dma_read.0, "ns"),
            ("dma_write", self.dma_write.0, "ns"),
            ("dma_bandwidth", self.dma_bytes_per_micro, "B/us"),
            ("link", self.link.0, "ns"),
            ("link_bandwidth", self.link_bytes_per_micro, "B/us"),
            ("loopback", self.loopback.0, "ns"),
            ("post", self.post.0, "ns"),
            ("doorbell", self.doorbell.0, "ns"),
            ("poll", self.poll.0, "ns"),
            ("word", self.word.0, "ns"),
            ("interrupt", self.interrupt.0, "ns"),
            ("wake", self.wake.0, "ns"),
        ]
    }

    /// How long a card needs for these instructions.
    #[must_use]
    pub fn card_time(&self, instructions: u32) -> Nanos {
        Nanos((u64::from(instructions) * 1_000).div_ceil(self.card_instructions_per_micro.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_counts_are_whole() {
        let model = CostModel::committed().unwrap();
        assert_eq!(model.card_time(2_000), Nanos(1_000));
        assert_eq!(model.card_time(1), Nanos(1), "nothing is free");
        let steps = model.steps;
        let standard = steps.request_atomic + steps.fetched_fetch_add + steps.stored_atomic;
        assert!((1_000..3_000).contains(&standard), "{standard}");
    }
}
