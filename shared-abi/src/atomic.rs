//! What an atomic operation does to its operand (thesis 8.1, 8.3, 8.4): pure functions, run by NICs,
//! by host drivers for pages that a NIC cannot have, and by model checkers.
//!
//! A *standard* operation works on one word of 32 or 64 bits. One on a *value* works on a number of up to 8 bytes,
//! whole or not ([`crate::value`]). An *extended* one works on a [`QueueBlock`] of 32 bytes, in constant time: it is what
//! makes a wait queue or a semaphore one round trip instead of three phases under a lock.
//!
//! # Empty is C = P
//! Thesis tables 19 and 22 test for an empty queue with C = 0. That loses a token: with two waiters
//! and three signals, the third finds C = 1 and P = 1: one waiter, which a pending wake-up has claimed. It
//! files a second pending wake-up that no waiter ever takes, and a later waiter sleeps for ever. A queue in
//! which wake-ups have claimed every waiter is empty to a signal: C = P.

use crate::descriptor::Opcode;
use crate::units::VirtAddr;
use crate::value::{ValueCode, ValueOp, ValueType};
use crate::wire::{Body, Header, MessageFlags, OwnHeader};
use crate::words::{join, split};

/// Bytes of the largest operand.
pub const OPERAND_BYTES: usize = 32;
/// The identifier that names no waiter.
pub const EMPTY: u64 = 0;
/// The count that a dequeue answers when there is no waiter to wake.
pub const NOBODY: u32 = u32::MAX;

/// An atomic operation with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Atomic {
    /// Which; never one that is no atomic.
    pub opcode: Opcode,
    /// Whether a standard operation works on 64 bits instead of 32, or one on a value on the larger type of its kind.
    pub wide: bool,
    /// First argument.
    pub operand: u64,
    /// Second argument.
    pub compare: u64,
}

/// What an atomic operation answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AtomicResult {
    /// A standard operation, or one on a value: the old value. Extended ones: see [`Opcode`].
    pub value: u64,
    /// Extended operations: a count in the lower half, and in the upper half the epoch or the
    /// semaphore's value.
    pub second: u64,
}

/// Memory that an operation works on, as little-endian words of 64 bits. An operand of fewer bytes is the lower
/// part of the first.
pub type Operand = [u64; OPERAND_BYTES / 8];

/// An operand from words of 32 bits.
#[must_use]
pub const fn operand_of(words: &[u32; OPERAND_BYTES / 4]) -> Operand {
    let [a, b, c, d, e, f, g, h] = *words;
    [join(a, b), join(c, d), join(e, f), join(g, h)]
}

impl Atomic {
    /// An operation on a value of a type, of which `operand` and `compare` have the bits; nothing if it is not
    /// [defined](ValueType::has) on the type.
    #[must_use]
    pub const fn on_value(op: ValueOp, on: ValueType, operand: u64, compare: u64) -> Option<Self> {
        match ValueCode::new(op, on) {
            Some(code) => Some(Self {
                opcode: code.opcode(),
                wide: on.is_wide(),
                operand,
                compare,
            }),
            None => None,
        }
    }

    /// What the header of a message asks for; nothing when that is no atomic, or one whose operand is
    /// not aligned.
    #[must_use]
    pub fn requested(header: &Header) -> Option<Self> {
        Self::checked(&header.body(), header.flags, header.len, header.address)
    }

    /// The same of a header as it came.
    #[must_use]
    #[inline]
    pub fn requested_by(header: &OwnHeader) -> Option<Self> {
        Self::checked(
            &header.body(),
            header.flags(),
            header.payload_len(),
            header.address(),
        )
    }

    #[inline(always)]
    fn checked(body: &Body, flags: MessageFlags, len: u16, address: VirtAddr) -> Option<Self> {
        let &Body::AtomicRequest {
            opcode,
            operand,
            compare,
            ..
        } = body
        else {
            return None;
        };
        let atomic = Self {
            opcode: opcode.filter(|opcode| opcode.is_atomic())?,
            wide: flags.contains(MessageFlags::WIDE),
            operand,
            compare,
        };
        let bytes = u64::from(atomic.operand_bytes());
        // A power of two; 0 for a type that there is not.
        (len == 0 && bytes != 0 && address.0 & bytes.wrapping_sub(1) == 0).then_some(atomic)
    }

    /// Bytes of the operand, which is also its alignment.
    #[must_use]
    #[inline]
    pub const fn operand_bytes(&self) -> u32 {
        self.opcode.operand_bytes(self.wide)
    }

    /// Carries it out. Gives the answer, and whether the operand has changed: if not there is nothing
    /// to write back.
    #[must_use]
    #[inline]
    pub const fn apply(&self, operand: &mut Operand) -> (AtomicResult, bool) {
        if self.opcode.code() >= Opcode::Enqueue.code() {
            if let Some(code) = self.opcode.on_value() {
                return self.apply_to_value(code, operand);
            }
            let mut block = QueueBlock::decode(operand);
            let before = block;
            let result = block.apply(self);
            *operand = block.encode();
            return (result, !block.same(&before));
        }
        let mask = if self.wide { u64::MAX } else { u32::MAX as u64 };
        let old = operand[0] & mask;
        let new = match self.opcode {
            Opcode::TestAndSet if old == 0 => self.operand,
            Opcode::FetchAdd => old.wrapping_add(self.operand),
            Opcode::Swap => self.operand,
            Opcode::CompareSwap if old == self.compare & mask => self.operand,
            _ => old,
        } & mask;
        operand[0] = new;
        let result = AtomicResult {
            value: old,
            second: 0,
        };
        (result, new != old)
    }
}

impl Atomic {
    #[cold]
    const fn apply_to_value(&self, code: ValueCode, operand: &mut Operand) -> (AtomicResult, bool) {
        let Some(on) = code.on(self.wide) else {
            return (AtomicResult { value: 0, second: 0 }, false);
        };
        let old = operand[0] & on.mask();
        let new = on.apply(code.op(), old, self.operand, self.compare);
        operand[0] = new;
        let result = AtomicResult {
            value: old,
            second: 0,
        };
        (result, new != old)
    }
}

/// The centre of a wait queue or semaphore: 32 bytes of application memory, aligned to as many. All zero
/// is an empty queue and a semaphore of 0.
///
/// The queue itself is a chain through the waiters' memory. A woken waiter with a successor reports that
/// successor's identifier as the new head. Until then the head is [`EMPTY`], and a signal that arrives
/// meanwhile is *pending*.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QueueBlock {
    /// H: the first waiter, or [`EMPTY`].
    pub head: u64,
    /// T: the last waiter.
    pub tail: u64,
    /// C: number of waiters, including those that a pending wake-up has claimed.
    pub count: u32,
    /// P: wake-ups that wait for the new head.
    pub pending: u32,
    /// S: the semaphore.
    pub value: u32,
    /// Number of resets after a waiter's death.
    pub epoch: u32,
}

impl QueueBlock {
    /// From memory.
    #[must_use]
    pub const fn decode(words: &Operand) -> Self {
        let [count, pending] = split(words[2]);
        let [value, epoch] = split(words[3]);
        Self {
            head: words[0],
            tail: words[1],
            count,
            pending,
            value,
            epoch,
        }
    }

    /// To memory.
    #[must_use]
    pub const fn encode(&self) -> Operand {
        [
            self.head,
            self.tail,
            join(self.count, self.pending),
            join(self.value, self.epoch),
        ]
    }

    const fn same(&self, other: &Self) -> bool {
        self.head == other.head
            && self.tail == other.tail
            && self.count == other.count
            && self.pending == other.pending
            && self.value == other.value
            && self.epoch == other.epoch
    }

    const fn apply(&mut self, atomic: &Atomic) -> AtomicResult {
        match atomic.opcode {
            Opcode::Enqueue => self.enqueue(atomic.operand),
            Opcode::Dequeue => self.dequeue(),
            Opcode::NewHead => self.new_head(atomic.operand, atomic.compare as u32),
            Opcode::SemP => self.wait(atomic.operand),
            Opcode::SemV => self.signal(),
            Opcode::ResetQueue => self.reset(atomic.operand as u32),
            _ => AtomicResult { value: 0, second: 0 },
        }
    }

    /// Whether there is no waiter to wake: none waits, or pending wake-ups have claimed all of them.
    const fn is_empty(&self) -> bool {
        self.count == self.pending
    }

    /// Thesis table 19, `enqueue`: the predecessor, and the epoch.
    const fn enqueue(&mut self, id: u64) -> AtomicResult {
        self.count = self.count.wrapping_add(1);
        let predecessor = if self.count == 1 {
            self.head = id;
            EMPTY
        } else {
            self.tail
        };
        self.tail = id;
        AtomicResult {
            value: predecessor,
            second: join(self.count, self.epoch),
        }
    }

    /// Thesis table 19, `dequeue`: the waiter to wake, the number behind it, the epoch.
    const fn dequeue(&mut self) -> AtomicResult {
        if self.is_empty() {
            return AtomicResult {
                value: EMPTY,
                second: join(NOBODY, self.epoch),
            };
        }
        let head = self.head;
        if head == EMPTY {
            self.pending = self.pending.wrapping_add(1);
        } else {
            self.count = self.count.wrapping_sub(1);
            self.head = EMPTY;
        }
        AtomicResult {
            value: head,
            second: join(self.count, self.epoch),
        }
    }

    /// Thesis table 19, `newhead`: 1 if the new head is to be woken at once, how many wait behind it;
    /// 2 if the queue has been reset since the caller was in it.
    const fn new_head(&mut self, id: u64, epoch: u32) -> AtomicResult {
        let value = if epoch != self.epoch {
            2
        } else if self.pending > 0 {
            self.pending -= 1;
            self.count = self.count.wrapping_sub(1);
            1
        } else {
            self.head = id;
            0
        };
        AtomicResult {
            value,
            second: join(self.count, self.epoch),
        }
    }

    /// Thesis table 22, `semP`: the value before; if that was 0 the caller stands in the queue, and gets
    /// its predecessor. With [`EMPTY`] as waiter it only tries.
    const fn wait(&mut self, id: u64) -> AtomicResult {
        let before = self.value;
        if before > 0 {
            self.value = before - 1;
        } else if id != EMPTY {
            let queued = self.enqueue(id);
            return AtomicResult {
                value: queued.value,
                second: join(0, self.epoch),
            };
        }
        AtomicResult {
            value: EMPTY,
            second: join(before, self.epoch),
        }
    }

    /// Thesis table 22, `semV`: the waiter to wake, the number behind it, the epoch; or, with the count
    /// [`NOBODY`], the value after.
    const fn signal(&mut self) -> AtomicResult {
        if !self.is_empty() {
            return self.dequeue();
        }
        self.value = self.value.wrapping_add(1);
        AtomicResult {
            value: EMPTY,
            second: join(NOBODY, self.value),
        }
    }

    /// Empties a queue in which a waiter has died, once for each epoch: 1 if this call did it, how many
    /// waited, the epoch now. Pending wake-ups become the semaphore's: the waiters come again.
    const fn reset(&mut self, epoch: u32) -> AtomicResult {
        if epoch != self.epoch {
            return AtomicResult {
                value: 0,
                second: join(self.count, self.epoch),
            };
        }
        let waited = self.count;
        *self = Self {
            head: EMPTY,
            tail: EMPTY,
            count: 0,
            pending: 0,
            value: self.value.wrapping_add(self.pending),
            epoch: epoch.wrapping_add(1),
        };
        AtomicResult {
            value: 1,
            second: join(waited, self.epoch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(block: &mut QueueBlock, opcode: Opcode, operand: u64) -> AtomicResult {
        let atomic = Atomic {
            opcode,
            wide: false,
            operand,
            compare: u64::from(block.epoch),
        };
        let mut words = block.encode();
        let (result, changed) = atomic.apply(&mut words);
        assert_eq!(changed, words != block.encode());
        *block = QueueBlock::decode(&words);
        result
    }

    fn standard(opcode: Opcode, wide: bool, before: u64, operand: u64, compare: u64) -> (u64, u64) {
        let mut words = [before, 7, 8, 9];
        let atomic = Atomic {
            opcode,
            wide,
            operand,
            compare,
        };
        let (result, changed) = atomic.apply(&mut words);
        assert_eq!(changed, words[0] != before, "{opcode:?}");
        assert_eq!(words[1..], [7, 8, 9], "a word's neighbours are not its business");
        (result.value, words[0])
    }

    #[test]
    fn standard_operations_do_what_table_15_says() {
        let high = 0xFFFF_FFFF_FFFF_FFFF;
        assert_eq!(standard(Opcode::TestAndSet, true, 0, 5, 0), (0, 5));
        assert_eq!(standard(Opcode::TestAndSet, true, 3, 5, 0), (3, 3));
        assert_eq!(standard(Opcode::FetchAdd, true, high, 2, 0), (high, 1));
        assert_eq!(
            standard(Opcode::FetchAdd, false, 0xFFFF_FFFF, 2, 0),
            (0xFFFF_FFFF, 1)
        );
        assert_eq!(standard(Opcode::Swap, false, 4, high, 0), (4, 0xFFFF_FFFF));
        assert_eq!(standard(Opcode::CompareSwap, true, 4, 6, 4), (4, 6));
        assert_eq!(standard(Opcode::CompareSwap, true, 4, 6, 5), (4, 4));
        // Of 32 bits, only those are compared.
        assert_eq!(standard(Opcode::CompareSwap, false, 4, 6, 1 << 32 | 4), (4, 6));
    }

    #[test]
    fn a_queue_is_first_in_first_out() {
        let mut block = QueueBlock::default();
        assert_eq!(run(&mut block, Opcode::Dequeue, 0).second as u32, NOBODY);
        assert_eq!(run(&mut block, Opcode::Enqueue, 11).value, EMPTY);
        assert_eq!(run(&mut block, Opcode::Enqueue, 12).value, 11);
        assert_eq!(run(&mut block, Opcode::Enqueue, 13).value, 12);
        let first = run(&mut block, Opcode::Dequeue, 0);
        assert_eq!((first.value, first.second as u32), (11, 2));
        // The head is on its way: a second signal is pending, and then the new head's.
        assert_eq!(run(&mut block, Opcode::Dequeue, 0).value, EMPTY);
        let second = run(&mut block, Opcode::NewHead, 12);
        assert_eq!((second.value, second.second as u32), (1, 1));
        assert_eq!(run(&mut block, Opcode::NewHead, 13).value, 0);
        let third = run(&mut block, Opcode::Dequeue, 0);
        assert_eq!((third.value, third.second as u32), (13, 0));
        assert_eq!((block.count, block.pending), (0, 0));
    }

    #[test]
    fn a_third_signal_for_two_waiters_stays_in_the_semaphore() {
        let mut block = QueueBlock::default();
        run(&mut block, Opcode::SemP, 11);
        run(&mut block, Opcode::SemP, 12);
        assert_eq!(run(&mut block, Opcode::SemV, 0).value, 11);
        run(&mut block, Opcode::SemV, 0);
        let third = run(&mut block, Opcode::SemV, 0);
        assert_eq!(third.second, join(NOBODY, 1), "one token, for the next to come");
        assert_eq!(run(&mut block, Opcode::NewHead, 12).value, 1);
        assert_eq!(
            run(&mut block, Opcode::SemP, 13).second as u32,
            1,
            "and it is there"
        );
        assert_eq!(run(&mut block, Opcode::SemP, EMPTY), AtomicResult::default());
        assert_eq!(block, QueueBlock { tail: 12, ..block });
        assert_eq!((block.count, block.pending, block.value), (0, 0, 0));
    }

    #[test]
    fn a_reset_happens_once_and_keeps_the_tokens() {
        let mut block = QueueBlock::default();
        for id in 11..14 {
            run(&mut block, Opcode::SemP, id);
        }
        run(&mut block, Opcode::SemV, 0);
        run(&mut block, Opcode::SemV, 0);
        assert_eq!(block.pending, 1);
        let done = run(&mut block, Opcode::ResetQueue, 0);
        assert_eq!((done.value, done.second), (1, join(2, 1)));
        assert_eq!(run(&mut block, Opcode::ResetQueue, 0).value, 0, "another's epoch");
        assert_eq!((block.count, block.pending, block.value), (0, 0, 1));
        let mut words = block.encode();
        let late = Atomic {
            opcode: Opcode::NewHead,
            wide: false,
            operand: 12,
            compare: 0,
        };
        assert_eq!(late.apply(&mut words).0.value, 2);
        assert_eq!(words, block.encode());
    }
}
