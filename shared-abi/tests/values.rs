//! Operations on values against Rust's own arithmetic on the processor: each operation on each type.

use netvm_abi::atomic::Atomic;
use netvm_abi::descriptor::Opcode;
use netvm_abi::value::{FIRST, ValueCode, ValueOp, ValueType};
use proptest::prelude::*;

/// A whole or floating-point number, as Rust has it.
trait Number: Copy + PartialEq + PartialOrd {
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
    fn zero_or_one(one: bool) -> Self;
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
}

macro_rules! whole {
    ($($number:ty as $unsigned:ty),*) => {$(
        impl Number for $number {
            fn of(bits: u64) -> Self {
                bits as Self
            }
            fn bits(self) -> u64 {
                u64::from(self as $unsigned)
            }
            fn zero_or_one(one: bool) -> Self {
                one.into()
            }
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        }
    )*};
}

whole!(
    u8 as u8, i8 as u8, u16 as u16, i16 as u16, u32 as u32, i32 as u32, u64 as u64, i64 as u64
);

macro_rules! floats {
    ($($number:ty as $bits:ty),*) => {$(
        impl Number for $number {
            fn of(bits: u64) -> Self {
                Self::from_bits(bits as $bits)
            }
            fn bits(self) -> u64 {
                self.to_bits().into()
            }
            fn zero_or_one(one: bool) -> Self {
                if one { 1.0 } else { 0.0 }
            }
            fn sum(self, other: Self) -> Self {
                self + other
            }
            fn product(self, other: Self) -> Self {
                self * other
            }
        }
    )*};
}

floats!(f32 as u32, f64 as u64);

/// A pair of numbers, which has no order.
#[derive(Clone, Copy, PartialEq)]
struct Complex(f32, f32);

impl PartialOrd for Complex {
    fn partial_cmp(&self, _: &Self) -> Option<std::cmp::Ordering> {
        unreachable!("complex numbers have no order")
    }
}

impl Number for Complex {
    fn of(bits: u64) -> Self {
        Self(f32::of(bits & 0xFFFF_FFFF), f32::of(bits >> 32))
    }
    fn bits(self) -> u64 {
        self.0.bits() | self.1.bits() << 32
    }
    fn zero_or_one(one: bool) -> Self {
        Self(f32::zero_or_one(one), 0.0)
    }
    fn sum(self, other: Self) -> Self {
        Self(self.0 + other.0, self.1 + other.1)
    }
    fn product(self, other: Self) -> Self {
        Self(
            self.0 * other.0 - self.1 * other.1,
            self.0 * other.1 + self.1 * other.0,
        )
    }
}

/// The same by the words of `fi_atomic(3)`: `old` is the remote value.
fn expected<T: Number>(op: ValueOp, old: u64, operand: u64, compare: u64) -> u64 {
    let (addr, buf, cmp) = (T::of(old), T::of(operand), T::of(compare));
    let zero = T::zero_or_one(false);
    let is = |truth| T::zero_or_one(truth).bits();
    let stores = |truth: bool| if truth { buf.bits() } else { addr.bits() };
    match op {
        ValueOp::Min => stores(buf < addr),
        ValueOp::Max => stores(buf > addr),
        ValueOp::Sum => addr.sum(buf).bits(),
        ValueOp::Product => addr.product(buf).bits(),
        ValueOp::LogicalOr => is(addr != zero || buf != zero),
        ValueOp::LogicalAnd => is(addr != zero && buf != zero),
        ValueOp::LogicalXor => is((addr != zero) != (buf != zero)),
        ValueOp::BitOr => addr.bits() | buf.bits(),
        ValueOp::BitAnd => addr.bits() & buf.bits(),
        ValueOp::BitXor => addr.bits() ^ buf.bits(),
        ValueOp::Read => addr.bits(),
        ValueOp::Write => buf.bits(),
        ValueOp::CompareSwap => stores(cmp == addr),
        ValueOp::CompareSwapNe => stores(cmp != addr),
        ValueOp::CompareSwapLe => stores(cmp <= addr),
        ValueOp::CompareSwapLt => stores(cmp < addr),
        ValueOp::CompareSwapGe => stores(cmp >= addr),
        ValueOp::CompareSwapGt => stores(cmp > addr),
        ValueOp::MaskedSwap => (buf.bits() & cmp.bits()) | (addr.bits() & !cmp.bits()),
    }
}

fn expected_on(on: ValueType, op: ValueOp, old: u64, operand: u64, compare: u64) -> u64 {
    let by = match on {
        ValueType::U8 => expected::<u8>,
        ValueType::I8 => expected::<i8>,
        ValueType::U16 => expected::<u16>,
        ValueType::I16 => expected::<i16>,
        ValueType::U32 => expected::<u32>,
        ValueType::I32 => expected::<i32>,
        ValueType::U64 => expected::<u64>,
        ValueType::I64 => expected::<i64>,
        ValueType::F32 => expected::<f32>,
        ValueType::F64 => expected::<f64>,
        ValueType::Complex32 => expected::<Complex>,
    };
    by(op, old, operand, compare)
}

/// Whether two results are the same: the bits of a NaN that was computed are the processor's own.
fn same(on: ValueType, a: u64, b: u64) -> bool {
    let halves = |bits: u64| [bits as u32, (bits >> 32) as u32].map(f32::from_bits);
    match on {
        ValueType::F32 => a == b || f32::of(a).is_nan() && f32::of(b).is_nan(),
        ValueType::F64 => a == b || f64::of(a).is_nan() && f64::of(b).is_nan(),
        ValueType::Complex32 => halves(a)
            .iter()
            .zip(&halves(b))
            .all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()),
        _ => a == b,
    }
}

/// Bits of numbers that are near each other, or near a bound of a type, or anything.
fn bits() -> impl Strategy<Value = u64> {
    let singles: Vec<u64> = [
        0.0_f32,
        -0.0,
        1.0,
        -1.0,
        1.5,
        f32::MAX,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ]
    .map(|number| u64::from(number.to_bits()))
    .into();
    let doubles: Vec<u64> = [
        -0.0_f64,
        1.0,
        -1.0,
        f64::MAX,
        f64::MIN_POSITIVE,
        f64::from_bits(1),
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ]
    .map(f64::to_bits)
    .into();
    let wholes = vec![
        0,
        1,
        2,
        0x7F,
        0x80,
        0xFF,
        0x7FFF,
        0x8000,
        0xFFFF,
        0x7FFF_FFFF,
        0x8000_0000,
        u64::MAX,
    ];
    let single = prop_oneof![
        proptest::sample::select(singles.clone()),
        any::<f32>().prop_map(|number| u64::from(number.to_bits())),
    ];
    prop_oneof![
        proptest::sample::select(wholes),
        proptest::sample::select(singles),
        proptest::sample::select(doubles),
        any::<u64>(),
        0..4_u64,
        // Of like size, so that sums cancel and round.
        (-1000..1000_i32).prop_map(|number| f64::from(number).to_bits()),
        (-1000..1000_i32).prop_map(|number| u64::from((number as f32 / 7.0).to_bits())),
        any::<f64>().prop_map(f64::to_bits),
        (single.clone(), single).prop_map(|(real, imaginary)| real | imaginary << 32),
        // Subnormal numbers.
        (0..1_u64 << 24),
        (0..1_u64 << 53),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn each_operation_on_each_type_does_what_the_processor_does(
        old in bits(), operand in bits(), compare in prop_oneof![bits(), Just(u64::MAX)], equal in any::<bool>(),
    ) {
        let compare = if equal { old } else { compare };
        for (code, on) in ValueCode::all() {
            let op = code.op();
            let atomic = Atomic::on_value(op, on, operand, compare).unwrap();
            let mask = u64::MAX >> (64 - 8 * on.bytes());
            let mut memory = [old, 7, 8, 9];
            let (result, changed) = atomic.apply(&mut memory);
            let wanted = expected_on(on, op, old, operand, compare);
            prop_assert!(
                same(on, memory[0] & mask, wanted & mask),
                "{op:?} on {on:?} of {old:#x}, {operand:#x}, {compare:#x}: {:#x}, not {wanted:#x}", memory[0] & mask
            );
            prop_assert_eq!(result.value, old & mask);
            prop_assert_eq!(result.second, 0);
            prop_assert_eq!(changed, memory[0] & mask != old & mask);
            prop_assert_eq!(&memory[1..], &[7, 8, 9]);
        }
    }

    /// What overflow, rounding and subnormal numbers make of sums and products, on numbers that are all near a bound.
    #[test]
    fn sums_and_products_are_rounded_as_the_processor_rounds(a in any::<u64>(), b in any::<u64>(), near in 0..64_u64) {
        // The second number's exponent is near the first one's, or near the one that makes a product of 1 or of nothing.
        let exponents = [(a >> 52) & 0x7FF, 0x7FE - ((a >> 52) & 0x7FF).min(0x7FE), 0x3FF_u64.saturating_sub((a >> 52) & 0x7FF)];
        for exponent in exponents {
            let exponent = (exponent + near).saturating_sub(32).min(0x7FF);
            let b = b & !(0x7FF << 52) | exponent << 52;
            for op in [ValueOp::Sum, ValueOp::Product] {
                let wanted = expected::<f64>(op, a, b, 0);
                prop_assert!(same(ValueType::F64, ValueType::F64.apply(op, a, b, 0), wanted), "{op:?} of {a:#x} and {b:#x}");
            }
        }
        let (a, b) = (a >> 32, b >> 32);
        let exponents = [(a >> 23) & 0xFF, 0xFE - ((a >> 23) & 0xFF).min(0xFE), 0x7F_u64.saturating_sub((a >> 23) & 0xFF)];
        for exponent in exponents {
            let exponent = (exponent + near).saturating_sub(32).min(0xFF);
            let b = b & !(0xFF << 23) | exponent << 23;
            for op in [ValueOp::Sum, ValueOp::Product] {
                let wanted = expected::<f32>(op, a, b, 0);
                prop_assert!(same(ValueType::F32, ValueType::F32.apply(op, a, b, 0), wanted), "{op:?} of {a:#x} and {b:#x}");
            }
        }
    }
}

#[test]
fn a_nan_and_a_negative_zero_are_treated_as_is_written() {
    let nan = u64::from(f32::NAN.to_bits());
    let (zero, negative) = (0, u64::from((-0.0_f32).to_bits()));
    let one = u64::from(1.0_f32.to_bits());
    let on = ValueType::F32;
    // Neither the smaller nor the larger one, on either side.
    for op in [ValueOp::Min, ValueOp::Max] {
        assert_eq!(on.apply(op, nan, one, 0), nan);
        assert_eq!(on.apply(op, one, nan, 0), one);
        assert_eq!(on.apply(op, zero, negative, 0), zero);
    }
    for op in [
        ValueOp::CompareSwap,
        ValueOp::CompareSwapLe,
        ValueOp::CompareSwapLt,
        ValueOp::CompareSwapGe,
        ValueOp::CompareSwapGt,
    ] {
        assert_eq!(on.apply(op, nan, one, nan), nan, "{op:?}");
    }
    assert_eq!(on.apply(ValueOp::CompareSwapNe, nan, one, nan), one);
    assert_eq!(on.apply(ValueOp::CompareSwap, zero, one, negative), one);
    assert_eq!(on.apply(ValueOp::LogicalAnd, nan, one, 0), one, "a NaN is true");
    assert_eq!(
        on.apply(ValueOp::LogicalOr, negative, zero, 0),
        zero,
        "both zeros are false"
    );
    // A signalling NaN with a sign becomes a quiet one without, and keeps its payload.
    assert_eq!(on.apply(ValueOp::Sum, 0xFF80_0123, one, 0), 0x7FC0_0123);
}

#[test]
fn a_code_is_known_if_its_operation_is_defined() {
    let defined: Vec<u8> = ValueCode::all().map(|(code, _)| code.code()).collect();
    for code in 0..=u8::MAX {
        let opcode = Opcode::from_code(code);
        if code < FIRST {
            assert_eq!(
                opcode.is_some(),
                Opcode::ALL.iter().any(|known| known.code() == code)
            );
            continue;
        }
        assert_eq!(opcode.is_some(), defined.contains(&code), "{code}");
        let Some(opcode) = opcode else { continue };
        assert_eq!(opcode.code(), code);
        assert!(opcode.is_atomic() && !opcode.is_extended() && !opcode.is_write());
        for wide in [false, true] {
            let on = ValueType::ALL
                .iter()
                .find(|on| on.kind() == (code - FIRST) / 32 && on.is_wide() == wide);
            assert_eq!(
                opcode.operand_bytes(wide),
                on.map_or(0, |on| on.bytes()),
                "{opcode:?}"
            );
        }
    }
    // 19 operations on 8 types, 15 on two, 9 on one.
    assert_eq!(ValueCode::all().count(), 19 * 8 + 15 * 2 + 9);
    assert_eq!(Atomic::on_value(ValueOp::BitOr, ValueType::F32, 0, 0), None);
    assert_eq!(Atomic::on_value(ValueOp::Min, ValueType::Complex32, 0, 0), None);
    assert_eq!(ValueType::F64.apply(ValueOp::MaskedSwap, 5, 6, u64::MAX), 5);
}
