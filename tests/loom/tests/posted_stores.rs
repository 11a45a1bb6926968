//! What both sides of a bus must do where stores are posted (`docs/decisions/0015-posted-stores.md`): in each pair of
//! "store across the bus, then load your own memory" one side reads across before it loads.
//!
//! The steps of the NIC and of the page lock are the shipped ones; the library's and the driver's are those of
//! `docs/ABI.md` chapters 7, 9 and 10. Each model runs on a bus with the rules of PCI, then without the read, which
//! must fail. Where the side that reads relies on the answer to push the *other* side's stores, a bus whose answers
//! overtake them must fail too: that rule is part of the ABI.

use loom::sync::Arc;
use loom::thread;
use netvm_abi::bar::port::{INTERRUPT_ENABLE, NOTIFICATION_READ, WAKE_ON_QUEUE};
use netvm_abi::command_queue::{Consumer, Doorbell, Producer};
use netvm_abi::descriptor::HEAD_WORDS;
use netvm_abi::notification::interrupt_bit;
use netvm_abi::page_lock::{
    Clear, LockState, Used, lock_page, lock_state, publish, retract, take_use, unlock_page,
};
use netvm_abi::page_table::{HashKey, PageEntry, PageSlot, PageTable};
use netvm_abi::port_area::{NOTIFICATION_WRITE, NOTIFICATIONS, SHADOW_SIGNALS};
use netvm_abi::shared_map::status_page::SLEEPING;
use netvm_abi::words::SharedWords;
use netvm_abi::{NotificationId, PortId, Ppn, SegmentId, Vpn, WordIndex};
use netvm_loom::bus::{Barrier, Bus, Rules, Side};
use netvm_loom::{Seen, explore, must_fail};
use netvm_nic::notify::NotificationPlace;
use netvm_platform::announce_sleep;

const ID: NotificationId = NotificationId(5);
/// Block and area of the port.
const PLACE: NotificationPlace = NotificationPlace {
    block: WordIndex(0),
    area: WordIndex(0),
};
const SHADOW: WordIndex = SHADOW_SIGNALS.plus(ID.0);

const TABLE: PageTable = PageTable::new(WordIndex(0), 1, HashKey([0; 2]));
const SLOT: PageSlot = PageSlot::new(0, 0);
const PAGE: Vpn = Vpn::new(PortId(1), 7);
/// The page's content, in host memory: the NIC's DMA is a posted store too.
const CONTENT: WordIndex = WordIndex(100);

/// The buses of a model: the one that NetVM needs, one that is never read across, one whose answers overtake.
const GOOD: (Rules, Barrier) = (Rules::Pci, Barrier::Read);
const UNREAD: (Rules, Barrier) = (Rules::Pci, Barrier::Processors);
const OVERTAKING: (Rules, Barrier) = (Rules::AnswersOvertake, Barrier::Read);

type Kind = (Rules, Barrier);

/// The card does `card`, the host `host`, and the first `lands` stores of each land at any time; the others at the end.
fn run<C: Send + 'static, H>(
    bus: &Arc<Bus>,
    lands: [usize; 2],
    card: impl FnOnce(&Bus) -> C + Send + 'static,
    host: impl FnOnce(&Bus) -> H,
) -> (C, H) {
    let lag = |from: Side| {
        let bus = bus.clone();
        let count = lands[from as usize];
        thread::spawn(move || (0..count).for_each(|_| bus.deliver(from)))
    };
    let wires = [lag(Side::Card), lag(Side::Host)];
    let there = bus.clone();
    let card = thread::spawn(move || card(&there));
    let host = host(bus);
    let card = card.join().unwrap();
    for wire in wires {
        wire.join().unwrap();
    }
    bus.rest();
    (card, host)
}

fn new_bus((rules, barrier): Kind) -> Arc<Bus> {
    Arc::new(Bus::new(rules, barrier))
}

/// The NIC goes to sleep while a command is posted. Only the NIC reads across the bus.
fn sleep(kind: Kind, seen: [Seen; 2]) -> impl Fn() + Send + Sync + 'static {
    move || {
        let bus = new_bus(kind);
        let card = |bus: &Bus| {
            announce_sleep(&bus.view(Side::Card, Side::Host));
            Consumer::default().poll(&bus.view(Side::Card, Side::Card)) != Doorbell::Empty
        };
        let host = |bus: &Bus| {
            let block = bus.view(Side::Host, Side::Card);
            assert!(Producer::default().post(&block, &[7; HEAD_WORDS], &[]));
            block.full_barrier();
            bus.view(Side::Host, Side::Host).load_acquire(SLEEPING) != 0
        };
        let (awake, called) = run(&bus, [1, 2], card, host);
        assert!(awake || called, "the NIC sleeps on a command");
        seen[0].mark_if(awake && !called);
        seen[1].mark_if(called && !awake);
    }
}

fn unseen() -> [Seen; 2] {
    [Seen::new(), Seen::new()]
}

#[test]
fn no_doorbell_is_slept_through() {
    let seen = unseen();
    explore("sleep over a bus", Some(3), sleep(GOOD, seen.clone()));
    assert!(seen.iter().all(|seen| seen.count() > 0), "both ways out");
    must_fail("sleep, no read across", Some(3), sleep(UNREAD, unseen()));
    must_fail("sleep, answers overtake", Some(3), sleep(OVERTAKING, unseen()));
}

/// The NIC's side of a notification queue: where it writes next, and where the number's last entry is.
#[derive(Default)]
struct Nic {
    write: u32,
    entry: Option<u32>,
}

impl Nic {
    /// A signal; whether the application must be woken for it. The NIC never reads across the bus.
    fn signal(&mut self, bus: &Bus) -> bool {
        let (bar, shared) = (bus.view(Side::Card, Side::Card), bus.view(Side::Card, Side::Host));
        let read = PLACE.raise(&bar, &shared, ID);
        let mut woken = false;
        if self.entry.is_none_or(|entry| read > entry) {
            woken = PLACE.put(&bar, &shared, self.write, ID);
            self.entry = Some(self.write);
            self.write += 1;
        }
        PLACE.wakes(&bar, ID) || woken
    }
}

/// How an application announces that it wants to be woken.
#[derive(Clone, Copy)]
enum Interest {
    Number,
    Queue,
}

/// An application goes to sleep while a signal comes. Only the application reads across the bus.
fn interrupt(kind: Kind, interest: Interest, seen: [Seen; 2]) -> impl Fn() + Send + Sync + 'static {
    move || {
        let bus = new_bus(kind);
        let card = |bus: &Bus| Nic::default().signal(bus);
        let host = move |bus: &Bus| {
            let (block, area) = (bus.view(Side::Host, Side::Card), bus.view(Side::Host, Side::Host));
            let there = match interest {
                Interest::Number => {
                    let (word, bit) = interrupt_bit(ID).unwrap();
                    assert_eq!(word, INTERRUPT_ENABLE);
                    block.store_release(word, bit);
                    SHADOW
                }
                Interest::Queue => {
                    block.store_release(WAKE_ON_QUEUE, 1);
                    NOTIFICATION_WRITE
                }
            };
            block.bus_barrier();
            area.load_acquire(there) != 0
        };
        let (woken, there) = run(&bus, [3, 1], card, host);
        assert!(there || woken, "it sleeps, and nothing wakes it");
        seen[0].mark_if(there && !woken);
        seen[1].mark_if(woken && !there);
    }
}

#[test]
fn an_application_that_goes_to_sleep_sees_the_signal_or_is_woken() {
    for (interest, name) in [
        (Interest::Number, "of a number"),
        (Interest::Queue, "of the queue"),
    ] {
        let seen = unseen();
        let name = |what: &str| format!("interrupt {name}, {what}");
        explore(
            &name("over a bus"),
            Some(3),
            interrupt(GOOD, interest, seen.clone()),
        );
        assert!(seen.iter().all(|seen| seen.count() > 0), "both ways out");
        must_fail(
            &name("no read across"),
            Some(3),
            interrupt(UNREAD, interest, unseen()),
        );
        must_fail(
            &name("answers overtake"),
            Some(3),
            interrupt(OVERTAKING, interest, unseen()),
        );
    }
}

/// The application's side of a notification queue: entries taken, signals handled.
#[derive(Default)]
struct App {
    read: u32,
    handled: u32,
    /// It has taken an entry and found no more signals, and has not read across the bus since.
    unsure: bool,
}

impl App {
    /// Takes the entries that are there and handles what they stand for; where there are none, makes sure.
    fn look(&mut self, bus: &Bus) {
        let (block, area) = (bus.view(Side::Host, Side::Card), bus.view(Side::Host, Side::Host));
        let written = area.load_acquire(NOTIFICATION_WRITE);
        if self.read == written {
            if std::mem::take(&mut self.unsure) {
                block.bus_barrier();
                self.handled = area.load_acquire(SHADOW);
            }
            return;
        }
        while self.read != written {
            assert_eq!(
                area.load_acquire(NOTIFICATIONS.plus(self.read)),
                ID.0,
                "an entry that is not written"
            );
            self.read += 1;
        }
        block.store_release(NOTIFICATION_READ, self.read);
        block.full_barrier();
        self.handled = area.load_acquire(SHADOW);
        self.unsure = true;
    }
}

/// Two signals against an application that takes entries meanwhile: each signal is handled when the application has
/// run dry. It reads across the bus only then.
fn coalescing(kind: Kind, one: Seen, two: Seen) -> impl Fn() + Send + Sync + 'static {
    move || {
        let bus = new_bus(kind);
        let card = |bus: &Bus| {
            let mut nic = Nic::default();
            nic.signal(bus);
            nic.signal(bus);
            nic.write
        };
        let host = |bus: &Bus| {
            let mut app = App::default();
            app.look(bus);
            app.look(bus);
            app
        };
        let (entries, mut app) = run(&bus, [3, 1], card, host);
        app.look(&bus);
        // It ran dry: what has arrived since is of the third look.
        app.look(&bus);
        assert_eq!(
            app.handled, 2,
            "a signal without an entry: the application never looks"
        );
        assert_eq!(app.read, entries);
        one.mark_if(entries == 1);
        two.mark_if(entries == 2);
    }
}

#[test]
fn no_signal_is_lost_by_coalescing() {
    let (one, two) = (Seen::new(), Seen::new());
    explore(
        "coalescing over a bus",
        Some(3),
        coalescing(GOOD, one.clone(), two.clone()),
    );
    assert!(one.count() > 0 && two.count() > 0, "one entry, and two");
    let model = |kind| coalescing(kind, Seen::new(), Seen::new());
    must_fail("coalescing, no read across", Some(3), model(UNREAD));
    must_fail("coalescing, answers overtake", Some(3), model(OVERTAKING));
}

/// A page that is mapped, clean and unreferenced.
fn map(bus: &Bus) {
    let entry = PageEntry {
        vpn: PAGE,
        ppn: Ppn(0),
        segment: SegmentId(1),
        writable: true,
    };
    publish(&bus.view(Side::Host, Side::Card), &TABLE, SLOT, &entry);
    bus.rest();
}

/// NIC: writes `value` by DMA; whether the page was there.
fn write(bus: &Bus, value: u32) -> bool {
    let bar = bus.view(Side::Card, Side::Card);
    let Ok(page) = lock_page(&bar, &TABLE, PAGE, true) else {
        return false;
    };
    bus.view(Side::Card, Side::Host).store_release(CONTENT, value);
    unlock_page(&bar, &TABLE, page.slot, Used::Written);
    true
}

/// The host unmaps a page while the NIC writes it. The load of the lock word is a read across the bus: it is all that
/// the page lock needs, and the DMA has landed when the word says that it has ended.
fn unmapping(rules: Rules, seen: [Seen; 2]) -> impl Fn() + Send + Sync + 'static {
    move || {
        let bus = Arc::new(Bus::new(rules, Barrier::Processors));
        map(&bus);
        let card = |bus: &Bus| write(bus, 1);
        let host = |bus: &Bus| {
            let bar = bus.view(Side::Host, Side::Card);
            retract(&bar, &TABLE, SLOT);
            bar.full_barrier();
            while lock_state(&bar, &TABLE, SLOT) != LockState::Free {
                thread::yield_now();
            }
            bus.view(Side::Host, Side::Host).load_acquire(CONTENT)
        };
        let (written, content) = run(&bus, [1, 1], card, host);
        assert_eq!(
            content,
            u32::from(written),
            "a DMA lands after its page was unmapped"
        );
        seen[usize::from(written)].mark();
    }
}

#[test]
fn no_dma_lands_after_its_page_was_unmapped() {
    let seen = unseen();
    explore(
        "unmapping over a bus",
        Some(3),
        unmapping(Rules::Pci, seen.clone()),
    );
    assert!(seen.iter().all(|seen| seen.count() > 0), "both ends");
    must_fail(
        "unmapping, answers overtake",
        Some(3),
        unmapping(Rules::AnswersOvertake, unseen()),
    );
}

/// The host cleans a mapped page while the NIC writes it again: in the end the page is dirty, or the copy has it all.
fn cleaning(kind: Kind, seen: [Seen; 2]) -> impl Fn() + Send + Sync + 'static {
    move || {
        let bus = new_bus(kind);
        map(&bus);
        assert!(write(&bus, 1), "dirty before the race begins");
        bus.rest();
        let card = |bus: &Bus| assert!(write(bus, 2));
        let take = |bus: &Bus, clear| take_use(&bus.view(Side::Host, Side::Card), &TABLE, SLOT, clear);
        let host = |bus: &Bus| {
            assert!(take(bus, Clear::Dirty).dirty, "it was written before");
            bus.view(Side::Host, Side::Host).load_acquire(CONTENT)
        };
        let ((), copy) = run(&bus, [1, 1], card, host);
        let dirty = take(&bus, Clear::Nothing).dirty;
        assert!(
            dirty || copy == 2,
            "the page looks clean, and the copy has not the last write"
        );
        seen[usize::from(dirty)].mark();
    }
}

#[test]
fn a_write_is_never_lost_while_the_page_is_cleaned() {
    let seen = unseen();
    explore("cleaning over a bus", Some(3), cleaning(GOOD, seen.clone()));
    assert!(seen.iter().all(|seen| seen.count() > 0), "both ends");
    must_fail("cleaning, no read across", Some(3), cleaning(UNREAD, unseen()));
    must_fail(
        "cleaning, answers overtake",
        Some(3),
        cleaning(OVERTAKING, unseen()),
    );
}
