//! Taking the NIC's events, and what is due.

use super::Host;
use crate::card::CardState;
use crate::control::Purpose;
use crate::events::Notice;
use crate::leases::LeaseId;
use crate::platform::Platform;
use netvm_abi::event::NicEvent;
use netvm_abi::storage::Storage;
use netvm_abi::{Nanos, NodeId, Status};

/// Events in a row that one call takes, if none concerns the platform: the caller's lock may be let go in between
/// (promise P7).
const EVENTS_AT_A_TIME: u32 = 16;

impl<S: Storage> Host<S> {
    /// Takes the NIC's events until one concerns the platform, and does what is due. Judges the card
    /// last, when the ring is empty: an answer in the ring is in time, however late the host comes.
    pub fn poll<P: Platform>(&mut self, platform: &mut P, now: Nanos) -> Option<Notice> {
        self.grants.may_tell = true;
        for _ in 0..EVENTS_AT_A_TIME {
            let more = self.do_what_is_due(platform, now);
            if let Some(notice) = self.untold(platform, now) {
                return Some(notice);
            }
            if more {
                // The rest of a slice: the lock may be let go in between.
                return Some(Notice::Progress);
            }
            if !self.is_alive() {
                return None;
            }
            let Some(words) = self.from_nic.pop(platform.shared(), platform.bar()) else {
                self.judge(platform, now);
                return self.untold(platform, now);
            };
            self.counters.nic_events += 1;
            let notice = match NicEvent::decode(&words) {
                Some(event) => self.handle_event(platform, event, now),
                None => {
                    self.counters.nic_events_bad += 1;
                    None
                }
            };
            if notice.is_some() {
                return notice;
            }
        }
        Some(Notice::Progress)
    }

    /// When `poll` must be called again even if no interrupt comes; [`Nanos::MAX`]: never. Ask again
    /// after `port_open`, since the card is watched only while a port is open, and after a `*_step`,
    /// which may have found it dead.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        if self.death_untold || !self.imports.news.is_empty() {
            return Nanos(0);
        }
        if !self.is_alive() {
            return Nanos::MAX;
        }
        self.imports.due().min(self.watch_due()).min(self.pages_due())
    }

    fn do_what_is_due<P: Platform>(&mut self, platform: &mut P, now: Nanos) -> bool {
        let imports = self.imports_due(platform, now);
        self.leave(platform, now);
        if self.grants.untold > 0 {
            self.tell_holders(platform);
        }
        let peers = self.is_alive() && self.release_first(platform, now);
        let pages = self.look_at_workers(platform, now);
        imports || peers || pages
    }

    fn untold<P: Platform>(&mut self, platform: &mut P, now: Nanos) -> Option<Notice> {
        if core::mem::replace(&mut self.death_untold, false)
            && let CardState::Dead(cause) = self.card
        {
            self.end_everything(platform, now);
            return Some(Notice::CardDead(cause));
        }
        self.import_news()
    }

    /// The card is dead: no port or import may wait for it any more.
    pub(crate) fn end_everything<P: Platform>(&mut self, platform: &mut P, now: Nanos) {
        self.refuse_asking(platform, now);
        self.fail_ports(platform, now);
        self.all_imports_lost();
    }

    fn handle_event<P: Platform>(&mut self, platform: &mut P, event: NicEvent, now: Nanos) -> Option<Notice> {
        let done = match event {
            NicEvent::Bounced { bounce, generation } => {
                return self.bounced(platform, bounce, generation, None, now);
            }
            NicEvent::AtomicMiss {
                bounce,
                generation,
                attempt,
            } => return self.bounced(platform, bounce, generation, Some(attempt), now),
            NicEvent::SourceMiss {
                staging,
                generation,
                vpn,
                offset,
                len,
                attempt,
            } => return self.source_missed(platform, staging, generation, vpn, offset, len, attempt, now),
            NicEvent::PeerReset { peer, incarnation } if self.is_peer(peer) => {
                return self.peer_over(platform, peer, incarnation, false, now);
            }
            NicEvent::PeerLost { peer, incarnation } if self.is_peer(peer) => {
                return self.peer_over(platform, peer, incarnation, true, now);
            }
            NicEvent::PeerUp { peer, incarnation } if self.is_peer(peer) => {
                return self.peer_up(peer, incarnation, now);
            }
            NicEvent::PeerReset { .. } | NicEvent::PeerLost { .. } | NicEvent::PeerUp { .. } => false,
            NicEvent::LeaseLeft {
                slot,
                generation,
                token,
                left,
            } => {
                let lease = LeaseId { slot, generation };
                return self.lease_left(platform, lease, token, left, now);
            }
            NicEvent::BarrierDone { token } => self.barrier_done(platform, token, now),
            NicEvent::PortClosed { port, generation } => self.port_closed(port, generation),
            NicEvent::ControlSent { token, status } => match self.control.give_back(token) {
                Some(purpose) => {
                    if status != Status::Ok {
                        self.counters.control_failed += 1;
                        if let Purpose::Request(import) = purpose {
                            self.request_failed(platform, import, status, now);
                        }
                    }
                    true
                }
                None => false,
            },
        };
        if done {
            return Some(Notice::Progress);
        }
        self.counters.nic_events_bad += 1;
        None
    }

    fn is_peer(&self, peer: NodeId) -> bool {
        peer.index() < self.peers.len()
    }
}
