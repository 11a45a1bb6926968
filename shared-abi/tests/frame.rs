//! What a frame must satisfy, one broken thing at a time.

use netvm_abi::frame::{
    Endpoint, FrameError, HEAD_BYTES, IPV4_BYTES, MAX_FRAME_BYTES, MIN_PAYLOAD, OUTER_BYTES, UDP_BYTES,
    decode, encode, encode_head, payload_for_mtu,
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

/// Sets both checksums right again, by RFC 1071.
fn mend(bytes: &mut [u8]) {
    fn sum(bytes: &[u8]) -> u32 {
        bytes
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u32::from(low)))
            .sum()
    }
    fn fold(mut sum: u32) -> u16 {
        while sum >> 16 != 0 {
            sum = (sum & 0xFFFF) + (sum >> 16);
        }
        !(sum as u16)
    }
    bytes[24..26].fill(0);
    let checksum = fold(sum(&bytes[14..34]));
    bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
    bytes[40..42].fill(0);
    let length = u16::from_be_bytes([bytes[38], bytes[39]]);
    let end = (34 + usize::from(length)).min(bytes.len());
    let pseudo = sum(&bytes[26..34]) + 17 + u32::from(length);
    let checksum = fold(pseudo + sum(&bytes[34..end]));
    bytes[40..42].copy_from_slice(&checksum.to_be_bytes());
}

#[test]
fn payload_follows_from_the_mtu() {
    let outer = (IPV4_BYTES + UDP_BYTES + HEADER_BYTES) as u32;
    assert_eq!(payload_for_mtu(1500), Some(1392));
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
        (|b| *b.last_mut().unwrap() ^= 0x10, FrameError::UdpChecksum),
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
fn a_datagram_without_a_checksum_is_taken() {
    let mut bytes = frame(b"data");
    bytes[40..42].fill(0);
    assert_eq!(decode(&bytes).unwrap().payload, b"data");
}

#[test]
fn any_single_flipped_bit_is_found_or_harmless() {
    let good = frame(b"hello, wire");
    let expected = decode(&good).unwrap();
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        match decode(&bytes) {
            // Only Ethernet's own addresses are outside of the checksums.
            Ok(frame) => {
                assert!(bit / 8 < 12, "bit {bit} was changed and not found");
                assert_eq!((frame.header, frame.payload), (expected.header, expected.payload));
            }
            Err(_) => assert!(bit / 8 >= 12, "bit {bit}"),
        }
    }
}
