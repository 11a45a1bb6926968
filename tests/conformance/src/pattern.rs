//! Contents that say where they belong: a byte depends on a key and its position, so that lost,
//! late, doubled and misplaced bytes all show.

use crate::outcome::{Outcome, Trouble};
use netvm::Region;

fn word(key: u64, index: u64) -> u64 {
    // The finaliser of SplitMix64: every input bit reaches every output bit.
    let mut x = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ index.wrapping_add(0x632B_E59B_D9B4_E019);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The bytes at positions `from ..` of the pattern with this key.
pub(crate) fn fill(key: u64, from: u64, into: &mut [u8]) {
    let mut at = from;
    let mut rest = into;
    while !rest.is_empty() {
        let bytes = word(key, at / 8).to_le_bytes();
        let start = (at % 8) as usize;
        let count = (8 - start).min(rest.len());
        let (now, later) = rest.split_at_mut(count);
        now.copy_from_slice(&bytes[start..start + count]);
        rest = later;
        at += count as u64;
    }
}

/// As [`fill`], in a new vector.
pub(crate) fn bytes(key: u64, from: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(key, from, &mut bytes);
    bytes
}

/// Puts the pattern into a region.
pub(crate) fn store(region: &Region, offset: u64, key: u64, from: u64, len: u64) -> netvm::Result<()> {
    let mut done = 0;
    while done < len {
        let count = (len - done).min(4096);
        region.write_from(offset + done, &bytes(key, from + done, count as usize))?;
        done += count;
    }
    Ok(())
}

/// The region must hold the pattern there.
pub(crate) fn check(region: &Region, offset: u64, key: u64, from: u64, len: u64, what: &str) -> Outcome {
    let mut done = 0;
    let mut found = vec![0; 4096];
    while done < len {
        let count = (len - done).min(4096) as usize;
        let found = &mut found[..count];
        region.read_into(offset + done, found)?;
        same(found, &bytes(key, from + done, count), offset + done, what)?;
        done += count as u64;
    }
    Ok(())
}

/// The region must hold exactly these bytes.
pub(crate) fn check_bytes(region: &Region, offset: u64, expected: &[u8], what: &str) -> Outcome {
    let mut found = vec![0; 4096];
    for (index, expected) in expected.chunks(4096).enumerate() {
        let at = offset + index as u64 * 4096;
        let found = &mut found[..expected.len()];
        region.read_into(at, found)?;
        same(found, expected, at, what)?;
    }
    Ok(())
}

/// The bytes must be equal.
pub(crate) fn same(found: &[u8], expected: &[u8], offset: u64, what: &str) -> Outcome {
    match found.iter().zip(expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(Trouble::Wrong(format!(
            "{what}: byte {} is {:#04x}, should be {:#04x} ({} of {} bytes differ)",
            offset + at as u64,
            found[at],
            expected[at],
            found.iter().zip(expected).filter(|(a, b)| a != b).count(),
            found.len()
        ))),
    }
}
