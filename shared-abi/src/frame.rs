//! NetVM messages on Ethernet: a checksum, an 80-byte header and payload in UDP over IPv4 without options.
//!
//! Ethernet, IPv4 and UDP are not what NetVM exists for, so `etherparse` writes and reads them (no heap, no
//! standard library, one small dependency). `smoltcp` would do as well, but brings its sockets' dependencies along
//! and would have to be told to keep out of the way of the checksums. The feature is called `frame`; crates that
//! see no wire (the host core, the library, the kernel module) build without it. [`payload_for_mtu`] needs neither.
//!
//! A frame is refused unless all of it makes sense: lengths agree with each other and with the message's own,
//! checksums hold, nothing is fragmented. What Ethernet adds behind a short frame (padding) is ignored.
//!
//! **The message's checksum is CRC32C**, over header and payload, as iSCSI and RDMA over IP have it: Ethernet's own ends
//! at each switch, and UDP's 16 bits do not see words that change places. So UDP's is left out (0, RFC 768). Addresses
//! are in IPv4's header checksum, and ports are compared with the node table. The `crc` crate computes it from tables; a
//! card whose processor has an instruction for it is free to use that instead.

use crate::PAGE_SIZE;
use crate::wire::HEADER_BYTES;

/// Bytes of an Ethernet header without a VLAN tag.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes of an IPv4 header without options.
pub const IPV4_BYTES: usize = 20;
/// Bytes of a UDP header.
pub const UDP_BYTES: usize = 8;
/// Bytes of the checksum of header and payload.
pub const CHECKSUM_BYTES: usize = 4;
/// Bytes before the NetVM header.
pub const OUTER_BYTES: usize = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES + CHECKSUM_BYTES;
/// Bytes before the payload.
pub const HEAD_BYTES: usize = OUTER_BYTES + HEADER_BYTES;
/// Bytes of the largest frame, without Ethernet's own check sequence.
pub const MAX_FRAME_BYTES: usize = HEAD_BYTES + PAGE_SIZE as usize;
/// Smallest payload that a path may offer, in bytes.
pub const MIN_PAYLOAD: u32 = 512;

/// The largest payload, in bytes, of a message on a link whose MTU (bytes of an IPv4 packet) is `mtu`: what IPv4,
/// UDP, checksum and NetVM header leave, rounded down to a multiple of 8, at most a page. Nothing when that is less than
/// [`MIN_PAYLOAD`].
#[must_use]
pub const fn payload_for_mtu(mtu: u32) -> Option<u32> {
    let Some(room) = mtu.checked_sub((IPV4_BYTES + UDP_BYTES + CHECKSUM_BYTES + HEADER_BYTES) as u32) else {
        return None;
    };
    let payload = room & !7;
    if payload < MIN_PAYLOAD {
        None
    } else if payload > PAGE_SIZE {
        Some(PAGE_SIZE)
    } else {
        Some(payload)
    }
}

#[cfg(feature = "frame")]
pub use ethernet::{Endpoint, Frame, FrameError, decode, encode, encode_head};

#[cfg(feature = "frame")]
mod ethernet {
    use super::{CHECKSUM_BYTES, ETHERNET_BYTES, HEAD_BYTES, IPV4_BYTES, OUTER_BYTES, UDP_BYTES};
    use crate::wire::{HEADER_BYTES, Header, HeaderError, OwnHeader};
    use core::fmt;
    use crc::{CRC_32_ISCSI, Crc, Table};
    use etherparse::checksum::u64_16bit_word as internet;
    use etherparse::{EtherType, Ethernet2Header, IpNumber, Ipv4Header, UdpHeader};

    const TIME_TO_LIVE: u8 = 64;
    /// CRC32C, 16 bytes at a time.
    const CASTAGNOLI: &Crc<u32, Table<16>> = &Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

    /// One end of a path: what the node table says of a node.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Endpoint {
        /// Ethernet address.
        pub mac: [u8; 6],
        /// IPv4 address.
        pub ip: [u8; 4],
        /// UDP port.
        pub port: u16,
    }

    /// A frame that carries a message, checked.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Frame<'a> {
        /// The sender, by its own account.
        pub from: Endpoint,
        /// The destination.
        pub to: Endpoint,
        /// The message.
        pub header: Header,
        /// Its payload, [`Header::len`] bytes.
        pub payload: &'a [u8],
    }

    /// Why bytes are no frame with a message, or why a message does not make a frame.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum FrameError {
        /// Only this many bytes are there, fewer than some header says.
        Short(usize),
        /// Not IPv4 (the `EtherType`).
        EtherType(u16),
        /// The IPv4 header has another version, options, or is nonsense.
        Ipv4,
        /// The packet is a fragment; NetVM's messages fit the path.
        Fragment,
        /// The IPv4 header's checksum is wrong.
        Ipv4Checksum,
        /// Not UDP (the protocol number).
        Protocol(u8),
        /// The checksum of header and payload is wrong.
        Checksum,
        /// The lengths of IPv4, UDP and message do not agree.
        Length,
        /// What UDP carries is no message.
        Message(HeaderError),
    }

    impl fmt::Display for FrameError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                Self::Short(len) => write!(f, "cut short: {len} bytes"),
                Self::EtherType(kind) => write!(f, "EtherType {kind:#06x} is not IPv4"),
                Self::Ipv4 => write!(f, "not an IPv4 header without options"),
                Self::Fragment => write!(f, "a fragment of an IPv4 packet"),
                Self::Ipv4Checksum => write!(f, "wrong IPv4 header checksum"),
                Self::Protocol(protocol) => write!(f, "IP protocol {protocol} is not UDP"),
                Self::Checksum => write!(f, "wrong CRC32C of header and payload"),
                Self::Length => write!(f, "the lengths of IPv4, UDP and message do not agree"),
                Self::Message(error) => error.fmt(f),
            }
        }
    }

    impl core::error::Error for FrameError {}

    impl From<HeaderError> for FrameError {
        fn from(error: HeaderError) -> Self {
            Self::Message(error)
        }
    }

    /// Everything of a frame before the payload, for a device that takes head and payload apart. The payload is
    /// only read, for the checksum.
    ///
    /// # Errors
    /// [`FrameError::Length`] when `payload` is not [`Header::len`] bytes long, or too long for a packet.
    pub fn encode_head(
        from: &Endpoint,
        to: &Endpoint,
        header: &OwnHeader,
        payload: &[u8],
    ) -> Result<[u8; HEAD_BYTES], FrameError> {
        if payload.len() != usize::from(header.payload_len()) {
            return Err(FrameError::Length);
        }
        let datagram = UDP_BYTES + CHECKSUM_BYTES + HEADER_BYTES + payload.len();
        let datagram = u16::try_from(datagram).map_err(|_| FrameError::Length)?;

        let ethernet = Ethernet2Header {
            source: from.mac,
            destination: to.mac,
            ether_type: EtherType::IPV4,
        };
        let mut ipv4 = Ipv4Header::new(datagram, TIME_TO_LIVE, IpNumber::UDP, from.ip, to.ip)
            .map_err(|_| FrameError::Length)?;
        ipv4.header_checksum = ipv4.calc_header_checksum();
        let message = header.to_bytes();
        let udp = UdpHeader {
            source_port: from.port,
            destination_port: to.port,
            length: datagram,
            checksum: 0,
        };
        let checksum = checksum([&message, payload]).to_le_bytes();

        let mut head = [0; HEAD_BYTES];
        let parts: [&[u8]; 5] = [
            &ethernet.to_bytes(),
            &ipv4.to_bytes(),
            &udp.to_bytes(),
            &checksum,
            &message,
        ];
        let bytes = parts.into_iter().flatten();
        head.iter_mut().zip(bytes).for_each(|(to, &from)| *to = from);
        Ok(head)
    }

    /// Writes a frame to the start of `into` and returns its length in bytes. Padding to Ethernet's minimum is not
    /// needed: the head alone is longer.
    ///
    /// # Errors
    /// [`FrameError::Short`] when `into` has no room, [`FrameError::Length`] as [`encode_head`].
    pub fn encode(
        from: &Endpoint,
        to: &Endpoint,
        header: &Header,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<usize, FrameError> {
        let room = into.len();
        let head = encode_head(from, to, &OwnHeader::new(header), payload)?;
        let len = HEAD_BYTES + payload.len();
        let Some((first, rest)) = into
            .get_mut(..len)
            .and_then(|frame| frame.split_at_mut_checked(HEAD_BYTES))
        else {
            return Err(FrameError::Short(room));
        };
        first.copy_from_slice(&head);
        rest.copy_from_slice(payload);
        Ok(len)
    }

    /// Reads a frame. The caller compares the destination and the claimed sender with its node
    /// table. What UDP's checksum says does not matter.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Frame<'_>, FrameError> {
        let short = FrameError::Short(bytes.len());
        let (ethernet, packet) = Ethernet2Header::from_slice(bytes).map_err(|_| short)?;
        if ethernet.ether_type != EtherType::IPV4 {
            return Err(FrameError::EtherType(ethernet.ether_type.0));
        }
        let head = packet.get(..IPV4_BYTES).ok_or(short)?;
        let (ipv4, _) = Ipv4Header::from_slice(packet).map_err(|_| FrameError::Ipv4)?;
        if ipv4.header_len() != IPV4_BYTES {
            return Err(FrameError::Ipv4);
        }
        // Over the bytes: the parsed header has lost a reserved bit.
        if internet::ones_complement(internet::add_slice(0, head)) != 0 {
            return Err(FrameError::Ipv4Checksum);
        }
        if ipv4.is_fragmenting_payload() {
            return Err(FrameError::Fragment);
        }
        if ipv4.protocol != IpNumber::UDP {
            return Err(FrameError::Protocol(ipv4.protocol.0));
        }
        let total = usize::from(ipv4.total_len);
        if total < IPV4_BYTES + UDP_BYTES {
            return Err(FrameError::Length);
        }
        let datagram = packet.get(IPV4_BYTES..total).ok_or(short)?;
        let (udp, checked) = UdpHeader::from_slice(datagram).map_err(|_| short)?;
        if usize::from(udp.length) != datagram.len() {
            return Err(FrameError::Length);
        }
        let (sum, message) = checked.split_first_chunk().ok_or(FrameError::Length)?;
        if u32::from_le_bytes(*sum) != checksum([message, &[]]) {
            return Err(FrameError::Checksum);
        }
        let header = Header::decode(message)?;
        let payload = message.get(HEADER_BYTES..).ok_or(short)?;
        if payload.len() != usize::from(header.len) {
            return Err(FrameError::Length);
        }
        Ok(Frame {
            from: Endpoint {
                mac: ethernet.source,
                ip: ipv4.source,
                port: udp.source_port,
            },
            to: Endpoint {
                mac: ethernet.destination,
                ip: ipv4.destination,
                port: udp.destination_port,
            },
            header,
            payload,
        })
    }

    /// CRC32C of a message, of which header and payload may lie apart.
    fn checksum(parts: [&[u8]; 2]) -> u32 {
        let mut sum = CASTAGNOLI.digest();
        for part in parts {
            sum.update(part);
        }
        sum.finalize()
    }

    const _: () =
        assert!(OUTER_BYTES == ETHERNET_BYTES + Ipv4Header::MIN_LEN + UdpHeader::LEN + CHECKSUM_BYTES);
}
