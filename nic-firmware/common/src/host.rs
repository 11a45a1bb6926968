//! A host and an application: the few steps of driver and library that tests of the image need, inside of the image and
//! outside of it.
//!
//! Everything goes through the words that a real host uses; nothing reaches into the card.

use core::sync::atomic::AtomicU32;
use netvm_abi::bar::{BarMap, port as block};
use netvm_abi::bounce::load_record;
use netvm_abi::capability::{Capability, capability_at};
use netvm_abi::command_queue::Producer;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::page_lock;
use netvm_abi::page_table::{HashKey, PageEntry, PageSlot, PageTable};
use netvm_abi::port_area::{SHADOW_SIGNALS, TAKEN, WRITES_DONE};
use netvm_abi::ring::{RingPlace, RingReader, RingWriter};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::status::Status;
use netvm_abi::words::{Part, SharedWords};
use netvm_abi::*;

/// The port that everything happens on.
pub const PORT: PortId = PortId(1);
/// First page of the memory that importers may write; the first page of the host's memory as well.
pub const REMOTE: VirtAddr = VirtAddr(0x10_0000);
/// Pages of that memory, and of a host.
pub const PAGES: u64 = 16;

const SECRET: u64 = 0x1234_5678_9ABC_DEF0;
const SEGMENT: SegmentId = SegmentId(5);
const CAPABILITY: CapabilitySlot = CapabilitySlot(3);

/// Why a self test failed.
pub type Complaint = &'static str;

/// The address of a page of the host.
pub const fn page(number: u64) -> VirtAddr {
    VirtAddr(REMOTE.0 + number * PAGE_SIZE as u64)
}

/// Pages that a host and its card both reach.
pub trait Pages {
    /// Writes bytes to a page; false, and nothing written, where there are no such bytes.
    fn write(&self, page: u64, offset: PageOffset, from: &[u8]) -> bool;

    /// Reads bytes of a page; false, and nothing read, where there are no such bytes.
    fn read(&self, page: u64, offset: PageOffset, into: &mut [u8]) -> bool;
}

/// Memory that card and host both use. All of it is shared: no reference to its bytes exists, only to atomics.
#[derive(Clone, Copy, Debug)]
pub struct Shared<P> {
    /// NIC memory, which the host sees as the BAR.
    pub bar: &'static [AtomicU32],
    /// The driver's memory.
    pub words: &'static [AtomicU32],
    /// Pages of applications: page number `Ppn` of the host.
    pub pages: P,
    /// Bounce pages by `BounceId`.
    pub bounce: P,
}

/// A host with one application.
#[derive(Debug)]
pub struct Host<P> {
    /// What it shares with its card.
    pub shared: Shared<P>,
    geometry: Geometry,
    table: PageTable,
    events: RingReader,
    to_nic: RingWriter,
    commands: Producer,
    /// Bounced messages that were copied to their page.
    pub bounces: u32,
    /// Their pages are mapped for next time.
    pub maps: bool,
}

impl<P: Pages> Host<P> {
    /// A host beside its card.
    pub fn new(shared: Shared<P>, geometry: Geometry, key: HashKey) -> Self {
        Self {
            shared,
            geometry,
            table: PageTable::of(&geometry, key),
            events: RingReader::new(RingPlace::nic_events(&geometry)),
            to_nic: RingWriter::new(RingPlace::host_events(&geometry)),
            commands: Producer::default(),
            bounces: 0,
            maps: true,
        }
    }

    /// Opens the port and asks for links to `nodes`.
    ///
    /// # Errors
    /// The host's event ring is full.
    pub fn open(&mut self, nodes: impl Iterator<Item = NodeId>) -> Result<(), Complaint> {
        self.tell(HostEvent::PortOpen {
            port: PORT,
            generation: Generation(7),
            counts_from: 0,
        })?;
        for peer in nodes {
            self.tell(HostEvent::PeerConnect { peer })?;
        }
        Ok(())
    }

    fn tell(&mut self, event: HostEvent) -> Result<(), Complaint> {
        let posted = self
            .to_nic
            .push(self.shared.bar, self.shared.words, &event.encode());
        posted.then_some(()).ok_or("the host's event ring is full")
    }

    /// Answers what the card has announced; whether there was anything.
    ///
    /// # Errors
    /// The card posted no event, or the host's event ring is full.
    pub fn serve(&mut self) -> Result<bool, Complaint> {
        let mut served = false;
        while let Some(words) = self.events.pop(self.shared.words, self.shared.bar) {
            served = true;
            match NicEvent::decode(&words) {
                // Greeted in vain: the other machine is not up yet.
                Some(NicEvent::PeerLost {
                    peer,
                    incarnation: Incarnation(0),
                }) => self.tell(HostEvent::PeerConnect { peer })?,
                Some(
                    NicEvent::PeerReset { peer, incarnation } | NicEvent::PeerLost { peer, incarnation },
                ) => self.tell(HostEvent::PeerReleased { peer, incarnation })?,
                Some(NicEvent::Bounced { bounce, generation }) => {
                    let status = self.empty(bounce);
                    self.tell(HostEvent::BounceEnded {
                        bounce,
                        generation,
                        status,
                    })?;
                }
                Some(_) => {}
                None => return Err("the card posted no event"),
            }
        }
        Ok(served)
    }

    /// Copies a bounced message to its page and maps that for next time.
    fn empty(&mut self, bounce: BounceId) -> Status {
        let at = SharedMap::new(&self.geometry).bounce_record(bounce);
        let Ok(record) = load_record(self.shared.words, at) else {
            return Status::Malformed;
        };
        let mut bytes = [0; PAGE_SIZE as usize];
        let Some(bytes) = bytes.get_mut(..usize::from(record.len)) else {
            return Status::Malformed;
        };
        let number = record.address.page_number() - REMOTE.page_number();
        let offset = PageOffset((record.address.0 % u64::from(PAGE_SIZE)) as u16);
        let copied = self.shared.bounce.read(u64::from(bounce.0), PageOffset(0), bytes)
            && self.shared.pages.write(number, offset, bytes);
        if !copied {
            return Status::OutOfRange;
        }
        if self.maps {
            self.map(page(number));
        }
        self.bounces += 1;
        Status::Ok
    }

    /// Maps a page in its first free place.
    pub fn map(&self, address: VirtAddr) -> Option<PageSlot> {
        let vpn = Vpn::of(PORT, address);
        let taken = |slot: &PageSlot| page_lock::is_valid(self.shared.bar, &self.table, *slot);
        let slot = self.table.places(vpn).into_iter().find(|slot| !taken(slot))?;
        let entry = PageEntry {
            vpn,
            ppn: Ppn(address.page_number() - REMOTE.page_number()),
            segment: SEGMENT,
            writable: true,
        };
        page_lock::publish(self.shared.bar, &self.table, slot, &entry);
        Some(slot)
    }

    /// Lets `holder` write all pages.
    pub fn grant(&self, holder: NodeId) {
        let capability = Capability {
            port: PORT,
            modes: Modes::READ | Modes::WRITE | Modes::NOTIFY,
            segment: SEGMENT,
            holder,
            holder_port: PORT,
            start: REMOTE,
            end: page(PAGES),
            secret: SECRET,
            notify_first: NotificationId(1),
            notify_last: NotificationId(u32::MAX),
            ..Capability::NOTHING
        };
        let at = capability_at(BarMap::new(&self.geometry).capabilities, CAPABILITY);
        capability.publish(self.shared.bar, at);
    }

    /// Application: writes a word, carried by the descriptor, to another node.
    ///
    /// # Errors
    /// The command queue is full.
    pub fn post_word(
        &mut self,
        node: NodeId,
        remote: VirtAddr,
        value: u64,
        notification: u32,
    ) -> Result<(), Complaint> {
        let command = Command {
            flags: CommandFlags::INLINE,
            len: ByteLen(8),
            ..self.command(node, remote, notification)
        };
        self.post(&command, &words::split(value))
    }

    /// Application: writes `len` bytes of its own page to another node.
    ///
    /// # Errors
    /// The command queue is full.
    pub fn post_page(
        &mut self,
        node: NodeId,
        remote: VirtAddr,
        local: VirtAddr,
        len: u32,
    ) -> Result<(), Complaint> {
        let command = Command {
            len: ByteLen(len),
            local,
            ..self.command(node, remote, 0)
        };
        self.post(&command, &[])
    }

    fn command(&self, node: NodeId, remote: VirtAddr, notification: u32) -> Command {
        Command {
            node,
            port: PORT,
            capability: CAPABILITY,
            secret: SECRET,
            remote,
            notification: NotificationId(notification),
            op: OpId(self.commands.posted().wrapping_add(1)),
            ..Command::default()
        }
    }

    fn post(&mut self, command: &Command, payload: &[u32]) -> Result<(), Complaint> {
        let map = BarMap::new(&self.geometry);
        let block = Part::new(self.shared.bar, map.port(PORT), block::BLOCK_WORDS);
        self.commands.update_taken(self.area(TAKEN));
        let posted = self.commands.post(&block, &command.encode(), payload);
        // A fence, so that the completion counter is exact.
        block.store_release(block::WRITE_FENCE, self.commands.posted());
        posted.then_some(()).ok_or("the command queue is full")
    }

    fn area(&self, at: WordIndex) -> u32 {
        let area = SharedMap::new(&self.geometry).port_area(PORT);
        let words: &[AtomicU32] = self.shared.words;
        words.load_acquire(area.plus(at.0))
    }

    /// Whether everything posted has completed.
    pub fn all_done(&self) -> bool {
        self.area(WRITES_DONE) == self.commands.posted()
    }

    /// Signals of a notification so far.
    pub fn signals(&self, notification: u32) -> u32 {
        self.area(SHADOW_SIGNALS.plus(notification))
    }

    /// Whether the path to `node` is up.
    pub fn is_linked(&self, node: NodeId) -> bool {
        self.shared
            .words
            .load_acquire(shared_map::status_page::peer(node))
            != 0
    }

    /// Fills a page with bytes that say where they are.
    pub fn fill(&self, number: u64, salt: u8) -> bool {
        self.shared.pages.write(number, PageOffset(0), &pattern(salt))
    }

    /// Whether a page holds just these bytes.
    pub fn holds(&self, number: u64, salt: u8) -> bool {
        let mut bytes = [0; PAGE_SIZE as usize];
        self.shared.pages.read(number, PageOffset(0), &mut bytes) && bytes == pattern(salt)
    }

    /// The word at the start of a page.
    pub fn word(&self, number: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.shared
            .pages
            .read(number, PageOffset(0), &mut bytes)
            .then(|| u64::from_le_bytes(bytes))
    }
}

fn pattern(salt: u8) -> [u8; PAGE_SIZE as usize] {
    core::array::from_fn(|at| (at as u8) ^ ((at >> 8) as u8).wrapping_mul(31) ^ salt)
}
