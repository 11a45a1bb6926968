//! What can be an argument or a result.

use crate::function::{hash, mix};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Plain data with a described layout: its bytes are all of it, any bytes are a value, and both programs mean the same
/// fields by them.
///
/// ```
/// use netvm_calls::{Plain, signature};
/// use zerocopy::{FromBytes, Immutable, IntoBytes};
///
/// #[derive(FromBytes, IntoBytes, Immutable)]
/// #[repr(C)]
/// struct Deposit {
///     account: u64,
///     amount: u64,
/// }
///
/// impl Plain for Deposit {
///     // Changed with the fields: a program with another text is refused, and told so.
///     const LAYOUT: u64 = signature("Deposit { account: u64, amount: u64 }");
/// }
/// ```
pub trait Plain: FromBytes + IntoBytes + Immutable {
    /// The [`signature`](crate::signature) of a text that names the fields, in their order.
    const LAYOUT: u64;
}

/// What can be an argument or a result of a call: [`Plain`] data, pairs and triples of it, text, bytes, nothing; with the
/// feature `serde`, `Packed` values.
pub trait Argument: Sized {
    /// Tells types apart that have other bytes.
    const SIGNATURE: u64;

    /// Appends its bytes.
    fn put(&self, to: &mut Vec<u8>);

    /// The value of these bytes, all of them; nothing if they are none.
    fn take(bytes: &[u8]) -> Option<Self>;
}

impl<T: Plain> Argument for T {
    const SIGNATURE: u64 = mix(T::LAYOUT, size_of::<T>() as u64);

    #[inline]
    fn put(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self.as_bytes());
    }

    #[inline]
    fn take(bytes: &[u8]) -> Option<Self> {
        T::read_from_bytes(bytes).ok()
    }
}

macro_rules! plain {
    ($($type:ident)*) => {$(
        impl Plain for $type {
            const LAYOUT: u64 = hash(stringify!($type));
        }
    )*};
}

// Numbers are in the byte order of the machine, little-endian on every one that NetVM runs on.
plain!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64);

impl<T: Plain, const N: usize> Plain for [T; N] {
    const LAYOUT: u64 = mix(mix(hash("array"), T::LAYOUT), N as u64);
}

impl Argument for () {
    const SIGNATURE: u64 = hash("nothing");

    fn put(&self, _: &mut Vec<u8>) {}

    fn take(bytes: &[u8]) -> Option<Self> {
        bytes.is_empty().then_some(())
    }
}

impl Argument for bool {
    const SIGNATURE: u64 = hash("bool");

    fn put(&self, to: &mut Vec<u8>) {
        to.push((*self).into());
    }

    fn take(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }
}

impl Argument for Vec<u8> {
    const SIGNATURE: u64 = hash("bytes");

    fn put(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self);
    }

    fn take(bytes: &[u8]) -> Option<Self> {
        Some(bytes.to_vec())
    }
}

impl Argument for String {
    const SIGNATURE: u64 = hash("text");

    fn put(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self.as_bytes());
    }

    fn take(bytes: &[u8]) -> Option<Self> {
        std::str::from_utf8(bytes).ok().map(Self::from)
    }
}

impl<A: Plain, B: Plain> Argument for (A, B) {
    const SIGNATURE: u64 = mix(mix(hash("pair"), A::SIGNATURE), B::SIGNATURE);

    #[inline]
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
        self.1.put(to);
    }

    #[inline]
    fn take(bytes: &[u8]) -> Option<Self> {
        let (first, second) = bytes.split_at_checked(size_of::<A>())?;
        Some((A::take(first)?, B::take(second)?))
    }
}

impl<A: Plain, B: Plain, C: Plain> Argument for (A, B, C) {
    const SIGNATURE: u64 = mix(mix(mix(hash("triple"), A::SIGNATURE), B::SIGNATURE), C::SIGNATURE);

    #[inline]
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
        self.1.put(to);
        self.2.put(to);
    }

    #[inline]
    fn take(bytes: &[u8]) -> Option<Self> {
        let (first, rest) = bytes.split_at_checked(size_of::<A>())?;
        let (second, third) = rest.split_at_checked(size_of::<B>())?;
        Some((A::take(first)?, B::take(second)?, C::take(third)?))
    }
}

/// A value in the compact format of `postcard`: whatever `serde` knows.
#[cfg(feature = "serde")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packed<T>(pub T);

/// Names the layout of a type that goes as [`Packed`].
#[cfg(feature = "serde")]
pub trait Described: serde::Serialize + serde::de::DeserializeOwned {
    /// The [`signature`](crate::signature) of a text that names the fields, in their order.
    const LAYOUT: u64;
}

#[cfg(feature = "serde")]
impl<T: Described> Argument for Packed<T> {
    const SIGNATURE: u64 = mix(hash("postcard 1"), T::LAYOUT);

    fn put(&self, to: &mut Vec<u8>) {
        let start = to.len();
        match postcard::to_extend(&self.0, std::mem::take(to)) {
            Ok(all) => *to = all,
            // A type whose `Serialize` fails: no bytes are no value of any such type, and the other side says so.
            Err(_) => to.truncate(start),
        }
    }

    fn take(bytes: &[u8]) -> Option<Self> {
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Some(Self(value)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Debug;

    fn there_and_back<A: Argument + PartialEq + Debug>(value: &A) {
        let mut bytes = Vec::new();
        value.put(&mut bytes);
        assert_eq!(A::take(&bytes).as_ref(), Some(value));
        if !bytes.is_empty() {
            let _ = A::take(&bytes[1..]);
        }
    }

    #[test]
    fn values_come_back() {
        there_and_back(&());
        there_and_back(&true);
        there_and_back(&7u64);
        there_and_back(&[1u16, 2, 3]);
        there_and_back(&(1u8, 2u64));
        there_and_back(&(1u8, 2u64, [3.0f64; 2]));
        there_and_back(&"text".to_owned());
        there_and_back(&vec![1u8, 2, 3]);
    }

    #[test]
    fn other_lengths_are_no_value() {
        assert_eq!(u64::take(&[0; 7]), None);
        assert_eq!(u64::take(&[0; 9]), None);
        assert_eq!(<(u8, u64)>::take(&[0; 8]), None);
        assert_eq!(<(u8, u64, u8)>::take(&[0; 11]), None);
        assert_eq!(<(u8, u64, u8)>::take(&[]), None);
        assert_eq!(<()>::take(&[0]), None);
        assert_eq!(bool::take(&[2]), None);
        assert_eq!(String::take(&[0xff]), None);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn packed_values_come_back() {
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        enum Shape {
            Circle { radius: u32 },
            Polygon(Vec<(i32, i32)>),
        }
        impl Described for Shape {
            const LAYOUT: u64 = hash("Circle { radius: u32 }, Polygon([(i32, i32)])");
        }
        there_and_back(&Packed(Shape::Circle { radius: 7 }));
        there_and_back(&Packed(Shape::Polygon(vec![(1, -2); 50])));
        assert_eq!(Packed::<Shape>::take(&[]), None);
        assert_eq!(Packed::<Shape>::take(&[0, 7, 7]), None, "bytes are left");
        assert_eq!(Packed::<Shape>::take(&[9]), None, "no such variant");
    }
}
