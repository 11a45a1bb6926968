//! Names of functions, and what identifies them on the wire.
//!
//! An address means nothing in another process, and a type's id nothing in another build. So a function has a name that
//! its programs agree on, and a signature: a hash of what its argument and result look like as bytes.

use crate::argument::Argument;
use std::fmt;
use std::marker::PhantomData;

/// FNV-1a's first state.
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
/// FNV-1a's factor.
const PRIME: u64 = 0x0000_0100_0000_01b3;

const fn eat(mut state: u64, byte: u8) -> u64 {
    state ^= byte as u64;
    state.wrapping_mul(PRIME)
}

/// The hash of a text: FNV-1a of its bytes, 64 bits. The same in every build.
#[must_use]
pub const fn hash(text: &str) -> u64 {
    let bytes = text.as_bytes();
    let mut state = OFFSET;
    let mut at = 0;
    while at < bytes.len() {
        state = eat(state, bytes[at]);
        at += 1;
    }
    state
}

/// A signature out of a signature and a number: of an array out of its element's, of a pair out of both.
#[must_use]
pub(crate) const fn mix(signature: u64, number: u64) -> u64 {
    let mut state = signature;
    let bytes = number.to_le_bytes();
    let mut at = 0;
    while at < bytes.len() {
        state = eat(state, bytes[at]);
        at += 1;
    }
    state
}

/// What identifies a function on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id {
    pub(crate) name: u64,
    pub(crate) signature: u64,
}

/// A function that other processes can call: its name, the type of its argument and that of its result.
///
/// ```
/// use netvm_calls::Function;
/// /// Adds to an account, and returns what is there then.
/// const DEPOSIT: Function<(u64, u64), u64> = Function::new("bank.deposit");
/// ```
pub struct Function<A, R = ()> {
    name: &'static str,
    id: Id,
    types: PhantomData<fn(A) -> R>,
}

/// A function that gets bytes beside its argument: with the call, written to where they belong before it, or read by it.
pub struct BufferFunction<A, R = ()> {
    name: &'static str,
    id: Id,
    types: PhantomData<fn(A) -> R>,
}

impl<A: Argument, R: Argument> Function<A, R> {
    /// The function of this name.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            id: Id {
                name: hash(name),
                signature: mix(mix(hash("call"), A::SIGNATURE), R::SIGNATURE),
            },
            types: PhantomData,
        }
    }
}

impl<A: Argument, R: Argument> BufferFunction<A, R> {
    /// The function of this name.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            id: Id {
                name: hash(name),
                signature: mix(mix(hash("call with a buffer"), A::SIGNATURE), R::SIGNATURE),
            },
            types: PhantomData,
        }
    }
}

macro_rules! named {
    ($($function:ident)*) => {$(
        impl<A, R> $function<A, R> {
            /// Its name.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                self.name
            }

            pub(crate) const fn id(&self) -> Id {
                self.id
            }
        }

        impl<A, R> Clone for $function<A, R> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<A, R> Copy for $function<A, R> {}

        impl<A, R> fmt::Debug for $function<A, R> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($function), "({})"), self.name)
            }
        }
    )*};
}

named!(Function BufferFunction);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_every_other_build() {
        assert_eq!(hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash("foobar"), 0x8594_4171_f739_67e8);
        // What is on the wire today must not change by accident.
        assert_eq!(
            Function::<u64, u64>::new("f").id().signature,
            mix(
                mix(hash("call"), <u64 as Argument>::SIGNATURE),
                <u64 as Argument>::SIGNATURE
            )
        );
    }

    #[test]
    fn other_types_are_other_signatures() {
        let ids = [
            Function::<u64, u64>::new("f").id().signature,
            Function::<u64, ()>::new("f").id().signature,
            Function::<(), u64>::new("f").id().signature,
            Function::<i64, u64>::new("f").id().signature,
            Function::<[u64; 2], u64>::new("f").id().signature,
            Function::<[u64; 3], u64>::new("f").id().signature,
            Function::<(u64, u64), u64>::new("f").id().signature,
            Function::<Vec<u8>, u64>::new("f").id().signature,
            Function::<String, u64>::new("f").id().signature,
            BufferFunction::<u64, u64>::new("f").id().signature,
        ];
        for (at, one) in ids.iter().enumerate() {
            assert!(!ids[..at].contains(one), "{at}");
        }
    }
}
