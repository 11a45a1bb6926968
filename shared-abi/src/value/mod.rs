//! Atomic operations on a value of a type: every operation of `fi_atomic(3)` on numbers of up to 8 bytes.
//!
//! The code of an [`Opcode`](crate::descriptor::Opcode) from [`FIRST`] on names an operation and a *kind* of number;
//! with the flag `WIDE` the number is the larger one of its kind (`docs/ABI.md`, chapter 5).
//!
//! Whole numbers wrap. Floating-point numbers are those of IEEE 754, rounded to the nearest even; subnormal numbers are kept.
//! All cards and hosts compute the same bits ([`float`]).
//!
//! - Comparisons are of values: -0.0 is 0.0, and a NaN is neither less than, equal to nor greater than anything. So `Min` and
//!   `Max` leave a value where one of the two is a NaN, and only `CompareSwapNe` stores then.
//! - For the logical operations a NaN is true, and both zeros are false. They store 1 or 0 of the type.
//! - A sum or product that is a NaN is a quiet one without sign; its payload is that of the first operand that is a NaN.
//! - A complex product is `(ac - bd) + (ad + bc)i`, each step rounded, also where C's rules for infinities say otherwise.
//!
//! The remote value is the first operand, as in `fi_atomic(3)`.

use core::cmp::Ordering;
use core::fmt;
use core::num::NonZero;
use float::{DOUBLE, SINGLE};

mod float;

/// The first code of an operation on a value.
pub const FIRST: u8 = 64;
/// Codes of a kind, of which the first ones are operations.
const CODES: u8 = 32;

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// What to do with a value. `old` is the value, `operand` and `compare` are the arguments. The answer is `old`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum ValueOp { $($(#[$doc])* $name = $code,)* }

        impl ValueOp {
            /// All of them, in order of their codes.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }
        }
    };
}

operations! {
    /// Stores `operand` if that is less than `old`.
    Min = 0,
    /// Stores `operand` if that is greater than `old`.
    Max = 1,
    /// Stores `old + operand`.
    Sum = 2,
    /// Stores `old * operand`.
    Product = 3,
    /// Stores 1 if `old` or `operand` is not 0, else 0.
    LogicalOr = 4,
    /// Stores 1 if neither `old` nor `operand` is 0, else 0.
    LogicalAnd = 5,
    /// Stores `old | operand`.
    BitOr = 6,
    /// Stores `old & operand`.
    BitAnd = 7,
    /// Stores 1 if just one of `old` and `operand` is not 0, else 0.
    LogicalXor = 8,
    /// Stores `old ^ operand`.
    BitXor = 9,
    /// Stores nothing.
    Read = 10,
    /// Stores `operand`.
    Write = 11,
    /// Stores `operand` if `compare == old`.
    CompareSwap = 12,
    /// Stores `operand` if `compare != old`.
    CompareSwapNe = 13,
    /// Stores `operand` if `compare <= old`.
    CompareSwapLe = 14,
    /// Stores `operand` if `compare < old`.
    CompareSwapLt = 15,
    /// Stores `operand` if `compare >= old`.
    CompareSwapGe = 16,
    /// Stores `operand` if `compare > old`.
    CompareSwapGt = 17,
    /// Stores the bits of `operand` that are set in `compare`.
    MaskedSwap = 18,
}

impl ValueOp {
    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

macro_rules! types {
    ($($(#[$doc:meta])* $name:ident = ($kind:literal, $wide:literal, $bytes:literal),)*) => {
        /// The type of a value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ValueType { $($(#[$doc])* $name,)* }

        impl ValueType {
            /// All of them, in order of their kinds.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Number of its kind.
            #[must_use]
            pub const fn kind(self) -> u8 {
                match self { $(Self::$name => $kind,)* }
            }

            /// Whether it is the larger one of its kind.
            #[must_use]
            pub const fn is_wide(self) -> bool {
                match self { $(Self::$name => $wide,)* }
            }

            /// Its bytes, and its alignment.
            #[must_use]
            pub const fn bytes(self) -> u32 {
                match self { $(Self::$name => $bytes,)* }
            }

            /// The type of a kind; nothing for a number that is not one, and for the smaller complex one.
            #[must_use]
            const fn of(kind: u8, wide: bool) -> Option<Self> {
                match (kind, wide) { $(($kind, $wide) => Some(Self::$name),)* _ => None }
            }
        }
    };
}

types! {
    /// 8 bits without sign.
    U8 = (0, false, 1),
    /// 16 bits without sign.
    U16 = (0, true, 2),
    /// 8 bits with sign.
    I8 = (1, false, 1),
    /// 16 bits with sign.
    I16 = (1, true, 2),
    /// 32 bits without sign.
    U32 = (2, false, 4),
    /// 64 bits without sign.
    U64 = (2, true, 8),
    /// 32 bits with sign.
    I32 = (3, false, 4),
    /// 64 bits with sign.
    I64 = (3, true, 8),
    /// Floating point of 32 bits.
    F32 = (4, false, 4),
    /// Floating point of 64 bits.
    F64 = (4, true, 8),
    /// A pair of 32-bit floating-point numbers: real part (in the lower bytes) and imaginary part.
    Complex32 = (5, true, 8),
}

/// Operations that need no order and no bits: of all types.
const OF_COMPLEX: u32 = ValueOp::Sum.bit()
    | ValueOp::Product.bit()
    | ValueOp::LogicalOr.bit()
    | ValueOp::LogicalAnd.bit()
    | ValueOp::LogicalXor.bit()
    | ValueOp::Read.bit()
    | ValueOp::Write.bit()
    | ValueOp::CompareSwap.bit()
    | ValueOp::CompareSwapNe.bit();
/// Those that need an order, too.
const OF_FLOATS: u32 = OF_COMPLEX
    | ValueOp::Min.bit()
    | ValueOp::Max.bit()
    | ValueOp::CompareSwapLe.bit()
    | ValueOp::CompareSwapLt.bit()
    | ValueOp::CompareSwapGe.bit()
    | ValueOp::CompareSwapGt.bit();
/// All.
const OF_WHOLE: u32 = (1 << ValueOp::ALL.len()) - 1;

impl ValueType {
    /// Whether an operation is defined on it. Bits are of whole numbers, and complex numbers have no order.
    #[must_use]
    pub const fn has(self, op: ValueOp) -> bool {
        operations_of(self.kind()) & op.bit() != 0
    }

    pub(crate) const fn mask(self) -> u64 {
        u64::MAX >> (64 - 8 * self.bytes())
    }
}

const fn operations_of(kind: u8) -> u32 {
    match kind {
        0..=3 => OF_WHOLE,
        4 => OF_FLOATS,
        5 => OF_COMPLEX,
        _ => 0,
    }
}

/// The code of an operation on a kind of number: one that is defined.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ValueCode(NonZero<u8>);

impl ValueCode {
    /// The operation on a type. The type's width is not in it: that is the flag `WIDE` ([`ValueType::is_wide`]).
    #[must_use]
    pub const fn new(op: ValueOp, on: ValueType) -> Option<Self> {
        Self::from_code(FIRST + CODES * on.kind() + op as u8)
    }

    /// From an opcode's code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        let Some(past) = code.checked_sub(FIRST) else {
            return None;
        };
        match (ValueOp::from_code(past % CODES), NonZero::new(code)) {
            (Some(op), Some(code)) if operations_of(past / CODES) & op.bit() != 0 => Some(Self(code)),
            _ => None,
        }
    }

    /// As an opcode's code.
    #[must_use]
    #[inline]
    pub const fn code(self) -> u8 {
        self.0.get()
    }

    pub(crate) const fn nonzero(self) -> NonZero<u8> {
        self.0
    }

    /// What to do.
    #[must_use]
    pub const fn op(self) -> ValueOp {
        match ValueOp::from_code((self.code() - FIRST) % CODES) {
            Some(op) => op,
            // No code is made of another one.
            None => ValueOp::Read,
        }
    }

    /// The type; nothing for the smaller complex one, which there is not.
    #[must_use]
    pub const fn on(self, wide: bool) -> Option<ValueType> {
        ValueType::of((self.code() - FIRST) / CODES, wide)
    }

    /// Bytes of the operand, which is also its alignment; 0 if there is no such type.
    #[must_use]
    pub const fn bytes(self, wide: bool) -> u32 {
        match self.on(wide) {
            Some(on) => on.bytes(),
            None => 0,
        }
    }

    /// All operations, each with the types that it is defined on.
    pub fn all() -> impl Iterator<Item = (Self, ValueType)> {
        let types = || ValueType::ALL.iter().copied();
        ValueOp::ALL
            .iter()
            .flat_map(move |op| types().filter_map(|on| Some((Self::new(*op, on)?, on))))
    }
}

impl fmt::Debug for ValueCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = self.op();
        match (self.on(false), self.on(true)) {
            (Some(narrow), Some(wide)) => write!(f, "{op:?}({narrow:?} or {wide:?})"),
            (_, Some(only)) | (Some(only), _) => write!(f, "{op:?}({only:?})"),
            (None, None) => write!(f, "{op:?}"),
        }
    }
}

impl ValueType {
    /// What an operation makes of the value `old`. Bits beyond the type's are ignored, and 0 in the result. An operation
    /// that is not [defined](Self::has) on the type changes nothing.
    #[must_use]
    #[inline(never)]
    pub const fn apply(self, op: ValueOp, old: u64, operand: u64, compare: u64) -> u64 {
        let mask = self.mask();
        let (old, operand, compare) = (old & mask, operand & mask, compare & mask);
        if !self.has(op) {
            return old;
        }
        let new = match op {
            ValueOp::Min if matches!(self.order(operand, old), Some(Ordering::Less)) => operand,
            ValueOp::Max if matches!(self.order(operand, old), Some(Ordering::Greater)) => operand,
            ValueOp::Sum => self.sum(old, operand),
            ValueOp::Product => self.product(old, operand),
            ValueOp::LogicalOr => self.truth(self.is_true(old) || self.is_true(operand)),
            ValueOp::LogicalAnd => self.truth(self.is_true(old) && self.is_true(operand)),
            ValueOp::LogicalXor => self.truth(self.is_true(old) != self.is_true(operand)),
            ValueOp::BitOr => old | operand,
            ValueOp::BitAnd => old & operand,
            ValueOp::BitXor => old ^ operand,
            ValueOp::Write => operand,
            ValueOp::MaskedSwap => operand & compare | old & !compare,
            swap if self.swaps(swap, compare, old) => operand,
            _ => old,
        };
        new & mask
    }

    /// Whether a comparing swap stores.
    const fn swaps(self, op: ValueOp, compare: u64, old: u64) -> bool {
        match op {
            ValueOp::CompareSwap => self.equal(compare, old),
            ValueOp::CompareSwapNe => !self.equal(compare, old),
            _ => matches!(
                (op, self.order(compare, old)),
                (ValueOp::CompareSwapLe, Some(Ordering::Less | Ordering::Equal))
                    | (ValueOp::CompareSwapLt, Some(Ordering::Less))
                    | (ValueOp::CompareSwapGe, Some(Ordering::Greater | Ordering::Equal))
                    | (ValueOp::CompareSwapGt, Some(Ordering::Greater))
            ),
        }
    }

    /// How two values compare; nothing if they do not.
    const fn order(self, a: u64, b: u64) -> Option<Ordering> {
        match self {
            Self::F32 => SINGLE.order(a, b),
            Self::F64 => DOUBLE.order(a, b),
            Self::Complex32 => None,
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => Some(order(a, b)),
            // With its sign turned round, a number stands among those without sign where it stands among its own.
            Self::I8 | Self::I16 | Self::I32 | Self::I64 => Some(order(a ^ self.sign(), b ^ self.sign())),
        }
    }

    const fn equal(self, a: u64, b: u64) -> bool {
        match self {
            Self::Complex32 => {
                let ([a, b], [c, d]) = (parts(a), parts(b));
                matches!(SINGLE.order(a, c), Some(Ordering::Equal))
                    && matches!(SINGLE.order(b, d), Some(Ordering::Equal))
            }
            _ => matches!(self.order(a, b), Some(Ordering::Equal)),
        }
    }

    /// The bit of a whole number's sign.
    const fn sign(self) -> u64 {
        1 << (8 * self.bytes() - 1)
    }

    const fn is_true(self, value: u64) -> bool {
        !self.equal(value, 0)
    }

    const fn truth(self, truth: bool) -> u64 {
        match self {
            _ if !truth => 0,
            // The real part of a complex number stands in the lower bytes.
            Self::F32 | Self::Complex32 => SINGLE.one(),
            Self::F64 => DOUBLE.one(),
            _ => 1,
        }
    }

    const fn sum(self, a: u64, b: u64) -> u64 {
        match self {
            Self::F32 => SINGLE.sum(a, b),
            Self::F64 => DOUBLE.sum(a, b),
            Self::Complex32 => {
                let ([a, b], [c, d]) = (parts(a), parts(b));
                complex(SINGLE.sum(a, c), SINGLE.sum(b, d))
            }
            _ => a.wrapping_add(b),
        }
    }

    const fn product(self, a: u64, b: u64) -> u64 {
        match self {
            Self::F32 => SINGLE.product(a, b),
            Self::F64 => DOUBLE.product(a, b),
            Self::Complex32 => {
                let ([a, b], [c, d]) = (parts(a), parts(b));
                let real = SINGLE.sum(SINGLE.product(a, c), SINGLE.negated(SINGLE.product(b, d)));
                complex(real, SINGLE.sum(SINGLE.product(a, d), SINGLE.product(b, c)))
            }
            // Modulo the width the sign makes no difference.
            _ => a.wrapping_mul(b),
        }
    }
}

/// Real and imaginary part.
const fn parts(value: u64) -> [u64; 2] {
    [value & 0xFFFF_FFFF, value >> 32]
}

const fn complex(real: u64, imaginary: u64) -> u64 {
    real | imaginary << 32
}

const fn order(a: u64, b: u64) -> Ordering {
    if a < b {
        Ordering::Less
    } else if a > b {
        Ordering::Greater
    } else {
        Ordering::Equal
    }
}
