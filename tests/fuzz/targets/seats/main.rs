//! Words that other participants' nodes and the homes of locks, wait queues and semaphores write for the library, with
//! anything in them. The library does not panic; each call comes to an end, one with a deadline soon after that; and a
//! call has got the lock, a wake-up or a token only if the words say so.

#![no_main]

mod world;

use libfuzzer_sys::fuzz_target;
use netvm::sync::{Lock, Semaphore, WaitQueue, Waiting, Woken};
use netvm::{Error, Port, PortConfig, Timeout};
use netvm_abi::Nanos;
use netvm_abi::descriptor::Opcode;
use netvm_abi::port_area::PORT_STATE;
use netvm_kit::port::Card;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use world::{
    Act, HOME, LOCK, LONGEST_TRIP, MARK, PORTS, QUEUE, SEMAPHORE, World, grant_at, low, seat_of, turn_of,
};

/// What a call may take beyond its deadline: some looks.
const SLACK: Nanos = Nanos::from_millis(100);
/// Where a lock has its recovery word, and how often it was recovered.
const RECOVERY: u64 = 64;
const RECOVERIES: u64 = 72;
/// Bytes of a step.
const STEP: usize = 11;

/// The fuzzer's input, in steps.
type Steps<'a> = std::slice::ChunksExact<'a, u8>;

/// What the words said before something began.
struct Before {
    now: Nanos,
    page: Vec<u64>,
    written: usize,
    signals: Vec<u32>,
}

impl Before {
    /// What a word of the own page may have held since.
    fn held(&self, world: &World, at: usize, is: impl Fn(u64) -> bool) -> bool {
        let written = world.written[self.written..].iter();
        is(self.page[at])
            || written
                .filter(|written| written.0 == at)
                .any(|written| is(written.1))
    }

    /// Whether a grant may have come to this participant, in this epoch or turn.
    fn granted(&self, stand: &Stand, name: u64, number: u64, is: impl Fn(u64) -> bool) -> bool {
        let seat = seat_of(name);
        World::signals(&stand.card, seat) != self.signals[seat]
            && self.held(&stand.world(), grant_at(seat, number), is)
    }
}

struct Stand {
    card: Arc<Card>,
    world: Arc<Mutex<World>>,
    lock: Option<Lock>,
    queue: Option<WaitQueue>,
    semaphore: Option<Semaphore>,
    /// Which of them a step before has to itself.
    busy: [bool; 3],
    /// The count of signals when the semaphore was joined, by seat; and tokens that it has got or given back since.
    signals: Vec<u32>,
    accounted: u32,
    port: Port,
}

fn timeout(place: u8, word: u64) -> Timeout {
    match place % 8 {
        0 => Timeout::Now,
        1 => Timeout::Never,
        _ => Timeout::After(Duration::from_nanos(word % 3_000_000_000)),
    }
}

const fn span(timeout: Timeout) -> Option<Nanos> {
    match timeout {
        Timeout::Now => Some(Nanos(0)),
        Timeout::After(span) => Some(Nanos(span.as_nanos() as u64)),
        Timeout::Never => None,
    }
}

impl Stand {
    fn new() -> Self {
        let card = Card::new();
        card.take_clock();
        card.put_off();
        let (port, ..) = card.open(PortConfig::default().spins(2).staging_bytes(16 << 10));
        let mut all = card.grant.lock().unwrap().unwrap();
        all.len = 4096;
        let world = Arc::new(Mutex::new(World::new(all)));
        let (looks, blocks, imports) = (Arc::clone(&world), Arc::clone(&world), Arc::clone(&world));
        card.relax_with(move |card| looks.lock().unwrap().serve(card));
        *card.on_block.lock().unwrap() = Some(Box::new(move |card| blocks.lock().unwrap().serve(card)));
        *card.on_import.lock().unwrap() = Some(Box::new(move |card| imports.lock().unwrap().import(card)));
        let mut stand = Self {
            card,
            world,
            lock: None,
            queue: None,
            semaphore: None,
            busy: [false; 3],
            signals: vec![0; 64],
            accounted: 0,
            port,
        };
        (0..3).for_each(|object| stand.join(object, Timeout::Now));
        assert!(stand.lock.is_some() && stand.queue.is_some() && stand.semaphore.is_some());
        // The page of seats is the one that says which life of the port it is of.
        let memories = stand.card.memories.lock().unwrap();
        let mut pages = memories.iter();
        let seats = pages.find(|words| words.len() == 512 && words[0].load(Ordering::Acquire) == 1 << 32);
        stand.world().sits_at(Arc::clone(seats.expect("a page of seats")));
        drop(memories);
        stand
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    fn begin(&self) -> Before {
        let mut world = self.world();
        world.begin(&self.card);
        Before {
            now: self.card.now(),
            page: (0..64).map(|at| world.seat_word(at)).collect(),
            written: world.written.len(),
            signals: (0..64).map(|seat| World::signals(&self.card, seat)).collect(),
        }
    }

    /// The call has ended in time: some looks after its deadline, and after a round trip if it makes these in any case.
    fn in_time(&self, before: &Before, span: Option<Nanos>, trips: Nanos) {
        let Some(span) = span else { return };
        let world = self.world();
        assert!(!world.too_long, "a call with a deadline goes on and on");
        let passed = Nanos(world.passed);
        let late = before.now.after(span).after(trips).after(SLACK).after(passed);
        let now = self.card.now();
        assert!(now <= late, "ended at {now:?} instead of {late:?}");
    }

    /// The call has ended with an error only if there was one.
    fn fairly<T>(&self, before: &Before, span: Option<Nanos>, end: &Result<T, Error>) {
        let world = self.world();
        match (end, span) {
            (Ok(_), _) => assert!(!world.too_long, "a port has ended, and its call without an error"),
            (Err(Error::TimedOut), Some(span)) => {
                assert!(self.card.now() >= before.now.after(span), "timed out too soon");
            }
            (Err(error), _) => {
                let ended = self.card.area.get(PORT_STATE) != 0;
                assert!(ended || world.failed, "{error:?}, and nothing has failed");
            }
        }
    }

    /// Does one thing that the library has left to a thread.
    fn do_beside(&self) -> bool {
        self.begin();
        self.card.do_beside()
    }

    /// Leaves one of the objects.
    fn leave(&mut self, object: usize) {
        self.begin();
        match object {
            LOCK => self.lock = None,
            QUEUE => self.queue = None,
            _ => {
                self.semaphore = None;
                self.account();
            }
        }
    }

    /// Takes part in an object anew.
    fn join(&mut self, object: usize, timeout: Timeout) {
        self.leave(object);
        let before = self.begin();
        let (port, exporter) = (&self.port, PORTS[object]);
        match object {
            LOCK => {
                self.lock = Lock::join(port, HOME, exporter, "home", timeout).ok();
                if let Some(lock) = &self.lock {
                    let me = lock.id().0 & !(511 << 38);
                    let world = self.world();
                    let mut ended = world.ended.iter();
                    let took = ended.any(|ended| {
                        let command = &ended.command;
                        command.opcode == Opcode::CompareSwap
                            && (command.operand, ended.result.value) == (me, command.compare)
                    });
                    assert!(took, "a member without a place");
                }
            }
            QUEUE => self.queue = WaitQueue::join(port, HOME, exporter, "home", timeout).ok(),
            _ => {
                self.signals.clone_from(&before.signals);
                self.accounted = 0;
                self.semaphore = Semaphore::join(port, HOME, exporter, "home", timeout).ok();
                self.world().me[SEMAPHORE] = 0;
            }
        }
        self.in_time(
            &before,
            span(timeout).filter(|_| timeout != Timeout::Now),
            Nanos(0),
        );
    }

    fn steps(&mut self, steps: &mut Steps<'_>) {
        while let Some(step) = steps.next() {
            let [what, looks, place, word @ ..] = step else {
                return;
            };
            let word = u64::from_le_bytes(word.try_into().unwrap());
            if self.step(steps, *what, *looks, *place, word) {
                return;
            }
        }
    }

    /// Does one step. Whether that is to let go of what the steps before have got.
    fn step(&mut self, steps: &mut Steps<'_>, what: u8, looks: u8, place: u8, word: u64) -> bool {
        if what < 128 {
            let act = Act { what, place, word };
            if looks < 128 {
                self.world().act(&self.card, act);
            } else {
                self.world().put_beside(looks - 128, act);
            }
            return false;
        }
        match what % 12 {
            0 => return true,
            how @ 1..4 => {
                if let Some(mut lock) = self.lock.take() {
                    self.busy[LOCK] = true;
                    self.hold(&mut lock, steps, how, (place, word));
                    self.busy[LOCK] = false;
                    self.lock = Some(lock);
                }
            }
            4 | 5 => {
                if let Some(mut queue) = self.queue.take() {
                    self.busy[QUEUE] = true;
                    self.stand(&mut queue, steps);
                    self.busy[QUEUE] = false;
                    self.queue = Some(queue);
                }
            }
            6 => self.wake(),
            7 => self.take_token(),
            8 | 9 => self.try_token(timeout(place, word), what % 12 == 9),
            10 => self.give_token(),
            _ if place >= 128 => {
                self.do_beside();
            }
            _ if self.busy[usize::from(place) % 3] => {}
            _ => self.join(usize::from(place) % 3, timeout(place / 3, word)),
        }
        false
    }

    /// Gets the lock, goes on with it, and lets go of it.
    fn hold(&mut self, lock: &mut Lock, steps: &mut Steps<'_>, how: u8, (place, word): (u8, u64)) {
        let timeout = timeout(place, word);
        let before = self.begin();
        let (span, end) = match how {
            1 => (None, lock.acquire().map(Some)),
            2 => (None, lock.try_acquire()),
            _ => (span(timeout), lock.try_acquire_for(timeout).map(Some)),
        };
        self.in_time(&before, span, LONGEST_TRIP);
        self.fairly(&before, span, &end);
        if let Ok(Some(guard)) = end {
            if how == 1 {
                self.is_held(&before, guard.owner_died());
            } else {
                let world = self.world();
                let asked = world.last(LOCK, Opcode::CompareSwap, 0);
                let free = asked.is_some_and(|asked| asked.command.compare == 0 && asked.result.value == 0);
                assert!(free, "a lock that the home did not say to be free");
            }
            self.steps(steps);
            let before = self.begin();
            match place >> 6 {
                0 => std::mem::forget(guard),
                1 => drop(guard),
                _ => {
                    let end = guard.release();
                    self.fairly(&before, None, &end);
                }
            }
            self.handed_over();
        }
    }

    /// The lock has come from the home, from the participant before, or by a recovery.
    fn is_held(&self, before: &Before, died: bool) {
        let world = self.world();
        let asked = world
            .last(LOCK, Opcode::Swap, 0)
            .expect("a lock that was not asked for");
        let (me, ahead) = (asked.command.operand, asked.result.value);
        if died {
            let counted = world
                .last(LOCK, Opcode::FetchAdd, RECOVERIES)
                .map(|ended| ended.command.operand);
            assert_eq!(counted, Some(1), "a recovery that was not counted");
            let mut claims = world.ended.iter().filter(|ended| {
                let command = &ended.command;
                (command.opcode, command.operand) == (Opcode::CompareSwap, me)
                    && command.remote.0 % 4096 == RECOVERY
            });
            let claimed = claims.any(|claim| claim.result.value == claim.command.compare);
            assert!(claimed && ahead != 0, "a recovery that was not this one's");
        } else if ahead != 0 {
            drop(world);
            let granted = before.granted(self, me, turn_of(me), |word| word & !MARK == ahead);
            assert!(granted, "a lock that {ahead:#x} has not handed on");
        }
    }

    /// A lock goes to a participant that has named itself, or that the words of a member show behind this one.
    fn handed_over(&self) {
        let mut world = self.world();
        world.catch_up(&self.card);
        let me = world.me[LOCK];
        let grants = world.sent.iter().filter(|sent| sent.command.notification.0 != 0);
        for sent in grants {
            assert_eq!(sent.word & !MARK, me, "a grant of another turn");
            let to = |name: u64| {
                (name as u16, (name >> 16) as u16) == (sent.command.node.0, sent.command.port.0)
                    && seat_of(name) == (sent.command.notification.0 - 896) as usize
            };
            let shown = world.ended.iter().any(|ended| ended.brought[2] == me);
            assert!(
                shown || world.follows(LOCK, to),
                "a lock for one that has not named itself"
            );
        }
    }

    /// Stands in the queue, and waits there until it is woken or there are no more steps.
    fn stand(&mut self, queue: &mut WaitQueue, steps: &mut Steps<'_>) {
        let before = self.begin();
        let end = queue.insert();
        self.fairly(&before, None, &end);
        if let Ok(mut waiting) = end {
            let (me, epoch) = {
                let world = self.world();
                let asked = world
                    .last(QUEUE, Opcode::Enqueue, 0)
                    .expect("a place not asked for");
                (asked.command.operand, asked.result.second >> 32)
            };
            while let Some(step) = steps.next() {
                let [what, looks, place, word @ ..] = step else {
                    break;
                };
                let word = u64::from_le_bytes(word.try_into().unwrap());
                let woken = match *what {
                    128.. if what % 12 == 5 => {
                        self.wait(&mut waiting, &before, (me, epoch), timeout(*place, word))
                    }
                    what => self.step(steps, what, *looks, *place, word),
                };
                if woken {
                    break;
                }
            }
            self.begin();
        }
    }

    /// Waits in the queue since then. Whether that has come to an end.
    fn wait(
        &self,
        waiting: &mut Waiting<'_>,
        since: &Before,
        (me, epoch): (u64, u64),
        timeout: Timeout,
    ) -> bool {
        let before = self.begin();
        let end = waiting.wait(timeout);
        self.in_time(&before, span(timeout), Nanos(0));
        self.fairly(&before, span(timeout), &end);
        match end {
            Ok(Woken::Signal) => {
                let granted = since.granted(self, me, epoch, |word| word >> 32 == epoch);
                assert!(granted, "woken by nothing in epoch {epoch}");
                true
            }
            Ok(Woken::Reset) => {
                let world = self.world();
                let reset = world.last(QUEUE, Opcode::ResetQueue, 0).is_some();
                let other = world
                    .last(QUEUE, Opcode::Read, 0)
                    .map(|read| read.brought[3] >> 32);
                assert!(
                    reset || other.is_some_and(|other| other != epoch),
                    "a queue that was not reset"
                );
                true
            }
            Err(_) => false,
        }
    }

    /// Wakes the first in the queue.
    fn wake(&self) {
        let Some(queue) = &self.queue else { return };
        let before = self.begin();
        let end = queue.signal();
        self.fairly(&before, None, &end);
        let world = self.world();
        let asked = world.last(QUEUE, Opcode::Dequeue, 0).map(|asked| asked.result);
        if let (Ok(woken), Some(result)) = (end, asked) {
            let waits = result.value != 0 || low(result.second) != u64::from(u32::MAX);
            assert_eq!(woken, waits, "{result:x?}");
        }
    }

    fn take_token(&mut self) {
        let Some(mut semaphore) = self.semaphore.take() else {
            return;
        };
        let before = self.begin();
        let end = semaphore.wait();
        self.fairly(&before, None, &end);
        if let Ok(found) = end {
            let asked = self
                .world()
                .last(SEMAPHORE, Opcode::SemP, 0)
                .map(|asked| (asked.command.operand, asked.result));
            let (me, result) = asked.expect("a token that was not asked for");
            assert_eq!(u64::from(found), low(result.second), "another value");
            if found == 0 {
                let epoch = result.second >> 32;
                let granted = before.granted(self, me, epoch, |word| word >> 32 == epoch);
                assert!(granted, "a token of nothing in epoch {epoch}");
                self.accounted += 1;
            }
        }
        self.semaphore = Some(semaphore);
        self.account();
    }

    /// Each token that was got by a signal, or given back, has come by a signal.
    fn account(&mut self) {
        let (me, given) = {
            let world = self.world();
            (world.me[SEMAPHORE], world.given)
        };
        self.accounted += given;
        let signals = World::signals(&self.card, seat_of(me)).wrapping_sub(self.signals[seat_of(me)]);
        let known = me != 0;
        assert!(
            !known || self.accounted <= signals,
            "{} tokens of {signals}",
            self.accounted
        );
    }

    fn try_token(&self, timeout: Timeout, again: bool) {
        let Some(semaphore) = &self.semaphore else { return };
        let before = self.begin();
        let (span, end) = match again {
            true => (span(timeout), semaphore.try_wait_for(timeout)),
            false => (None, semaphore.try_wait()),
        };
        self.in_time(&before, span, LONGEST_TRIP);
        self.fairly(&before, span, &end);
        let world = self.world();
        let said = world
            .last(SEMAPHORE, Opcode::SemP, 0)
            .map(|asked| low(asked.result.second));
        match end {
            Ok(found) => assert_eq!(Some(u64::from(found)), said, "another value"),
            Err(Error::TimedOut) => assert_eq!(said, Some(0), "a token was there"),
            Err(_) => {}
        }
    }

    fn give_token(&self) {
        let Some(semaphore) = &self.semaphore else { return };
        let before = self.begin();
        let end = semaphore.signal();
        self.fairly(&before, None, &end);
        let world = self.world();
        let asked = world.last(SEMAPHORE, Opcode::SemV, 0).map(|asked| asked.result);
        if let (Ok(value), Some(result)) = (end, asked) {
            let counted = result.value == 0 && low(result.second) == u64::from(u32::MAX);
            let right = if counted { result.second >> 32 } else { 0 };
            assert_eq!(u64::from(value), right, "{result:x?}");
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut stand = Stand::new();
    let mut steps = data.chunks_exact(STEP);
    while steps.len() > 0 {
        stand.steps(&mut steps);
    }
    (0..3).for_each(|object| stand.leave(object));
    // A queue whose port has ended waits for no thread.
    while stand.do_beside() {}
});
