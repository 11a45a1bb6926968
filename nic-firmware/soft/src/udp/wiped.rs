//! Secrets of other crates' types, overwritten when they are no longer used.

use std::fmt;
use std::mem::MaybeUninit;

/// Holds a value in a place of its own on the heap, and overwrites the place when it is dropped.
///
/// The crate that makes the value may have left copies on the stack while it made it. Those are not found here.
pub(super) struct Wiped<T>(Box<MaybeUninit<T>>);

impl<T> Wiped<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Box::new(MaybeUninit::new(value)))
    }

    pub(super) fn get(&self) -> &T {
        // SAFETY: `new` has written it, and only `drop` takes it away.
        unsafe { self.0.assume_init_ref() }
    }

    /// Takes the value away.
    ///
    /// # Safety
    /// Nothing asks for it afterwards.
    unsafe fn wipe(&mut self) {
        let place: *mut MaybeUninit<T> = &mut *self.0;
        // SAFETY: `new` has written it, and it goes once. What is overwritten then is memory without a value: the box drops none.
        unsafe {
            self.0.assume_init_drop();
            zeroize::zeroize_flat_type(place);
        }
    }
}

impl<T> Drop for Wiped<T> {
    fn drop(&mut self) {
        // SAFETY: it is being dropped.
        unsafe { self.wipe() }
    }
}

impl<T> fmt::Debug for Wiped<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Wiped(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_overwritten() {
        let mut wiped = std::mem::ManuallyDrop::new(Wiped::new([0xA5u8; 64]));
        let place: *const u8 = wiped.0.as_ptr().cast();
        assert_eq!(*wiped.get(), [0xA5; 64]);
        // SAFETY: it is not asked for again. Its box keeps the memory.
        unsafe { wiped.wipe() };
        // SAFETY: the box is never dropped, and each byte has been written.
        let left = unsafe { std::slice::from_raw_parts(place, 64) };
        assert_eq!(left, [0; 64]);
        assert_eq!(format!("{:?}", *wiped), "Wiped(..)");
    }
}
