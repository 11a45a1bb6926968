//! Remote memory as values of a type: no offsets, no bytes.
//!
//! A type may lie there whose bytes are all of it (no padding, no pointer) and of which every pattern of bytes is a value: what
//! `zerocopy` calls [`FromBytes`], [`IntoBytes`] and [`Immutable`]. Nothing else is asked of the two programs but that they mean the
//! same layout.

use crate::error::{Error, Result};
use crate::import::RemoteSegment;
use crate::region::check_range;
use crate::write::Write;
use std::fmt;
use std::marker::PhantomData;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Plain data: its bytes are all of it, and any bytes are a value.
pub trait Plain: FromBytes + IntoBytes + Immutable {}

impl<T: FromBytes + IntoBytes + Immutable> Plain for T {}

/// Bytes of a value. No type is longer than a `u64` can say.
const fn size_of_one<T>() -> u64 {
    size_of::<T>() as u64
}

/// A value in another port's memory. From [`RemoteSegment::place`] or [`RemoteArray::at`]; cheap to clone.
pub struct RemoteBox<T> {
    remote: RemoteSegment,
    offset: u64,
    value: PhantomData<fn(T) -> T>,
}

/// Values of one type, one behind the other, in another port's memory. From [`RemoteSegment::array`]; cheap to clone.
///
/// ```no_run
/// # fn example(remote: &netvm::RemoteSegment) -> netvm::Result<()> {
/// let table = remote.array::<[u32; 4]>(0, 1000)?;
/// table.at(7)?.write(&[1, 2, 3, 4]).notify(1).post()?;
/// let row = table.at(8)?.read()?;
/// # Ok(())
/// # }
/// ```
pub struct RemoteArray<T> {
    remote: RemoteSegment,
    offset: u64,
    len: u64,
    value: PhantomData<fn(T) -> T>,
}

impl RemoteSegment {
    /// The value of a type that lies at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn place<T: Plain>(&self, offset: u64) -> Result<RemoteBox<T>> {
        check_range(offset, size_of_one::<T>(), self.len())?;
        Ok(RemoteBox {
            remote: self.clone(),
            offset,
            value: PhantomData,
        })
    }

    /// The `len` values of a type that lie from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Empty`] for a type without bytes.
    pub fn array<T: Plain>(&self, offset: u64, len: u64) -> Result<RemoteArray<T>> {
        if size_of::<T>() == 0 {
            return Err(Error::Empty {
                what: "an array of values",
            });
        }
        let bytes = len.saturating_mul(size_of_one::<T>());
        check_range(offset, bytes, self.len())?;
        Ok(RemoteArray {
            remote: self.clone(),
            offset,
            len,
            value: PhantomData,
        })
    }
}

impl<T: Plain> RemoteBox<T> {
    /// A write of a value. Nothing happens before it is [posted](Write::post). A value of 1, 2, 4 or 8 bytes, aligned to its size,
    /// lands in one piece.
    pub fn write<'a>(&'a self, value: &'a T) -> Write<'a> {
        self.remote.write(self.offset, value.as_bytes())
    }

    /// Reads it: a round trip.
    ///
    /// # Errors
    /// As [`Read::call`](crate::Read::call).
    pub fn read(&self) -> Result<T> {
        let mut value = T::new_zeroed();
        self.remote.read(self.offset, value.as_mut_bytes()).call()?;
        Ok(value)
    }

    /// Where it begins in its segment, in bytes.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }
}

impl<T: Plain> RemoteArray<T> {
    /// How many values it has.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One of them.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], which counts values.
    pub fn at(&self, index: u64) -> Result<RemoteBox<T>> {
        Ok(RemoteBox {
            offset: self.offset_of(index, 1)?,
            remote: self.remote.clone(),
            value: PhantomData,
        })
    }

    /// A write of several, from `index` on. Nothing happens before it is [posted](Write::post).
    ///
    /// # Errors
    /// [`Error::OutOfRange`], which counts values.
    pub fn write<'a>(&'a self, index: u64, values: &'a [T]) -> Result<Write<'a>> {
        let offset = self.offset_of(index, values.len() as u64)?;
        Ok(self.remote.write(offset, values.as_bytes()))
    }

    /// Reads several, from `index` on: as a read of their bytes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], which counts values; as [`Read::call`](crate::Read::call).
    pub fn read_into(&self, index: u64, values: &mut [T]) -> Result<()> {
        let offset = self.offset_of(index, values.len() as u64)?;
        self.remote.read(offset, values.as_mut_bytes()).call()
    }

    fn offset_of(&self, index: u64, count: u64) -> Result<u64> {
        check_range(index, count, self.len)?;
        Ok(self.offset + index * size_of_one::<T>())
    }
}

impl<T> Clone for RemoteBox<T> {
    fn clone(&self) -> Self {
        Self {
            remote: self.remote.clone(),
            ..*self
        }
    }
}

impl<T> Clone for RemoteArray<T> {
    fn clone(&self) -> Self {
        Self {
            remote: self.remote.clone(),
            ..*self
        }
    }
}

impl<T> fmt::Debug for RemoteBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, offset) = (std::any::type_name::<T>(), self.offset);
        write!(f, "RemoteBox<{kind}>({:?} from {offset})", self.remote)
    }
}

impl<T> fmt::Debug for RemoteArray<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, len, offset) = (std::any::type_name::<T>(), self.len, self.offset);
        write!(f, "RemoteArray<{kind}>({len} in {:?} from {offset})", self.remote)
    }
}
