//! A socket that takes and gives many datagrams with one call, where the kernel can (GSO and GRO).

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};

/// The longest run of datagrams of one call, in bytes.
const RUN_BYTES: usize = 60_000;
/// Places for runs of datagrams that come with one call, and their size. More of them than a processor's own cache holds, with the
/// pages that they are copied to, cost more than the calls that they spare.
const PLACES: usize = 4;
const PLACE_BYTES: usize = 1 << 16;
/// What is asked for as the kernel's buffer; it may give less.
const KERNEL_BUFFER: usize = 4 << 20;

/// Where a datagram is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) to: SocketAddr,
    /// The address of ours that the other side knows.
    pub(super) from: Option<IpAddr>,
}

/// Places for what comes, and what the last call brought.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    places: Box<[u8]>,
    metas: Box<[RecvMeta]>,
    got: usize,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            places: vec![0; PLACES * PLACE_BYTES].into_boxed_slice(),
            metas: vec![RecvMeta::default(); PLACES].into_boxed_slice(),
            got: 0,
        }
    }

    /// What the last call brought, in the order in which it came.
    pub(super) fn datagrams(&mut self) -> impl Iterator<Item = (Path, &mut [u8])> {
        let runs = self.places.chunks_mut(PLACE_BYTES).zip(&self.metas);
        runs.take(self.got).flat_map(|(place, meta)| {
            let path = Path {
                to: meta.addr,
                from: meta.dst_ip,
            };
            let bytes = place.get_mut(..meta.len).unwrap_or_default();
            bytes
                .chunks_mut(meta.stride.max(1))
                .map(move |datagram| (path, datagram))
        })
    }
}

/// Datagrams of one size for one path; the last one may be shorter.
#[derive(Debug)]
struct Run {
    path: Option<Path>,
    bytes: Vec<u8>,
    segment: usize,
    count: usize,
}

/// A bound socket.
#[derive(Debug)]
pub(super) struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
    run: Run,
    /// Calls that asked the kernel for datagrams.
    pub(super) asked: u64,
    /// Counts up with each datagram that is sent, and with each call that brings some.
    pub(super) passed: u64,
    /// Datagrams that the kernel did not take: its buffer was full, or it knows no way.
    pub(super) refused: u64,
    /// The largest datagram was longer than the path takes.
    pub(super) too_long: bool,
}

impl Socket {
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        let state = UdpSocketState::new((&socket).into())?;
        // The default is 208 KiB, which a window of each of a few peers fills. What it gives is enough to go on.
        let _ = state.set_send_buffer_size((&socket).into(), KERNEL_BUFFER);
        let _ = state.set_recv_buffer_size((&socket).into(), KERNEL_BUFFER);
        Ok(Self {
            socket,
            state,
            run: Run {
                path: None,
                bytes: Vec::with_capacity(RUN_BYTES),
                segment: 0,
                count: 0,
            },
            asked: 0,
            passed: 0,
            refused: 0,
            too_long: false,
        })
    }

    pub(super) fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Sends a datagram, which `write` appends, of this length, or leaves it for company until [`flush`](Self::flush).
    pub(super) fn send(&mut self, path: Path, len: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let run = &self.run;
        let fits = run.path == Some(path)
            && len <= run.segment
            && run.count < self.state.max_gso_segments()
            && run.bytes.len() + len <= RUN_BYTES
            && run.bytes.len().is_multiple_of(run.segment.max(1));
        if !fits {
            self.flush();
            self.run.path = Some(path);
            self.run.segment = len;
        }
        write(&mut self.run.bytes);
        self.run.count += 1;
        self.passed += 1;
    }

    /// Sends what was left for company.
    pub(super) fn flush(&mut self) {
        let Some(path) = self.run.path.take() else { return };
        let transmit = Transmit {
            destination: path.to,
            ecn: None,
            contents: &self.run.bytes,
            segment_size: (self.run.count > 1).then_some(self.run.segment),
            src_ip: path.from,
        };
        if let Err(error) = self.state.try_send((&self.socket).into(), &transmit) {
            // It is lost, as any datagram may be.
            self.refused += self.run.count as u64;
            self.too_long |= quinn_udp::is_msg_size_err(&error);
        }
        self.run.bytes.clear();
        self.run.count = 0;
    }

    /// Takes datagrams that have come, with one call. Returns whether there may be more.
    pub(super) fn receive(&mut self, inbox: &mut Inbox) -> bool {
        self.asked += 1;
        let got = {
            let mut places = inbox.places.chunks_mut(PLACE_BYTES);
            let mut slices: [IoSliceMut<'_>; PLACES] =
                std::array::from_fn(|_| IoSliceMut::new(places.next().unwrap_or_default()));
            let got = self
                .state
                .recv((&self.socket).into(), &mut slices, &mut inbox.metas);
            // An error of an earlier datagram, as that no program listens there, is reported here once.
            got.unwrap_or(0)
        };
        self.passed += got as u64;
        inbox.got = got;
        got == PLACES
    }
}
