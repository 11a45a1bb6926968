//! Objects that are held between two calls: a lock between acquire and release, a place in a queue.
//!
//! The library of Rust gives a guard that borrows its object. C has no borrows, so both live in one cell, and the handle is a [`Slot`]: the
//! object alone, or the object with its guard.

use crate::fault::{Fault, Result};

/// An object, held or not.
pub(crate) enum Slot<O, H> {
    /// Not held.
    Free(Box<O>),
    /// Held.
    Held(H),
    /// A panic has taken it with it.
    Gone,
}

/// An object together with its guard.
pub(crate) trait Hold: Sized {
    /// The object.
    type Object;

    /// Gives the guard up; the object is left.
    fn into_object(self) -> Box<Self::Object>;
}

/// It is held already.
const HELD: Fault = Fault::Argument(libc::EDEADLK, "this participant holds it already, or waits there");
/// It is not held.
const NOT_HELD: Fault = Fault::Argument(libc::EPERM, "this participant does not hold it");
const GONE: Fault = Fault::Argument(
    libc::EIO,
    "an error inside of the library has taken this object with it",
);

impl<O, H: Hold<Object = O>> Slot<O, H> {
    /// Takes hold. An object of which no hold is taken stays free.
    pub(crate) fn hold(
        &mut self,
        take: impl FnOnce(Box<O>) -> std::result::Result<H, (Box<O>, Fault)>,
    ) -> Result<&mut H> {
        match std::mem::replace(self, Self::Gone) {
            Self::Free(object) => match take(object) {
                Ok(held) => *self = Self::Held(held),
                Err((object, fault)) => {
                    *self = Self::Free(object);
                    return Err(fault);
                }
            },
            Self::Held(held) => {
                *self = Self::Held(held);
                return Err(HELD);
            }
            Self::Gone => return Err(GONE),
        }
        self.held()
    }

    /// It is held.
    pub(crate) const fn held(&mut self) -> Result<&mut H> {
        match self {
            Self::Held(held) => Ok(held),
            Self::Free(_) => Err(NOT_HELD),
            Self::Gone => Err(GONE),
        }
    }

    /// It is not held.
    pub(crate) const fn free(&mut self) -> Result<&mut O> {
        match self {
            Self::Free(object) => Ok(object),
            Self::Held(_) => Err(HELD),
            Self::Gone => Err(GONE),
        }
    }

    /// Lets go: `end` ends the guard in its own way.
    pub(crate) fn let_go<R>(&mut self, end: impl FnOnce(&mut H) -> R) -> Result<R> {
        let ended = end(self.held()?);
        if let Self::Held(held) = std::mem::replace(self, Self::Gone) {
            *self = Self::Free(held.into_object());
        }
        Ok(ended)
    }
}

/// Makes the cell of an object and its guard.
macro_rules! holds {
    ($name:ident: $guard:ident of $object:ty) => {
        self_cell::self_cell!(
            pub(crate) struct $name {
                owner: self_cell::MutBorrow<Box<$object>>,
                #[not_covariant]
                dependent: $guard,
            }
        );

        impl crate::hold::Hold for $name {
            type Object = $object;

            fn into_object(self) -> Box<$object> {
                self.into_owner().into_inner()
            }
        }

        impl $name {
            /// Takes hold of the object by `take`, or gives it back.
            fn take(
                object: Box<$object>,
                take: impl for<'a> FnOnce(&'a mut $object) -> crate::fault::Result<$guard<'a>>,
            ) -> std::result::Result<Self, (Box<$object>, crate::fault::Fault)> {
                let taken = Self::try_new_or_recover(self_cell::MutBorrow::new(object), |object| {
                    take(object.borrow_mut())
                });
                taken.map_err(|(object, fault)| (object.into_inner(), fault))
            }
        }
    };
}

pub(crate) use holds;
