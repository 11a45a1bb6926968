//! No waiter waits for what has happened already: notifications and their queue (thesis 6.1), interrupts, sleep,
//! doorbells. Each is Dekker's pattern between words of NIC memory and of host memory, so each barrier is needed.
//!
//! The NIC's steps are the shipped ones ([`NotificationPlace`], [`announce_sleep`], the command queue). What the state
//! machine keeps between them (is an entry of this number still there?) is kept here in a line or two, and so are the
//! library's steps, as `docs/ABI.md` chapters 9 and 10 prescribe them.

use loom::sync::Arc;
use loom::thread;
use netvm_abi::bar::port::{BLOCK_WORDS, DOORBELL, INTERRUPT_ENABLE, NOTIFICATION_READ, WAKE_ON_QUEUE};
use netvm_abi::command_queue::{Consumer, Doorbell, Producer};
use netvm_abi::descriptor::HEAD_WORDS;
use netvm_abi::notification::interrupt_bit;
use netvm_abi::port_area::{AREA_WORDS, NOTIFICATION_WRITE, NOTIFICATIONS, SHADOW_SIGNALS};
use netvm_abi::shared_map::status_page::SLEEPING;
use netvm_abi::words::SharedWords;
use netvm_abi::{NotificationId, WordIndex};
use netvm_loom::{Flaw, Seen, Words, explore, must_fail};
use netvm_nic::notify::NotificationPlace;
use netvm_platform::announce_sleep;

const ID: NotificationId = NotificationId(5);
const PLACE: NotificationPlace = NotificationPlace {
    block: WordIndex(0),
    area: WordIndex(0),
};
const SHADOW: WordIndex = SHADOW_SIGNALS.plus(ID.0);

/// NIC memory and driver memory of one port.
struct Card {
    bar: Words,
    shared: Words,
}

impl Card {
    fn new(flaw: Flaw) -> Self {
        let bar = [DOORBELL, NOTIFICATION_READ, WAKE_ON_QUEUE, INTERRUPT_ENABLE];
        let shared = [SHADOW, NOTIFICATION_WRITE, NOTIFICATIONS, NOTIFICATIONS.plus(1)];
        Self {
            bar: Words::watching(flaw, BLOCK_WORDS, bar.map(|word| word.0)),
            shared: Words::watching(flaw, AREA_WORDS, shared.map(|word| word.0)),
        }
    }
}

/// The NIC's side of a queue: where it writes next, and where the number's last entry is.
#[derive(Default)]
struct Nic {
    write: u32,
    entry: Option<u32>,
}

impl Nic {
    /// A signal; whether the application must be woken for it.
    fn signal(&mut self, card: &Card, coalesced: &Seen) -> bool {
        let read = PLACE.raise(&card.bar, &card.shared, ID);
        let mut woken = false;
        if self.entry.is_some_and(|entry| read <= entry) {
            coalesced.mark();
        } else {
            woken = PLACE.put(&card.bar, &card.shared, self.write, ID);
            self.entry = Some(self.write);
            self.write += 1;
        }
        PLACE.wakes(&card.bar, ID) || woken
    }
}

/// The application's side: entries taken, signals handled.
#[derive(Default)]
struct App {
    read: u32,
    handled: u32,
}

impl App {
    /// Takes the entries that are there and handles what they stand for.
    fn drain(&mut self, card: &Card) {
        let written = card.shared.load_acquire(NOTIFICATION_WRITE);
        while self.read != written {
            let at = NOTIFICATIONS.plus(self.read);
            assert_eq!(card.shared.load_acquire(at), ID.0, "an entry that is not written");
            self.read += 1;
            card.bar.store_release(NOTIFICATION_READ, self.read);
            card.bar.full_barrier();
            self.handled = card.shared.load_acquire(SHADOW);
        }
    }
}

/// Two signals against an application that takes entries meanwhile: each signal is handled, or an entry waits.
fn coalescing(flaw: Flaw, coalesced: Seen, twice: Seen) -> impl Fn() + Send + Sync + 'static {
    move || {
        let card = Arc::new(Card::new(flaw));
        let nic = {
            let (card, coalesced) = (card.clone(), coalesced.clone());
            thread::spawn(move || {
                let mut nic = Nic::default();
                nic.signal(&card, &coalesced);
                nic.signal(&card, &coalesced);
                nic.write
            })
        };
        let mut app = App::default();
        app.drain(&card);
        app.drain(&card);
        let entries = nic.join().unwrap();
        app.drain(&card);
        assert_eq!(app.handled, 2, "a signal without an entry is never handled");
        assert_eq!(app.read, entries);
        if entries == 2 {
            twice.mark();
        }
    }
}

#[test]
fn no_signal_is_lost_by_coalescing() {
    let (coalesced, twice) = (Seen::new(), Seen::new());
    let model = coalescing(Flaw::None, coalesced.clone(), twice.clone());
    explore("coalescing", Some(5), model);
    assert!(coalesced.count() > 0 && twice.count() > 0, "one entry, and two");
    let model = coalescing(Flaw::NoBarrier, Seen::new(), Seen::new());
    must_fail("coalescing, no barrier", Some(5), model);
}

/// How an application announces that it wants to be woken.
#[derive(Clone, Copy)]
enum Interest {
    Number,
    Queue,
}

/// An application goes to sleep while a signal comes: it sees the signal, or is woken.
fn interrupt(flaw: Flaw, interest: Interest, seen: [Seen; 2]) -> impl Fn() + Send + Sync + 'static {
    move || {
        let card = Arc::new(Card::new(flaw));
        let nic = {
            let card = card.clone();
            thread::spawn(move || Nic::default().signal(&card, &Seen::new()))
        };
        let there = match interest {
            Interest::Number => {
                let (word, bit) = interrupt_bit(ID).unwrap();
                card.bar.store_release(word, bit);
                card.bar.full_barrier();
                card.shared.load_acquire(SHADOW) != 0
            }
            Interest::Queue => {
                card.bar.store_release(WAKE_ON_QUEUE, 1);
                card.bar.full_barrier();
                card.shared.load_acquire(NOTIFICATION_WRITE) != 0
            }
        };
        let woken = nic.join().unwrap();
        assert!(there || woken, "it sleeps, and is never woken");
        seen[0].mark_if(there && !woken);
        seen[1].mark_if(woken && !there);
    }
}

#[test]
fn a_sleeper_sees_the_signal_or_is_woken() {
    for (interest, name) in [
        (Interest::Number, "of a number"),
        (Interest::Queue, "of the queue"),
    ] {
        let seen = [Seen::new(), Seen::new()];
        explore(
            &format!("interrupt {name}"),
            None,
            interrupt(Flaw::None, interest, seen.clone()),
        );
        assert!(seen.iter().all(|seen| seen.count() > 0), "both ways out");
        must_fail(
            &format!("interrupt {name}, no barrier"),
            None,
            interrupt(Flaw::NoBarrier, interest, [Seen::new(), Seen::new()]),
        );
    }
}

/// The NIC goes to sleep while a command is posted: it sees the doorbell, or the library sees that it sleeps.
fn sleep(flaw: Flaw, seen: [Seen; 2]) -> impl Fn() + Send + Sync + 'static {
    move || {
        let block = Arc::new(Words::watching(flaw, BLOCK_WORDS, [DOORBELL.0]));
        let status = Arc::new(Words::watching(flaw, 64, [SLEEPING.0]));
        let app = {
            let (block, status) = (block.clone(), status.clone());
            thread::spawn(move || {
                assert!(Producer::default().post(&*block, &[7; HEAD_WORDS], &[]));
                block.full_barrier();
                status.load_acquire(SLEEPING) != 0
            })
        };
        announce_sleep(&*status);
        let awake = Consumer::default().poll(&*block) != Doorbell::Empty;
        let called = app.join().unwrap();
        assert!(awake || called, "the NIC sleeps on a command");
        seen[0].mark_if(awake && !called);
        seen[1].mark_if(called && !awake);
    }
}

#[test]
fn no_doorbell_is_slept_through() {
    let seen = [Seen::new(), Seen::new()];
    explore("sleep", None, sleep(Flaw::None, seen.clone()));
    assert!(seen.iter().all(|seen| seen.count() > 0), "both ways out");
    must_fail(
        "sleep, no barrier",
        None,
        sleep(Flaw::NoBarrier, [Seen::new(), Seen::new()]),
    );
}
