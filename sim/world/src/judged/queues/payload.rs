//! What the messages carry: all of it follows from the number at the beginning, so a receiver knows what is missing.

/// Bytes of the number.
const NUMBER: usize = 8;

/// Scrambles a number.
const fn scrambled(number: u64) -> u64 {
    let mixed = (number ^ (number >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed ^ (mixed >> 32)
}

/// The message of this number in an object of this life, of at most so many bytes.
pub(super) fn payload(life: u64, number: u64, most: usize) -> Vec<u8> {
    let seed = scrambled(life.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number);
    let len = NUMBER + (seed % (most - NUMBER + 1) as u64) as usize;
    let mut bytes = Vec::with_capacity(len);
    bytes.extend(number.to_le_bytes());
    bytes.extend((NUMBER..len).map(|at| scrambled(seed.wrapping_add(at as u64)) as u8));
    bytes
}

/// The number of a message that has come, and whether the rest is as it should be.
pub(super) fn judged(life: u64, bytes: &[u8], most: usize) -> (u64, bool) {
    let Some(number) = bytes.first_chunk::<NUMBER>() else {
        return (u64::MAX, false);
    };
    let number = u64::from_le_bytes(*number);
    (number, bytes == payload(life, number, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_known_by_its_number_and_no_other_passes_for_it() {
        for number in 0..100 {
            let bytes = payload(3, number, 200);
            assert!(bytes.len() <= 200);
            assert_eq!(judged(3, &bytes, 200), (number, true));
            assert!(!judged(4, &bytes, 200).1 || bytes.len() == NUMBER);
            let mut wrong = bytes.clone();
            if let Some(last) = wrong.get_mut(NUMBER..).and_then(<[u8]>::last_mut) {
                *last ^= 1;
                assert_eq!(judged(3, &wrong, 200), (number, false));
            }
            assert!(!judged(3, &bytes[..bytes.len() - 1], 200).1);
        }
    }
}
