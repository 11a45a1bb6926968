//! A host core, a platform that lends it plain memory, and the NIC's side of the word spaces, driven by
//! the test.

use super::{Fake, boot, fake};
use crate::Heap;
use netvm_abi::bounce::{BounceUse, store_record};
use netvm_abi::control::{CONTROL_BYTES, CONTROL_WORDS, Control, Modes, Name};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::page_lock::{self, LockedPage, Miss, Used};
use netvm_abi::page_table::{HashKey, PageTable};
use netvm_abi::ring::{RingPlace, RingReader, RingWriter};
use netvm_abi::shared_map::SharedMap;

use netvm_abi::wire::{Header, Kind};
use netvm_abi::words::SharedWords;
use netvm_abi::*;
use netvm_host::attach::HostConfig;
use netvm_host::events::Notice;
use netvm_host::exports::{Allow, ExportSpec};
use netvm_host::imports::ImportSpec;
use netvm_host::paging::{WorkId, WorkStep};
use netvm_host::platform::{CopyEnd, CopyJob, PageGone, Resident};
use netvm_host::ports::OpenPort;
use netvm_host::unmap::{Unmap, UnmapKind, UnmapStep};
use netvm_host::{Host, Progress};

use std::sync::atomic::Ordering;

std::thread_local! {
    /// What the rigs of this test counted.
    pub static SUMS: std::cell::RefCell<Vec<netvm_host::counters::Counters>> = const { std::cell::RefCell::new(Vec::new()) };
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // Whatever became of a page: its frame is the one that it came with.
            assert!(self.gone.iter().all(|page| page.frame == frame_of(page.ppn.0)));
        }
        SUMS.with_borrow_mut(|sums| sums.push(*self.host.counters()));
    }
}

/// A host, its platform, and the NIC's ends of everything.
pub struct Rig {
    /// The core.
    pub host: Host<Heap>,
    /// Its platform.
    pub platform: Fake,
    /// The page table, as the NIC knows it.
    pub table: PageTable,
    /// Where things are in driver memory.
    pub map: SharedMap,
    /// The time.
    pub now: Nanos,
    /// Pages that the core said are out.
    pub gone: Vec<PageGone>,
    /// What the host told the NIC, as far as `serve` has not answered it.
    pub heard: Vec<HostEvent>,
    /// `serve` answers barriers, port closes and control messages.
    pub obliging: bool,
    from_host: RingReader,
    to_host: RingWriter,
    generation: u32,
    beats: u32,
}

/// The node of the host under test.
pub const NODE: NodeId = NodeId(0);
/// Another node.
pub const PEER: NodeId = NodeId(1);
/// The incarnation of the link's other end.
pub const LINK: Incarnation = Incarnation(77);

/// Small tables, so that tests reach their ends.
#[must_use]
pub fn geometry() -> Geometry {
    Geometry {
        ports: 8,
        nodes: 3,
        page_rows: 64,
        capabilities: 16,
        reads: 8,
        staging: 8,
        ..Geometry::default()
    }
}

/// A host for them.
#[must_use]
pub fn config() -> HostConfig {
    HostConfig {
        geometry: Some(geometry()),
        segments: 16,
        exports: 16,
        imports: 16,
        ..HostConfig::default()
    }
}

/// A name.
///
/// # Panics
/// It is none.
#[must_use]
pub fn name(text: &str) -> Name {
    Name::new(text).expect("a good name")
}

/// An access list that lets anyone do this.
#[must_use]
pub fn anyone(modes: Modes) -> [Allow; 1] {
    [Allow {
        node: None,
        port: None,
        modes,
    }]
}

/// Bytes of a page.
pub const PAGE: u64 = 4096;

impl Default for Rig {
    fn default() -> Self {
        Self::new()
    }
}

impl Rig {
    /// A host that is attached.
    #[must_use]
    pub fn new() -> Self {
        Self::with(&config(), &geometry())
    }

    /// The same with a configuration and tables of its own.
    ///
    /// # Panics
    /// It does not attach.
    #[must_use]
    pub fn with(config: &HostConfig, geometry: &Geometry) -> Self {
        let mut platform = fake(geometry);
        let host = Host::attach(&mut platform, &mut Heap::default(), config, Nanos(0)).expect("attaches");
        let table = *host.page_table();
        Self {
            host,
            platform,
            table,
            map: SharedMap::new(geometry),
            now: Nanos(0),
            gone: Vec::new(),
            heard: Vec::new(),
            obliging: true,
            from_host: RingReader::new(RingPlace::host_events(geometry)),
            to_host: RingWriter::new(RingPlace::nic_events(geometry)),
            generation: 0,
            beats: 0,
        }
    }

    /// The card was reset: rings, locks and hash key of the NIC's side are new.
    pub fn reboot(&mut self) {
        let geometry = *self.host.geometry();
        for word in self.platform.bar.iter() {
            word.store(0, Ordering::SeqCst);
        }
        let key = 0x5EED;
        boot(&geometry, &self.platform.bar, key);
        let table = bar::BarMap::new(&geometry).page_table;
        let key = HashKey([key, 0x0F1E_2D3C_4B5A_6978]);
        self.table = PageTable::new(table, geometry.page_rows, key);
        self.from_host = RingReader::new(RingPlace::host_events(&geometry));
        self.to_host = RingWriter::new(RingPlace::nic_events(&geometry));
    }

    /// Attaches again to a card that was reset, a few entries of its tables at a time, with few reads of registers each time.
    pub fn reattach(&mut self) {
        const BUDGET: u32 = 7;
        const HEADER: u32 = 24;
        loop {
            let before = self.platform.bar.loads();
            let done = self.host.reattach(&mut self.platform, self.now, BUDGET);
            let loads = self.platform.bar.loads() - before;
            assert!(loads <= BUDGET + HEADER, "{loads} loads in one go");
            match done {
                Ok(Progress::Again) => {}
                Ok(Progress::Done) => return,
                other => panic!("not attached: {other:?}"),
            }
        }
    }

    /// The card is gone from its bus.
    pub fn kill_card(&mut self) {
        for word in self.platform.bar.iter() {
            word.store(u32::MAX, Ordering::SeqCst);
        }
    }

    /// What a counter says.
    ///
    /// # Panics
    /// There is no such counter.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        self.host
            .counters()
            .iter()
            .find(|(n, _)| *n == name)
            .unwrap_or_else(|| panic!("no counter '{name}'"))
            .1
    }

    // ---- the NIC's side -------------------------------------------------------------------------

    /// The NIC tells the host something.
    ///
    /// # Panics
    /// The ring is full.
    pub fn say(&mut self, event: NicEvent) {
        assert!(
            self.to_host
                .push(&*self.platform.shared, &*self.platform.bar, &event.encode())
        );
    }

    /// The same with any words.
    ///
    /// # Panics
    /// The ring is full.
    pub fn say_words(&mut self, words: [u32; 8]) {
        assert!(
            self.to_host
                .push(&*self.platform.shared, &*self.platform.bar, &words)
        );
    }

    /// Takes what the host said; answers what an obliging NIC answers at once.
    pub fn serve(&mut self) -> bool {
        let mut any = false;
        while let Some(words) = self.from_host.pop(&*self.platform.bar, &*self.platform.shared) {
            any = true;
            let event = HostEvent::decode(&words).expect("the host speaks the ABI");
            match event {
                HostEvent::Barrier { token } if self.obliging => self.say(NicEvent::BarrierDone { token }),
                HostEvent::PortClose { port, generation } if self.obliging => {
                    self.say(NicEvent::PortClosed { port, generation });
                }
                HostEvent::SendControl { token, slot, peer } if self.obliging => {
                    self.heard.push(HostEvent::SendControl { token, slot, peer });
                    self.say(NicEvent::ControlSent {
                        token,
                        status: Status::Ok,
                    });
                }
                event => self.heard.push(event),
            }
        }
        any
    }

    /// What the host told the NIC since the last call.
    pub fn heard(&mut self) -> Vec<HostEvent> {
        self.serve();
        std::mem::take(&mut self.heard)
    }

    /// The control messages that the host has sent since the last call.
    pub fn sent(&mut self) -> Vec<(NodeId, Control)> {
        let heard = self.heard();
        heard.iter().filter_map(|event| self.control_of(event)).collect()
    }

    /// The control message that this event sends.
    ///
    /// # Panics
    /// It is not of the ABI.
    #[must_use]
    pub fn control_of(&self, event: &HostEvent) -> Option<(NodeId, Control)> {
        let HostEvent::SendControl { peer, slot, .. } = *event else {
            return None;
        };
        let mut words = [0; CONTROL_WORDS];
        self.platform
            .shared
            .load_slice(self.map.control_slot(slot), &mut words);
        Some((peer, Control::decode(&words).expect("the host speaks the ABI")))
    }

    /// Polls until nothing is left, with the NIC answering.
    pub fn poll(&mut self) -> Vec<Notice> {
        let mut notices = Vec::new();
        loop {
            let before = notices.len();
            while let Some(notice) = self.host.poll(&mut self.platform, self.now) {
                notices.push(notice);
                assert!(notices.len() < 10_000, "poll does not end");
            }
            if !self.serve() && notices.len() == before {
                return notices;
            }
        }
    }

    /// Time passes on a card that works and says nothing, while the host looks each half millisecond.
    pub fn card_runs(&mut self, millis: u64) -> Vec<Notice> {
        let mut notices = Vec::new();
        for _ in 0..millis * 2 {
            self.now = self.now.after(Nanos::from_micros(500));
            self.beat();
            notices.extend(self.poll());
        }
        notices
    }

    /// The card's loop moves.
    pub fn beat(&mut self) {
        self.beats += 1;
        self.platform
            .shared
            .store_release(shared_map::status_page::HEARTBEAT, self.beats);
    }

    /// Time passes while the host looks when it wants to and finds the same heartbeat.
    pub fn card_stands_still(&mut self, millis: u64) -> Vec<Notice> {
        let end = self.now.after(Nanos::from_millis(millis));
        let mut notices = Vec::new();
        while self.now < end {
            self.now = self.host.next_deadline().max(self.now.after(Nanos(1))).min(end);
            notices.extend(self.poll());
        }
        notices
    }

    /// The NIC locks a page.
    ///
    /// # Errors
    /// It is not there, or not writable.
    pub fn lock(&self, vpn: Vpn, write: bool) -> Result<LockedPage, Miss> {
        page_lock::lock_page(&*self.platform.bar, &self.table, vpn, write)
    }

    /// The NIC unlocks it.
    pub fn unlock(&self, page: LockedPage, used: Used) {
        page_lock::unlock_page(&*self.platform.bar, &self.table, page.slot, used);
    }

    /// The NIC bounces a message; returns where and which use.
    pub fn bounce(&mut self, place: BounceUse, header: &Header) -> WorkId {
        let bounce = place.id(self.host.geometry());
        self.generation += 1;
        let generation = Generation(self.generation);
        store_record(&*self.platform.shared, self.map.bounce_record(bounce), header);
        self.say(NicEvent::Bounced { bounce, generation });
        WorkId { bounce, generation }
    }

    /// The NIC misses the operand of an atomic.
    pub fn atomic_miss(&mut self, place: BounceUse, header: &Header, attempt: u8) -> WorkId {
        let bounce = place.id(self.host.geometry());
        self.generation += 1;
        let generation = Generation(self.generation);
        store_record(&*self.platform.shared, self.map.bounce_record(bounce), header);
        self.say(NicEvent::AtomicMiss {
            bounce,
            generation,
            attempt,
        });
        WorkId { bounce, generation }
    }

    /// A slot of a window.
    #[must_use]
    pub fn window(peer: NodeId, slot: u16) -> BounceUse {
        BounceUse::Window { peer, slot }
    }

    /// The NIC misses a source page.
    pub fn source_miss(&mut self, staging: u16, vpn: Vpn, len: u32, attempt: u8) -> WorkId {
        self.generation += 1;
        let generation = Generation(self.generation);
        self.say(NicEvent::SourceMiss {
            staging: StagingId(staging),
            generation,
            vpn,
            offset: PageOffset(0),
            len: ByteLen(len),
            attempt,
        });
        let bounce = BounceUse::Source(StagingId(staging)).id(self.host.geometry());
        WorkId { bounce, generation }
    }

    /// A control message arrives.
    pub fn control(&mut self, from: NodeId, slot: u16, message: &Control) -> WorkId {
        let place = Self::window(from, slot);
        let bounce = place.id(self.host.geometry());
        self.platform.bounce.insert(bounce, message.encode().to_vec());
        let mut header = Header::new(Kind::Control, from, NODE);
        header.len = CONTROL_BYTES as u16;
        self.bounce(place, &header)
    }

    /// A peer's link comes up.
    pub fn link_up(&mut self, peer: NodeId) {
        self.say(NicEvent::PeerUp {
            peer,
            incarnation: LINK,
        });
        self.poll();
    }

    // ---- the platform's side --------------------------------------------------------------------

    /// Opens a port.
    ///
    /// # Panics
    /// None is free.
    pub fn open(&mut self) -> OpenPort {
        let port = self
            .host
            .port_open(&mut self.platform, None)
            .expect("a free port");
        self.serve();
        port
    }

    /// Closes a port, all steps.
    ///
    /// # Panics
    /// That does not end.
    pub fn close(&mut self, port: OpenPort) {
        let mut close = self
            .host
            .port_close_begin(&mut self.platform, port)
            .expect("open");
        for _ in 0..1000 {
            self.poll();
            let gone = &mut self.gone;
            let step = self
                .host
                .port_close_step(&mut self.platform, &mut close, self.now, 8, &mut |page| {
                    gone.push(page)
                });
            if step == Progress::Done {
                return;
            }
        }
        panic!("the port does not close");
    }

    /// Makes pages of a port a segment.
    ///
    /// # Panics
    /// The core refuses.
    pub fn register(&mut self, port: OpenPort, page: u64, pages: u64) -> SegmentId {
        self.host
            .register(port.port, VirtAddr(page * PAGE), pages * PAGE)
            .expect("registers")
    }

    /// Exports pages under a name, to anyone.
    ///
    /// # Panics
    /// The core refuses.
    pub fn export(&mut self, port: OpenPort, text: &str, page: u64, pages: u64, modes: Modes) -> ExportId {
        let allow = anyone(Modes::all());
        let spec = ExportSpec {
            name: name(text),
            start: VirtAddr(page * PAGE),
            len: pages * PAGE,
            modes,
            notify_first: NotificationId(1),
            notify_last: NotificationId(100),
            queue: netvm_abi::shared_queue::QueueShape::NONE,
            allow: &allow,
        };
        self.host.export(port.port, &spec).expect("exports")
    }

    /// A remote import; the grant that goes back.
    ///
    /// # Errors
    /// The host refuses it.
    ///
    /// # Panics
    /// The host does not answer.
    pub fn granted(
        &mut self,
        from: NodeId,
        importer: PortId,
        port: OpenPort,
        text: &str,
        modes: Modes,
        token: u32,
    ) -> Result<control::Grant, Status> {
        self.control(
            from,
            0,
            &Control::Import {
                token: Token(token),
                port: port.port,
                importer,
                modes,
                name: name(text),
            },
        );
        self.poll();
        match self.sent().pop() {
            Some((to, Control::Granted { token: t, grant })) => {
                assert_eq!((to, t), (from, Token(token)));
                Ok(grant)
            }
            Some((_, Control::Refused { status, .. })) => Err(status),
            other => panic!("no answer but {other:?}"),
        }
    }

    /// Begins an import of the peer's.
    ///
    /// # Panics
    /// The core refuses.
    pub fn import(&mut self, port: OpenPort, text: &str, wait: bool) -> Token {
        let spec = ImportSpec {
            node: PEER,
            port: PortId(3),
            name: name(text),
            modes: Modes::WRITE,
            deadline: self.now.after(Nanos::from_millis(100)),
            wait,
        };
        self.host
            .import(&mut self.platform, port.port, &spec, self.now)
            .expect("begins")
    }

    /// Maps a page; what went for it.
    ///
    /// # Errors
    /// The core refuses.
    pub fn map(
        &mut self,
        vpn: Vpn,
        ppn: u64,
        writable: bool,
    ) -> Result<Option<PageGone>, netvm_host::shadow::MapError> {
        let ticket = self.host.map_begin(vpn)?;
        let page = Resident {
            ppn: Ppn(ppn),
            frame: frame_of(ppn),
            writable,
        };
        self.host
            .map_commit(&mut self.platform, ticket, page)
            .map(|mapped| mapped.displaced)
    }

    /// One step of an unmap.
    pub fn step(&mut self, unmap: &mut Unmap, budget: u32) -> UnmapStep {
        let gone = &mut self.gone;
        self.host
            .unmap_step(&mut self.platform, unmap, self.now, budget, &mut |page| {
                gone.push(page)
            })
    }

    /// Steps an unmap for `millis` milliseconds while the card works.
    pub fn unmap_while_it_runs(&mut self, unmap: &mut Unmap, budget: u32, millis: u64) -> UnmapStep {
        for _ in 0..millis * 2 {
            self.now = self.now.after(Nanos::from_micros(500));
            self.beat();
            let step = self.step(unmap, budget);
            if step != UnmapStep::InUse {
                return step;
            }
        }
        UnmapStep::InUse
    }

    /// Unmaps pages, in one step.
    pub fn unmap(&mut self, first: Vpn, pages: u64, kind: UnmapKind) -> UnmapStep {
        let mut unmap = self.host.unmap_begin(first, pages, kind);
        let gone = &mut self.gone;
        let step = self
            .host
            .unmap_step(&mut self.platform, &mut unmap, self.now, u32::MAX, &mut |page| {
                gone.push(page)
            });
        self.host.unmap_end(unmap);
        step
    }

    /// The next step of work for a port.
    pub fn next(&mut self, port: OpenPort) -> Option<WorkStep> {
        self.host.work_next(&mut self.platform, port.port, self.now)
    }

    /// A page is in, or cannot be had.
    pub fn paged(&mut self, id: WorkId, result: Result<u64, Status>) -> WorkStep {
        let gone = &mut self.gone;
        self.host.work_paged(
            &mut self.platform,
            id,
            result.map(|ppn| {
                Some(Resident {
                    ppn: Ppn(ppn),
                    frame: frame_of(ppn),
                    writable: true,
                })
            }),
            self.now,
            &mut |page| gone.push(page),
        )
    }

    /// The page is there, and the card cannot reach it.
    pub fn paged_out_of_reach(&mut self, id: WorkId) -> WorkStep {
        self.host
            .work_paged(&mut self.platform, id, Ok(None), self.now, &mut |_| {})
    }

    /// A copy has ended.
    pub fn copied(&mut self, id: WorkId, end: CopyEnd) -> WorkStep {
        let gone = &mut self.gone;
        self.host
            .work_copied(&mut self.platform, id, end, self.now, &mut |page| gone.push(page))
    }
}

/// What the host knows a page by that the NIC finds there.
pub const fn frame_of(ppn: u64) -> u64 {
    ppn.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// A page of a port.
#[must_use]
pub fn page_of(port: OpenPort, page: u64) -> Vpn {
    Vpn::new(port.port, page)
}

/// The job of a copy step.
pub fn job(step: WorkStep) -> (WorkId, CopyJob) {
    match step {
        WorkStep::Copy { id, job } => (id, job),
        other => panic!("no copy but {other:?}"),
    }
}

/// A write from `PEER`, port 2.
pub fn write(to: OpenPort, grant: &control::Grant, address: u64, len: u16) -> Header {
    let mut header = Header::new(Kind::Write, PEER, NODE);
    header.source_port = PortId(2);
    header.destination_port = to.port;
    header.address = VirtAddr(address);
    header.len = len;
    header.capability = grant.capability;
    header.secret = grant.secret;
    header
}
