//! Memory of this process that others change at any time, for back ends whose regions are mapped.

use crate::backend::Width;
use crate::{copy, guarded};
use netvm_abi::Status;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A range of this process' memory, reached through copies and atomics only. All offsets and lengths are in bytes; what does
/// not lie inside, or a word that is not aligned, is [`Status::OutOfRange`]. Memory that may be gone gives what a fault says of
/// it, too: [`Status::Unmapped`], [`Status::BusError`], [`Status::ReadOnly`].
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    start: NonNull<u8>,
    len: u64,
    /// It may be unmapped, or the file behind it cut, at any time.
    may_vanish: bool,
}

// SAFETY: the pointer is only used for copies and atomics inside of memory that stays, as promised to `new`, or under a guard.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// `len` bytes from `start` on.
    ///
    /// # Safety
    /// They are mapped as long as this or a copy of it is used, for reading, and for writing where it is written to, and no
    /// reference to them exists meanwhile.
    #[must_use]
    pub const unsafe fn new(start: NonNull<u8>, len: u64) -> Self {
        Self {
            start,
            len,
            may_vanish: false,
        }
    }

    /// `len` bytes from `start` on, which may be unmapped, protected or cut at any time: what is mapped there then is meant.
    ///
    /// # Safety
    /// [`install`](netvm_memory::guard::install) was called, and no reference to what is mapped there exists meanwhile.
    #[must_use]
    pub const unsafe fn vanishing(start: NonNull<u8>, len: u64) -> Self {
        Self {
            start,
            len,
            may_vanish: true,
        }
    }

    /// Whether it may be unmapped, protected or cut at any time.
    #[must_use]
    pub const fn may_vanish(&self) -> bool {
        self.may_vanish
    }

    /// Its first byte.
    #[must_use]
    pub const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// How many bytes it has.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.len
    }

    fn at(&self, offset: u64, len: u64) -> Result<*mut u8, Status> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Status::OutOfRange);
        }
        // Wrapping, because memory that may be gone is no object to the compiler.
        Ok(self.start.as_ptr().wrapping_add(offset as usize))
    }

    fn word(&self, offset: u64, width: Width) -> Result<*mut u8, Status> {
        let at = self.at(offset, width.bytes())?;
        if (at.addr() as u64).is_multiple_of(width.bytes()) {
            Ok(at)
        } else {
            Err(Status::OutOfRange)
        }
    }

    /// Copies out.
    ///
    /// # Errors
    /// [`Status::OutOfRange`]; what a fault says of memory that is gone.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Status> {
        let at = self.at(offset, into.len() as u64)?;
        if self.may_vanish {
            // SAFETY: promised to `vanishing`.
            return unsafe { guarded::read(at, into) };
        }
        // SAFETY: `Self::at` has checked that this many bytes are there.
        unsafe { copy::copy_out(at, into) };
        Ok(())
    }

    /// Copies in.
    ///
    /// # Errors
    /// [`Status::OutOfRange`]; what a fault says of memory that is gone.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Status> {
        let at = self.at(offset, from.len() as u64)?;
        if self.may_vanish {
            // SAFETY: promised to `vanishing`.
            return unsafe { guarded::write(from, at) };
        }
        // SAFETY: as above.
        unsafe { copy::copy_in(from, at) };
        Ok(())
    }

    /// Loads a word, with acquire order.
    ///
    /// # Errors
    /// [`Status::OutOfRange`]; what a fault says of memory that is gone.
    pub fn load(&self, offset: u64, width: Width) -> Result<u64, Status> {
        let at = self.word(offset, width)?;
        if self.may_vanish {
            // SAFETY: promised to `vanishing`.
            return unsafe { guarded::load(at, width) };
        }
        // SAFETY: aligned, inside, and reached through atomics and copies only.
        Ok(unsafe {
            match width {
                Width::Word32 => u64::from(AtomicU32::from_ptr(at.cast()).load(Ordering::Acquire)),
                Width::Word64 => AtomicU64::from_ptr(at.cast()).load(Ordering::Acquire),
            }
        })
    }

    /// Stores a word, with release order.
    ///
    /// # Errors
    /// [`Status::OutOfRange`]; what a fault says of memory that is gone.
    pub fn store(&self, offset: u64, width: Width, value: u64) -> Result<(), Status> {
        let at = self.word(offset, width)?;
        if self.may_vanish {
            // SAFETY: promised to `vanishing`.
            return unsafe { guarded::store(at, width, value) };
        }
        // SAFETY: as above.
        unsafe {
            match width {
                Width::Word32 => AtomicU32::from_ptr(at.cast()).store(value as u32, Ordering::Release),
                Width::Word64 => AtomicU64::from_ptr(at.cast()).store(value, Ordering::Release),
            }
        }
        Ok(())
    }

    /// Stores `new` if the word is `expected`; gives the old value.
    ///
    /// # Errors
    /// [`Status::OutOfRange`]; what a fault says of memory that is gone.
    pub fn compare_swap(&self, offset: u64, width: Width, expected: u64, new: u64) -> Result<u64, Status> {
        let at = self.word(offset, width)?;
        if self.may_vanish {
            // SAFETY: promised to `vanishing`.
            return unsafe { guarded::compare_swap(at, width, expected, new) };
        }
        let (yes, no) = (Ordering::AcqRel, Ordering::Acquire);
        // SAFETY: as above.
        Ok(unsafe {
            match width {
                Width::Word32 => {
                    let word = AtomicU32::from_ptr(at.cast());
                    let old = word.compare_exchange(expected as u32, new as u32, yes, no);
                    u64::from(old.unwrap_or_else(|other| other))
                }
                Width::Word64 => {
                    let old = AtomicU64::from_ptr(at.cast()).compare_exchange(expected, new, yes, no);
                    old.unwrap_or_else(|other| other)
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_outside_or_askew_is_refused_and_words_are_words() {
        let words = [const { AtomicU64::new(0) }; 4];
        let start = NonNull::from(&words).cast();
        // SAFETY: it outlives both ranges and stays mapped, so the guard has nothing to do; it is reached through atomics only.
        let ranges = unsafe { [Mapped::new(start, 32), Mapped::vanishing(start, 32)] };
        ranges.iter().for_each(words_are_words);
    }

    fn words_are_words(range: &Mapped) {
        assert_eq!(range.write(0, &[0; 32]), Ok(()));
        assert_eq!(range.store(24, Width::Word64, 7), Ok(()));
        assert_eq!(range.load(24, Width::Word32), Ok(7));
        assert_eq!(range.compare_swap(24, Width::Word64, 6, 9), Ok(7));
        assert_eq!(range.compare_swap(24, Width::Word64, 7, 9), Ok(7));
        let mut bytes = [0; 2];
        assert_eq!((range.read(23, &mut bytes), bytes), (Ok(()), [0, 9]));
        for (offset, width) in [
            (25, Width::Word64),
            (28, Width::Word64),
            (2, Width::Word32),
            (u64::MAX, Width::Word32),
        ] {
            assert_eq!(range.load(offset, width), Err(Status::OutOfRange), "{offset}");
        }
        assert_eq!(range.write(31, &[1, 2]), Err(Status::OutOfRange));
    }
}
