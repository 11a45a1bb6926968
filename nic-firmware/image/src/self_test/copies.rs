//! The program's own `memcpy`, at each alignment and length that takes another way through it.

use core::hint::black_box;

const ROOM: usize = 160;
/// No byte of what is copied.
const UNTOUCHED: u8 = 0xEE;

#[repr(align(16))]
struct Bytes([u8; ROOM]);

/// Copies up to 100 bytes from and to each place within 16.
pub(crate) fn run() -> Result<(), &'static str> {
    let mut from = Bytes([0; ROOM]);
    for (at, byte) in from.0.iter_mut().enumerate() {
        *byte = at as u8;
    }
    for (source, place) in (0..16).flat_map(|source| (0..16).map(move |place| (source, place))) {
        for len in 0..=100 {
            let mut to = Bytes([UNTOUCHED; ROOM]);
            let what = black_box(&from.0[source..source + len]);
            to.0[place..place + len].copy_from_slice(what);
            for (at, &byte) in black_box(&to).0.iter().enumerate() {
                let wanted = if (place..place + len).contains(&at) {
                    (at - place + source) as u8
                } else {
                    UNTOUCHED
                };
                if byte != wanted {
                    return Err("memcpy has moved the wrong bytes");
                }
            }
        }
    }
    Ok(())
}
