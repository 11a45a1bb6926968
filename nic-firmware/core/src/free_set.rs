//! Which of a table's entries are free: a bit each, and a bit for each word that has one, so the lowest is found in
//! constant work.

/// Bits of a word.
const BITS: u16 = u64::BITS as u16;
/// Words: as many as the bits of `any`.
const WORDS: usize = 16;

/// The free ones of at most [`MOST`](Self::MOST) entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeSet {
    words: [u64; WORDS],
    /// A bit for each word that is not 0.
    any: u16,
    len: u16,
}

impl FreeSet {
    /// Entries at most.
    pub(crate) const MOST: u16 = BITS * WORDS as u16;

    /// All of `count` entries are free.
    pub(crate) fn all(count: u16) -> Self {
        let mut set = Self {
            words: [0; WORDS],
            any: 0,
            len: 0,
        };
        for index in 0..count.min(Self::MOST) {
            set.put(index);
        }
        set
    }

    /// How many are free.
    pub(crate) const fn len(&self) -> u16 {
        self.len
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.any == 0
    }

    /// Takes the lowest one.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<u16> {
        let at = self.any.trailing_zeros() as u16;
        let word = self.words.get_mut(usize::from(at))?;
        let index = at * BITS + word.trailing_zeros() as u16;
        *word &= *word - 1;
        if *word == 0 {
            self.any &= !(1 << at);
        }
        self.len -= 1;
        Some(index)
    }

    /// An entry is free, if it was not.
    #[inline]
    pub(crate) fn put(&mut self, index: u16) {
        let (at, bit) = (index / BITS, 1 << (index % BITS));
        let Some(word) = self.words.get_mut(usize::from(at)) else {
            return;
        };
        self.len += u16::from(*word & bit == 0);
        *word |= bit;
        self.any |= 1 << at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_is_taken_first_and_each_once() {
        for count in [4, 63, 64, 65, 200, FreeSet::MOST] {
            let mut set = FreeSet::all(count);
            assert_eq!(set.len(), count);
            for index in 0..count {
                assert_eq!(set.take(), Some(index));
            }
            assert!(set.is_empty());
            assert_eq!((set.take(), set.len()), (None, 0));
            for index in [count - 1, 0, count / 2, 0] {
                set.put(index);
            }
            assert_eq!(set.len(), if count > 2 { 3 } else { 2 });
            assert_eq!(set.take(), Some(0));
            assert_eq!(set.take(), Some(count / 2));
            assert_eq!(set.take(), Some(count - 1));
            assert_eq!(set.take(), None);
        }
    }

    #[test]
    fn what_is_past_the_last_is_no_entry() {
        let mut set = FreeSet::all(u16::MAX);
        assert_eq!(set.len(), FreeSet::MOST);
        set.put(FreeSet::MOST);
        assert_eq!(set.len(), FreeSet::MOST);
    }
}
