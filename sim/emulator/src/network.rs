//! Which threads run the cards.
//!
//! *Inline*, the thread that has something for a card runs it if it gets the card's [`Turn`]. No thread waits for a
//! turn: a thread that finds it taken leaves a mark, and the holder works once more. A run may leave messages at other
//! cards; the same thread runs those next. What is due later (timers, late DMAs) is done by one ticker thread, which
//! sleeps while nothing is.
//!
//! *Threaded*, each card has a thread that polls for a while and then sleeps as [`EventLoop::try_sleep`](netvm_platform::EventLoop::try_sleep) allows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use netvm_abi::Nanos;
use netvm_nic::Counters;
use netvm_soft::turn::Turn;
use netvm_soft::{Engine as _, EventCount, clock};

use crate::dma::Engine;
use crate::wire::{Socket, Wires};

/// Passes of one card before other cards get their turn.
const PASSES: u32 = 64;
/// Turns that one caller takes before it leaves the rest to the ticker.
const TURNS: u32 = 256;
/// Turns between two looks at the clock.
const TURNS_PER_LOOK: u32 = 8;
/// How often the ticker looks while something will be due.
const TICK: Duration = Duration::from_micros(200);
/// How long the ticker goes on looking after the last thing was due, so that a busy network does not wake it each time.
const LINGER: Duration = Duration::from_millis(20);
/// Passes without work before a card's thread goes to sleep.
const IDLE_PASSES: u32 = 200;

/// A card of the emulator.
pub(crate) type Core = netvm_soft::Core<Engine, Wires>;

pub(crate) struct Card {
    core: Turn<Core>,
    /// When something is due, in nanoseconds; `u64::MAX`: nothing.
    due: AtomicU64,
}

/// What the wire and the cards did, as far as the emulator counts it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CardStats {
    pub(crate) counters: Counters,
    pub(crate) frames_sent: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) page_bytes: u64,
}

/// All cards of an emulator.
pub(crate) struct Network {
    cards: Vec<Card>,
    sockets: Arc<[Socket]>,
    threaded: bool,
    /// The machine's clock when the emulator started, in nanoseconds.
    epoch: u64,
    pub(crate) stop: AtomicBool,
    ticker: EventCount,
    ticker_idle: AtomicBool,
}

impl Network {
    pub(crate) fn new(cores: Vec<Core>, sockets: Arc<[Socket]>, threaded: bool) -> Self {
        let card = |core| Card {
            core: Turn::new(core),
            due: AtomicU64::new(u64::MAX),
        };
        Self {
            cards: cores.into_iter().map(card).collect(),
            sockets,
            threaded,
            epoch: clock::monotonic(),
            stop: AtomicBool::new(false),
            ticker: EventCount::default(),
            ticker_idle: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_threaded(&self) -> bool {
        self.threaded
    }

    /// Time since the emulator started.
    pub(crate) fn now(&self) -> Nanos {
        Nanos(clock::monotonic().saturating_sub(self.epoch))
    }

    /// Something waits for a card: wakes its thread, or runs it.
    pub(crate) fn kick(&self, node: usize) {
        if self.threaded {
            if let Some(socket) = self.sockets.get(node) {
                socket.wake.notify();
            }
        } else {
            self.run(node);
        }
    }

    /// Runs a card, and every card that it leaves messages at, until all are quiet or run by others.
    fn run(&self, node: usize) {
        let mut waiting = 1u64 << node;
        let mut turns = 0;
        let mut now = self.now();
        let mut next = node;
        while waiting != 0 {
            // Round robin, beginning behind the last one: a card that got messages comes before the card that sent them.
            let ahead = waiting & u64::MAX.checked_shl(next as u32).unwrap_or(0);
            next = if ahead != 0 { ahead } else { waiting }.trailing_zeros() as usize;
            waiting &= !(1 << next);
            if turns == TURNS {
                // One caller does not work for all others for ever.
                if let Some(card) = self.cards.get(next) {
                    card.due.store(0, Ordering::Release);
                    self.wake_ticker();
                }
                continue;
            }
            if turns % TURNS_PER_LOOK == TURNS_PER_LOOK - 1 {
                now = self.now();
            }
            turns += 1;
            waiting |= self.run_one(next, now);
            next += 1;
        }
    }

    /// Gives one card a turn if no other thread runs it. Returns the cards at which it left messages.
    fn run_one(&self, node: usize, now: Nanos) -> u64 {
        let Some(card) = self.cards.get(node) else {
            return 0;
        };
        let mut kicked = 0;
        let mut turn = card.core.ask();
        while let Some(mut core) = turn {
            // What was sent is taken up while it is still in the cache.
            let (quiet, due) = core.serve(now, PASSES, |wires| wires.kicked != 0);
            kicked |= std::mem::take(&mut core.board.wire.kicked);
            if !quiet {
                kicked |= 1 << node;
            }
            let nothing_was_due = card.due.load(Ordering::Relaxed) == u64::MAX;
            card.due
                .store(due.map_or(u64::MAX, |due| due.0), Ordering::Release);
            turn = core.done();
            // While something is due the ticker does not sleep.
            if nothing_was_due && due.is_some() {
                self.wake_ticker();
            }
        }
        kicked
    }

    fn wake_ticker(&self) {
        fence(Ordering::SeqCst);
        if self.ticker_idle.load(Ordering::Acquire) {
            self.ticker.notify();
        }
    }

    /// The ticker's body: runs cards when something is due.
    pub(crate) fn tick(&self) {
        let mut last_due = Instant::now();
        while !self.stop.load(Ordering::Acquire) {
            let now = self.now().0;
            let mut soonest = u64::MAX;
            for (node, card) in self.cards.iter().enumerate() {
                let due = card.due.load(Ordering::Acquire);
                if due <= now {
                    self.run(node);
                }
                soonest = soonest.min(due);
            }
            if soonest != u64::MAX {
                last_due = Instant::now();
            } else if last_due.elapsed() > LINGER {
                let token = self.ticker.token();
                self.ticker_idle.store(true, Ordering::Release);
                fence(Ordering::SeqCst);
                if self
                    .cards
                    .iter()
                    .all(|card| card.due.load(Ordering::Acquire) == u64::MAX)
                    && !self.stop.load(Ordering::Acquire)
                {
                    self.ticker.wait(token, None);
                }
                self.ticker_idle.store(false, Ordering::Release);
                last_due = Instant::now();
                continue;
            }
            std::thread::sleep(TICK);
        }
    }

    /// The body of a card's own thread.
    pub(crate) fn serve_alone(&self, node: usize) {
        let (Some(card), Some(socket)) = (self.cards.get(node), self.sockets.get(node)) else {
            return;
        };
        let mut idle = 0;
        loop {
            // Before `stop` is looked at, or the call that tells of it could come between the look and the token.
            let token = socket.wake.token();
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            let mut guard = card.core.wait();
            let core = &mut *guard;
            core.board.now = self.now();
            let progress = core.event_loop.poll_once(&mut core.nic, &mut core.board);
            idle = if progress.worked || core.board.engine.next_due().is_some() {
                0
            } else {
                idle + 1
            };
            if idle < IDLE_PASSES {
                drop(guard);
                std::hint::spin_loop();
                continue;
            }
            idle = 0;
            if core.event_loop.try_sleep(&core.nic, &mut core.board) {
                let due = progress.deadline;
                drop(guard);
                let now = self.now().0;
                socket.wake.wait(
                    token,
                    due.map(|due| Duration::from_nanos(due.0.saturating_sub(now))),
                );
            }
        }
    }

    /// Ends the ticker, or the cards' threads.
    pub(crate) fn shut_down(&self) {
        self.stop.store(true, Ordering::Release);
        self.ticker.notify();
        self.sockets.iter().for_each(|socket| socket.wake.notify());
    }

    /// Stops a card's bus mastering, for ever.
    pub(crate) fn halt(&self, node: usize) {
        if let Some(card) = self.cards.get(node) {
            card.core.wait().board.engine.halt();
            self.kick(node);
        }
    }

    pub(crate) fn stats(&self, node: usize) -> CardStats {
        let Some(card) = self.cards.get(node) else {
            return CardStats::default();
        };
        let core = card.core.wait();
        let stats = CardStats {
            counters: *core.nic.counters(),
            frames_sent: core.board.frames_sent,
            bytes_sent: core.board.bytes_sent,
            page_bytes: core.board.engine.page_bytes(),
        };
        if core.done().is_some() {
            // Another thread has asked meanwhile and left.
            self.kick(node);
        }
        stats
    }
}
