//! Instructions of a card's steps, as `cargo xtask bench path` has counted them.

use netvm_abi::descriptor::Opcode;
use netvm_abi::wire::{Header, Kind};

/// The counts, as they are committed.
const COMMITTED: &str = include_str!("../../../../docs/evaluation/instructions.csv");

/// Messages that an acknowledgement of a stream without loss speaks of first: half of the usual window.
const ACKED: u32 = 32;

macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Instructions of each step; named as the rows of `docs/evaluation/instructions.csv`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Steps { $($(#[$doc])* pub $name: u32,)* }

        impl Steps {
            /// From the table of the counts.
            ///
            /// # Errors
            /// A step is missing, or no number.
            fn parse(table: &str) -> Result<Self, String> {
                Ok(Self { $($name: row(table, stringify!($name))?,)* })
            }
        }
    };
}

steps! {
    /// A look at everything, in vain.
    idle,
    /// Descriptor to frame, payload in the descriptor.
    command_8,
    /// Descriptor to the source's DMA.
    command_4096,
    /// Descriptor to request, a read.
    command_read,
    /// The same, a flush.
    command_flush,
    /// The same, an atomic.
    command_atomic,
    /// Source's DMA done to frame.
    fetched_4096,
    /// Frame to DMA, a write.
    frame_8,
    /// Frame to bounce DMA.
    frame_miss,
    /// DMA done to landed.
    landed,
    /// Bounce DMA done to the host's event.
    landed_miss,
    /// On top of landing: a notification.
    notification,
    /// Request to DMA, a read.
    request_read,
    /// DMA done to answer, a read.
    fetched_read,
    /// Request to answer, a flush.
    request_flush,
    /// Request to the operand's DMA, an atomic.
    request_atomic,
    /// Request to its place behind another one, an atomic.
    queued_atomic,
    /// Its turn to the operand's DMA.
    resumed_atomic,
    /// Operand fetched to stored.
    fetched_fetch_add,
    /// The same.
    fetched_compare_swap,
    /// The same.
    fetched_swap,
    /// The same.
    fetched_enqueue,
    /// The same.
    fetched_dequeue,
    /// The same.
    fetched_new_head,
    /// The same.
    fetched_sem_p,
    /// The same.
    fetched_sem_v,
    /// Operand stored to answer.
    stored_atomic,
    /// Answer to DMA, a read.
    reply_read,
    /// DMA done to the caller, a read.
    placed_read,
    /// Answer to the caller, a flush.
    reply_flush,
    /// Answer to the caller, an atomic.
    reply_atomic,
    /// An acknowledgement of [`ACKED`] messages.
    ack,
    /// An acknowledgement of one.
    ack_one,
    /// A staging buffer is free again.
    sent,
}

fn row(table: &str, name: &str) -> Result<u32, String> {
    let line = table
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(','))
        .ok_or_else(|| format!("instructions.csv has no row `{name}`; `cargo xtask bench path` writes it"))?;
    line.trim()
        .parse()
        .map_err(|_| format!("instructions.csv, row `{name}`: `{line}` is no number"))
}

impl Steps {
    /// The counts that are committed.
    pub(super) fn committed() -> Result<Self, String> {
        Self::parse(COMMITTED)
    }

    /// What a card does with an acknowledgement that speaks first of so many messages: each lets go of a copy and gives a credit back.
    pub(crate) const fn acknowledgement(&self, messages: u32) -> u32 {
        let each = self.ack.saturating_sub(self.ack_one) / (ACKED - 1);
        self.ack_one + each * messages.saturating_sub(1)
    }

    /// What a frame costs the card that receives it, up to what it starts or answers; that of an acknowledgement that says nothing new.
    pub(crate) const fn frame(&self, header: &Header) -> u32 {
        match header.kind {
            Kind::Write => self.frame_8,
            Kind::ReadRequest => self.request_read,
            Kind::AtomicRequest => self.request_atomic,
            Kind::Flush => self.request_flush,
            Kind::ReadReply => self.reply_read,
            Kind::AtomicReply => self.reply_atomic,
            Kind::FlushReply => self.reply_flush,
            // Those that travel while links and imports are made; they are counted with nothing.
            Kind::Control | Kind::Hello | Kind::HelloAck | Kind::Bye | Kind::Error => self.frame_8,
            Kind::Ack | Kind::Probe => self.ack_one,
        }
    }

    /// What follows on a fetched operand, up to the DMA that stores it. `extended`: its operand is a block.
    pub(crate) const fn fetched(&self, opcode: Option<Opcode>, extended: bool) -> u32 {
        match opcode {
            Some(Opcode::CompareSwap) => self.fetched_compare_swap,
            Some(Opcode::Swap) => self.fetched_swap,
            Some(Opcode::Enqueue) => self.fetched_enqueue,
            Some(Opcode::Dequeue) => self.fetched_dequeue,
            Some(Opcode::NewHead) => self.fetched_new_head,
            Some(Opcode::SemP) => self.fetched_sem_p,
            Some(Opcode::SemV) => self.fetched_sem_v,
            // Its request came long ago: which one it is no more to be seen, and makes little difference.
            None if extended => self.fetched_enqueue,
            _ => self.fetched_fetch_add,
        }
    }

    /// What is still to be paid when an atomic's turn comes: it has been charged as if it had been its turn at once.
    pub(crate) const fn resumed(&self) -> u32 {
        (self.queued_atomic + self.resumed_atomic).saturating_sub(self.request_atomic)
    }

    /// What a command costs up to its frame: what the sent frame says that it was.
    pub(crate) const fn command(&self, kind: Kind) -> u32 {
        match kind {
            Kind::ReadRequest => self.command_read,
            Kind::AtomicRequest => self.command_atomic,
            Kind::Flush => self.command_flush,
            // Sent by timers: the share of these is in `landed`.
            Kind::Ack => 0,
            _ => self.command_8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_costs_by_what_it_says() {
        let steps = Steps::committed().unwrap();
        assert_eq!(steps.acknowledgement(0), steps.ack_one);
        assert_eq!(steps.acknowledgement(1), steps.ack_one);
        let stream = steps.acknowledgement(ACKED);
        assert!(stream.abs_diff(steps.ack) < ACKED, "{stream}");
    }

    #[test]
    fn a_missing_or_odd_row_is_named() {
        assert!(row("step,instructions\nidle,5\n", "ack").is_err_and(|text| text.contains("`ack`")));
        assert!(row("ack,many\n", "ack").is_err_and(|text| text.contains("many")));
        assert_eq!(row("ack_late,9\nack,7\n", "ack"), Ok(7));
    }
}
