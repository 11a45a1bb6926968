//! Control messages, bounce records and events against the host core: whatever other nodes (or a broken card) say, the
//! driver does not panic, speaks the ABI to its NIC, and answers each bounced message exactly once. It copies a message
//! only to where that says, for one that holds a grant of it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use netvm_abi::bounce::{BounceUse, store_record};
use netvm_abi::control::{CONTROL_BYTES, CONTROL_WORDS, Control, Grant, Modes, Name};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::ring::{RingPlace, RingReader, RingWriter};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::shared_map::status_page::HEARTBEAT;
use netvm_abi::shared_queue::QueueShape;
use netvm_abi::wire::{HEADER_WORDS, Header, Kind};
use netvm_abi::words::SharedWords;
use netvm_abi::*;
use netvm_host::Host;
use netvm_host::attach::HostConfig;
use netvm_host::exports::{Allow, ExportSpec};
use netvm_host::imports::ImportSpec;
use netvm_host::paging::WorkStep;
use netvm_host::platform::{CopyEnd, CopyJob, Direction, Resident};
use netvm_kit::Heap;
use netvm_kit::host::{Fake, fake};
use std::collections::HashMap;

const PEER: NodeId = NodeId(1);

/// The host under attack and the NIC's ends of the rings.
struct Stand {
    host: Host<Heap>,
    platform: Fake,
    map: SharedMap,
    geometry: Geometry,
    from_host: RingReader,
    to_host: RingWriter,
    /// The last grant that went out.
    granted: Option<Control>,
    /// All of them.
    grants: Vec<Grant>,
    /// What was bounced last into each page.
    bounced: HashMap<BounceId, Header>,
    /// Generation of each bounced message without an answer.
    open: HashMap<BounceId, Generation>,
    now: Nanos,
}

impl Stand {
    fn new() -> Self {
        let geometry = Geometry {
            ports: 8,
            nodes: 3,
            page_rows: 64,
            capabilities: 16,
            reads: 8,
            staging: 8,
            ..Geometry::default()
        };
        let mut platform = fake(&geometry);
        let config = HostConfig {
            segments: 16,
            exports: 16,
            imports: 16,
            ..HostConfig::default()
        };
        let mut host =
            Host::attach(&mut platform, &mut Heap::default(), &config, Nanos(0)).expect("attaches");
        let port = host
            .port_open(&mut platform, Some(PortId(1)))
            .expect("opens")
            .port;
        host.register(port, VirtAddr(0x10000), 0x8000).expect("registers");
        let allow = [Allow {
            node: None,
            port: None,
            modes: Modes::all(),
        }];
        let spec = ExportSpec {
            name: Name::new("x").expect("a name"),
            start: VirtAddr(0x10010),
            len: 0x4000,
            modes: Modes::all(),
            notify_first: NotificationId(1),
            notify_last: NotificationId(2000),
            queue: QueueShape::NONE,
            allow: &allow,
        };
        host.export(port, &spec).expect("exports");
        let queue = ExportSpec {
            name: Name::new("q").expect("a name"),
            start: VirtAddr(0x16000),
            len: 0x1000,
            modes: Modes::APPEND,
            queue: QueueShape { entry: 6, number: 3 },
            ..spec
        };
        host.export(port, &queue).expect("exports a queue");
        let import = ImportSpec {
            node: PEER,
            port: PortId(1),
            name: spec.name,
            modes: Modes::all(),
            deadline: Nanos::MAX,
            wait: true,
        };
        host.import(&mut platform, port, &import, Nanos(0)).expect("asks");
        let mut stand = Self {
            host,
            platform,
            map: SharedMap::new(&geometry),
            geometry,
            from_host: RingReader::new(RingPlace::host_events(&geometry)),
            to_host: RingWriter::new(RingPlace::nic_events(&geometry)),
            granted: None,
            grants: Vec::new(),
            bounced: HashMap::new(),
            open: HashMap::new(),
            now: Nanos(1),
        };
        stand.say(&NicEvent::PeerUp {
            peer: PEER,
            incarnation: Incarnation(7),
        });
        stand.poll();
        stand
    }

    fn say(&mut self, event: &NicEvent) {
        let pushed = self
            .to_host
            .push(&self.platform.shared, &self.platform.bar, &event.encode());
        assert!(pushed, "the host takes its events");
    }

    /// Polls until all is quiet; the NIC's side answers, and checks what it is told.
    fn poll(&mut self) {
        for _ in 0..1_000 {
            let mut any = false;
            while self.host.poll(&mut self.platform, self.now).is_some() {
                any = true;
            }
            for port in 0..self.geometry.ports {
                any |= self.work(PortId(port));
            }
            while let Some(words) = self.from_host.pop(&self.platform.bar, &self.platform.shared) {
                any = true;
                match HostEvent::decode(&words).expect("the host speaks the ABI") {
                    HostEvent::Barrier { token } => self.say(&NicEvent::BarrierDone { token }),
                    HostEvent::SendControl { slot, token, .. } => {
                        let mut words = [0; CONTROL_WORDS];
                        self.platform
                            .shared
                            .load_slice(self.map.control_slot(slot), &mut words);
                        let message = Control::decode(&words).expect("the host speaks the ABI");
                        if let Control::Granted { grant, .. } = message {
                            self.granted = Some(message);
                            self.grants.push(grant);
                        }
                        self.say(&NicEvent::ControlSent {
                            token,
                            status: Status::Ok,
                        });
                    }
                    HostEvent::BounceEnded {
                        bounce, generation, ..
                    } => {
                        let open = self.open.remove(&bounce);
                        assert_eq!(open, Some(generation), "an answer without a waiter");
                    }
                    _ => {}
                }
            }
            if !any {
                return;
            }
        }
        panic!("the host does not come to rest");
    }

    /// Pages in and copies whatever is asked.
    fn work(&mut self, port: PortId) -> bool {
        let Some(mut step) = self.host.work_next(&mut self.platform, port, self.now) else {
            return false;
        };
        for _ in 0..20 {
            step = match step {
                WorkStep::PageIn { id, vpn, .. } => {
                    let page = Resident {
                        ppn: Ppn(vpn.page_number()),
                        frame: 0,
                        writable: true,
                    };
                    self.host
                        .work_paged(&mut self.platform, id, Ok(Some(page)), self.now, &mut |_| {})
                }
                WorkStep::Copy { id, job } => {
                    assert!(
                        u32::from(job.offset.0) + job.len.0 <= PAGE_SIZE,
                        "a copy out of the page"
                    );
                    self.check_copy(&job);
                    self.host
                        .work_copied(&mut self.platform, id, CopyEnd::Done, self.now, &mut |_| {})
                }
                WorkStep::Ended { .. } => return true,
            };
        }
        panic!("work without end");
    }

    /// A copy is what a bounced message asks for, and may ask for.
    fn check_copy(&self, job: &CopyJob) {
        let header = &self.bounced[&job.bounce];
        assert_eq!(job.direction, Direction::IntoPage, "nothing was to be read");
        assert_eq!(header.kind, Kind::Write, "nothing was to be written");
        let start = header.address.0;
        let place = (
            Vpn::of(header.destination_port, header.address),
            start % u64::from(PAGE_SIZE),
        );
        assert_eq!((job.vpn, u64::from(job.offset.0)), place, "another place");
        assert_eq!(job.len.0, u32::from(header.len), "another length");
        let allows = |grant: &Grant| {
            (grant.capability, grant.secret) == (header.capability, header.secret)
                && grant.modes.contains(Modes::WRITE)
                && grant.start.0 <= start
                && start + u64::from(header.len) <= grant.start.0 + grant.len
        };
        assert!(
            self.grants.iter().any(allows),
            "a copy that no grant allows: {header:?}"
        );
    }

    /// The NIC reports a bounced message.
    fn bounce(&mut self, slot: u16, header: &Header, payload: [u32; CONTROL_WORDS]) {
        let bounce = BounceUse::Window { window: PEER.0, slot }.id(&self.geometry);
        let generation = Generation(u32::from(slot) + 1);
        if self.open.contains_key(&bounce) {
            return;
        }
        self.open.insert(bounce, generation);
        self.bounced.insert(bounce, *header);
        self.platform.bounce.insert(bounce, payload.to_vec());
        store_record(&self.platform.shared, self.map.bounce_record(bounce), header);
        self.say(&NicEvent::Bounced { bounce, generation });
    }
}

fuzz_target!(|data: &[u8]| {
    let mut stand = Stand::new();
    for (chunk, slot) in data.chunks(2 + 4 * CONTROL_WORDS).zip((0..64).cycle()) {
        let Some((&[how, what], wrong)) = chunk.split_first_chunk() else {
            break;
        };
        let token = Token(u32::from(what));
        let base = match how % 6 {
            0 => Some(Control::Import {
                token,
                port: PortId(1),
                importer: PortId(u16::from(what) % 4),
                modes: Modes::all(),
                name: Name::new("x").expect("a name"),
            }),
            1 => match stand.granted {
                Some(Control::Granted { grant, .. }) => Some(Control::Release {
                    capability: grant.capability,
                    secret: grant.secret,
                }),
                _ => None,
            },
            2 => stand.granted,
            3 => Some(Control::Refused {
                token,
                status: Status::from_code(what),
            }),
            4 => Some(Control::Revoked {
                capability: CapabilitySlot(u32::from(what) % 20),
                exporter: PEER,
            }),
            _ => None,
        };
        let mut words = base.map_or([0; CONTROL_WORDS], |control| control.encode());
        for (word, bytes) in words.iter_mut().zip(wrong.chunks(4)) {
            let mut four = [0; 4];
            four[..bytes.len()].copy_from_slice(bytes);
            *word ^= u32::from_le_bytes(four);
        }
        let mut header = Header::new(Kind::Control, PEER, NodeId(0));
        header.len = CONTROL_BYTES as u16;
        match how >> 6 {
            // The record itself is strange: a card that lies, or a write that was bounced.
            1 => {
                let mut record = header.encode_words();
                for (to, from) in record.iter_mut().zip(&words[..HEADER_WORDS]) {
                    *to ^= from;
                }
                header = Header::decode_words(&record).unwrap_or(header);
            }
            2 => {
                header.kind = Kind::Write;
                header.destination_port = PortId(1);
                header.address = VirtAddr(0x10010 + u64::from(what));
                if let Some(Control::Granted { grant, .. }) = stand.granted {
                    header.capability = grant.capability;
                    header.secret = grant.secret;
                }
                header.secret ^= u64::from(words[0]);
            }
            3 => {
                stand.now = stand.now.after(Nanos::from_millis(u64::from(what)));
                // The card lives: one whose heart stands still is given up, and answered nothing.
                let beat = stand.platform.shared.load_acquire(HEARTBEAT);
                stand
                    .platform
                    .shared
                    .store_release(HEARTBEAT, beat.wrapping_add(1));
            }
            _ => {}
        }
        stand.bounce(slot, &header, words);
        stand.poll();
    }
    assert!(
        stand.open.is_empty(),
        "messages without an answer: {:?}",
        stand.open
    );
});
