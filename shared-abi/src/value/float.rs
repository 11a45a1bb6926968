//! Sums, products and comparisons of floating-point numbers, in whole numbers.
//!
//! A kernel may not use its processor's floating-point registers, and its `core` has no functions in place of them. So this is
//! written out. A finite number is `significand * 2^exponent`. Sums and products of those are formed in 128 bits, and rounded
//! once.

use core::cmp::Ordering;

/// A binary format of IEEE 754.
#[derive(Clone, Copy)]
pub(super) struct Format {
    /// Bits of the fraction.
    fraction: u32,
    /// Bits of the exponent.
    exponent: u32,
}

/// 32 bits.
pub(super) const SINGLE: Format = Format {
    fraction: 23,
    exponent: 8,
};
/// 64 bits.
pub(super) const DOUBLE: Format = Format {
    fraction: 52,
    exponent: 11,
};

/// A finite number.
struct Finite {
    negative: bool,
    significand: u128,
    exponent: i32,
}

/// The farthest that the larger summand is shifted: then every bit of the smaller one is below half of its last bit.
const FAR: i32 = 64;

impl Format {
    const fn sign(self) -> u64 {
        1 << (self.fraction + self.exponent)
    }

    const fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << self.fraction
    }

    /// 1.
    pub(super) const fn one(self) -> u64 {
        ((1 << (self.exponent - 1)) - 1) << self.fraction
    }

    const fn magnitude(self, bits: u64) -> u64 {
        bits & (self.sign() - 1)
    }

    const fn is_nan(self, bits: u64) -> bool {
        self.magnitude(bits) > self.infinity()
    }

    /// The bit of a NaN that raises nothing.
    const fn quiet(self) -> u64 {
        1 << (self.fraction - 1)
    }

    /// The exponent of the smallest numbers.
    const fn lowest(self) -> i32 {
        2 - (1 << (self.exponent - 1)) - self.fraction as i32
    }

    const fn finite(self, bits: u64) -> Finite {
        let magnitude = self.magnitude(bits);
        let (stored, fraction) = (magnitude >> self.fraction, magnitude & ((1 << self.fraction) - 1));
        let (significand, above) = match stored {
            0 => (fraction, 0),
            _ => (fraction | 1 << self.fraction, stored as i32 - 1),
        };
        Finite {
            negative: bits & self.sign() != 0,
            significand: significand as u128,
            exponent: self.lowest() + above,
        }
    }

    /// The number that is nearest, of two the even one; infinity beyond the largest.
    const fn round(self, number: &Finite) -> u64 {
        let sign = if number.negative { self.sign() } else { 0 };
        let bits = (u128::BITS - number.significand.leading_zeros()) as i32;
        let too_many = bits - (self.fraction as i32 + 1);
        let too_low = self.lowest() - number.exponent;
        let shift = if too_many > too_low { too_many } else { too_low };
        // Less than half of the smallest number.
        if number.significand == 0 || shift > bits {
            return sign;
        }
        let kept = if shift <= 0 {
            number.significand << -shift
        } else {
            let kept = number.significand >> (shift - 1) >> 1;
            let (rest, half) = (number.significand - (kept << (shift - 1) << 1), 1 << (shift - 1));
            kept + (rest > half || rest == half && kept & 1 != 0) as u128
        };
        let stored = (number.exponent + shift - self.lowest()) as u64;
        // The first bit of the significand, if there is one, adds 1 to the exponent; so does a carry.
        let magnitude = (stored << self.fraction) + kept as u64;
        let infinity = self.infinity();
        sign | if stored > 1 << self.exponent || magnitude > infinity {
            infinity
        } else {
            magnitude
        }
    }

    /// What a NaN among the operands makes of a result.
    const fn nan_of(self, a: u64, b: u64) -> Option<u64> {
        let nan = if self.is_nan(a) {
            a
        } else if self.is_nan(b) {
            b
        } else {
            return None;
        };
        Some(self.magnitude(nan) | self.quiet())
    }

    pub(super) const fn sum(self, a: u64, b: u64) -> u64 {
        if let Some(nan) = self.nan_of(a, b) {
            return nan;
        }
        let infinity = self.infinity();
        match (self.magnitude(a) == infinity, self.magnitude(b) == infinity) {
            (true, true) if a != b => return infinity | self.quiet(),
            (true, _) => return a,
            (_, true) => return b,
            _ => {}
        }
        let (a, b) = (self.finite(a), self.finite(b));
        let (high, low) = if a.exponent >= b.exponent { (a, b) } else { (b, a) };
        let apart = high.exponent - low.exponent;
        let (shift, small) = if apart <= FAR {
            (apart, low.significand)
        } else {
            // Of a number so small only counts that it is there.
            (FAR, (low.significand != 0) as u128)
        };
        let large = high.significand << shift;
        let exponent = high.exponent - shift;
        let (negative, significand) = if high.negative == low.negative {
            (high.negative, large + small)
        } else if large >= small {
            (high.negative && large != small, large - small)
        } else {
            (low.negative, small - large)
        };
        self.round(&Finite {
            negative,
            significand,
            exponent,
        })
    }

    pub(super) const fn product(self, a: u64, b: u64) -> u64 {
        if let Some(nan) = self.nan_of(a, b) {
            return nan;
        }
        let infinity = self.infinity();
        let sign = (a ^ b) & self.sign();
        let (large, small) = if self.magnitude(a) > self.magnitude(b) {
            (a, b)
        } else {
            (b, a)
        };
        if self.magnitude(large) == infinity {
            return if self.magnitude(small) == 0 {
                infinity | self.quiet()
            } else {
                sign | infinity
            };
        }
        let (a, b) = (self.finite(a), self.finite(b));
        self.round(&Finite {
            negative: sign != 0,
            significand: a.significand * b.significand,
            exponent: a.exponent + b.exponent,
        })
    }

    /// With the other sign.
    pub(super) const fn negated(self, bits: u64) -> u64 {
        bits ^ self.sign()
    }

    /// How two numbers compare; nothing if one of them is a NaN.
    pub(super) const fn order(self, a: u64, b: u64) -> Option<Ordering> {
        if self.is_nan(a) || self.is_nan(b) {
            return None;
        }
        let (a, b) = (self.place(a), self.place(b));
        Some(super::order(a, b))
    }

    /// Where a number stands among the others; both zeros at one place.
    const fn place(self, bits: u64) -> u64 {
        let magnitude = self.magnitude(bits);
        if bits & self.sign() == 0 {
            (1 << 63) + magnitude
        } else {
            (1 << 63) - magnitude
        }
    }
}
