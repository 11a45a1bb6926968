//! A software card and the threads that run it.
//!
//! Whichever thread has something for the card runs it, if it gets the card's [`Turn`]; no thread waits for the turn. One
//! helper thread a card serves what comes in while the application computes, and what is due later.
//!
//! The helper is in one of two states. While the application's threads run the card, it only looks in from time to time
//! ([`Spell`]), and the rings' `ASLEEP` words stay 0: peers call no helper. Once they no longer do, it says that the card sleeps and
//! blocks until a peer calls, a link ends, a process knocks, or something is due. A thread that is going to block says so
//! itself ([`SoftCard::rest`]), so that the next message calls the helper at once, and so does each after it until a thread runs the
//! card again. The kernel calls it for a socket; so it waits
//! for that while no thread runs the card, and looks into it from time to time while others do.
//!
//! An interrupt for the driver is no call of another thread either: the thread that runs the card attends to it when it has let go of
//! the turn ([`SoftCard::on_interrupt`]).

mod door;
mod report;
mod spell;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use netvm_abi::{Nanos, NodeId, PortId};
use netvm_nic::Counters;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use tracing::{info, warn};

use self::door::Door;
use self::spell::{Spell, TICK};
use crate::board::Engine as _;
use crate::clock;
use crate::direct::{Direct, Pages};
use crate::shm::introduce::Caller;
use crate::shm::question::Question;
pub use crate::shm::wires::Carrier;
use crate::shm::wires::{Lines, Wires};
use crate::turn::{Holder, Turn};
use crate::udp::refusals::Refusals;
use crate::udp::{Udp, UdpStats};

pub use report::LinkStats;

/// A software card's core.
pub type Core = crate::core::Core<Direct, Wires>;

/// Passes of the card before its turn looks at the clock again.
const PASSES: u32 = 16;
/// Looks at the clock before one thread leaves the rest of the work to the helper.
const ROUNDS: u32 = 64;
/// Within this an acknowledgement that waits for company leaves ([`crate::Timers::ack_delay`]), many times over.
const LEAVE: Duration = Duration::from_millis(2);
/// How long a process that has knocked may take to introduce itself.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a thread that waits for something of the card looks for it.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// What the card did, as far as its platform counts it.
#[derive(Clone, Copy, Debug, Default)]
pub struct CardStats {
    /// The core's counters.
    pub counters: Counters,
    /// Messages sent.
    pub frames_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Payload moved to and from application pages.
    pub page_bytes: u64,
    /// Times that the helper was woken.
    pub wakeups: u64,
    /// Times that it went to sleep for a moment, to look in while threads of the application run the card.
    pub looks: u64,
    /// What went over UDP.
    pub udp: UdpStats,
}

/// What happens when a link is made.
pub type Linked = Box<dyn Fn(NodeId) + Send + Sync>;

/// What a thread does when the card that it ran has interrupted the driver.
pub type Attendant = Box<dyn Fn() + Send + Sync>;

/// What a program that asks is told ([`crate::shm::question`]).
pub type Answers = Box<dyn Fn(Question) -> Option<Vec<u8>> + Send + Sync>;

/// A card.
pub struct SoftCard {
    node: NodeId,
    nodes: u16,
    core: Turn<Core>,
    /// When something is due, in nanoseconds of the card's clock; `u64::MAX`: nothing.
    due: AtomicU64,
    /// Until when the helper blocks, if it does; 0: it does not.
    blocked_until: AtomicU64,
    /// Changes when another thread than the helper runs the card.
    runs: AtomicU32,
    wakeups: AtomicU64,
    looks: AtomicU64,
    /// [`Core::worked`](crate::Core::worked), as the last holder of the turn left it.
    served: AtomicU32,
    epoch: u64,
    stop: AtomicBool,
    bell: OwnedFd,
    /// A descriptor of the UDP socket, for the helper to wait for. Goes before the listeners: a number that is free again has
    /// a port that is.
    udp: Option<OwnedFd>,
    listeners: Vec<OwnedFd>,
    /// Given up for a moment when a process connects and no descriptor is left: to tell it so. Else it would wait in vain, and the
    /// helper for ever find it waiting.
    spare: Mutex<Option<OwnedFd>>,
    linked: OnceLock<Linked>,
    answers: OnceLock<Answers>,
    attendant: OnceLock<Attendant>,
    /// The card has interrupted the driver, and no thread has attended to it yet.
    interrupted: AtomicBool,
    peers: Mutex<Peers>,
    /// Taken before `core` and `peers`.
    door: Mutex<Door>,
    /// A thread has said that it is going to block, and none has run the card since.
    rests: AtomicBool,
}

const fn nanos(span: Duration) -> u64 {
    span.as_nanos() as u64
}

/// What the helper waits for.
#[derive(Default)]
struct Peers {
    lines: Vec<(NodeId, Arc<Lines>)>,
    knocking: VecDeque<(Caller, Instant)>,
    /// Nodes with which a link was made, of which the driver has not heard.
    met: Vec<NodeId>,
}

impl std::fmt::Debug for SoftCard {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "SoftCard({})", self.node)
    }
}

impl SoftCard {
    /// A card that listens on these sockets.
    ///
    /// # Errors
    /// The kernel gives no eventfd.
    pub fn new((node, nodes): (NodeId, u16), mut core: Core, listeners: Vec<OwnedFd>) -> Result<Self, Errno> {
        let udp = match core.board.wire.udp() {
            Some(udp) => Some(rustix::io::fcntl_dupfd_cloexec(udp.socket(), 0)?),
            None => None,
        };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = rustix::event::eventfd(0, flags)?;
        let spare = Mutex::new(Some(rustix::io::fcntl_dupfd_cloexec(&bell, 0)?));
        Ok(Self {
            node,
            nodes,
            core: Turn::new(core),
            due: AtomicU64::new(u64::MAX),
            blocked_until: AtomicU64::new(0),
            runs: AtomicU32::new(0),
            wakeups: AtomicU64::new(0),
            looks: AtomicU64::new(0),
            served: AtomicU32::new(0),
            epoch: clock::monotonic(),
            stop: AtomicBool::new(false),
            bell,
            listeners,
            spare,
            linked: OnceLock::new(),
            answers: OnceLock::new(),
            attendant: OnceLock::new(),
            interrupted: AtomicBool::new(false),
            peers: Mutex::default(),
            door: Mutex::default(),
            udp,
            rests: AtomicBool::new(false),
        })
    }

    /// Says, once, what happens when a link is made.
    pub fn on_link(&self, linked: Linked) {
        let _ = self.linked.set(linked);
    }

    /// Says, once, what a program that asks is told.
    pub fn on_question(&self, answers: Answers) {
        let _ = self.answers.set(answers);
    }

    /// Says, once, what the thread that runs the card does when the card has interrupted the driver. It does so without the turn, and
    /// holds up nothing but itself.
    pub fn on_interrupt(&self, attendant: Attendant) {
        if self.attendant.set(attendant).is_ok() {
            self.visit(|core| core.board.noted = Some(false));
        }
    }

    /// Says which memory of the program's the card may reach by itself.
    pub fn reach_by(&self, pages: Arc<dyn Pages>) {
        self.visit(|core| core.board.engine.pages = Some(pages));
    }

    /// Time since the card was made.
    #[must_use]
    pub fn now(&self) -> Nanos {
        Nanos(clock::monotonic().saturating_sub(self.epoch))
    }

    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something may wait for the card: runs it, if no other thread does.
    #[inline]
    pub fn run(&self) {
        // Two threads at a time may count as one: it changes all the same.
        let runs = self.runs.load(Ordering::Relaxed);
        self.runs.store(runs.wrapping_add(1), Ordering::Relaxed);
        if self.rests.load(Ordering::Relaxed) {
            self.rests.store(false, Ordering::Relaxed);
        }
        self.run_in_passing();
    }

    /// As [`run`](Self::run), by a thread that does not go on running the card, as the driver's do not. To count it as one of the
    /// application's would leave the next message to the helper's next look: a tick, for each page that a paging worker brings.
    pub fn run_in_passing(&self) {
        self.work();
        let due = self.due.load(Ordering::Relaxed);
        // The helper will not wake in time by itself. While others run the card it looks in anyway. One call is enough, however
        // long it takes to get a processor.
        if due < self.blocked_until.load(Ordering::SeqCst)
            && self.blocked_until.swap(0, Ordering::SeqCst) != 0
        {
            self.wake_helper();
        }
    }

    #[inline]
    fn work(&self) {
        if let Some(core) = self.core.ask() {
            self.serve(core);
        }
    }

    fn serve(&self, core: Holder<'_, Core>) {
        self.serve_turn(core);
        // The thread that found the interrupt in its turn comes by here after it, so none is forgotten.
        if self.interrupted.load(Ordering::Relaxed)
            && self.interrupted.swap(false, Ordering::AcqRel)
            && let Some(attendant) = self.attendant.get()
        {
            attendant();
        }
    }

    /// Runs the card until it is quiet and no thread has asked, or for [`ROUNDS`]: then the helper goes on.
    fn serve_turn(&self, mut core: Holder<'_, Core>) {
        for _ in 0..ROUNDS {
            let now = self.now();
            if self.udp.is_some() {
                self.look(&mut core, now);
            }
            let before = core.worked;
            let (quiet, due) = core.serve(now, PASSES, |_| false);
            if core.worked != before {
                self.served.store(core.worked, Ordering::Relaxed);
            }
            core.board.wire.call_peers();
            if core.board.noted == Some(true) {
                core.board.noted = Some(false);
                self.interrupted.store(true, Ordering::Release);
            }
            // The thread with the turn alone writes it. Where it stays the same, the helper sees it, or saw it before it blocked.
            let due = due.map_or(u64::MAX, |due| due.0);
            if self.due.load(Ordering::Relaxed) != due {
                self.due.store(due, Ordering::SeqCst);
            }
            let more = self.udp.is_some() && core.board.wire.udp().is_some_and(|udp| udp.has_more());
            if quiet && !more {
                match core.done() {
                    Some(again) => core = again,
                    None => return,
                }
            }
        }
        // What threads asked for meanwhile is the helper's, too.
        self.due.store(0, Ordering::SeqCst);
        drop(core);
        self.wake_helper();
    }

    /// Takes what has come over UDP.
    fn look(&self, core: &mut Core, now: Nanos) {
        let board = &mut core.board;
        board.wire.look(now, &mut board.buffers.spare);
        let met = board.wire.udp().map(Udp::take_met).unwrap_or_default();
        if !met.is_empty() {
            // The driver hears of it from the helper: the thread that runs the card may be in the driver.
            self.peers().met.extend(met);
            self.wake_helper();
        }
    }

    /// The calling thread is going to block: from here on a message that comes in calls the helper.
    pub fn rest(&self) {
        let rested = self.rests.swap(true, Ordering::Relaxed);
        if self.udp.is_some() && !rested {
            self.wake_helper();
        }
        loop {
            let Some(mut core) = self.core.ask() else {
                // Another thread runs the card, and has now work to look for.
                return;
            };
            let quiet = core.board.wire.set_asleep(true);
            match core.done() {
                None if quiet => return,
                None => self.work(),
                Some(core) => self.serve(core),
            }
        }
    }

    /// Changes when the card has served something.
    #[must_use]
    pub fn served(&self) -> u32 {
        self.served.load(Ordering::Relaxed)
    }

    fn wake_helper(&self) {
        // It fails only when the count is full, and then the helper has been called.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// The helper's body: serves the card until it is shut down.
    pub fn help(&self) {
        // Without it the kernel adds 50 us to each wait.
        let _ = rustix::thread::set_current_timer_slack(core::num::NonZeroU64::new(1));
        let mut spell = Spell::new(self.runs.load(Ordering::Relaxed));
        let mut refusals = Refusals::default();
        while !self.stop.load(Ordering::Acquire) {
            self.work();
            self.introduce();
            let tick = self.tick(&mut spell);
            let Some(mut core) = self.core.ask() else {
                // Another thread runs it, and has heard that there may be more to do. What is due is its to do, too.
                self.pause();
                continue;
            };
            let wires = &mut core.board.wire;
            let ended = wires.take_ended();
            let refused = wires.udp().map(|udp| udp.stats()).unwrap_or_default();
            let quiet = wires.set_asleep(tick.is_none());
            let again = core.done();
            // Events are told without the turn: what listens to them may take its time.
            self.forget(&ended);
            if let Some((forged, replayed)) = refusals.news(self.now(), &refused) {
                warn!(node = self.node.0, forged, replayed, "UDP: datagrams are refused");
            }
            match again {
                Some(core) => self.serve(core),
                None if tick.is_some() => {
                    self.looks.fetch_add(1, Ordering::Relaxed);
                    self.block(tick);
                }
                None if quiet => self.block(None),
                None => {}
            }
        }
    }

    /// In which time the helper looks in again, while others run the card. A helper that wakes twice within that has perhaps only kept
    /// them from their processor.
    ///
    /// Not while they rest: a message that was none of theirs has called it, and more may be behind that.
    fn tick(&self, spell: &mut Spell) -> Option<Duration> {
        let tick = spell.look(self.runs.load(Ordering::Relaxed), self.now());
        tick.filter(|_| !self.rests.load(Ordering::Relaxed))
    }

    /// Tells the driver of links that were made over UDP.
    fn introduce(&self) {
        if self.udp.is_none() {
            return;
        }
        let met = std::mem::take(&mut self.peers().met);
        for peer in met {
            info!(
                node = self.node.0,
                peer = peer.0,
                carrier = "UDP",
                "a link is made"
            );
            if let Some(linked) = self.linked.get() {
                linked(peer);
            }
        }
    }

    /// Blocks until there is something to do; at most for `limit`.
    fn block(&self, limit: Option<Duration>) {
        let now = self.now();
        let tick = limit.map_or(u64::MAX, |limit| now.0 + nanos(limit));
        // Those that run the card do what is due, too.
        let soonest = limit.map_or(0, |_| now.0 + nanos(TICK));
        let until = tick.min(self.due.load(Ordering::SeqCst).max(soonest));
        if limit.is_none() {
            // Said before the look at what is due: a thread that makes something due sees it, or is seen. With a limit nothing is
            // said: the helper looks in soon enough, and to be called for each message would cost more than the message.
            self.blocked_until.store(until, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if self.due.load(Ordering::SeqCst) < until {
                self.blocked_until.store(0, Ordering::SeqCst);
                return;
            }
        }
        let timeout = (until != u64::MAX).then(|| until.saturating_sub(now.0));
        let reads = limit.is_none() || self.rests.load(Ordering::Relaxed);
        self.wait(
            timeout.map(Duration::from_nanos),
            self.udp.as_ref().filter(|_| reads),
        );
        self.woken();
    }

    /// Blocks while another thread has the turn, at most until the next look. That thread may be held up with it, by a fault of a
    /// page for example, so what is due says nothing: to look at it here would be to spin.
    fn pause(&self) {
        let reads = self.rests.load(Ordering::Relaxed);
        self.wait(Some(TICK), self.udp.as_ref().filter(|_| reads));
        self.woken();
    }

    fn woken(&self) {
        self.blocked_until.store(0, Ordering::SeqCst);
        self.wakeups.fetch_add(1, Ordering::Relaxed);
    }

    fn wait(&self, timeout: Option<Duration>, udp: Option<&OwnedFd>) {
        let peers = self.peers();
        let lines: Vec<(NodeId, Arc<Lines>)> = peers.lines.clone();
        let knocking: Vec<OwnedFd> = peers
            .knocking
            .iter()
            .filter_map(|(caller, _)| caller.socket().try_clone().ok())
            .collect();
        let waiting = peers.knocking.len();
        // One for which no descriptor is left is looked at by time.
        let patience = match waiting {
            0 => None,
            _ if knocking.len() == waiting => Some(PATIENCE),
            _ => Some(TICK),
        };
        drop(peers);
        let mut fds = vec![PollFd::new(&self.bell, PollFlags::IN)];
        fds.extend(self.listeners.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        fds.extend(knocking.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let first = fds.len();
        for (_, lines) in &lines {
            fds.push(PollFd::new(&lines.bell, PollFlags::IN));
            fds.push(PollFd::new(&lines.socket, PollFlags::IN));
            if let Some(process) = &lines.process {
                fds.push(PollFd::new(process, PollFlags::IN));
            }
        }
        fds.extend(udp.map(|udp| PollFd::new(udp, PollFlags::IN)));
        let timeout = timeout.into_iter().chain(patience).min();
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        if !matches!(rustix::event::poll(&mut fds, timeout.as_ref()), Ok(1..)) && waiting == 0 {
            return;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if ready.first() == Some(&true) {
            drain(&self.bell);
        }
        let mut at = first;
        for (peer, lines) in &lines {
            let is = |at: usize| ready.get(at) == Some(&true);
            if is(at) {
                drain(&lines.bell);
            }
            // Nothing is sent over the socket once the link is made, so whatever comes is its end.
            let over = is(at + 1) || lines.process.is_some() && is(at + 2);
            at += 2 + usize::from(lines.process.is_some());
            if over {
                self.end(*peer, lines);
            }
        }
        if ready.iter().take(first).skip(1).any(|ready| *ready) || waiting != 0 {
            self.answer_the_door();
        }
    }

    /// A peer has ended.
    fn end(&self, peer: NodeId, lines: &Arc<Lines>) {
        info!(
            node = self.node.0,
            peer = peer.0,
            "a link is lost: the peer's process has ended"
        );
        self.peers().lines.retain(|(_, known)| !Arc::ptr_eq(known, lines));
        self.visit(|core| core.board.wire.end(peer, lines));
    }

    /// Does something with the card while no other thread runs it, and runs it then.
    fn visit<R>(&self, visit: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.core.wait();
        let result = visit(&mut core);
        self.serve(core);
        result
    }

    /// Waits no more for the descriptors of links that have ended.
    fn forget(&self, ended: &[Arc<Lines>]) {
        if !ended.is_empty() {
            let known = |lines: &Arc<Lines>| ended.iter().any(|ended| Arc::ptr_eq(ended, lines));
            let mut peers = self.peers();
            let (over, lines): (Vec<_>, Vec<_>) = std::mem::take(&mut peers.lines)
                .into_iter()
                .partition(|(_, lines)| known(lines));
            peers.lines = lines;
            drop(peers);
            // Those of processes that have ended were forgotten when they did.
            for (peer, _) in over {
                warn!(
                    node = self.node.0,
                    peer = peer.0,
                    "a link is lost: what the peer writes makes no sense, or it reads nothing"
                );
            }
        }
    }

    /// The address that UDP is bound to.
    #[must_use]
    pub fn udp_address(&self) -> Option<SocketAddr> {
        self.visit(|core| core.board.wire.udp()?.socket().local_addr().ok())
    }

    /// Whether the node has a cluster key, which encrypts all of its links over UDP.
    #[must_use]
    pub fn has_key(&self) -> bool {
        self.visit(|core| core.board.wire.udp().is_some_and(|udp| udp.is_encrypted()))
    }

    /// Stops the card's access to memory, for ever.
    pub fn halt(&self) {
        self.visit(|core| core.board.engine.halt());
    }

    /// Whether nothing is outstanding, so that nothing will be due.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.visit(|core| core.nic.next_deadline().is_none())
    }

    /// Waits until what a port has posted has landed, for `limit` at most.
    ///
    /// That it has left is not enough: when the port is closed the exporters hear that its imports end, and what waits for a page by
    /// then is refused.
    pub fn drain(&self, port: PortId, limit: Duration) {
        let begin = Instant::now();
        let has_landed = |core: &mut Core| core.nic.commands(port) == 0 && core.nic.under_way_of(port) == 0;
        loop {
            // A look that comes after the posting.
            self.run();
            if self.visit(has_landed) || begin.elapsed() >= limit {
                return;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Waits until what has arrived is acknowledged, and, at most for `limit`, until every message that was sent has landed; then says
    /// farewell to all peers.
    ///
    /// That it is where its peer finds it is not enough: with the farewell the life of the link ends, and a peer lets go of what still
    /// waits for a page then.
    pub fn leave(&self, limit: Duration) {
        let begin = Instant::now();
        let acknowledged = LEAVE.min(limit);
        // What goes over UDP may have to be sent again until it has been received, answers to others' requests, too.
        let has_more = |core: &mut Core| {
            let udp = core.board.wire.udp().is_some();
            let waits = core.board.wire.has_waiting() || core.nic.under_way() > 0;
            waits || udp && core.nic.next_deadline().is_some()
        };
        while begin.elapsed() < acknowledged || begin.elapsed() < limit && self.visit(has_more) {
            std::thread::sleep(Duration::from_micros(200));
        }
        self.visit(|core| {
            core.nic.leave(&mut core.board);
            core.board.wire.fall_silent();
        });
    }

    /// Ends the helper.
    pub fn shut_down(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake_helper();
    }

    /// What it did so far.
    #[must_use]
    pub fn stats(&self) -> CardStats {
        self.visit(|core| CardStats {
            counters: *core.nic.counters(),
            frames_sent: core.board.frames_sent,
            bytes_sent: core.board.bytes_sent,
            page_bytes: core.board.engine.page_bytes(),
            wakeups: self.wakeups.load(Ordering::Relaxed),
            looks: self.looks.load(Ordering::Relaxed),
            udp: core.board.wire.udp().map(|udp| udp.stats()).unwrap_or_default(),
        })
    }
}

/// Takes an eventfd's count.
fn drain(bell: &OwnedFd) {
    let _ = rustix::io::read(bell, &mut [0; 8]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Parts;
    use crate::message::Pools;
    use netvm_abi::Geometry;

    fn card() -> SoftCard {
        let node = NodeId(0);
        let parts = Parts::new(node, Geometry::default()).unwrap();
        let devices = (Direct::default(), Wires::new(node, parts.geometry.nodes));
        let core = Core::new(&parts, devices, &Pools::default(), crate::Timers::default(), 0).unwrap();
        SoftCard::new((node, parts.geometry.nodes), core, Vec::new()).unwrap()
    }

    /// A message that comes while all threads rest is not the last one because it is none of theirs.
    #[test]
    fn the_helper_looks_in_only_while_no_thread_rests() {
        let card = card();
        let mut spell = Spell::new(card.runs.load(Ordering::Relaxed));
        assert_eq!(card.tick(&mut spell), None);
        card.run();
        assert_eq!(card.tick(&mut spell), Some(TICK));
        card.rest();
        assert_eq!(card.tick(&mut spell), None);
        card.run();
        assert_eq!(card.tick(&mut spell), Some(TICK));
    }

    /// A thread that is held up with the turn in its hands, while something has long been due: the helper waits with it.
    #[test]
    fn the_helper_does_not_spin_while_another_thread_has_the_turn() {
        let card = card();
        let turn = card.core.wait();
        card.due.store(1, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let begin = Instant::now();
            scope.spawn(|| card.help());
            let wakeups = || card.wakeups.load(Ordering::Relaxed);
            while wakeups() < 5 {
                std::thread::yield_now();
            }
            let (woken, time) = (wakeups(), begin.elapsed());
            drop(turn);
            card.shut_down();
            assert!(TICK * woken as u32 <= time, "{woken} wake-ups within {time:?}");
        });
    }
}
