//! A card made of words, for tests of the library alone: it does nothing by itself. A test looks at
//! what the library posted and answers for the card.
#![allow(unsafe_code, reason = "the library maps the words")]

mod node;

use netvm::backend::{MappedWords, Refusal, Words};
use netvm::{Nanos, Node, NodeId, NotificationId, OpId, Port, PortConfig, PortId, RemoteSegment, Status};
use netvm::{Timeout, VirtAddr};
use netvm_abi::atomic::AtomicResult;
use netvm_abi::bar::port::BLOCK_WORDS;
use netvm_abi::command_queue::{Consumer, Doorbell};
use netvm_abi::control::{Grant, Modes};
use netvm_abi::descriptor::{Command, CommandFlags, HEAD_WORDS, INLINE_BYTES};
use netvm_abi::port_area::{
    AREA_WORDS, ERROR_RECORDS, ERROR_WORDS, ERROR_WRITE, ERRORS, ErrorRecord, NOTIFICATION_WRITE,
    NOTIFICATIONS, READS_DONE, Reply, SHADOW_SIGNALS, TAKEN, WRITES_DONE,
};
use netvm_abi::shared_map::status_page;
use netvm_abi::shared_queue::QueueShape;
use netvm_abi::words::SharedWords;
use netvm_abi::{CapabilitySlot, WordIndex};
use node::OneCard;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

/// Where the library's memory lies, and what is free behind each piece of it.
const FIRST_ADDRESS: u64 = 0x10_0000;
const GAP: u64 = 4096;

/// What a test has done at a point of the library.
pub type Hook = Box<dyn FnMut(&Card) + Send>;

/// What the library wants done beside its caller.
type Body = Box<dyn FnOnce() + Send>;

/// Runs a hook, which may set another one in its place.
fn run(place: &Mutex<Option<Hook>>, card: &Card) -> bool {
    let Some(mut hook) = place.lock().unwrap().take() else {
        return false;
    };
    hook(card);
    place.lock().unwrap().get_or_insert(hook);
    true
}

/// One port of one node, and everything that a test does for the card.
pub struct Card {
    /// The port's block in NIC memory.
    pub block: Space,
    /// The port's area in driver memory.
    pub area: Space,
    /// The status page.
    pub status: Space,
    consumer: Mutex<Consumer>,
    token: Mutex<u32>,
    woken: Condvar,
    /// Readable when the token has changed.
    descriptor: Arc<OwnedFd>,
    started: Instant,
    /// The time, once a test has [taken it over](Card::take_clock); 0 before.
    clock: AtomicU64,
    next_address: AtomicU64,
    /// How often the card was called.
    pub doorbells: AtomicU32,
    /// How often memory was given back.
    pub freed: Arc<AtomicU32>,
    /// What an import is answered.
    pub grant: Mutex<Result<Grant, Refusal>>,
    /// Runs where the library imports, before the answer.
    pub on_import: Mutex<Option<Hook>>,
    /// Runs where the library closes the port.
    pub on_close: Mutex<Option<Hook>>,
    /// What the library has allocated, in order, as words.
    pub memories: Mutex<Vec<Arc<Vec<AtomicU64>>>>,
    /// Runs where the library relaxes.
    pub on_relax: Mutex<Option<Hook>>,
    /// Runs where the library blocks on a clock that was taken over, once that time has passed.
    pub on_block: Mutex<Option<Hook>>,
    /// What is [put off](Card::put_off).
    beside: Mutex<Option<VecDeque<Body>>>,
}

/// Words that card and library share.
#[derive(Clone)]
pub struct Space(Arc<Vec<AtomicU32>>);

impl Space {
    fn new(words: u32) -> Self {
        Self(Arc::new((0..words).map(|_| AtomicU32::new(0)).collect()))
    }

    fn words(&self) -> Words {
        let start = NonNull::from(&self.0[0]).cast::<u32>();
        let owner = Arc::clone(&self.0);
        // SAFETY: the vector is never resized, lives as long as `owner`, and is made of atomics.
        Words::Mapped(unsafe { MappedWords::new(start, self.0.len(), owner) })
    }

    /// The word at `at`.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    pub fn get(&self, at: WordIndex) -> u32 {
        self.0[at.index()].load(Ordering::Acquire)
    }

    /// Stores the word at `at`.
    ///
    /// # Panics
    /// There is none.
    pub fn set(&self, at: WordIndex, value: u32) {
        self.0[at.index()].store(value, Ordering::Release);
    }
}

impl SharedWords for Space {
    fn load_acquire(&self, at: WordIndex) -> u32 {
        self.0.load_acquire(at)
    }

    fn store_release(&self, at: WordIndex, value: u32) {
        self.0.store_release(at, value);
    }

    fn full_barrier(&self) {
        self.0.full_barrier();
    }

    fn bus_barrier(&self) {
        self.0.bus_barrier();
    }
}

impl Card {
    /// A card that is awake and of which nothing was asked.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let card = Self {
            block: Space::new(BLOCK_WORDS),
            area: Space::new(AREA_WORDS),
            status: Space::new(4096),
            consumer: Mutex::default(),
            token: Mutex::default(),
            descriptor: Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()),
            woken: Condvar::new(),
            started: Instant::now(),
            clock: AtomicU64::new(0),
            next_address: AtomicU64::new(FIRST_ADDRESS),
            doorbells: AtomicU32::new(0),
            freed: Arc::default(),
            grant: Mutex::new(Ok(Grant {
                start: VirtAddr(0x7000_0000),
                len: 1 << 20,
                capability: CapabilitySlot(5),
                secret: 0x1234_5678_9ABC_DEF0,
                modes: Modes::all(),
                notify_first: NotificationId(1),
                notify_last: NotificationId(u32::MAX),
                queue: QueueShape::NONE,
            })),
            on_import: Mutex::new(None),
            on_close: Mutex::new(None),
            memories: Mutex::default(),
            on_relax: Mutex::new(None),
            on_block: Mutex::new(None),
            beside: Mutex::new(None),
        };
        for node in 0..4 {
            card.status.set(status_page::peer_payload(NodeId(node)), 4096);
        }
        Arc::new(card)
    }

    /// A port on this card, and imports from two nodes.
    ///
    /// # Panics
    /// The library refuses.
    pub fn open(self: &Arc<Self>, config: PortConfig) -> (Port, RemoteSegment, RemoteSegment) {
        let node = Node::new(Arc::new(OneCard(Arc::clone(self))));
        let port = Port::open(&node, config).unwrap();
        let one = port.import(NodeId(1), PortId(2), "one", Timeout::Now).unwrap();
        let two = port.import(NodeId(2), PortId(2), "two", Timeout::Now).unwrap();
        (port, one, two)
    }

    /// Takes the commands that are there, with their inline payload; tells the library so.
    ///
    /// # Panics
    /// A command is not of the ABI.
    pub fn take(&self) -> Vec<(Command, Vec<u8>)> {
        let mut consumer = self.consumer.lock().unwrap();
        let mut commands = Vec::new();
        while let Doorbell::Pending(_) = consumer.poll(&self.block) {
            let mut head = [0; HEAD_WORDS];
            consumer.copy_head(&self.block, &mut head);
            let command = Command::decode(&head).unwrap();
            let mut words = [0; INLINE_BYTES / 4];
            consumer.copy_inline(&self.block, &mut words);
            consumer.take();
            let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let inline = command.flags.contains(CommandFlags::INLINE);
            bytes.truncate(if inline { command.len.index() } else { 0 });
            commands.push((command, bytes));
        }
        self.area.set(TAKEN, consumer.taken());
        commands
    }

    /// Takes the commands and ends them: writes are done, everything else is answered with `status`.
    pub fn carry_out(&self, status: Status) -> Vec<(Command, Vec<u8>)> {
        let commands = self.take();
        for (command, _) in &commands {
            self.end(command, status);
        }
        commands
    }

    /// A write is done; everything else is answered.
    pub fn end(&self, command: &Command, status: Status) {
        if command.opcode.is_write() {
            self.area
                .set(WRITES_DONE, self.area.get(WRITES_DONE).wrapping_add(1));
        } else {
            self.answer(command, status, 0);
        }
    }

    /// Ends a read or flush.
    pub fn answer(&self, command: &Command, status: Status, value: u64) {
        self.answer_atomic(command, status, AtomicResult { value, second: 0 });
    }

    /// Ends an operation that may be an atomic one, which answers two words.
    pub fn answer_atomic(&self, command: &Command, status: Status, result: AtomicResult) {
        let reply = Reply {
            op: command.op,
            status,
            value: result.value,
            second: result.second,
        };
        reply.store(&self.area, command.reply.0);
        self.area
            .set(READS_DONE, self.area.get(READS_DONE).wrapping_add(1));
    }

    /// Stores what a read brings, in memory of the library's: these words, and zeros.
    ///
    /// # Panics
    /// A thread panicked with the lock.
    pub fn bring(&self, read: &Command, words: &[u64]) {
        let mut start = FIRST_ADDRESS;
        for memory in self.memories.lock().unwrap().iter() {
            let len = memory.len() as u64 * 8;
            if (start..start + len).contains(&read.local.0) {
                let at = (read.local.0 - start) as usize / 8;
                let brought = words.iter().chain(std::iter::repeat(&0));
                for (word, &value) in memory[at..at + read.len.index().div_ceil(8)].iter().zip(brought) {
                    word.store(value, Ordering::Release);
                }
            }
            start += len + GAP;
        }
    }

    /// Reports a failure.
    pub fn fail(&self, command: &Command, status: Status) {
        let record = ErrorRecord {
            op: command.op,
            status,
            node: command.node,
            port: command.port,
            epoch: command.epoch,
            address: command.remote,
        };
        let written = self.area.get(ERROR_WRITE);
        let at = ERRORS.plus(written % ERROR_RECORDS * ERROR_WORDS as u32);
        self.area.store_slice(at, &record.encode());
        self.area.set(ERROR_WRITE, written.wrapping_add(1));
    }

    /// Counts a signal and queues it, as a card does whose queue has no entry for it.
    pub fn signal(&self, id: u32, queue: bool) {
        if id < 1024 {
            let at = SHADOW_SIGNALS.plus(id);
            self.area.set(at, self.area.get(at).wrapping_add(1));
        }
        if queue {
            let written = self.area.get(NOTIFICATION_WRITE);
            self.area.set(NOTIFICATIONS.plus(written % 2048), id);
            self.area.set(NOTIFICATION_WRITE, written.wrapping_add(1));
        }
    }

    /// Wakes what blocks.
    ///
    /// # Panics
    /// A thread panicked with the lock.
    pub fn interrupt(&self) {
        *self.token.lock().unwrap() += 1;
        self.woken.notify_all();
        let _ = rustix::io::write(&*self.descriptor, &1_u64.to_ne_bytes());
    }

    /// How often what blocks was woken: by the card, or by the library.
    ///
    /// # Panics
    /// A thread panicked with the lock.
    pub fn interrupts(&self) -> u32 {
        *self.token.lock().unwrap()
    }

    /// From now on time passes only where the library waits, or the test [says so](Self::pass). What the library wants
    /// done beside runs at once, so the test is a function of what it does.
    pub fn take_clock(&self) {
        self.clock.store(1, Ordering::Relaxed);
    }

    /// Time passes, on a clock that was taken over.
    pub fn pass(&self, span: Nanos) {
        self.clock.fetch_add(span.0, Ordering::Relaxed);
    }

    /// The library's time.
    pub fn now(&self) -> Nanos {
        match self.clock.load(Ordering::Relaxed) {
            0 => Nanos(self.started.elapsed().as_nanos() as u64),
            now => Nanos(now),
        }
    }

    /// On a clock that was taken over, what the library wants done beside waits from now on: until the test
    /// [says so](Self::do_beside), or the library blocks for it without a deadline.
    ///
    /// # Panics
    /// A thread panicked with the lock.
    pub fn put_off(&self) {
        self.beside.lock().unwrap().get_or_insert_default();
    }

    /// Does one thing that was put off. Says whether there was one.
    ///
    /// # Panics
    /// A thread panicked with the lock.
    pub fn do_beside(&self) -> bool {
        let body = self.beside.lock().unwrap().as_mut().and_then(VecDeque::pop_front);
        body.map(|body| body()).is_some()
    }

    fn has_clock(&self) -> bool {
        self.clock.load(Ordering::Relaxed) != 0
    }

    /// Nothing more runs where the library relaxes.
    ///
    /// # Panics
    /// A thread panicked with the lock.
    pub fn leave_alone(&self) {
        *self.on_relax.lock().unwrap() = None;
    }

    /// From now on this runs where the library relaxes.
    ///
    /// # Panics
    /// A thread panicked with the lock.
    pub fn relax_with(&self, hook: impl FnMut(&Card) + Send + 'static) {
        *self.on_relax.lock().unwrap() = Some(Box::new(hook));
    }
}

/// The operation of a command.
#[must_use]
pub fn op(command: &(Command, Vec<u8>)) -> OpId {
    command.0.op
}
