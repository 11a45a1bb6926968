//! The common steps of all host platforms, over a modelled NIC: what runs under the lock and what does not, in which
//! order, and how each of them ends.

// The test world of the host core, which these tests share.
#[path = "../../core/tests/host/memory.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod memory;
#[path = "../../core/tests/host/rig.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod rig;

use memory::{Fake, Heap};
use netvm_abi::control::{Grant, Modes};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::page_lock::Used;
use netvm_abi::{Incarnation, Nanos, NodeId, PortId, Status, Token, Vpn};
use netvm_host::host::{CardFailure, CardState};
use netvm_host::imports::ImportSpec;
use netvm_host::paging::WorkId;
use netvm_host::platform::{Access, CopyEnd, CopyJob, Direction, PageGone, Resident};
use netvm_host::ports::OpenPort;
use netvm_host::unmap::UnmapKind;
use netvm_host::{Host, Progress};
use netvm_host_platform::notice::{self, Handler};
use netvm_host_platform::paging::{Ended, Pager, Turn, Worker, serve_one};
use netvm_host_platform::{System, unmap};
use rig::{NODE, PAGE, PEER, Rig, name, page_of, write};
use std::cell::{Cell, RefCell};
use std::convert::Infallible;

/// What the steps did, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    Gone(PageGone),
    Stopped,
    PageIn(Vpn, Access),
    Offer,
    Prepare,
    Settle { keep: bool },
    Copy(Direction),
    Let,
    Work(PortId),
    Imported(Token, Option<Status>),
    ImportOver(Token),
    PeerUp(NodeId, Incarnation),
    PeerDown(NodeId),
    CardDead(CardFailure),
    Progress,
}

/// A host behind a lock that knows whether it is held.
struct Desk {
    rig: RefCell<Option<Rig>>,
    locked: Cell<bool>,
    did: RefCell<Vec<Did>>,
}

impl Desk {
    fn new(rig: Rig) -> Self {
        Self {
            rig: RefCell::new(Some(rig)),
            locked: Cell::new(false),
            did: RefCell::default(),
        }
    }

    fn with<R>(&self, call: impl FnOnce(&mut Rig) -> R) -> R {
        call(self.rig.borrow_mut().as_mut().expect("a core"))
    }

    fn note(&self, locked: bool, did: Did) {
        assert_eq!(self.locked.get(), locked, "{did:?}");
        self.did.borrow_mut().push(did);
    }

    fn did(&self) -> Vec<Did> {
        self.did.take()
    }

    fn gone(&self) -> Vec<PageGone> {
        let did = self.did();
        did.iter()
            .filter_map(|did| match did {
                Did::Gone(page) => Some(*page),
                _ => None,
            })
            .collect()
    }
}

impl System for Desk {
    type Storage = Heap;
    type Platform = Fake;

    fn call<R>(&self, call: impl FnOnce(&mut Host<Heap>, &mut Fake, Nanos) -> R) -> Option<R> {
        assert!(!self.locked.replace(true), "the lock is taken twice");
        let mut rig = self.rig.borrow_mut();
        let result = rig
            .as_mut()
            .map(|rig| call(&mut rig.host, &mut rig.platform, rig.now));
        self.locked.set(false);
        result
    }

    fn page_gone(&self, gone: PageGone) {
        self.note(true, Did::Gone(gone));
    }

    fn stop_card(&self) {
        self.note(false, Did::Stopped);
        self.call(|host, platform, now| host.card_stopped(platform, true, now));
    }
}

impl Handler for Desk {
    fn work(&self, port: PortId) {
        self.note(false, Did::Work(port));
    }
    fn imported(&self, _: PortId, import: Token, result: Result<Grant, Status>) {
        self.note(false, Did::Imported(import, result.err()));
    }
    fn import_over(&self, _: PortId, import: Token) {
        self.note(false, Did::ImportOver(import));
    }
    fn peer_up(&self, peer: NodeId, incarnation: Incarnation) {
        self.note(false, Did::PeerUp(peer, incarnation));
    }
    fn peer_down(&self, peer: NodeId) {
        self.note(false, Did::PeerDown(peer));
    }
    fn card_dead(&self, cause: CardFailure) {
        self.note(false, Did::CardDead(cause));
    }
    fn progress(&self) {
        self.note(false, Did::Progress);
    }
}

/// A port with pages 16..32 registered, and the grant of a peer that may write them.
fn world() -> (Desk, OpenPort, Grant) {
    let mut rig = Rig::new();
    let port = rig.open();
    rig.register(port, 16, 16);
    rig.export(port, "data", 16, 16, Modes::all());
    rig.link_up(PEER);
    let modes = Modes::all() - Modes::READ;
    let grant = rig.granted(PEER, PortId(2), port, "data", modes, 1);
    rig.heard();
    (Desk::new(rig), port, grant.expect("granted"))
}

// ---- unmapping ----------------------------------------------------------------------------------

#[test]
fn an_unmap_pauses_until_the_card_lets_go_and_tells_what_it_wrote() {
    let (desk, port, _) = world();
    let vpn = page_of(port, 17);
    let begun = desk.with(|rig| {
        rig.map(vpn, 900, true).expect("maps");
        rig.host.unmap_begin(vpn, 1, UnmapKind::Remove)
    });
    let held = Cell::new(Some(desk.with(|rig| rig.lock(vpn, true).expect("mapped"))));
    let mut pauses = 0;
    unmap::finish(&desk, begun, || {
        assert!(!desk.locked.get() && desk.did.borrow().is_empty());
        desk.with(|rig| assert!(rig.host.map_begin(vpn).is_err(), "not while it is unmapped"));
        pauses += 1;
        if pauses == 3 {
            let page = held.take().expect("locked");
            desk.with(|rig| rig.unlock(page, Used::Written));
        }
    });
    assert_eq!(pauses, 3);
    let gone = desk.gone();
    assert!(
        matches!(gone[..], [page] if page.vpn == vpn && page.dirty && page.referenced && !page.leaked),
        "{gone:?}"
    );
    desk.with(|rig| {
        assert!(rig.lock(vpn, false).is_err(), "nothing is left of it");
        assert!(rig.host.map_begin(vpn).is_ok(), "the unmap has ended");
    });
}

#[test]
fn a_card_that_keeps_a_page_is_stopped_once_and_the_unmap_ends() {
    let (desk, port, _) = world();
    let vpn = page_of(port, 17);
    let begun = desk.with(|rig| {
        rig.map(vpn, 900, true).expect("maps");
        let _held = rig.lock(vpn, true).expect("mapped");
        rig.host.unmap_begin(vpn, 1, UnmapKind::Remove)
    });
    let mut pauses = 0;
    unmap::finish(&desk, begun, || {
        pauses += 1;
        assert!(pauses < 1000, "it waits for ever");
        desk.with(|rig| {
            rig.now = rig.now.after(Nanos::from_micros(500));
            rig.beat();
        });
    });
    let did = desk.did();
    assert!(
        matches!(did[..], [Did::Stopped, Did::Gone(page)] if page.vpn == vpn && page.dirty && !page.leaked),
        "{did:?}"
    );
    desk.with(|rig| {
        assert!(matches!(
            rig.host.card(),
            CardState::Stopped {
                cause: CardFailure::UnmapDeadline,
                proven: true
            }
        ));
    });
}

#[test]
fn without_a_core_nothing_is_mapped() {
    let (desk, port, _) = world();
    let mut begun = desk.with(|rig| rig.host.unmap_begin(page_of(port, 17), 4, UnmapKind::Remove));
    *desk.rig.borrow_mut() = None;
    assert_eq!(unmap::step(&desk, &mut begun), Progress::Done);
    unmap::finish(&desk, begun, || unreachable!("there is no card"));
    notice::hear(&desk);
    assert_eq!(desk.did(), []);
}

// ---- paging -------------------------------------------------------------------------------------

/// The memory of a port's process.
struct Memory<'a> {
    desk: &'a Desk,
    port: PortId,
    /// What page-ins give.
    result: Result<Option<Resident>, Status>,
    /// How many page-ins still meet a page event.
    races: Cell<u32>,
    /// How copies end; `Done` after that.
    ends: RefCell<Vec<CopyEnd>>,
    /// The port ends when this is done.
    ends_at: Cell<Option<Did>>,
    ending: Cell<bool>,
}

/// A page, which must be let go without the lock.
struct Page<'a> {
    desk: &'a Desk,
    resident: Option<Resident>,
}

impl Drop for Page<'_> {
    fn drop(&mut self) {
        self.desk.note(false, Did::Let);
    }
}

impl<'a> Memory<'a> {
    fn new(desk: &'a Desk, port: OpenPort) -> Self {
        Self {
            desk,
            port: port.port,
            result: Ok(Some(Resident {
                ppn: netvm_abi::Ppn(900),
                frame: rig::frame_of(900),
                writable: true,
            })),
            races: Cell::new(0),
            ends: RefCell::default(),
            ends_at: Cell::new(None),
            ending: Cell::new(false),
        }
    }

    fn note(&self, locked: bool, did: Did) {
        self.desk.note(locked, did);
        if self.ends_at.get() == Some(did) {
            self.ending.set(true);
        }
    }
}

impl<'a> Pager for Memory<'a> {
    type System = Desk;
    type Page = Page<'a>;
    type Wait = Infallible;

    fn system(&self) -> &Desk {
        self.desk
    }

    fn port(&self) -> PortId {
        self.port
    }

    fn while_open<R>(&self, call: impl FnOnce(&mut Host<Heap>, &mut Fake, Nanos) -> R) -> Option<R> {
        if self.ending.get() {
            return None;
        }
        self.desk.call(call)
    }

    fn page_in(&self, vpn: Vpn, access: Access) -> Result<Result<Page<'a>, Status>, Infallible> {
        self.note(false, Did::PageIn(vpn, access));
        if let Some(left) = self.races.get().checked_sub(1) {
            self.races.set(left);
            self.desk.with(|rig| {
                let _ = rig.unmap(vpn, 1, UnmapKind::Remove);
            });
        }
        Ok(self.result.map(|resident| Page {
            desk: self.desk,
            resident,
        }))
    }

    fn copy(&self, page: Option<&Page<'a>>, job: &CopyJob) -> Result<CopyEnd, Infallible> {
        assert!(page.is_some());
        self.note(false, Did::Copy(job.direction));
        Ok(self.ends.borrow_mut().pop().unwrap_or(CopyEnd::Done))
    }

    fn offer(&self, page: &mut Page<'a>) -> Option<Resident> {
        self.note(true, Did::Offer);
        page.resident
    }

    fn prepare(&self, _: &mut Page<'a>, _: &mut Host<Heap>) {
        self.note(true, Did::Prepare);
    }

    fn settle(&self, _: &mut Page<'a>, _: &Host<Heap>, keep: bool) {
        self.note(true, Did::Settle { keep });
    }
}

/// A write to page 17 was bounced.
fn bounce(desk: &Desk, port: OpenPort, grant: &Grant) -> WorkId {
    let header = write(port, grant, 17 * PAGE + 100, 50);
    desk.with(|rig| {
        let sent = rig.bounce(Rig::window(PEER, 3), &header);
        rig.poll();
        sent
    })
}

fn answers(desk: &Desk) -> Vec<(WorkId, Status)> {
    let heard = desk.with(Rig::heard);
    heard
        .iter()
        .filter_map(|event| match *event {
            HostEvent::BounceEnded {
                bounce,
                generation,
                status,
            } => Some((WorkId { bounce, generation }, status)),
            _ => None,
        })
        .collect()
}

fn ended(port: OpenPort, status: Status) -> Option<Ended> {
    Some(Ended {
        vpn: Some(page_of(port, 17)),
        status,
    })
}

#[test]
fn a_bounced_write_is_paged_in_copied_and_published_in_two_critical_sections() {
    let (desk, port, grant) = world();
    let memory = Memory::new(&desk, port);
    assert_eq!(serve_one(&memory), None, "there is no work");
    let sent = bounce(&desk, port, &grant);
    assert_eq!(serve_one(&memory), ended(port, Status::Ok));
    let vpn = page_of(port, 17);
    assert_eq!(
        desk.did(),
        [
            Did::PageIn(vpn, Access::Write),
            Did::Offer,
            Did::Prepare,
            Did::Settle { keep: true },
            Did::Copy(Direction::IntoPage),
            Did::Prepare,
            Did::Settle { keep: false },
            Did::Let,
        ]
    );
    assert_eq!(answers(&desk), [(sent, Status::Ok)]);
    assert!(
        desk.with(|rig| rig.lock(vpn, true).is_ok()),
        "the next message finds the page"
    );
    assert_eq!(serve_one(&memory), None);
}

#[test]
fn a_lost_race_lets_the_page_go_before_it_is_brought_in_again() {
    let (desk, port, _) = world();
    let memory = Memory::new(&desk, port);
    memory.races.set(1);
    let vpn = page_of(port, 17);
    desk.with(|rig| {
        rig.source_miss(1, vpn, 64, 1);
        rig.poll();
    });
    assert_eq!(serve_one(&memory), ended(port, Status::Ok));
    let once = [
        Did::PageIn(vpn, Access::Read),
        Did::Offer,
        Did::Prepare,
        Did::Settle { keep: false },
        Did::Let,
    ];
    assert_eq!(desk.did(), [once, once].concat());
    assert_eq!(
        desk.with(|rig| rig.host.mapping(vpn)),
        memory.result.expect("a page")
    );
}

#[test]
fn a_page_that_is_evicted_before_its_copy_is_brought_in_again() {
    let (desk, port, grant) = world();
    let memory = Memory::new(&desk, port);
    memory.ends.borrow_mut().push(CopyEnd::Evicted);
    let sent = bounce(&desk, port, &grant);
    assert_eq!(serve_one(&memory), ended(port, Status::Ok));
    let did = desk.did();
    let count = |wanted: Did| did.iter().filter(|did| **did == wanted).count();
    assert_eq!(count(Did::PageIn(page_of(port, 17), Access::Write)), 2);
    assert_eq!((count(Did::Copy(Direction::IntoPage)), count(Did::Let)), (2, 2));
    assert_eq!(answers(&desk), [(sent, Status::Ok)]);
}

#[test]
fn a_page_that_will_not_come_ends_its_work_with_the_reason() {
    let (desk, port, grant) = world();
    let mut memory = Memory::new(&desk, port);
    memory.result = Err(Status::BusError);
    let sent = bounce(&desk, port, &grant);
    assert_eq!(serve_one(&memory), ended(port, Status::BusError));
    assert_eq!(desk.did(), [Did::PageIn(page_of(port, 17), Access::Write)]);
    assert_eq!(answers(&desk), [(sent, Status::BusError)]);
}

#[test]
fn a_page_for_a_port_that_ends_is_neither_told_nor_published() {
    let (desk, port, grant) = world();
    let memory = Memory::new(&desk, port);
    let vpn = page_of(port, 17);
    memory.ends_at.set(Some(Did::PageIn(vpn, Access::Write)));
    bounce(&desk, port, &grant);
    assert_eq!(serve_one(&memory), None);
    assert_eq!(desk.did(), [Did::PageIn(vpn, Access::Write), Did::Let]);
    assert_eq!(answers(&desk), [], "the end of the port answers");
    assert_eq!(desk.with(|rig| rig.host.mapping(vpn)), None);
}

#[test]
fn a_copy_is_told_while_the_port_ends() {
    let (desk, port, grant) = world();
    let memory = Memory::new(&desk, port);
    memory.ends_at.set(Some(Did::Copy(Direction::IntoPage)));
    let sent = bounce(&desk, port, &grant);
    assert_eq!(serve_one(&memory), ended(port, Status::Ok));
    assert_eq!(answers(&desk), [(sent, Status::Ok)]);
    bounce(&desk, port, &grant);
    assert_eq!(serve_one(&memory), None, "nothing more is taken");
}

/// As [`Memory`], but everything takes three tries.
struct Slow<'a> {
    memory: Memory<'a>,
    tries: Cell<u32>,
}

impl Slow<'_> {
    fn in_time(&self) -> Result<(), Nanos> {
        self.tries.set(self.tries.get() + 1);
        if self.tries.get().is_multiple_of(3) {
            Ok(())
        } else {
            Err(Nanos(u64::from(self.tries.get())))
        }
    }
}

impl<'a> Pager for Slow<'a> {
    type System = Desk;
    type Page = Page<'a>;
    type Wait = Nanos;

    fn system(&self) -> &Desk {
        self.memory.desk
    }
    fn port(&self) -> PortId {
        self.memory.port
    }
    fn page_in(&self, vpn: Vpn, access: Access) -> Result<Result<Page<'a>, Status>, Nanos> {
        self.in_time()?;
        let Ok(result) = self.memory.page_in(vpn, access);
        Ok(result)
    }
    fn copy(&self, page: Option<&Page<'a>>, job: &CopyJob) -> Result<CopyEnd, Nanos> {
        self.in_time()?;
        let Ok(end) = self.memory.copy(page, job);
        Ok(end)
    }
    fn offer(&self, page: &mut Page<'a>) -> Option<Resident> {
        self.memory.offer(page)
    }
    fn prepare(&self, page: &mut Page<'a>, host: &mut Host<Heap>) {
        self.memory.prepare(page, host);
    }
    fn settle(&self, page: &mut Page<'a>, host: &Host<Heap>, keep: bool) {
        self.memory.settle(page, host, keep);
    }
}

#[test]
fn a_worker_that_has_to_wait_goes_on_where_it_was() {
    let (desk, port, grant) = world();
    let slow = Slow {
        memory: Memory::new(&desk, port),
        tries: Cell::new(0),
    };
    let sent = bounce(&desk, port, &grant);
    let mut worker = Worker::new();
    let mut turns = Vec::new();
    while turns.last() != Some(&Turn::Idle) {
        turns.push(worker.turn(&slow));
    }
    assert_eq!(
        turns,
        [
            Turn::Wait(Nanos(1)),
            Turn::Wait(Nanos(2)),
            Turn::PagedIn,
            Turn::Told,
            Turn::Wait(Nanos(4)),
            Turn::Wait(Nanos(5)),
            Turn::Told,
            Turn::Ended(ended(port, Status::Ok).expect("ends")),
            Turn::Idle,
        ]
    );
    assert_eq!(answers(&desk), [(sent, Status::Ok)]);
}

// ---- notices ------------------------------------------------------------------------------------

#[test]
fn everything_that_the_card_says_is_heard_in_its_order() {
    let (desk, port, grant) = world();
    let header = write(port, &grant, 17 * PAGE, 8);
    desk.with(|rig| {
        rig.say(NicEvent::PeerUp {
            peer: NodeId(2),
            incarnation: Incarnation(3),
        });
        rig.bounce(Rig::window(PEER, 3), &header);
        rig.say(NicEvent::PeerLost {
            peer: NodeId(2),
            incarnation: Incarnation(3),
        });
    });
    notice::hear(&desk);
    let did = desk.did();
    let told: Vec<_> = did.iter().filter(|did| **did != Did::Progress).collect();
    assert_eq!(
        told,
        [
            &Did::PeerUp(NodeId(2), Incarnation(3)),
            &Did::Work(port.port),
            &Did::PeerDown(NodeId(2)),
        ]
    );
}

#[test]
fn an_import_that_is_taken_back_is_released_and_then_forgotten() {
    let (desk, port, _) = world();
    let (token, export, other) = desk.with(|rig| {
        let other = rig.open();
        rig.register(other, 0, 4);
        let export = rig.export(other, "own", 0, 4, Modes::WRITE);
        let spec = ImportSpec {
            node: NODE,
            port: other.port,
            name: name("own"),
            modes: Modes::WRITE,
            deadline: Nanos::from_millis(50),
            wait: false,
        };
        let token = rig
            .host
            .import(&mut rig.platform, port.port, &spec, rig.now)
            .expect("begins");
        (token, export, other)
    });
    notice::hear(&desk);
    assert_eq!(desk.did(), [Did::Imported(token, None)]);
    desk.with(|rig| {
        let mut unexport = rig.host.unexport_begin(other.port, export).expect("there");
        let _ = rig.host.unexport_step(&mut rig.platform, &mut unexport, rig.now);
    });
    notice::hear(&desk);
    assert!(desk.did().contains(&Did::ImportOver(token)));
    desk.with(|rig| {
        let again = rig.host.unimport(&mut rig.platform, port.port, token, rig.now);
        assert!(again.is_err(), "the core has forgotten it");
    });
}

#[test]
fn a_dead_card_is_named_and_stopped_once() {
    let (desk, port, _) = world();
    let mut begun = desk.with(|rig| {
        rig.map(page_of(port, 17), 900, true).expect("maps");
        let begun = rig.host.unmap_begin(page_of(port, 17), 1, UnmapKind::Remove);
        rig.kill_card();
        begun
    });
    desk.with(|rig| {
        let _ = rig.step(&mut begun, 10);
    });
    notice::hear(&desk);
    let did = desk.did();
    assert_eq!(
        did.iter().filter(|did| **did == Did::Stopped).count(),
        1,
        "{did:?}"
    );
    assert!(
        matches!(did[..], [Did::CardDead(CardFailure::AllOnes), Did::Stopped, ..]),
        "{did:?}"
    );
    unmap::finish(&desk, begun, || unreachable!("a stopped card holds nothing"));
    assert!(matches!(desk.gone()[..], [page] if !page.leaked));
}
