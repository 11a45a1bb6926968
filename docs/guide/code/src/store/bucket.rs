//! What lies in the file: buckets of one page, slots with a checksum.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::StoreError;

/// Slots of a bucket.
pub const SLOTS: usize = 8;
/// Bytes of a bucket: a page, so that a look-up touches no second one.
pub const BUCKET_BYTES: u64 = 4096;
/// Bytes of a key and its value together.
pub const MOST_BYTES: usize = 504;

/// One key and its value. All zero, as a hole of a sparse file is: no key.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Slot {
    /// Of all that follows. A copy of a slot that changed meanwhile does not match it.
    check: U32,
    key_bytes: U16,
    value_bytes: U16,
    /// The key, then the value.
    bytes: [u8; MOST_BYTES],
}

/// A page of slots.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Bucket {
    slots: [Slot; SLOTS],
}

const _: () = assert!(size_of::<Bucket>() as u64 == BUCKET_BYTES);

impl Slot {
    /// A key and its value.
    ///
    /// # Errors
    /// [`StoreError::Size`].
    pub fn new(key: &[u8], value: &[u8]) -> Result<Self, StoreError> {
        if key.is_empty() || key.len() + value.len() > MOST_BYTES {
            let (key, value) = (key.len(), value.len());
            return Err(StoreError::Size { key, value });
        }
        let mut slot = Self::empty();
        slot.key_bytes.set(key.len() as u16);
        slot.value_bytes.set(value.len() as u16);
        slot.bytes[..key.len()].copy_from_slice(key);
        slot.bytes[key.len()..][..value.len()].copy_from_slice(value);
        slot.check.set(slot.sum());
        Ok(slot)
    }

    /// No key.
    #[must_use]
    pub fn empty() -> Self {
        Self::new_zeroed()
    }

    fn sum(&self) -> u32 {
        crc32c::crc32c(&self.as_bytes()[size_of::<U32>()..])
    }

    /// Whether its first eight bytes are zero. A slot of which these alone have arrived counts as what it was before.
    fn is_empty(&self) -> bool {
        (self.check.get(), self.key_bytes.get(), self.value_bytes.get()) == (0, 0, 0)
    }

    /// Its key and its value, if it has them and they are whole.
    #[must_use]
    pub fn pair(&self) -> Option<(&[u8], &[u8])> {
        if self.is_empty() || self.check.get() != self.sum() {
            return None;
        }
        let (key, value) = (
            usize::from(self.key_bytes.get()),
            usize::from(self.value_bytes.get()),
        );
        Some((self.bytes.get(..key)?, self.bytes.get(key..key + value)?))
    }

    /// Whether it was changed while it was read, or its writer has died before it was done.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        !self.is_empty() && self.pair().is_none()
    }
}

/// What a look into a bucket says of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Its value.
    Value(Vec<u8>),
    /// It is not there.
    Nothing,
    /// It is not there, but a slot is torn, which may be its own.
    Torn,
}

impl Bucket {
    /// The bucket of a key, of so many.
    #[must_use]
    pub fn of(key: &[u8], buckets: u64) -> u64 {
        u64::from(crc32c::crc32c(key)) % buckets.max(1)
    }

    /// Looks a key up.
    #[must_use]
    pub fn find(&self, key: &[u8]) -> Found {
        let mut pairs = self.slots.iter().filter_map(Slot::pair);
        if let Some((_, value)) = pairs.find(|(own, _)| *own == key) {
            return Found::Value(value.to_vec());
        }
        if self.slots.iter().any(Slot::is_torn) {
            return Found::Torn;
        }
        Found::Nothing
    }

    /// The slot that has a key.
    #[must_use]
    pub fn slot_of(&self, key: &[u8]) -> Option<usize> {
        let has = |slot: &Slot| slot.pair().is_some_and(|(own, _)| own == key);
        self.slots.iter().position(has)
    }

    /// A slot that has no key.
    #[must_use]
    pub fn free_slot(&self) -> Option<usize> {
        self.slots.iter().position(|slot| slot.pair().is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_mix_of_two_slots_is_torn_or_one_of_them() {
        let one = Slot::new(b"key", &[1; 400]).unwrap();
        let two = Slot::new(b"key", &[2; 400]).unwrap();
        for old in [one, Slot::empty()] {
            for cut in 0..=size_of::<Slot>() {
                let mut mix = old;
                mix.as_mut_bytes()[..cut].copy_from_slice(&two.as_bytes()[..cut]);
                let value = mix.pair().map(|(_, value)| value.to_vec());
                let whole = value.is_none_or(|value| value == [1; 400] || value == [2; 400]);
                assert!(whole && (cut != 0 || !mix.is_torn()), "{cut}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(Slot::new(&[1; 4], &[2; 500]).is_ok());
        for (key, value) in [(5, 500), (0, 1)] {
            let slot = Slot::new(&[1; 9][..key], &vec![2; value]);
            assert!(matches!(slot, Err(StoreError::Size { .. })));
        }
    }
}
