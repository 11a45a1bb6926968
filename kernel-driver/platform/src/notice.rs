//! What the card says, and what becomes of it.
//!
//! [`hear`] takes the lock for each event of the card, and acts on a notice after it has released the lock: a handler may
//! take it again. So between a notice and its handler other threads may call the core. The core allows for that: `Work`
//! says that there may be work, an import's token names one import only, and stopping a card that was stopped does
//! nothing.

use crate::System;
use netvm_abi::control::Grant;
use netvm_abi::{Incarnation, NodeId, PortId, Status, Token};
use netvm_host::events::Notice;
use netvm_host::host::CardFailure;

/// What a platform does about a notice. Called without the lock.
pub trait Handler: System {
    /// Wakes a port's paging worker.
    fn work(&self, port: PortId);

    /// Notes how an import ended, and wakes its caller, if it still waits.
    fn imported(&self, port: PortId, import: Token, result: Result<Grant, Status>);

    /// Forgets an import: its exporter has taken it back, and the core has forgotten it.
    fn import_over(&self, port: PortId, import: Token) {
        let _ = (port, import);
    }

    /// The link to a peer is up.
    fn peer_up(&self, peer: NodeId, incarnation: Incarnation);

    /// The link to a peer is down.
    fn peer_down(&self, peer: NodeId);

    /// The card is dead, and is stopped next.
    fn card_dead(&self, cause: CardFailure) {
        let _ = cause;
    }

    /// Steps that wait may go on.
    fn progress(&self);
}

/// Acts on a notice.
pub fn take<T: Handler + ?Sized>(handler: &T, notice: Notice) {
    match notice {
        Notice::Work(port) => handler.work(port),
        Notice::Imported { port, import, result } => handler.imported(port, import, result),
        Notice::ImportRevoked { port, import } => {
            // The process may have released it meanwhile, or the port has ended: then there is nothing to release.
            let _ = handler.call(|host, platform, now| host.unimport(platform, port, import, now));
            handler.import_over(port, import);
        }
        Notice::PeerUp { peer, incarnation } => handler.peer_up(peer, incarnation),
        Notice::PeerDown { peer } => handler.peer_down(peer),
        Notice::CardDead(cause) => {
            handler.card_dead(cause);
            handler.stop_card();
        }
        Notice::Progress => handler.progress(),
    }
}

/// Takes everything that the card has said, and does what is due.
pub fn hear<T: Handler + ?Sized>(handler: &T) {
    while let Some(notice) = handler
        .call(|host, platform, now| host.poll(platform, now))
        .flatten()
    {
        take(handler, notice);
    }
}
