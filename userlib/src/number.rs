//! Atomic operations on numbers in another port's memory: whole and floating-point ones of up to 8 bytes.

use crate::atomic::{AtomicOp, WordOp, sealed::Word};
use crate::error::Result;
use crate::import::RemoteSegment;
use netvm_abi::atomic::Atomic;
use netvm_abi::value::{ValueCode, ValueOp, ValueType};
use std::fmt;
use std::marker::PhantomData;

/// A number that a card can change in one piece: a whole number of 8 to 64 bits, `f32`, `f64`, or a complex number
/// `[real, imaginary]` of two `f32`.
pub trait Number: Word + Copy + fmt::Debug + 'static {
    /// Its type, as the card calls it.
    const TYPE: ValueType;

    /// Its bits, in the lowest bytes.
    fn to_bits(self) -> u64;

    /// From its bits, as [`AtomicResult::value`](netvm_abi::atomic::AtomicResult) gives them. Bits above are ignored.
    fn from_bits(bits: u64) -> Self {
        Self::from_answer(bits)
    }
}

/// A number that is less than, equal to or greater than another one.
pub trait OrderedNumber: Number {}

/// A number without fractions, of which the bits count.
pub trait WholeNumber: OrderedNumber {}

macro_rules! whole {
    ($($number:ty as $unsigned:ty = $on:ident),*) => {$(
        impl Word for $number {
            fn from_answer(value: u64) -> Self {
                value as Self
            }
        }

        impl Number for $number {
            const TYPE: ValueType = ValueType::$on;

            fn to_bits(self) -> u64 {
                u64::from(self as $unsigned)
            }
        }

        impl OrderedNumber for $number {}
        impl WholeNumber for $number {}
    )*};
}

whole!(u8 as u8 = U8, i8 as u8 = I8, u16 as u16 = U16, i16 as u16 = I16);
whole!(
    u32 as u32 = U32,
    i32 as u32 = I32,
    u64 as u64 = U64,
    i64 as u64 = I64
);

macro_rules! floats {
    ($($number:ty as $bits:ty = $on:ident),*) => {$(
        impl Word for $number {
            fn from_answer(value: u64) -> Self {
                Self::from_bits(value as $bits)
            }
        }

        impl Number for $number {
            const TYPE: ValueType = ValueType::$on;

            fn to_bits(self) -> u64 {
                self.to_bits().into()
            }
        }

        impl OrderedNumber for $number {}
    )*};
}

floats!(f32 as u32 = F32, f64 as u64 = F64);

impl Word for [f32; 2] {
    fn from_answer(value: u64) -> Self {
        [value as u32, (value >> 32) as u32].map(f32::from_bits)
    }
}

impl Number for [f32; 2] {
    const TYPE: ValueType = ValueType::Complex32;

    fn to_bits(self) -> u64 {
        let [real, imaginary] = self.map(|part| u64::from(part.to_bits()));
        real | imaginary << 32
    }
}

/// An aligned number in another port's memory. From [`RemoteSegment::number`]; cheap to clone.
///
/// Each call names an operation, to be [posted](WordOp::post) or [called](WordOp::call); its answer is the number before. They
/// are atomic with one another, as those on a [`RemoteWord64`](crate::RemoteWord64) are.
///
/// ```no_run
/// # fn example(remote: &netvm::RemoteSegment) -> netvm::Result<()> {
/// let highest = remote.number::<f64>(64)?;
/// let before = highest.max(0.75).call()?;
/// let pending = highest.sum(0.5).ordered().post()?;
/// # Ok(())
/// # }
/// ```
///
/// Whole numbers wrap. Floating-point numbers are those of IEEE 754, rounded to the nearest. A NaN is neither less than, equal to
/// nor greater than anything: where either number is one, `min` and `max` leave the remote one.
pub struct RemoteNumber<T> {
    remote: RemoteSegment,
    offset: u64,
    number: PhantomData<fn(T) -> T>,
}

impl RemoteSegment {
    /// A number in it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange), [`Error::Misaligned`](crate::Error::Misaligned),
    /// [`Error::ModeRefused`](crate::Error::ModeRefused).
    pub fn number<T: Number>(&self, offset: u64) -> Result<RemoteNumber<T>> {
        self.check_word(offset, T::TYPE.bytes().into())?;
        Ok(RemoteNumber {
            remote: self.clone(),
            offset,
            number: PhantomData,
        })
    }
}

/// The code of an operation that every type of the surrounding `impl` has, as the compiler finds out.
macro_rules! code {
    ($op:ident) => {
        const { ValueCode::new(ValueOp::$op, T::TYPE).unwrap() }
    };
}

impl<T: Number> RemoteNumber<T> {
    /// An operation of the program's choice; nothing if it is not [defined](ValueType::has) on the type. `compare` is for those that
    /// compare, and the mask of [`ValueOp::MaskedSwap`].
    pub fn apply(&self, op: ValueOp, operand: T, compare: T) -> Option<WordOp<'_, T>> {
        Some(self.op(ValueCode::new(op, T::TYPE)?, operand, compare))
    }

    fn op(&self, code: ValueCode, operand: T, compare: T) -> WordOp<'_, T> {
        let atomic = Atomic {
            opcode: code.opcode(),
            wide: T::TYPE.is_wide(),
            operand: operand.to_bits(),
            compare: compare.to_bits(),
        };
        WordOp::new(AtomicOp::new(&self.remote, self.offset, atomic))
    }

    /// Changes nothing.
    pub fn load(&self) -> WordOp<'_, T> {
        self.op(code!(Read), T::from_bits(0), T::from_bits(0))
    }

    /// A store.
    pub fn exchange(&self, new: T) -> WordOp<'_, T> {
        self.op(code!(Write), new, new)
    }

    /// A store of `new` if the number is `expected`: a comparison of numbers, so 0.0 is -0.0, and a NaN is never expected.
    pub fn exchange_if(&self, expected: T, new: T) -> WordOp<'_, T> {
        self.op(code!(CompareSwap), new, expected)
    }

    /// A store of `new` if the number is not `unwanted`.
    pub fn exchange_unless(&self, unwanted: T, new: T) -> WordOp<'_, T> {
        self.op(code!(CompareSwapNe), new, unwanted)
    }

    /// An addition.
    pub fn sum(&self, other: T) -> WordOp<'_, T> {
        self.op(code!(Sum), other, other)
    }

    /// A multiplication.
    pub fn product(&self, other: T) -> WordOp<'_, T> {
        self.op(code!(Product), other, other)
    }

    /// A store of 1 if the number or `other` is not 0, else of 0.
    pub fn logical_or(&self, other: T) -> WordOp<'_, T> {
        self.op(code!(LogicalOr), other, other)
    }

    /// A store of 1 if neither the number nor `other` is 0, else of 0.
    pub fn logical_and(&self, other: T) -> WordOp<'_, T> {
        self.op(code!(LogicalAnd), other, other)
    }

    /// A store of 1 if just one of the number and `other` is not 0, else of 0.
    pub fn logical_xor(&self, other: T) -> WordOp<'_, T> {
        self.op(code!(LogicalXor), other, other)
    }
}

impl<T: OrderedNumber> RemoteNumber<T> {
    /// A store of `other` if that is less.
    pub fn min(&self, other: T) -> WordOp<'_, T> {
        self.op(code!(Min), other, other)
    }

    /// A store of `other` if that is greater.
    pub fn max(&self, other: T) -> WordOp<'_, T> {
        self.op(code!(Max), other, other)
    }

    /// A store of `new` if the number is greater than `bound`.
    pub fn exchange_above(&self, bound: T, new: T) -> WordOp<'_, T> {
        self.op(code!(CompareSwapLt), new, bound)
    }

    /// A store of `new` if the number is less than `bound`.
    pub fn exchange_below(&self, bound: T, new: T) -> WordOp<'_, T> {
        self.op(code!(CompareSwapGt), new, bound)
    }

    /// A store of `new` if the number is `least` or greater.
    pub fn exchange_from(&self, least: T, new: T) -> WordOp<'_, T> {
        self.op(code!(CompareSwapLe), new, least)
    }

    /// A store of `new` if the number is `most` or less.
    pub fn exchange_up_to(&self, most: T, new: T) -> WordOp<'_, T> {
        self.op(code!(CompareSwapGe), new, most)
    }
}

impl<T: WholeNumber> RemoteNumber<T> {
    /// An OR of the bits.
    pub fn bit_or(&self, other: T) -> WordOp<'_, T> {
        self.op(code!(BitOr), other, other)
    }

    /// An AND of the bits.
    pub fn bit_and(&self, other: T) -> WordOp<'_, T> {
        self.op(code!(BitAnd), other, other)
    }

    /// An exclusive OR of the bits.
    pub fn bit_xor(&self, other: T) -> WordOp<'_, T> {
        self.op(code!(BitXor), other, other)
    }

    /// A store of those bits of `new` that are set in `mask`.
    pub fn exchange_bits(&self, mask: T, new: T) -> WordOp<'_, T> {
        self.op(code!(MaskedSwap), new, mask)
    }
}

impl<T> Clone for RemoteNumber<T> {
    fn clone(&self) -> Self {
        Self {
            remote: self.remote.clone(),
            offset: self.offset,
            number: PhantomData,
        }
    }
}

impl<T: Number> fmt::Debug for RemoteNumber<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RemoteNumber({:?} at {} of {:?})",
            T::TYPE,
            self.offset,
            self.remote
        )
    }
}
