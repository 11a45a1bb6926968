//! A host core behind a lock that knows whether it is held, and notes of everything that the steps ask of their platform.

use netvm_abi::control::{Grant, Modes};
use netvm_abi::{Incarnation, Nanos, NodeId, PortId, Status, Token, Vpn};
use netvm_host::Host;
use netvm_host::host::CardFailure;
use netvm_host::platform::{Access, Direction, PageGone};
use netvm_host::ports::OpenPort;
use netvm_host_platform::System;
use netvm_host_platform::notice::Handler;
use netvm_kit::Heap;
use netvm_kit::host::{Fake, PEER, Stand};
use std::cell::{Cell, RefCell};

/// What the steps did, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Did {
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
pub(super) struct Desk {
    pub(super) stand: RefCell<Option<Stand>>,
    pub(super) locked: Cell<bool>,
    pub(super) did: RefCell<Vec<Did>>,
}

impl Desk {
    pub(super) fn new(stand: Stand) -> Self {
        Self {
            stand: RefCell::new(Some(stand)),
            locked: Cell::new(false),
            did: RefCell::default(),
        }
    }

    pub(super) fn with<R>(&self, call: impl FnOnce(&mut Stand) -> R) -> R {
        call(self.stand.borrow_mut().as_mut().expect("a core"))
    }

    pub(super) fn note(&self, locked: bool, did: Did) {
        assert_eq!(self.locked.get(), locked, "{did:?}");
        self.did.borrow_mut().push(did);
    }

    pub(super) fn did(&self) -> Vec<Did> {
        self.did.take()
    }

    pub(super) fn gone(&self) -> Vec<PageGone> {
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
        let mut stand = self.stand.borrow_mut();
        let result = stand
            .as_mut()
            .map(|stand| call(&mut stand.host, &mut stand.platform, stand.now));
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
pub(super) fn world() -> (Desk, OpenPort, Grant) {
    let mut stand = Stand::new();
    let port = stand.open();
    stand.register(port, 16, 16);
    stand.export(port, "data", 16, 16, Modes::all());
    stand.link_up(PEER);
    let modes = Modes::all() - Modes::READ;
    let grant = stand.granted(PEER, PortId(2), port, "data", modes, 1);
    stand.heard();
    (Desk::new(stand), port, grant.expect("granted"))
}
