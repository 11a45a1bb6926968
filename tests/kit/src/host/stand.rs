//! A host core, a platform that lends it plain memory, and the NIC's side of the word spaces, driven by
//! the test: `nic_side` has what the NIC does, `calls` what the platform asks of the core.

use super::{Fake, boot, fake};
use crate::Heap;
use netvm_abi::control::{Modes, Name};
use netvm_abi::event::HostEvent;
use netvm_abi::page_table::{HashKey, PageTable};
use netvm_abi::ring::{RingPlace, RingReader, RingWriter};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::wire::{Header, Kind};
use netvm_abi::*;
use netvm_host::attach::HostConfig;
use netvm_host::exports::Allow;
use netvm_host::paging::{WorkId, WorkStep};
use netvm_host::platform::{CopyJob, PageGone};
use netvm_host::ports::OpenPort;
use netvm_host::{Host, Progress};
use std::sync::atomic::Ordering;

std::thread_local! {
    /// What the stands of this test counted.
    pub static SUMS: std::cell::RefCell<Vec<netvm_host::counters::Counters>> = const { std::cell::RefCell::new(Vec::new()) };
}

impl Drop for Stand {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // Whatever became of a page: its frame is the one that it came with.
            assert!(self.gone.iter().all(|page| page.frame == frame_of(page.ppn.0)));
        }
        SUMS.with_borrow_mut(|sums| sums.push(*self.host.counters()));
    }
}

/// A host, its platform, and the NIC's ends of everything.
pub struct Stand {
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
    pub(super) from_host: RingReader,
    pub(super) to_host: RingWriter,
    pub(super) generation: u32,
    pub(super) beats: u32,
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

impl Default for Stand {
    fn default() -> Self {
        Self::new()
    }
}

impl Stand {
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
