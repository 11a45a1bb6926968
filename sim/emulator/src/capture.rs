//! What the wires carried, as Ethernet frames in a pcap file that tshark and Wireshark read.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use netvm_abi::frame::{Endpoint, MAX_FRAME_BYTES, encode};
use netvm_abi::wire::{DEFAULT_UDP_PORT, Header};
use netvm_abi::{Nanos, NodeId};
use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};

use crate::error::EmulatorError;

impl std::fmt::Debug for Capture {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Capture")
    }
}

/// A capture file. Complete when the emulator that writes it was dropped.
pub(crate) struct Capture {
    writer: Mutex<PcapWriter<BufWriter<File>>>,
}

impl Capture {
    pub(crate) fn create(path: &Path) -> Result<Self, EmulatorError> {
        let file = File::create(path)
            .map_err(|source| EmulatorError::Config(format!("cannot write {}: {source}", path.display())))?;
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            ..PcapHeader::default()
        };
        let writer = PcapWriter::with_header(BufWriter::new(file), header)
            .map_err(|error| EmulatorError::Config(format!("cannot write {}: {error}", path.display())))?;
        Ok(Self {
            writer: Mutex::new(writer),
        })
    }

    /// Adds a message. A full disk ends the capture, not the traffic.
    pub(crate) fn add(&self, now: Nanos, header: &Header, payload: &[u8]) {
        let mut bytes = [0; MAX_FRAME_BYTES];
        let (from, to) = (endpoint(header.source), endpoint(header.destination));
        let Ok(len) = encode(&from, &to, header, payload, &mut bytes) else {
            return;
        };
        let Some(frame) = bytes.get(..len) else { return };
        let packet = PcapPacket::new(Duration::from_nanos(now.0), len as u32, frame);
        let _ = self
            .writer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write_packet(&packet);
    }
}

/// The addresses that an emulated node has: a locally administered MAC, an address of 10/8, NetVM's port.
pub(crate) fn endpoint(node: NodeId) -> Endpoint {
    let [high, low] = node.0.to_be_bytes();
    Endpoint {
        mac: [0x02, b'N', b'V', 0, high, low],
        ip: [10, 78, high, low.wrapping_add(1)],
        port: DEFAULT_UDP_PORT,
    }
}
