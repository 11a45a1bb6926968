//! The NIC's side of the words: what it tells the host, and hears.

use super::{LINK, NODE, Stand};
use netvm_abi::bounce::{BounceUse, store_record};
use netvm_abi::control::{CONTROL_BYTES, CONTROL_WORDS, Control};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::page_lock::{self, LockedPage, Miss, Used};
use netvm_abi::wire::{Header, Kind};
use netvm_abi::words::SharedWords;
use netvm_abi::*;
use netvm_host::events::Notice;
use netvm_host::paging::WorkId;

impl Stand {
    /// The NIC tells the host something.
    ///
    /// # Panics
    /// The ring is full.
    pub fn say(&mut self, event: NicEvent) {
        assert!(
            self.to_host
                .push(&*self.platform.shared, &*self.platform.bar, &event.encode())
        );
    }

    /// The same with any words.
    ///
    /// # Panics
    /// The ring is full.
    pub fn say_words(&mut self, words: [u32; 8]) {
        assert!(
            self.to_host
                .push(&*self.platform.shared, &*self.platform.bar, &words)
        );
    }

    /// Takes what the host said; answers what an obliging NIC answers at once.
    pub fn serve(&mut self) -> bool {
        let mut any = false;
        while let Some(words) = self.from_host.pop(&*self.platform.bar, &*self.platform.shared) {
            any = true;
            let event = HostEvent::decode(&words).expect("the host speaks the ABI");
            match event {
                HostEvent::Barrier { token } if self.obliging => self.say(NicEvent::BarrierDone { token }),
                HostEvent::PortClose { port, generation } if self.obliging => {
                    self.say(NicEvent::PortClosed { port, generation });
                }
                HostEvent::SendControl { token, slot, peer } if self.obliging => {
                    self.heard.push(HostEvent::SendControl { token, slot, peer });
                    self.say(NicEvent::ControlSent {
                        token,
                        status: Status::Ok,
                    });
                }
                event => self.heard.push(event),
            }
        }
        any
    }

    /// What the host told the NIC since the last call.
    pub fn heard(&mut self) -> Vec<HostEvent> {
        self.serve();
        std::mem::take(&mut self.heard)
    }

    /// The control messages that the host has sent since the last call.
    pub fn sent(&mut self) -> Vec<(NodeId, Control)> {
        let heard = self.heard();
        heard.iter().filter_map(|event| self.control_of(event)).collect()
    }

    /// The control message that this event sends.
    ///
    /// # Panics
    /// It is not of the ABI.
    #[must_use]
    pub fn control_of(&self, event: &HostEvent) -> Option<(NodeId, Control)> {
        let HostEvent::SendControl { peer, slot, .. } = *event else {
            return None;
        };
        let mut words = [0; CONTROL_WORDS];
        self.platform
            .shared
            .load_slice(self.map.control_slot(slot), &mut words);
        Some((peer, Control::decode(&words).expect("the host speaks the ABI")))
    }

    /// Polls until nothing is left, with the NIC answering.
    pub fn poll(&mut self) -> Vec<Notice> {
        let mut notices = Vec::new();
        loop {
            let before = notices.len();
            while let Some(notice) = self.host.poll(&mut self.platform, self.now) {
                notices.push(notice);
                assert!(notices.len() < 10_000, "poll does not end");
            }
            if !self.serve() && notices.len() == before {
                return notices;
            }
        }
    }

    /// Time passes on a card that works and says nothing, while the host looks each half millisecond.
    pub fn card_runs(&mut self, millis: u64) -> Vec<Notice> {
        let mut notices = Vec::new();
        for _ in 0..millis * 2 {
            self.now = self.now.after(Nanos::from_micros(500));
            self.beat();
            notices.extend(self.poll());
        }
        notices
    }

    /// The card's loop moves.
    pub fn beat(&mut self) {
        self.beats += 1;
        self.platform
            .shared
            .store_release(shared_map::status_page::HEARTBEAT, self.beats);
    }

    /// Time passes while the host looks when it wants to and finds the same heartbeat.
    pub fn card_stands_still(&mut self, millis: u64) -> Vec<Notice> {
        let end = self.now.after(Nanos::from_millis(millis));
        let mut notices = Vec::new();
        while self.now < end {
            self.now = self.host.next_deadline().max(self.now.after(Nanos(1))).min(end);
            notices.extend(self.poll());
        }
        notices
    }

    /// The NIC locks a page.
    ///
    /// # Errors
    /// It is not there, or not writable.
    pub fn lock(&self, vpn: Vpn, write: bool) -> Result<LockedPage, Miss> {
        page_lock::lock_page(&*self.platform.bar, &self.table, vpn, write)
    }

    /// The NIC unlocks it.
    pub fn unlock(&self, page: LockedPage, used: Used) {
        page_lock::unlock_page(&*self.platform.bar, &self.table, page.slot, used);
    }

    /// The NIC bounces a message; returns where and which use.
    pub fn bounce(&mut self, place: BounceUse, header: &Header) -> WorkId {
        let bounce = place.id(self.host.geometry());
        self.generation += 1;
        let generation = Generation(self.generation);
        store_record(&*self.platform.shared, self.map.bounce_record(bounce), header);
        self.say(NicEvent::Bounced { bounce, generation });
        WorkId { bounce, generation }
    }

    /// The NIC misses the operand of an atomic.
    pub fn atomic_miss(&mut self, place: BounceUse, header: &Header, attempt: u8) -> WorkId {
        let bounce = place.id(self.host.geometry());
        self.generation += 1;
        let generation = Generation(self.generation);
        store_record(&*self.platform.shared, self.map.bounce_record(bounce), header);
        self.say(NicEvent::AtomicMiss {
            bounce,
            generation,
            attempt,
        });
        WorkId { bounce, generation }
    }

    /// A slot of the window that a peer has: the one with its number.
    #[must_use]
    pub fn window(peer: NodeId, slot: u16) -> BounceUse {
        let window = peer.0;
        BounceUse::Window { window, slot }
    }

    /// The NIC misses a source page.
    pub fn source_miss(&mut self, staging: u16, vpn: Vpn, len: u32, attempt: u8) -> WorkId {
        self.generation += 1;
        let generation = Generation(self.generation);
        self.say(NicEvent::SourceMiss {
            staging: StagingId(staging),
            generation,
            vpn,
            offset: PageOffset(0),
            len: ByteLen(len),
            attempt,
        });
        let bounce = BounceUse::Source(StagingId(staging)).id(self.host.geometry());
        WorkId { bounce, generation }
    }

    /// A control message arrives.
    pub fn control(&mut self, from: NodeId, slot: u16, message: &Control) -> WorkId {
        let place = Self::window(from, slot);
        let bounce = place.id(self.host.geometry());
        self.platform.bounce.insert(bounce, message.encode().to_vec());
        let mut header = Header::new(Kind::Control, from, NODE);
        header.len = CONTROL_BYTES as u16;
        self.bounce(place, &header)
    }

    /// A peer's link comes up.
    pub fn link_up(&mut self, peer: NodeId) {
        self.say(NicEvent::PeerUp {
            peer,
            incarnation: LINK,
        });
        self.poll();
    }
}
