//! How a transfer is cut into messages (thesis 5.2): no message crosses a page on either side or
//! exceeds the payload of the path.

use netvm_abi::{PAGE_SIZE, VirtAddr};

/// Most bytes of the first message of a transfer of `len` bytes to `remote`, from (or to) the local
/// address `local` (none: the payload is inline), on a path with messages of up to `payload` bytes.
///
/// An aligned word of 1, 2, 4 or 8 bytes never crosses a page on an aligned side, and no payload is
/// smaller than 512; so it stays one message, provided its other side does not split it: which is why
/// the library sends such words inline.
#[inline]
pub(crate) const fn first(len: u64, remote: VirtAddr, local: Option<VirtAddr>, payload: u32) -> u32 {
    let mut most = min(payload, PAGE_SIZE - remote.page_offset().0 as u32);
    if let Some(local) = local {
        most = min(most, PAGE_SIZE - local.page_offset().0 as u32);
    }
    if len < most as u64 { len as u32 } else { most }
}

/// How many messages such a transfer takes, and how many bytes the first `most` of them hold. Counts no further than that.
pub(crate) fn count(
    len: u64,
    mut remote: VirtAddr,
    mut local: Option<VirtAddr>,
    payload: u32,
    most: u32,
) -> (u32, u64) {
    let (mut messages, mut bytes) = (0, 0);
    while messages < most {
        let piece = u64::from(first(len - bytes, remote, local, payload));
        (messages, bytes) = (messages + 1, bytes + piece);
        if bytes == len {
            break;
        }
        remote = VirtAddr(remote.0.wrapping_add(piece));
        local = local.map(|local| VirtAddr(local.0.wrapping_add(piece)));
    }
    (messages, bytes)
}

const fn min(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(len: u64, remote: u64, local: Option<u64>, payload: u32) -> Vec<(u64, u32)> {
        let mut done = 0;
        let mut pieces = Vec::new();
        while done < len {
            let piece = first(
                len - done,
                VirtAddr(remote + done),
                local.map(|l| VirtAddr(l + done)),
                payload,
            );
            assert!(piece > 0);
            pieces.push((done, piece));
            done += u64::from(piece);
        }
        pieces
    }

    proptest! {
        #[test]
        fn pieces_cover_the_transfer_and_cross_nothing(
            len in 0u64..40_000,
            remote in 0u64..1 << 40,
            local in proptest::option::of(0u64..1 << 40),
            payload in (64u32..=512).prop_map(|eighths| eighths * 8),
        ) {
            let pieces = cut(len, remote, local, payload);
            for most in [1, 3, 64] {
                let (messages, bytes) =
                    count(len, VirtAddr(remote), local.map(VirtAddr), payload, most);
                let held = pieces.iter().take(most as usize);
                prop_assert_eq!(bytes, held.map(|piece| u64::from(piece.1)).sum::<u64>());
                prop_assert_eq!(messages as usize, pieces.len().clamp(1, most as usize));
            }
            prop_assert_eq!(pieces.iter().map(|p| u64::from(p.1)).sum::<u64>(), len);
            for (at, piece) in pieces {
                prop_assert!(piece <= payload);
                for base in [Some(remote), local].into_iter().flatten() {
                    let offset = (base + at) % 4096;
                    prop_assert!(offset + u64::from(piece) <= 4096);
                }
            }
        }

        #[test]
        fn an_aligned_word_is_one_message(shift in 0u32..4, page in 0u64..1 << 30, slot in 0u64..4096, payload in 64u32..=512) {
            let size = 1u64 << shift;
            let remote = page * 4096 + slot / size * size;
            prop_assert_eq!(cut(size, remote, None, payload * 8), vec![(0, size as u32)]);
        }
    }

    #[test]
    fn a_page_on_a_small_path_takes_as_many_messages_as_it_must() {
        assert_eq!(cut(4096, 0, Some(0), 1408).len(), 3);
        assert_eq!(cut(4096, 0, Some(0), 4096).len(), 1);
        assert_eq!(cut(4096, 8, Some(8), 4096).len(), 2);
        assert_eq!(cut(4096, 8, Some(16), 4096).len(), 3);
    }
}
