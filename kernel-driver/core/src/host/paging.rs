//! What a paging worker asks and tells the host.

use super::Host;
use crate::bounce::{State, WorkKind};
use crate::paging::{WorkId, WorkStep};
use crate::platform::{Access, CopyEnd, CopyJob, Direction, PageGone, Platform, Resident};
use crate::shadow::{MapError, Mapped};
use netvm_abi::atomic::{OPERAND_BYTES, operand_of};
use netvm_abi::event::{AtomicAnswer, HostEvent, SourceAnswer};
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::storage::Storage;
use netvm_abi::words::split;
use netvm_abi::{BounceId, Nanos, PortId, Status, Vpn};

/// Races that a piece of work may lose before it is done without mapping.
const RACES: u8 = 3;
/// Evictions between page in and copy before the page counts as not to be had.
const EVICTIONS: u8 = 32;
/// Tries of the NIC after which a source is copied.
const ATTEMPTS: u8 = 3;

impl<S: Storage> Host<S> {
    /// Takes a port's next piece of work, if it has any. Work that must be refused is answered at once, and is a step of
    /// its own: a port may have windows full of it, and the driver is held during a step (promise P7).
    pub fn work_next<P: Platform>(&mut self, platform: &mut P, port: PortId, now: Nanos) -> Option<WorkStep> {
        let index = self
            .ports
            .get_mut(port.index())?
            .queue
            .pop_front(&mut self.work)?;
        let segment = match self.authorise(index, now) {
            Ok(segment) => segment,
            Err(status) => {
                self.worker_moves(port);
                let status = match self.refusal(index, status) {
                    Ok(lease) => return Some(self.ask_for_work(platform, index, lease, now)),
                    Err(status) => status,
                };
                self.count_refused(index);
                self.answer(platform, index, status, now);
                return Some(WorkStep::Ended { status });
            }
        };
        if let Some(work) = self.work.get_mut(index as usize) {
            work.near = Some(segment);
        }
        if let Some(port) = self.ports.get_mut(port.index()) {
            port.in_hand += 1;
        }
        Some(self.page_in(index, now))
    }

    /// Takes back what workers of a port page in, and refuses it with [`Status::NoSuchPort`]. A page may never come: its
    /// file's server may be silent, or be the process that ends. The platform calls this while it closes the port, before
    /// each [`port_close_step`](Self::port_close_step), and from then on calls
    /// [`work_paged`](Self::work_paged) for this port no more. A copy that is under way is not taken back: its worker
    /// comes with [`work_copied`](Self::work_copied), and the closing waits for that.
    pub fn work_abandon<P: Platform>(&mut self, platform: &mut P, port: PortId, now: Nanos) {
        while let Some(index) = self.ports.get(port.index()).and_then(|port| port.paging.first()) {
            self.count_refused(index);
            let _ = self.finish(platform, index, Status::NoSuchPort, now);
        }
    }

    /// Whether a port has work that no worker has taken.
    #[must_use]
    pub fn has_work(&self, port: PortId) -> bool {
        self.ports
            .get(port.index())
            .is_some_and(|port| !port.queue.is_empty())
    }

    /// The longest that a piece of work has waited for its answer so far: to be held against T.
    #[must_use]
    pub const fn slowest_answer(&self) -> Nanos {
        self.slowest_answer
    }

    /// The page was paged in, or why not: [`Status::Unmapped`], [`Status::ReadOnly`],
    /// [`Status::NoMemory`], [`Status::BusError`] or [`Status::NoSuchPort`]. A page that was
    /// displaced from the NIC's table on the way is told to `gone`.
    ///
    /// `None` is a page that is there, but that the card cannot reach: its bytes are copied, and it is not mapped.
    pub fn work_paged<P: Platform>(
        &mut self,
        platform: &mut P,
        id: WorkId,
        result: Result<Option<Resident>, Status>,
        now: Nanos,
        gone: &mut impl FnMut(PageGone),
    ) -> WorkStep {
        let Some(index) = self.in_hand(id, State::Paging) else {
            return WorkStep::Ended {
                status: Status::StaleIncarnation,
            };
        };
        let Some(work) = self.work.get_mut(index as usize) else {
            return WorkStep::Ended {
                status: Status::StaleIncarnation,
            };
        };
        let (kind, copied, attempt) = (work.kind, work.copied, work.attempt);
        match result {
            // The data is there; only the mapping is not.
            Err(_) if copied => self.finish(platform, index, Status::Ok, now),
            Err(status) => {
                self.count_failed(index);
                self.finish(platform, index, status, now)
            }
            Ok(None) => {
                self.counters.pages_unreachable += 1;
                if copied {
                    self.counters.bounce_unmapped += 1;
                    return self.finish(platform, index, Status::Ok, now);
                }
                self.copy(platform, index, now)
            }
            Ok(Some(page)) => {
                work.resident = Some(page);
                if copied {
                    return self.map_copied(platform, index, now, gone);
                }
                if mutant::is(Mutant::BouncedUncopied) && kind == WorkKind::Write {
                    return self.finish(platform, index, Status::Ok, now);
                }
                let tried_by_nic = matches!(kind, WorkKind::Source | WorkKind::Atomic);
                if !tried_by_nic || attempt >= ATTEMPTS {
                    return self.copy(platform, index, now);
                }
                // The card tries again, and knows the end of a lease.
                if let Err(status) = self.authorise(index, now)
                    && let Err(status) = self.refusal(index, status)
                {
                    self.count_refused(index);
                    return self.finish(platform, index, status, now);
                }
                match self.map_work(platform, index, gone) {
                    Ok(()) => {
                        match kind {
                            WorkKind::Atomic => self.counters.atomics_mapped += 1,
                            _ => self.counters.source_mapped += 1,
                        }
                        self.finish(platform, index, Status::Ok, now)
                    }
                    Err(MapError::Raced) if self.may_race_again(index) => self.page_in(index, now),
                    Err(_) => self.copy(platform, index, now),
                }
            }
        }
    }

    /// The copy has ended. A page that was displaced from the NIC's table on the way is told to
    /// `gone`.
    pub fn work_copied<P: Platform>(
        &mut self,
        platform: &mut P,
        id: WorkId,
        end: CopyEnd,
        now: Nanos,
        gone: &mut impl FnMut(PageGone),
    ) -> WorkStep {
        let Some(index) = self.in_hand(id, State::Copying) else {
            return WorkStep::Ended {
                status: Status::StaleIncarnation,
            };
        };
        self.end_copy(index);
        self.reap();
        let Some(work) = self.work.get_mut(index as usize) else {
            return WorkStep::Ended {
                status: Status::StaleIncarnation,
            };
        };
        let end = match end {
            CopyEnd::Evicted if mutant::is(Mutant::EvictedCopyDone) => CopyEnd::Done,
            end => end,
        };
        match end {
            CopyEnd::Applied(result) => {
                work.result = Some(result);
                work.copied = true;
                self.counters.atomics_done += 1;
                self.finish(platform, index, Status::Ok, now)
            }
            CopyEnd::Done if work.kind == WorkKind::Atomic => self.operand_copied(platform, index, now),
            CopyEnd::Done if work.kind == WorkKind::Source => {
                work.copied = true;
                self.counters.source_copied += 1;
                self.finish(platform, index, Status::Ok, now)
            }
            CopyEnd::Done => {
                work.copied = true;
                self.counters.bounce_copied += 1;
                self.counters.bounce_bytes += u64::from(work.len.0);
                self.map_copied(platform, index, now, gone)
            }
            CopyEnd::Evicted => {
                self.counters.copies_evicted += 1;
                work.evictions = work.evictions.saturating_add(1);
                if work.evictions < EVICTIONS {
                    return self.page_in(index, now);
                }
                self.count_failed(index);
                self.finish(platform, index, Status::NoMemory, now)
            }
            CopyEnd::Failed(status) => {
                self.count_failed(index);
                self.finish(platform, index, status, now)
            }
        }
    }

    /// The work in a worker's hands, if it is in that state.
    fn in_hand(&self, id: WorkId, state: State) -> Option<u32> {
        let work = self.work.get(id.bounce.index())?;
        (work.generation == id.generation && work.state == state).then_some(id.bounce.0)
    }

    /// Looks at the page events and asks for the page.
    fn page_in(&mut self, index: u32, now: Nanos) -> WorkStep {
        let (near, vpn) = self
            .work
            .get(index as usize)
            .map_or((None, Vpn::from_raw(0)), |work| (work.near, work.vpn));
        let ticket = self.map_begin_near(near, vpn).ok();
        let Some(work) = self.work.get_mut(index as usize) else {
            return WorkStep::Ended {
                status: Status::StaleIncarnation,
            };
        };
        work.state = State::Paging;
        work.ticket = ticket;
        work.resident = None;
        let port = work.port;
        let step = WorkStep::PageIn {
            id: WorkId {
                bounce: BounceId(index),
                generation: work.generation,
            },
            vpn,
            access: match work.kind {
                WorkKind::Source => Access::Read,
                WorkKind::Write | WorkKind::Reply | WorkKind::Atomic => Access::Write,
            },
        };
        if let Some(port) = self.ports.get_mut(port.index()) {
            port.paging.push_back(&mut self.work, index);
            port.looks = 0;
        }
        self.has_page_work(port, now);
        step
    }

    /// Checks once more, then lets the worker copy.
    fn copy<P: Platform>(&mut self, platform: &mut P, index: u32, now: Nanos) -> WorkStep {
        let segment = match self.authorise(index, now) {
            Ok(segment) => segment,
            Err(status) => return self.no_copy(platform, index, status, now),
        };
        let Some(work) = self.work.get_mut(index as usize) else {
            return WorkStep::Ended {
                status: Status::StaleIncarnation,
            };
        };
        work.state = State::Copying;
        work.segment = Some(segment);
        // The processor changes a number; a queue block is more than it changes at once.
        let in_place = work
            .atomic
            .filter(|atomic| platform.applies_atomics() && atomic.operand_bytes() <= 8);
        let (grant, port) = (work.grant(), work.port);
        let step = WorkStep::Copy {
            id: WorkId {
                bounce: BounceId(index),
                generation: work.generation,
            },
            job: CopyJob {
                bounce: BounceId(index),
                vpn: work.vpn,
                offset: work.offset,
                len: work.len,
                direction: match work.kind {
                    WorkKind::Source => Direction::OutOfPage,
                    WorkKind::Atomic => match in_place {
                        Some(atomic) => Direction::Apply(atomic),
                        None if work.result.is_none() => Direction::OutOfPage,
                        None => Direction::IntoPage,
                    },
                    WorkKind::Write | WorkKind::Reply => Direction::IntoPage,
                },
            },
        };
        if let Some(port) = self.ports.get_mut(port.index()) {
            port.paging.remove(&mut self.work, index);
        }
        self.worker_moves(port);
        self.segment_in_hand(segment, true);
        if let Some(slot) = grant {
            self.grant_in_hand(slot, true);
        }
        step
    }

    /// What was paged in for may not be copied; or not before the card has said whether its lease is over, because the page came late.
    #[cold]
    fn no_copy<P: Platform>(&mut self, platform: &mut P, index: u32, status: Status, now: Nanos) -> WorkStep {
        match self.refusal(index, status) {
            Ok(lease) => {
                if let Some(port) = self.put_down(index) {
                    self.worker_moves(port);
                }
                self.ask_for_work(platform, index, lease, now)
            }
            Err(status) => {
                self.count_refused(index);
                self.finish(platform, index, status, now)
            }
        }
    }

    /// An atomic's operand has been copied out of its page, or back into it.
    fn operand_copied<P: Platform>(&mut self, platform: &mut P, index: u32, now: Nanos) -> WorkStep {
        let Some(work) = self.work.get_mut(index as usize) else {
            return WorkStep::Ended {
                status: Status::StaleIncarnation,
            };
        };
        let mut stored = work.result.is_some();
        if !stored && let Some(atomic) = work.atomic {
            let mut words = [0; OPERAND_BYTES / 4];
            if let Some(words) = words.get_mut(..work.len.index().div_ceil(4)) {
                platform.load_bounce(BounceId(index), words);
            }
            let mut operand = operand_of(&words);
            let (result, changed) = atomic.apply(&mut operand);
            if mutant::is(Mutant::AtomicDoneTwice) {
                let _ = atomic.apply(&mut operand);
            }
            work.result = Some(result);
            platform.store_bounce(BounceId(index), operand.map(split).as_flattened());
            stored = !changed;
        }
        if !stored {
            return self.copy(platform, index, now);
        }
        work.copied = true;
        self.counters.atomics_done += 1;
        self.finish(platform, index, Status::Ok, now)
    }

    fn end_copy(&mut self, index: u32) {
        let Some(work) = self.work.get_mut(index as usize) else {
            return;
        };
        let (segment, grant) = (work.segment.take(), work.grant());
        if let Some(segment) = segment {
            self.segment_in_hand(segment, false);
        }
        if let Some(slot) = grant {
            self.grant_in_hand(slot, false);
        }
    }

    fn may_race_again(&mut self, index: u32) -> bool {
        let Some(work) = self.work.get_mut(index as usize) else {
            return false;
        };
        work.races = work.races.saturating_add(1);
        let again = work.races < RACES && !work.orphan;
        self.counters.paging_retries += u64::from(again);
        again
    }

    fn map_work<P: Platform>(
        &mut self,
        platform: &mut P,
        index: u32,
        gone: &mut impl FnMut(PageGone),
    ) -> Result<(), MapError> {
        let work = self.work.get(index as usize).ok_or(MapError::Raced)?;
        // Without an address of the card there is nothing to map, however often the page is asked for.
        let page = work.resident.ok_or(MapError::Busy)?;
        let ticket = work.ticket.ok_or(MapError::Raced)?;
        let Mapped { displaced } = self.map_commit(platform, ticket, page)?;
        if let Some(page) = displaced {
            gone(page);
        }
        Ok(())
    }

    /// Maps the page of a message that is copied, so that the next one finds it.
    fn map_copied<P: Platform>(
        &mut self,
        platform: &mut P,
        index: u32,
        now: Nanos,
        gone: &mut impl FnMut(PageGone),
    ) -> WorkStep {
        match self.map_work(platform, index, gone) {
            Ok(()) => {}
            Err(MapError::Raced) if self.may_race_again(index) => return self.page_in(index, now),
            Err(_) => self.counters.bounce_unmapped += 1,
        }
        self.finish(platform, index, Status::Ok, now)
    }

    pub(crate) fn count_refused(&mut self, index: u32) {
        let source = self
            .work
            .get(index as usize)
            .is_some_and(|work| work.kind == WorkKind::Source);
        self.counters.bounce_refused += u64::from(!source);
    }

    pub(crate) fn count_failed(&mut self, index: u32) {
        let source = self
            .work
            .get(index as usize)
            .is_some_and(|work| work.kind == WorkKind::Source);
        self.counters.bounce_failed += u64::from(!source);
    }

    /// Ends work that a worker has in its hands.
    fn finish<P: Platform>(&mut self, platform: &mut P, index: u32, status: Status, now: Nanos) -> WorkStep {
        if let Some(port) = self.put_down(index) {
            self.worker_moves(port);
        }
        self.answer(platform, index, status, now);
        WorkStep::Ended { status }
    }

    /// Takes a piece of work out of its worker's hands; whose it was.
    pub(crate) fn put_down(&mut self, index: u32) -> Option<PortId> {
        let port = self.work.get(index as usize)?.port;
        let entry = self.ports.get_mut(port.index())?;
        entry.paging.remove(&mut self.work, index);
        entry.in_hand = entry.in_hand.saturating_sub(1);
        Some(port)
    }

    /// Answers the NIC: the work is over.
    pub(crate) fn answer<P: Platform>(&mut self, platform: &mut P, index: u32, status: Status, now: Nanos) {
        let Some(work) = self.work.get_mut(index as usize) else {
            return;
        };
        let (kind, generation, peer, copied) = (work.kind, work.generation, work.peer, work.copied);
        let result = work.result.take().filter(|_| copied);
        let orphan = core::mem::replace(&mut work.orphan, false);
        work.state = State::Idle;
        work.ticket = None;
        let waited = now.0.saturating_sub(work.since.0);
        self.slowest_answer = self.slowest_answer.max(Nanos(waited));
        if orphan {
            self.counters.bounce_dropped += 1;
            self.orphan_ends(platform, peer, now);
            return;
        }
        self.tally(index, status, waited);
        let event = match kind {
            WorkKind::Atomic if status == Status::Ok => HostEvent::AtomicAnswer {
                bounce: BounceId(index),
                generation,
                answer: result.map_or(AtomicAnswer::Retry, AtomicAnswer::Done),
            },
            WorkKind::Write | WorkKind::Reply | WorkKind::Atomic => HostEvent::BounceEnded {
                bounce: BounceId(index),
                generation,
                status,
            },
            WorkKind::Source => {
                if status != Status::Ok {
                    self.counters.source_failed += 1;
                }
                HostEvent::SourceAnswer {
                    staging: self.staging_of(index),
                    generation,
                    answer: match status {
                        Status::Ok if copied => SourceAnswer::Copied,
                        Status::Ok => SourceAnswer::Retry,
                        status => SourceAnswer::Failed(status),
                    },
                }
            }
        };
        self.post(platform, &event);
    }
}
