//! What a frame must satisfy, one broken thing at a time.

use netvm_abi::frame::{
    CHECKSUM_BYTES, Endpoint, FrameError, HEAD_BYTES, IPV4_BYTES, MAX_FRAME_BYTES, MIN_PAYLOAD, OUTER_BYTES,
    UDP_BYTES, decode, encode, encode_head, payload_for_mtu,
};
use netvm_abi::wire::{HEADER_BYTES, Header, HeaderError, Kind, OwnHeader};
use netvm_abi::{NodeId, PAGE_SIZE};

const FROM: Endpoint = Endpoint {
    mac: [2, 0, 0, 0, 0, 1],
    ip: [10, 0, 0, 1],
    port: 5791,
};
const TO: Endpoint = Endpoint {
    mac: [2, 0, 0, 0, 0, 2],
    ip: [10, 0, 0, 2],
    port: 5791,
};

fn message(len: u16) -> Header {
    Header {
        len,
        ..Header::new(Kind::Write, NodeId(0), NodeId(1))
    }
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xEE; MAX_FRAME_BYTES];
    let len = encode(&FROM, &TO, &message(payload.len() as u16), payload, &mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

/// Sets both checksums right again: IPv4's by RFC 1071, and CRC32C, a bit at a time.
fn mend(bytes: &mut [u8]) {
    bytes[24..26].fill(0);
    let mut sum: u32 = bytes[14..34]
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]))
        .sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    bytes[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    let length = u16::from_be_bytes([bytes[38], bytes[39]]);
    let end = (34 + usize::from(length)).min(bytes.len());
    let crc = !bytes[OUTER_BYTES..end].iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            crc >> 1 ^ if crc & 1 != 0 { 0x82F6_3B78 } else { 0 }
        })
    });
    bytes[42..OUTER_BYTES].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn payload_follows_from_the_mtu() {
    let outer = (IPV4_BYTES + UDP_BYTES + CHECKSUM_BYTES + HEADER_BYTES) as u32;
    assert_eq!(payload_for_mtu(1500), Some(1384));
    assert_eq!(payload_for_mtu(9000), Some(PAGE_SIZE));
    assert_eq!(payload_for_mtu(u32::MAX), Some(PAGE_SIZE));
    for mtu in 0..10_000 {
        match payload_for_mtu(mtu) {
            Some(payload) => {
                assert!(payload.is_multiple_of(8) && (MIN_PAYLOAD..=PAGE_SIZE).contains(&payload));
                assert!(payload + outer <= mtu, "a message of {payload} bytes fits {mtu}");
                assert!(
                    payload == PAGE_SIZE || payload + outer + 8 > mtu,
                    "no larger one does"
                );
            }
            None => assert!(mtu < outer + MIN_PAYLOAD),
        }
    }
}

#[test]
fn head_and_payload_apart_are_the_frame() {
    let payload: Vec<u8> = (0..=255).collect();
    let head = encode_head(&FROM, &TO, &OwnHeader::new(&message(256)), &payload).unwrap();
    assert_eq!([&head[..], &payload].concat(), frame(&payload));
}

#[test]
fn padding_behind_the_packet_is_ignored() {
    let mut bytes = frame(b"xyz");
    bytes.extend([0; 20]);
    assert_eq!(decode(&bytes).unwrap().payload, b"xyz");
}

#[test]
fn a_message_that_makes_no_frame_is_refused() {
    let mut room = [0; MAX_FRAME_BYTES];
    let wrong = encode(&FROM, &TO, &message(4), b"abc", &mut room);
    assert_eq!(wrong, Err(FrameError::Length));
    let long = vec![0; usize::from(u16::MAX)];
    let wrong = encode_head(&FROM, &TO, &OwnHeader::new(&message(u16::MAX)), &long);
    assert_eq!(wrong, Err(FrameError::Length));
    let short = encode(&FROM, &TO, &message(3), b"abc", &mut room[..HEAD_BYTES + 2]);
    assert_eq!(short, Err(FrameError::Short(HEAD_BYTES + 2)));
}

#[test]
fn each_broken_part_is_named() {
    type Break = fn(&mut Vec<u8>);
    let cases: [(Break, FrameError); 15] = [
        (|b| b.truncate(13), FrameError::Short(13)),
        (|b| b.truncate(33), FrameError::Short(33)),
        (|b| b.truncate(HEAD_BYTES + 3), FrameError::Short(HEAD_BYTES + 3)),
        (|b| b[12] = 0x86, FrameError::EtherType(0x8600)),
        (|b| b[14] = 0x65, FrameError::Ipv4),
        (|b| b[14] = 0x44, FrameError::Ipv4),
        (
            |b| {
                b[14] = 0x46;
                mend(b);
            },
            FrameError::Ipv4,
        ),
        (|b| b[22] ^= 1, FrameError::Ipv4Checksum),
        (
            |b| {
                b[20] = 0x20;
                mend(b);
            },
            FrameError::Fragment,
        ),
        (
            |b| {
                b[23] = 6;
                mend(b);
            },
            FrameError::Protocol(6),
        ),
        (
            |b| {
                b[16..18].copy_from_slice(&27_u16.to_be_bytes());
                mend(b);
            },
            FrameError::Length,
        ),
        (
            |b| {
                let length = u16::from_be_bytes([b[38], b[39]]) - 1;
                b[38..40].copy_from_slice(&length.to_be_bytes());
                mend(b);
            },
            FrameError::Length,
        ),
        (|b| *b.last_mut().unwrap() ^= 0x10, FrameError::Checksum),
        (
            |b| {
                b[OUTER_BYTES] = b'X';
                mend(b);
            },
            FrameError::Message(HeaderError::Magic),
        ),
        (
            |b| {
                b[OUTER_BYTES + 6] -= 1;
                mend(b);
            },
            FrameError::Length,
        ),
    ];
    for (index, (broken, error)) in cases.into_iter().enumerate() {
        let mut bytes = frame(b"0123456789abcdef");
        assert!(decode(&bytes).is_ok());
        broken(&mut bytes);
        assert_eq!(decode(&bytes), Err(error), "case {index}");
    }
}

#[test]
fn words_that_change_places_are_found() {
    let good = frame(b"12345678abcdefgh");
    let mut bytes = good.clone();
    bytes[HEAD_BYTES..].rotate_left(8);
    assert_eq!(
        decode(&bytes),
        Err(FrameError::Checksum),
        "UDP's own sum is the same"
    );
    bytes[40..42].copy_from_slice(&[0x12, 0x34]);
    bytes[HEAD_BYTES..].rotate_left(8);
    assert_eq!(
        decode(&bytes).unwrap(),
        decode(&good).unwrap(),
        "which is not looked at"
    );
}

#[test]
fn a_checksum_of_zero_is_none() {
    let mut bytes = frame(b"data");
    bytes[42..OUTER_BYTES].fill(0);
    assert_eq!(decode(&bytes), Err(FrameError::Checksum));
}

#[test]
fn any_single_flipped_bit_is_found_or_harmless() {
    let good = frame(b"hello, wire");
    let expected = decode(&good).unwrap();
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        match decode(&bytes) {
            // Outside of the checksums are only Ethernet's own addresses, UDP's ports, which the receiver compares with its
            // node table, and UDP's sum.
            Ok(frame) => {
                assert!(
                    matches!(bit / 8, 0..12 | 34..38 | 40..42),
                    "bit {bit} was changed and not found"
                );
                assert_eq!((frame.header, frame.payload), (expected.header, expected.payload));
                let same = (frame.from, frame.to) == (expected.from, expected.to);
                assert_eq!(same, bit / 8 >= 40, "bit {bit}");
            }
            Err(_) => assert!(!matches!(bit / 8, 0..12 | 34..38 | 40..42), "bit {bit}"),
        }
    }
}
