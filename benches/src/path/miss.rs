//! A miss at the host: what its core spends on a bounced write, from the card's event to its answer, and on page events.
//! The fault, the copy and the waking of threads are the kernel's: `docs/evaluation/rig.md` has their times.

use super::cases::Step;
use super::pair::REMOTE;
use crate::callgrind::Profile;
use anyhow::{Result, anyhow, bail, ensure};
use netvm_abi::attach::CardHeader;
use netvm_abi::bar::BarMap;
use netvm_abi::bounce::{BounceUse, store_record};
use netvm_abi::control::{CONTROL_BYTES, CONTROL_WORDS, Control, Modes, Name};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::page_table::HashKey;
use netvm_abi::ring::{RingPlace, RingReader, RingWriter};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::shared_queue::QueueShape;
use netvm_abi::wire::{Header, Kind};
use netvm_abi::words::SharedWords;
use netvm_abi::*;
use netvm_host::Host;
use netvm_host::attach::HostConfig;
use netvm_host::exports::{Allow, ExportSpec};
use netvm_host::paging::{WorkId, WorkStep};
use netvm_host::platform::{CopyEnd, Platform, Resident};
use netvm_host::ports::OpenPort;
use netvm_kit::Heap;
use std::hint::black_box;
use std::sync::atomic::AtomicU32;

const ROUNDS: u32 = 512;
const NODE: NodeId = NodeId(0);
const PEER: NodeId = NodeId(1);
const NOW: Nanos = Nanos(1_000);

/// Plain memory, as NIC memory and as driver memory.
struct Board {
    bar: Box<[AtomicU32]>,
    shared: Box<[AtomicU32]>,
    /// The one control message.
    message: [u32; CONTROL_WORDS],
}

impl Platform for Board {
    type Bar = [AtomicU32];
    type Shared = [AtomicU32];

    #[inline]
    fn bar(&self) -> &[AtomicU32] {
        &self.bar
    }

    #[inline]
    fn shared(&self) -> &[AtomicU32] {
        &self.shared
    }

    fn secret(&mut self) -> u64 {
        0x1234_5678_9ABC_DEF0
    }

    fn load_bounce(&mut self, _: BounceId, into: &mut [u32]) {
        into.copy_from_slice(&self.message[..into.len()]);
    }

    fn store_bounce(&mut self, _: BounceId, _: &[u32]) {}

    #[inline]
    fn wake_nic(&mut self) {}
}

/// A host with a port whose memory a peer may write, and the NIC's ends of its rings.
struct End {
    host: Host<Heap>,
    board: Board,
    map: SharedMap,
    from_host: RingReader,
    to_host: RingWriter,
    port: OpenPort,
}

impl End {
    fn new() -> Result<(Self, control::Grant)> {
        let geometry = Geometry::default();
        let words = |count| (0..count).map(|_| AtomicU32::new(0)).collect();
        let mut board = Board {
            bar: words(BarMap::new(&geometry).words),
            shared: words(SharedMap::new(&geometry).words),
            message: [0; CONTROL_WORDS],
        };
        CardHeader {
            geometry,
            node: NODE,
            incarnation: Incarnation(5),
            key: HashKey([1, 2]),
        }
        .publish(&*board.bar);
        let config = HostConfig {
            geometry: Some(geometry),
            ..HostConfig::default()
        };
        let mut host = Host::attach(&mut board, &mut Heap::default(), &config, Nanos(0))
            .map_err(|error| anyhow!("attaching: {error:?}"))?;
        let port = host
            .port_open(&mut board, None)
            .map_err(|error| anyhow!("opening a port: {error:?}"))?;
        let mut end = Self {
            host,
            board,
            map: SharedMap::new(&geometry),
            from_host: RingReader::new(RingPlace::host_events(&geometry)),
            to_host: RingWriter::new(RingPlace::nic_events(&geometry)),
            port,
        };
        let grant = end.share(REMOTE, u64::from(ROUNDS) * u64::from(PAGE_SIZE))?;
        Ok((end, grant))
    }

    /// Exports memory for writing, and grants it to the peer.
    fn share(&mut self, start: VirtAddr, len: u64) -> Result<control::Grant> {
        let port = self.port.port;
        let name = Name::new("data").map_err(|status| anyhow!("a name: {status:?}"))?;
        let modes = Modes::WRITE;
        self.host
            .register(port, start, len)
            .map_err(|error| anyhow!("registering memory: {error:?}"))?;
        let allow = [Allow {
            node: None,
            port: None,
            modes,
        }];
        let spec = ExportSpec {
            name,
            start,
            len,
            modes,
            notify_first: NotificationId(1),
            notify_last: NotificationId(1),
            queue: QueueShape::NONE,
            allow: &allow,
        };
        self.host
            .export(port, &spec)
            .map_err(|error| anyhow!("exporting memory: {error:?}"))?;
        self.say(NicEvent::PeerUp {
            peer: PEER,
            incarnation: Incarnation(77),
        })?;
        let token = Token(1);
        let request = Control::Import {
            token,
            port,
            importer: PortId(2),
            modes,
            name,
        };
        self.board.message = request.encode();
        let mut header = Header::new(Kind::Control, PEER, NODE);
        header.len = CONTROL_BYTES as u16;
        self.bounce(0, &header)?;
        while self.host.poll(&mut self.board, NOW).is_some() {}
        let map = self.map;
        while let Some(event) = self.hear() {
            let HostEvent::SendControl { slot, .. } = event else {
                continue;
            };
            let mut words = [0; CONTROL_WORDS];
            self.board.shared.load_slice(map.control_slot(slot), &mut words);
            if let Ok(Control::Granted { grant, .. }) = Control::decode(&words) {
                return Ok(grant);
            }
        }
        bail!("no grant")
    }

    fn say(&mut self, event: NicEvent) -> Result<()> {
        let (shared, bar) = (&*self.board.shared, &*self.board.bar);
        ensure!(
            self.to_host.push(shared, bar, &event.encode()),
            "the ring is full"
        );
        Ok(())
    }

    /// The NIC has put a message into a bounce page.
    fn bounce(&mut self, round: u32, header: &Header) -> Result<WorkId> {
        let geometry = *self.host.geometry();
        let place = BounceUse::Window {
            window: PEER.0,
            slot: (round % u32::from(geometry.window)) as u16,
        };
        let (bounce, generation) = (place.id(&geometry), Generation(round + 1));
        store_record(&*self.board.shared, self.map.bounce_record(bounce), header);
        self.say(NicEvent::Bounced { bounce, generation })?;
        Ok(WorkId { bounce, generation })
    }

    fn hear(&mut self) -> Option<HostEvent> {
        let words = self.from_host.pop(&*self.board.bar, &*self.board.shared)?;
        HostEvent::decode(&words)
    }
}

#[inline(never)]
fn probe_heard(end: &mut End) -> bool {
    end.host.poll(&mut end.board, NOW).is_some()
}

#[inline(never)]
fn probe_taken(end: &mut End) -> Option<WorkStep> {
    end.host.work_next(&mut end.board, end.port.port, NOW)
}

#[inline(never)]
fn probe_paged(end: &mut End, id: WorkId, page: Resident) -> WorkStep {
    end.host
        .work_paged(&mut end.board, id, Ok(Some(page)), NOW, &mut |_| {})
}

#[inline(never)]
fn probe_copied(end: &mut End, id: WorkId) -> WorkStep {
    end.host
        .work_copied(&mut end.board, id, CopyEnd::Done, NOW, &mut |_| {})
}

/// Misses again and again, each step by a probe.
#[inline(never)]
pub(super) fn case_miss() -> Result<()> {
    let (mut end, grant) = End::new()?;
    for round in 0..ROUNDS {
        let mut header = Header::new(Kind::Write, PEER, NODE);
        header.source_port = PortId(2);
        header.destination_port = end.port.port;
        header.address = VirtAddr(REMOTE.0 + u64::from(round) * u64::from(PAGE_SIZE));
        header.len = 8;
        header.capability = grant.capability;
        header.secret = grant.secret;
        let id = end.bounce(round, &header)?;
        ensure!(probe_heard(black_box(&mut end)), "no work is told of");
        ensure!(
            matches!(probe_taken(black_box(&mut end)), Some(WorkStep::PageIn { .. })),
            "there is no work"
        );
        let page = Resident {
            ppn: Ppn(u64::from(round) + 1),
            frame: u64::from(round),
            writable: true,
        };
        let step = probe_paged(black_box(&mut end), id, page);
        ensure!(
            matches!(step, WorkStep::Copy { .. }),
            "not the path that was meant"
        );
        let step = probe_copied(black_box(&mut end), id);
        ensure!(
            matches!(step, WorkStep::Ended { status: Status::Ok }),
            "the message is refused"
        );
        ensure!(
            matches!(end.hear(), Some(HostEvent::BounceEnded { .. })),
            "the card is not told"
        );
    }
    ensure!(end.host.mapped_pages() == ROUNDS, "pages were not mapped");
    Ok(())
}

const ROWS: [(&str, &str, &str, f64); 4] = [
    (
        "miss_heard",
        "host: a bounced write's event to its worker's queue",
        "probe_heard",
        615.0,
    ),
    (
        "miss_taken",
        "host: queue to the page that is wanted",
        "probe_taken",
        480.0,
    ),
    ("miss_paged", "host: page there to the copy", "probe_paged", 440.0),
    (
        "miss_copied",
        "host: copied to mapped, and the card's answer",
        "probe_copied",
        895.0,
    ),
];

/// What each step costs.
///
/// # Errors
/// Callgrind did not see one.
pub fn steps(profile: &Profile) -> Result<Vec<Step>> {
    ROWS.iter()
        .map(|&(name, text, probe, budget)| {
            Ok(Step {
                name,
                text,
                instructions: profile.between("case_miss", probe)?.each(),
                budget: Some(budget),
            })
        })
        .collect()
}
