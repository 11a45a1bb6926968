//! A back end of words alone, on which the library's posting is measured: it takes commands by counting them.

use netvm::backend::{
    Backend, ExportSpec, ImportRequest, MappedWords, Memory, OpenRequest, PortBackend, Refusal, View, Width,
    Words,
};
use netvm::{Nanos, Node, NodeId, NotificationId, Port, PortConfig, PortId, RemoteSegment, Status, Timeout};
use netvm_abi::bar::port::{BLOCK_WORDS, DOORBELL};
use netvm_abi::control::{Grant, Modes};
use netvm_abi::port_area::{AREA_WORDS, TAKEN, WRITES_DONE};
use netvm_abi::shared_map::status_page;
use netvm_abi::shared_queue::QueueShape;
use netvm_abi::words::SharedWords;
use netvm_abi::{CapabilitySlot, ExportId, Generation, Geometry, PAGE_SIZE, SegmentId, VirtAddr, WordIndex};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Words that library and card share.
#[derive(Clone)]
struct Space(Arc<[AtomicU32]>);

impl Space {
    fn new(words: u32) -> Self {
        Self((0..words).map(|_| AtomicU32::new(0)).collect())
    }

    fn words(&self) -> Words {
        let start = NonNull::from(&*self.0).cast::<u32>();
        // SAFETY: the words live as long as their owner, never move, and are atomics.
        Words::Mapped(unsafe { MappedWords::new(start, self.0.len(), Arc::new(Arc::clone(&self.0))) })
    }

    fn set(&self, at: WordIndex, value: u32) {
        self.0.store_release(at, value);
    }
}

/// A card with one port, awake for ever.
#[derive(Clone)]
pub struct Card {
    block: Space,
    area: Space,
    status: Space,
}

impl Card {
    /// A port on a card of its own, and an import of a mebibyte from node 1.
    ///
    /// # Errors
    /// The library's.
    pub fn open() -> netvm::Result<(Self, Port, RemoteSegment)> {
        let card = Self {
            block: Space::new(BLOCK_WORDS),
            area: Space::new(AREA_WORDS),
            status: Space::new(4096),
        };
        card.status.set(status_page::peer(NodeId(1)).plus(1), PAGE_SIZE);
        let node = Node::new(Arc::new(card.clone()));
        let port = Port::open(&node, PortConfig::default())?;
        let remote = port.import(NodeId(1), PortId(2), "bench", Timeout::Now)?;
        Ok((card, port, remote))
    }

    /// Takes all commands, and says that they are done.
    pub fn carry_out(&self) {
        let posted = self.block.0.load_acquire(DOORBELL);
        self.area.set(TAKEN, posted);
        self.area.set(WRITES_DONE, posted);
    }
}

impl Backend for Card {
    fn name(&self) -> &'static str {
        "words"
    }

    fn node(&self) -> NodeId {
        NodeId(0)
    }

    fn geometry(&self) -> Geometry {
        Geometry::default()
    }

    fn inline_limit(&self) -> usize {
        128
    }

    fn open(&self, _request: &OpenRequest) -> Result<Arc<dyn PortBackend>, Refusal> {
        Ok(Arc::new(self.clone()))
    }
}

impl PortBackend for Card {
    fn port(&self) -> PortId {
        PortId(3)
    }

    fn generation(&self) -> Generation {
        Generation(1)
    }

    fn block_words(&self) -> Words {
        self.block.words()
    }

    fn area_words(&self) -> Words {
        self.area.words()
    }

    fn status_words(&self) -> Words {
        self.status.words()
    }

    fn close(&self) {}

    fn alloc(&self, len: u64) -> Result<Arc<dyn Memory>, Refusal> {
        Ok(Arc::new(Pages((0..len / 8).map(|_| AtomicU64::new(0)).collect())))
    }

    unsafe fn adopt(&self, _start: NonNull<u8>, _len: u64) -> Result<Arc<dyn Memory>, Refusal> {
        Err(Refusal::Unsupported("a card of words adopts nothing"))
    }

    fn export(&self, _spec: &ExportSpec<'_>) -> Result<ExportId, Refusal> {
        Ok(ExportId(1))
    }

    fn unexport(&self, _export: ExportId) -> Result<(), Refusal> {
        Ok(())
    }

    fn import(&self, _request: &ImportRequest<'_>, _deadline: Nanos) -> Result<Grant, Refusal> {
        Ok(Grant {
            start: VirtAddr(0x7000_0000),
            len: 1 << 20,
            capability: CapabilitySlot(5),
            secret: 0x1234_5678_9ABC_DEF0,
            modes: Modes::all(),
            notify_first: NotificationId(1),
            notify_last: NotificationId(u32::MAX),
            queue: QueueShape::NONE,
        })
    }

    fn release(&self, _exporter: NodeId, _grant: &Grant) {}

    fn now(&self) -> Nanos {
        Nanos(0)
    }

    fn doorbell(&self) {}

    fn wait_token(&self) -> u32 {
        0
    }

    fn block(&self, _token: u32, _deadline: Nanos) {}

    fn wake(&self) {}

    fn relax(&self, _spins: u32) {
        self.carry_out();
    }

    fn spawn(&self, _name: &str, _body: Box<dyn FnOnce() + Send>) -> Result<(), Refusal> {
        Err(Refusal::Unsupported("a card of words has no threads"))
    }
}

/// A region.
struct Pages(Arc<[AtomicU64]>);

impl Memory for Pages {
    fn segment(&self) -> SegmentId {
        SegmentId(1)
    }

    fn address(&self) -> VirtAddr {
        VirtAddr(0x10_0000)
    }

    fn size(&self) -> u64 {
        self.0.len() as u64 * 8
    }

    fn view(&self) -> View {
        View::Mapped {
            start: NonNull::from(&*self.0).cast(),
            owner: Arc::new(Arc::clone(&self.0)),
        }
    }

    fn read(&self, _offset: u64, _into: &mut [u8]) -> Result<(), Status> {
        Err(Status::Unsupported)
    }

    fn write(&self, _offset: u64, _from: &[u8]) -> Result<(), Status> {
        Err(Status::Unsupported)
    }

    fn load(&self, _offset: u64, _width: Width) -> Result<u64, Status> {
        Err(Status::Unsupported)
    }

    fn store(&self, _offset: u64, _width: Width, _value: u64) -> Result<(), Status> {
        Err(Status::Unsupported)
    }

    fn compare_swap(&self, _offset: u64, _width: Width, _expected: u64, _new: u64) -> Result<u64, Status> {
        Err(Status::Unsupported)
    }

    fn free(&self) {}
}
