//! Atomics on numbers: each operation on each type, and several nodes at once on one page.

use crate::env::{Env, pass, take_signals};
use crate::outcome::{Outcome, right};
use crate::side::{Shared, Side, share, worse};
use netvm::{Error, Number, OrderedNumber, RemoteSegment, ValueOp, ValueType, WholeNumber, WordOp};
use std::time::Duration;

const DONE: u32 = 800;
/// Where the numbers lie: for each type the last one of a page, so that it has as few neighbours as it may.
const fn place(on: ValueType) -> u64 {
    4096 * (1 + on as u64) - on.bytes() as u64
}
/// Bytes that the numbers of all types need, a page each.
const SIZE: u64 = 4096 * ValueType::ALL.len() as u64;

/// One number, of which is known what it should be.
struct Known<'a, T> {
    side: &'a Side,
    number: netvm::RemoteNumber<T>,
    value: u64,
    calls: u64,
}

impl<'a, T: Number> Known<'a, T> {
    fn new(side: &'a Side, memory: &RemoteSegment) -> netvm::Result<Self> {
        Ok(Self {
            side,
            number: memory.number(place(T::TYPE))?,
            value: 0,
            calls: 0,
        })
    }

    /// Does an operation, and holds its answer against what is known.
    fn expect(
        &mut self,
        op: ValueOp,
        (operand, compare): (T, T),
        call: impl Fn(&netvm::RemoteNumber<T>) -> WordOp<'_, T>,
    ) -> Outcome {
        // Sometimes its page has to be brought first. Each time would take a back end longer than the other side waits.
        if self.calls.is_multiple_of(16) {
            self.side.env.pressure(1);
        }
        self.calls += 1;
        let named = call(&self.number).call()?.to_bits();
        right!(
            named == self.value,
            "{op:?} on {:?} is answered by {named:#x}, not by {:#x}",
            T::TYPE,
            self.value
        );
        self.value = T::TYPE.apply(op, self.value, operand.to_bits(), compare.to_bits());
        // The same once more, by its name.
        let again = self.number.apply(op, operand, compare);
        let again = again.ok_or(Error::Released)?.ordered().post()?.wait()?.value;
        right!(
            again == self.value,
            "{op:?} on {:?} has made {again:#x}, not {:#x}",
            T::TYPE,
            self.value
        );
        self.value = T::TYPE.apply(op, self.value, operand.to_bits(), compare.to_bits());
        Ok(())
    }

    /// What all types have. `numbers` are three different ones, the first of them 0.
    fn any(&mut self, [zero, one, other]: [T; 3]) -> Outcome {
        self.expect(ValueOp::Write, (other, other), |n| n.exchange(other))?;
        self.expect(ValueOp::Sum, (one, one), |n| n.sum(one))?;
        self.expect(ValueOp::Product, (other, other), |n| n.product(other))?;
        self.expect(ValueOp::Read, (zero, zero), |n| n.load())?;
        self.expect(ValueOp::LogicalAnd, (other, other), |n| n.logical_and(other))?;
        self.expect(ValueOp::LogicalXor, (one, one), |n| n.logical_xor(one))?;
        self.expect(ValueOp::LogicalOr, (zero, zero), |n| n.logical_or(zero))?;
        self.expect(ValueOp::LogicalOr, (other, other), |n| n.logical_or(other))?;
        self.expect(ValueOp::CompareSwap, (one, other), |n| n.exchange_if(other, one))?;
        let now = T::from_bits(self.value);
        self.expect(ValueOp::CompareSwap, (other, now), |n| n.exchange_if(now, other))?;
        self.expect(ValueOp::CompareSwapNe, (one, zero), |n| {
            n.exchange_unless(zero, one)
        })
    }
}

impl<T: OrderedNumber> Known<'_, T> {
    /// What those have that have an order. `numbers` rise.
    fn ordered(&mut self, [low, middle, high]: [T; 3]) -> Outcome {
        self.expect(ValueOp::Write, (middle, middle), |n| n.exchange(middle))?;
        self.expect(ValueOp::Min, (high, high), |n| n.min(high))?;
        self.expect(ValueOp::Min, (low, low), |n| n.min(low))?;
        self.expect(ValueOp::Max, (middle, middle), |n| n.max(middle))?;
        for (bound, new) in [
            (low, middle),
            (middle, high),
            (high, low),
            (middle, middle),
            (low, high),
        ] {
            let pair = (new, bound);
            self.expect(ValueOp::CompareSwapLe, pair, |n| n.exchange_from(bound, new))?;
            self.expect(ValueOp::CompareSwapGt, pair, |n| n.exchange_below(bound, new))?;
            self.expect(ValueOp::CompareSwapLt, pair, |n| n.exchange_above(bound, new))?;
            self.expect(ValueOp::CompareSwapGe, pair, |n| n.exchange_up_to(bound, new))?;
        }
        Ok(())
    }
}

impl<T: WholeNumber> Known<'_, T> {
    fn whole(&mut self, some: [T; 3]) -> Outcome {
        let [mask, one, other] = some;
        self.expect(ValueOp::BitOr, (other, other), |n| n.bit_or(other))?;
        self.expect(ValueOp::BitXor, (one, one), |n| n.bit_xor(one))?;
        self.expect(ValueOp::BitAnd, (mask, mask), |n| n.bit_and(mask))?;
        self.expect(ValueOp::MaskedSwap, (other, mask), |n| {
            n.exchange_bits(mask, other)
        })
    }
}

/// Every operation on every type; gives what the numbers are in the end.
fn all_operations(side: &Side, memory: &RemoteSegment) -> Outcome<Vec<u64>> {
    let mut ends = Vec::new();
    macro_rules! whole {
        ($($number:ty),*) => {$(
            let mut known = Known::<$number>::new(side, memory)?;
            known.any([0, 1, 77])?;
            known.ordered([<$number>::MIN, 5, <$number>::MAX])?;
            known.whole([0x35, 0x0F, 0x53])?;
            ends.push(known.value);
        )*};
    }
    whole!(u8, u16, i8, i16, u32, u64, i32, i64);
    macro_rules! floats {
        ($($number:ty),*) => {$(
            let mut known = Known::<$number>::new(side, memory)?;
            known.any([0.0, 1.0, 0.1])?;
            known.ordered([<$number>::NEG_INFINITY, -0.0, <$number>::MIN_POSITIVE])?;
            ends.push(known.value);
        )*};
    }
    floats!(f32, f64);
    let mut known = Known::<[f32; 2]>::new(side, memory)?;
    known.any([[0.0, -0.0], [1.0, 0.0], [0.5, -1.5]])?;
    ends.push(known.value);
    Ok(ends)
}

pub(super) fn number_operations(env: &Env) -> Outcome {
    env.pair(
        |side| {
            let memory = side.share("numbers", SIZE)?;
            memory.write_from(0, &vec![0xA5; SIZE as usize])?;
            for on in ValueType::ALL {
                memory.write_from(place(*on), &[0; 8][..on.bytes() as usize])?;
            }
            let ends = side.share("ends", 4096)?;
            let go = side.import_peer("go")?;
            go.notify(1)?;
            side.take_signal(DONE)?;
            for (index, on) in ValueType::ALL.iter().enumerate() {
                let len = on.bytes() as usize;
                let mut expected = vec![0xA5; 4096];
                let mut end = [0; 8];
                ends.read_into(8 * index as u64, &mut end)?;
                let (_, number) = expected.split_at_mut(4096 - len);
                number.copy_from_slice(&end[..len]);
                let mut page = vec![0; 4096];
                memory.read_into(place(*on) + u64::from(on.bytes()) - 4096, &mut page)?;
                right!(
                    page == expected,
                    "{on:?} or its neighbours: {:x?}, not {:x?}",
                    &page[4080..],
                    &expected[4080..]
                );
            }
            Ok(())
        },
        |side| {
            let _go = side.share("go", 4096)?;
            let memory = side.import_peer("numbers")?;
            let ends = side.import_peer("ends")?;
            side.take_signal(1)?;
            let numbers = all_operations(&side, &memory)?;
            for (index, number) in numbers.iter().enumerate() {
                ends.write(8 * index as u64, &number.to_le_bytes()).post()?;
            }
            refusals(&memory)?;
            side.flush_peer()?;
            ends.notify(DONE)?;
            side.flush_peer()
        },
    )
}

/// What is not aligned, not there or not defined.
fn refusals(memory: &RemoteSegment) -> Outcome {
    let misaligned = memory.number::<f64>(4).map(drop);
    right!(
        matches!(misaligned, Err(Error::Misaligned { width: 8, .. })),
        "{misaligned:?}"
    );
    let misaligned = memory.number::<i16>(1).map(drop);
    right!(
        matches!(misaligned, Err(Error::Misaligned { width: 2, .. })),
        "{misaligned:?}"
    );
    let outside = memory.number::<u8>(SIZE).map(drop);
    right!(matches!(outside, Err(Error::OutOfRange { .. })), "{outside:?}");
    let complex = memory.number::<[f32; 2]>(place(ValueType::Complex32))?;
    let undefined = complex.apply(ValueOp::Min, [0.0; 2], [0.0; 2]).is_none();
    let undefined = undefined && memory.number::<f32>(0)?.apply(ValueOp::BitOr, 0.0, 0.0).is_none();
    right!(undefined, "complex numbers have an order, or fractions bits");
    Ok(())
}

/// Numbers that lie side by side in one page, and what all nodes do to them in `ROUNDS` rounds each.
mod contended {
    /// A sum of bytes, which wraps; beside it each node's own byte.
    pub(super) const BYTES: u64 = 4096;
    pub(super) const SUM16: u64 = 4096 + 64;
    pub(super) const MOST: u64 = 4096 + 68;
    pub(super) const LEAST: u64 = 4096 + 72;
    pub(super) const BITS: u64 = 4096 + 80;
    pub(super) const FRACTIONS: u64 = 4096 + 88;
    pub(super) const COMPLEX: u64 = 4096 + 96;
}

pub(super) fn contended_numbers(env: &Env) -> Outcome {
    let rounds = env.scaled(24);
    let nodes = env.nodes.len() as u32;
    let home = move |env: &Env| -> Outcome {
        let port = env.open(1, 0)?;
        let memory = share(&port, "contended", 4 * 4096)?;
        memory.write_from(contended::MOST, &i32::MIN.to_le_bytes())?;
        let go = share(&port, "go", 4096)?;
        go.word32(0)?.store(1)?;
        // Thrown out again and again while the others are at work.
        let deadline = env.deadline(&port);
        while !all_done(&memory, nodes, rounds)? {
            env.pressure(1);
            pass(&port, Duration::from_micros(200))?;
            deadline.check()?;
        }
        take_signals(env, &port, DONE, nodes)?;
        check_contended(&memory, nodes, rounds)
    };
    let work = move |env: &Env, node: usize| -> Outcome {
        let port = env.open(node, 1)?;
        // The numbers are as they shall begin before this one can be imported.
        let _go = env.import(&port, 1, 0, "go")?;
        let memory = env.import(&port, 1, 0, "contended")?;
        for round in 0..rounds {
            let mine = (node as u32 * rounds + round) as i32;
            let pending = [
                memory.number::<u8>(contended::BYTES)?.sum(1).post()?,
                memory
                    .number::<u8>(contended::BYTES + 1 + node as u64)?
                    .sum(1)
                    .post()?,
                memory.number::<u16>(contended::SUM16)?.sum(0x101).post()?,
                memory.number::<i32>(contended::MOST)?.max(mine).post()?,
                memory
                    .number::<f64>(contended::LEAST)?
                    .min(-f64::from(mine))
                    .post()?,
                memory
                    .number::<u64>(contended::BITS)?
                    .bit_xor(1 << (mine % 64))
                    .post()?,
                memory.number::<f32>(contended::FRACTIONS)?.sum(0.5).post()?,
                memory
                    .number::<[f32; 2]>(contended::COMPLEX)?
                    .sum([1.0, -0.25])
                    .post()?,
            ];
            for one in pending {
                one.wait()?;
            }
        }
        memory.notify(DONE)?;
        Ok(port.flush_remote(memory.node())?)
    };
    let server = env.spawn(1, "home", home);
    let mut others = Vec::new();
    for node in 1..env.nodes.len() {
        others.push(env.spawn(node, "worker", move |env| work(env, node)));
    }
    let mut end = work(env, 0);
    for other in others {
        end = worse(end, other.join());
    }
    worse(end, server.join())
}

fn bytes<const N: usize>(memory: &Shared, at: u64) -> Outcome<[u8; N]> {
    let mut bytes = [0; N];
    memory.read_into(at, &mut bytes)?;
    Ok(bytes)
}

/// Whether the last of the numbers that a round changes has got its last change.
fn all_done(memory: &Shared, nodes: u32, rounds: u32) -> Outcome<bool> {
    let real = f32::from_le_bytes(bytes(memory, contended::COMPLEX)?);
    Ok(real >= (nodes * rounds) as f32)
}

fn check_contended(memory: &Shared, nodes: u32, rounds: u32) -> Outcome {
    let all = nodes * rounds;
    let [sum] = bytes(memory, contended::BYTES)?;
    right!(sum == all as u8, "{sum} is the sum of bytes, not {}", all as u8);
    for node in 0..u64::from(nodes) {
        let [own] = bytes(memory, contended::BYTES + 1 + node)?;
        right!(own == rounds as u8, "node {node} has counted {own} of {rounds}");
    }
    let sum = u16::from_le_bytes(bytes(memory, contended::SUM16)?);
    right!(sum == (all * 0x101) as u16, "{sum:#x} is the sum of 16 bits");
    let most = i32::from_le_bytes(bytes(memory, contended::MOST)?);
    let last = (all - 1) as i32;
    right!(most == last, "{most} is the greatest, not {last}");
    let least = f64::from_le_bytes(bytes(memory, contended::LEAST)?);
    right!(
        least == -f64::from(last),
        "{least} is the least, not {}",
        -f64::from(last)
    );
    let bits = u64::from_le_bytes(bytes(memory, contended::BITS)?);
    let expected = (0..all).fold(0_u64, |bits, mine| bits ^ (1 << (mine % 64)));
    right!(bits == expected, "{bits:#x} are the bits, not {expected:#x}");
    let fractions = f32::from_le_bytes(bytes(memory, contended::FRACTIONS)?);
    right!(fractions == all as f32 * 0.5, "{fractions} is the sum of halves");
    let imaginary = f32::from_le_bytes(bytes(memory, contended::COMPLEX + 4)?);
    right!(
        imaginary == all as f32 * -0.25,
        "{imaginary} is the sum of quarters"
    );
    let rest: [u8; 8] = bytes(memory, contended::COMPLEX + 8)?;
    right!(rest == [0; 8], "what lies behind is {rest:x?}");
    Ok(())
}
