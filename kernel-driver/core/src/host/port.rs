//! Opening and closing ports.

use super::Host;
use crate::Progress;
use crate::card::CardState;
use crate::platform::{PageGone, Platform};
use crate::ports::{OpenPort, Port, PortClose, PortError, State};
use crate::tally::WorkTally;
use netvm_abi::bar::port::{BLOCK_WORDS, DOORBELL, READ_FENCE, TAKEN_FENCE, WRITE_FENCE};
use netvm_abi::event::HostEvent;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::port_area::{AREA_WORDS, PORT_GENERATION, PORT_STATE, READS_DONE, TAKEN, WRITES_DONE};
use netvm_abi::storage::Storage;
use netvm_abi::words::SharedWords;
use netvm_abi::{Generation, Nanos, PortId, Status, WordIndex};

/// Pieces of queued work refused in one step.
const REFUSE_SLICE: u32 = 64;

impl<S: Storage> Host<S> {
    pub(crate) fn open_generation(&self, port: PortId) -> Option<Generation> {
        let entry = self.ports.get(port.index())?;
        (entry.state == State::Open).then_some(entry.generation)
    }

    pub(crate) fn port_is_open(&self, port: PortId) -> bool {
        self.open_generation(port).is_some()
    }

    /// Opens a port: a given one, or the lowest free one that is not reserved
    /// ([`HostConfig::reserved_ports`](crate::attach::HostConfig::reserved_ports)). Clears its block in NIC memory and its
    /// area in shared memory, and tells the NIC.
    ///
    /// # Errors
    /// [`PortError`].
    pub fn port_open<P: Platform>(
        &mut self,
        platform: &mut P,
        wanted: Option<PortId>,
    ) -> Result<OpenPort, PortError> {
        // While no port was open, the driver has not looked at the card.
        if !self.is_alive() || !self.is_same_firmware(platform) {
            return Err(PortError::CardGone);
        }
        let number = match wanted {
            Some(port) if port == PortId::DRIVER || port.index() >= self.ports.len() => {
                return Err(PortError::NoSuchPort);
            }
            Some(port) if self.ports.get(port.index()).is_some_and(Port::is_free) => port,
            Some(_) => return Err(PortError::InUse),
            None => {
                let first = self.config.reserved_ports.saturating_add(1);
                self.numbers.lowest_free(first).ok_or(PortError::AllInUse)?
            }
        };
        let entry = self.ports.get_mut(number.index()).ok_or(PortError::NoSuchPort)?;
        let generation = Generation(entry.generation.0.wrapping_add(1));
        entry.state = State::Open;
        entry.generation = generation;
        entry.nic_closed = false;
        entry.waiting_since = None;
        entry.tally = WorkTally::default();
        self.numbers.take(number);
        // The NIC touches neither while the port is closed.
        let counts_from = self.config.counts_from;
        let block = self.bar_map.port(number);
        if !mutant::is(Mutant::BlockKept) {
            prepare(platform.bar(), (block, BLOCK_WORDS), &BLOCK_COUNTS, counts_from);
        }
        let area = self.shared_map.port_area(number);
        prepare(platform.shared(), (area, AREA_WORDS), &AREA_COUNTS, counts_from);
        platform
            .shared()
            .store_release(area.plus(PORT_GENERATION.0), generation.0);
        self.counters.ports_opened += 1;
        self.post(
            platform,
            &HostEvent::PortOpen {
                port: number,
                generation,
                counts_from,
            },
        );
        Ok(OpenPort {
            port: number,
            generation,
        })
    }

    /// Begins to close a port, also one whose process has died: nothing new is accepted for it.
    ///
    /// # Errors
    /// [`PortError::NoSuchPort`] when it is not open in this generation.
    pub fn port_close_begin<P: Platform>(
        &mut self,
        platform: &mut P,
        port: OpenPort,
    ) -> Result<PortClose, PortError> {
        let entry = self
            .ports
            .get_mut(port.port.index())
            .filter(|entry| entry.generation == port.generation && entry.state == State::Open)
            .ok_or(PortError::NoSuchPort)?;
        entry.state = State::Closing;
        // A process that still looks learns why its port ends.
        let status = if self.is_alive() {
            Status::NoSuchPort
        } else {
            Status::CardGone
        };
        self.mark_area(platform, port.port, status);
        self.post(
            platform,
            &HostEvent::PortClose {
                port: port.port,
                generation: port.generation,
            },
        );
        if mutant::is(Mutant::DeadPageStaysMapped) {
            self.lose_a_page(port.port);
        }
        Ok(PortClose { port })
    }

    fn mark_area<P: Platform>(&self, platform: &mut P, port: PortId, status: Status) {
        let at = self.shared_map.port_area(port).plus(PORT_STATE.0);
        platform.shared().store_release(at, u32::from(status.code()));
    }

    /// Goes on closing it: refuses its queued work, releases its imports, revokes its grants, unmaps
    /// its pages (at most `budget` of them in this step, each told to `gone`), waits for the NIC and
    /// for paging workers. When done, the number may be opened again.
    pub fn port_close_step<P: Platform>(
        &mut self,
        platform: &mut P,
        close: &mut PortClose,
        now: Nanos,
        budget: u32,
        gone: &mut impl FnMut(PageGone),
    ) -> Progress {
        let port = close.port.port;
        let generation = close.port.generation;
        let ours = |entry: &&mut Port| entry.generation == generation && entry.state == State::Closing;
        if self.ports.get_mut(port.index()).filter(ours).is_none() {
            return Progress::Done;
        }
        for _ in 0..REFUSE_SLICE {
            if !self.refuse_one(platform, port, Status::NoSuchPort, now) {
                break;
            }
        }
        let imports_gone = self.end_imports(platform, port, now);
        if let Some((_, segment, _, _)) = self.segments.first_in(port, 0) {
            return match self.end_segment(platform, segment, now, budget, gone) {
                Progress::Wait => Progress::Wait,
                Progress::Again | Progress::Done => Progress::Again,
            };
        }
        let stopped = matches!(self.card, CardState::Stopped { .. });
        let Some(entry) = self.ports.get_mut(port.index()) else {
            return Progress::Done;
        };
        if !entry.queue.is_empty() {
            return Progress::Again;
        }
        if !imports_gone || entry.in_hand > 0 {
            return Progress::Wait;
        }
        if !entry.nic_closed && !stopped {
            // `poll` judges it, since only `poll` knows that the ring does not hold the answer.
            if entry.waiting_since.is_none() {
                entry.waiting_since = Some(self.watch.wait_for_answer());
                self.closing.push_back(&mut self.ports, u32::from(port.0));
            }
            return Progress::Wait;
        }
        entry.state = State::Free;
        self.closing.remove(&mut self.ports, u32::from(port.0));
        self.awaited.remove(&mut self.ports, u32::from(port.0));
        self.numbers.give(port);
        self.counters.ports_closed += 1;
        Progress::Done
    }

    /// The NIC has nothing of a closed port any more. False: no such port is closing.
    pub(crate) fn port_closed(&mut self, port: PortId, generation: Generation) -> bool {
        let closing = self
            .ports
            .get_mut(port.index())
            .filter(|entry| entry.generation == generation && entry.state == State::Closing);
        match closing {
            Some(entry) => {
                entry.nic_closed = true;
                self.closing.remove(&mut self.ports, u32::from(port.0));
                true
            }
            None => false,
        }
    }

    /// The card is dead: every port ends with that status, and what is queued goes.
    pub(crate) fn fail_ports<P: Platform>(&mut self, platform: &mut P, now: Nanos) {
        for port in 1..self.ports.len() as u16 {
            let port = PortId(port);
            if self.port_is_open(port) {
                self.mark_area(platform, port, Status::CardGone);
            }
            while self.refuse_one(platform, port, Status::CardGone, now) {}
        }
    }
}

/// Words that are stored in one go.
const CHUNK: usize = 64;
/// Words of a port's block that count its commands.
const BLOCK_COUNTS: [WordIndex; 4] = [DOORBELL, WRITE_FENCE, READ_FENCE, TAKEN_FENCE];
/// Words of a port's area that do.
const AREA_COUNTS: [WordIndex; 3] = [TAKEN, WRITES_DONE, READS_DONE];

const _: () = assert!(BLOCK_WORDS.is_multiple_of(CHUNK as u32) && AREA_WORDS.is_multiple_of(CHUNK as u32));

/// Prepares words for a port's next owner: `counts`, all in the first chunk, stand at `counts_from`, the others at 0. Each
/// is stored once: a doorbell that stood at 0 for a moment would say something else.
fn prepare<W: SharedWords + ?Sized>(
    words: &W,
    (from, len): (WordIndex, u32),
    counts: &[WordIndex],
    counts_from: u32,
) {
    let mut chunk = [0; CHUNK];
    for count in counts {
        if let Some(word) = chunk.get_mut(count.index()) {
            *word = counts_from;
        }
    }
    for first in (0..len).step_by(CHUNK) {
        words.store_slice(from.plus(first), &chunk);
        chunk = [0; CHUNK];
    }
}
