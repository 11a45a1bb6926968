//! How bytes of several pieces share a chunk of staging.
//!
//! A long piece begins at the same offset in its page as its other end does, so that it is cut into no more messages than it must. A
//! short one lies right behind the one before it, but crosses no page here.

use netvm_abi::{PAGE_SIZE, PageOffset, VirtAddr};

const PAGE: u64 = PAGE_SIZE as u64;

/// A part of a piece that has a place in a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    /// Which piece.
    pub(super) piece: usize,
    /// How many of the piece's bytes come before.
    pub(super) from: u64,
    pub(super) len: u64,
    /// Where it lies in the chunk.
    pub(super) at: u64,
}

/// What goes through one chunk.
#[derive(Debug)]
pub(super) struct Packed {
    /// The chunk's offset in its page.
    pub(super) offset: PageOffset,
    /// The chunk's length.
    pub(super) len: u64,
    pub(super) stretches: Vec<Stretch>,
}

/// Gives pieces places in chunks, one chunk after the other.
#[derive(Debug)]
pub(super) struct Packing {
    /// Where each goes at the other end, and how many bytes it has: some.
    pieces: Vec<(VirtAddr, u64)>,
    /// The first piece that has a byte without a place.
    next: usize,
    /// How many of its bytes have one.
    done: u64,
}

impl Packing {
    pub(super) const fn new(pieces: Vec<(VirtAddr, u64)>) -> Self {
        Self {
            pieces,
            next: 0,
            done: 0,
        }
    }

    /// The bytes of all pieces.
    pub(super) fn bytes(&self) -> u64 {
        self.pieces.iter().map(|(_, len)| len).sum()
    }

    /// What goes through the next chunk, of up to `limit` bytes, which is at least a page. Nothing: everything has its place.
    pub(super) fn next_chunk(&mut self, limit: u64) -> Option<Packed> {
        let (first, _) = self.pieces.get(self.next)?;
        let start = VirtAddr(first.0.wrapping_add(self.done)).page_offset();
        let mut packed = Packed {
            offset: start,
            len: 0,
            stretches: Vec::new(),
        };
        while let Some(&(remote, len)) = self.pieces.get(self.next) {
            let rest = len - self.done;
            let here = (u64::from(start.0) + packed.len) % PAGE;
            let skip = if rest >= PAGE {
                (remote.0.wrapping_add(self.done)).wrapping_sub(here) % PAGE
            } else if here + rest > PAGE {
                PAGE - here
            } else {
                0
            };
            // The first of a chunk begins where its other end does, or it is shorter than a page, and begins there all the same.
            let skip = if packed.len == 0 { 0 } else { skip };
            let at = packed.len + skip;
            let room = limit.saturating_sub(at);
            if room == 0 || (rest < PAGE && rest > room) {
                break;
            }
            let stretch = rest.min(room);
            packed.stretches.push(Stretch {
                piece: self.next,
                from: self.done,
                len: stretch,
                at,
            });
            packed.len = at + stretch;
            if stretch < rest {
                self.done += stretch;
                break;
            }
            self.next += 1;
            self.done = 0;
        }
        Some(packed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_has_one_place(
            pieces in proptest::collection::vec((0u64..1 << 40, 1u64..20_000), 1..60),
            limit in PAGE..40_000,
        ) {
            let pieces: Vec<_> = pieces.into_iter().map(|(at, len)| (VirtAddr(at), len)).collect();
            let mut packing = Packing::new(pieces.clone());
            let (mut piece, mut done) = (0, 0);
            while let Some(packed) = packing.next_chunk(limit) {
                prop_assert!(packed.len > 0 && packed.len <= limit);
                let mut end = 0;
                for stretch in &packed.stretches {
                    prop_assert!(stretch.at >= end && stretch.len > 0);
                    end = stretch.at + stretch.len;
                    prop_assert_eq!((stretch.piece, stretch.from), (piece, done));
                    let (remote, len) = pieces[piece];
                    let here = (u64::from(packed.offset.0) + stretch.at) % PAGE;
                    if len - done >= PAGE {
                        prop_assert_eq!(here, (remote.0 + done) % PAGE);
                    } else {
                        prop_assert_eq!(done + stretch.len, len);
                    }
                    done += stretch.len;
                    if done == len {
                        (piece, done) = (piece + 1, 0);
                    }
                }
                prop_assert_eq!(end, packed.len);
            }
            prop_assert_eq!(piece, pieces.len());
        }

        #[test]
        fn at_most_half_of_a_chunk_is_left_out(
            pieces in proptest::collection::vec((0u64..1 << 40, 1u64..20_000), 1..60),
        ) {
            let pieces: Vec<_> = pieces.into_iter().map(|(at, len)| (VirtAddr(at), len)).collect();
            let mut packing = Packing::new(pieces);
            let bytes = packing.bytes();
            let packed = packing.next_chunk(u64::MAX).map_or(0, |packed| packed.len);
            prop_assert!(packed <= 2 * bytes, "{packed} for {bytes}");
        }
    }

    #[test]
    fn short_pieces_lie_side_by_side() {
        let mut packing = Packing::new((0..64).map(|page| (VirtAddr(page * 8192), 200)).collect());
        let packed = packing.next_chunk(1 << 20).map(|packed| packed.len);
        // Three pages of 20, and the rest of a fourth.
        assert_eq!(packed, Some(3 * PAGE + 4 * 200));
        assert!(packing.next_chunk(1 << 20).is_none());
    }
}
