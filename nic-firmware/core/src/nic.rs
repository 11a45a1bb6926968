//! The state machine and its events.

mod appends;
mod atomics;
mod bounces;
pub mod census;
mod control;
mod dma_ends;
mod ends;
mod errors;
mod flushes;
mod host_events;
mod leave;
mod links;
mod overtake;
mod reads;
mod receipts;
mod receive;
mod replies;
mod send;
mod sources;
mod straight;
mod writes;

use crate::config::{Config, ConfigError};
use crate::counters::Counters;
use crate::dmas::Dmas;
use crate::env::Env;
use crate::inbound::Inbound;
use crate::links::Links;
use crate::platform::{DmaId, Platform};
use crate::ports::{News, Ports};
use crate::round_trips::RoundTrips;
use crate::staging::Staging;
use crate::tables::{LinkTables, Tables};
use netvm_abi::attach::CardHeader;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::page_lock;
use netvm_abi::storage::{MakeTable, Storage};
use netvm_abi::wire::{HEADER_BYTES, HEADER_WORDS};
use netvm_abi::{Incarnation, Nanos, PortId, ReceiveId, StagingId};

/// A received message: its first bytes, copied out of the receive buffer. The payload stays there.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// The buffer; the core gives it back through
    /// [`release_receive`](Platform::release_receive), exactly once.
    pub receive: ReceiveId,
    /// The words of its header, zeroes where it is shorter.
    pub head: [u32; HEADER_WORDS],
    /// Length of the whole message in bytes.
    pub len: usize,
}

impl Frame {
    /// From the whole message, or at least its first [`HEADER_BYTES`], and its length.
    #[must_use]
    pub fn new(receive: ReceiveId, message: &[u8], len: usize) -> Self {
        let mut bytes = [0; HEADER_BYTES];
        for (to, from) in bytes.iter_mut().zip(message) {
            *to = *from;
        }
        let mut head = [0; HEADER_WORDS];
        for (word, bytes) in head.iter_mut().zip(bytes.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        Self { receive, head, len }
    }
}

/// What a part of the second look has found: see [`Nic::find_work`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Something waits.
    Work,
    /// Nothing so far; this port is the last that was looked at.
    More(PortId),
    /// Nothing waits.
    Nothing,
}

/// A NIC.
///
/// # Order of calls
/// 1. [`Nic::new`] (a platform with a heap) or [`Nic::from_tables`] (lent tables).
/// 2. [`attach`](Nic::attach), once the BAR and the driver's memory are reachable and the page
///    table is empty. It writes the BAR's header, the magic word last.
/// 3. Any of the `handle_*` methods, in any order, whenever their event happens. Each does a
///    bounded piece of work and returns; those that return `bool` say whether more waits.
///    `netvm_platform::EventLoop::poll_once` is the loop that calls them all.
/// 4. When nothing is left to do, sleep until [`next_deadline`](Nic::next_deadline); before that
///    follow the sleep protocol (`netvm_platform::EventLoop::try_sleep`), so that no doorbell is lost.
///
/// All effects go through the [`Platform`]; its methods only start things and never call back.
/// `now` must not run backwards.
pub struct Nic<S: Storage> {
    env: Env<S>,
    ports: Ports<S>,
    inbound: Inbound<S>,
    staging: Staging<S>,
    round_trips: RoundTrips<S>,
    links: Links<S>,
    dmas: Dmas,
}

impl<S: Storage> Nic<S> {
    /// Makes a NIC whose tables `storage` makes.
    ///
    /// # Errors
    /// When the configuration cannot be used.
    pub fn new(config: Config, storage: &mut S) -> Result<Self, ConfigError>
    where
        S: MakeTable,
    {
        config.geometry.validate().map_err(ConfigError::Geometry)?;
        Self::from_tables(config, Tables::make(&config.geometry, storage))
    }

    /// Makes a NIC of lent tables, which it puts into their first state.
    ///
    /// # Errors
    /// When the configuration cannot be used, or a table has the wrong length.
    pub fn from_tables(config: Config, mut tables: Tables<S>) -> Result<Self, ConfigError> {
        let geometry = &config.geometry;
        geometry.validate().map_err(ConfigError::Geometry)?;
        if config.node.0 >= geometry.nodes {
            return Err(ConfigError::Node(config.node));
        }
        if usize::from(config.inline_bytes) > netvm_abi::descriptor::INLINE_BYTES {
            return Err(ConfigError::InlineBytes(config.inline_bytes));
        }
        tables.reset(geometry)?;
        let mut env = Env::new(config, tables.links);
        let links = LinkTables {
            peers: tables.peers,
            outgoing: tables.outgoing,
            senders: tables.senders,
            losses_aside: tables.losses_aside,
            senders_of: tables.senders_of,
            receivers_of: tables.receivers_of,
            deadlines: tables.deadlines,
            copies: tables.copies,
            kept: tables.kept,
            answered: tables.answered,
            hands: tables.hands,
        };
        let links = Links::new(&env, links);
        Ok(Self {
            ports: Ports::new(tables.ports, tables.queued),
            inbound: Inbound::new(tables.slots, tables.streams, tables.streams_aside, tables.units),
            staging: Staging::new(tables.staging),
            round_trips: RoundTrips::new(&mut env, tables.reads),
            links,
            dmas: Dmas::new(),
            env,
        })
    }

    /// Publishes this NIC in its BAR; the magic word comes last.
    pub fn attach<P: Platform>(&mut self, p: &mut P) {
        page_lock::reset_locks(p.bar(), &self.env.page_table);
        let header = CardHeader {
            geometry: self.env.config.geometry,
            node: self.env.config.node,
            incarnation: Incarnation(self.env.config.incarnation_seed),
            key: self.env.config.hash_key,
        };
        header.publish(p.bar());
    }

    /// A frame has arrived.
    #[inline]
    pub fn handle_frame<P: Platform>(&mut self, p: &mut P, now: Nanos, frame: &Frame) {
        self.env.now = now;
        self.frame_arrives(p, now, frame);
    }

    /// A DMA has ended; `ok` is false when it could not be done. Ends that are not outstanding are
    /// counted and ignored.
    #[inline]
    pub fn handle_dma_done<P: Platform>(&mut self, p: &mut P, now: Nanos, id: DmaId, ok: bool) {
        self.env.now = now;
        self.dma_done(p, now, id, ok);
    }

    /// A staging buffer has left and may be used again.
    pub fn handle_sent<P: Platform>(&mut self, p: &mut P, now: Nanos, staging: StagingId) {
        self.env.now = now;
        self.sent(p, now, staging);
    }

    /// Serves up to `budget` ports: takes commands, starts what has its resources, sends what is
    /// ready. Returns whether another call could do more at once.
    #[inline(always)]
    pub fn handle_doorbells<P: Platform>(&mut self, p: &mut P, now: Nanos, budget: u32) -> bool {
        self.env.now = now;
        let parked = self.anything_parked();
        if parked {
            return self.resume_and_serve(p, now, budget);
        }
        // Where nothing has moved, nothing has been parked either.
        self.serve_ports(p, now, budget) || !self.ports.all_quiet()
    }

    /// The same where operations wait for something that is not their port's turn.
    #[inline(never)]
    fn resume_and_serve<P: Platform>(&mut self, p: &mut P, now: Nanos, budget: u32) -> bool {
        let resumed = self.resume_operations(p, now);
        let moved = self.serve_ports(p, now, budget);
        resumed || moved || !self.ports.all_quiet() || self.parked_could_go()
    }

    /// Gives up to `looks` ports a look each, and those that have something to do their turn. Returns whether something
    /// moved.
    #[inline(always)]
    fn serve_ports<P: Platform>(&mut self, p: &mut P, now: Nanos, mut looks: u32) -> bool {
        match self.ports.next_turn(p.bar(), &self.env.bar, true, &mut looks) {
            Some((port, news)) => self.serve_from(p, now, port, news, looks),
            None => false,
        }
    }

    /// The same from a port on that has something to do.
    #[inline(never)]
    fn serve_from<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        port: PortId,
        news: News,
        looks: u32,
    ) -> bool {
        let moved = self.serve(p, now, port, news);
        if self.ports.all_quiet() {
            return moved;
        }
        self.serve_more(p, now, looks) || moved
    }

    #[inline(never)]
    fn serve_more<P: Platform>(&mut self, p: &mut P, now: Nanos, mut looks: u32) -> bool {
        let mut moved = false;
        while let Some((port, news)) = self.ports.next_turn(p.bar(), &self.env.bar, false, &mut looks) {
            moved |= self.serve(p, now, port, news);
        }
        moved
    }

    /// Takes up what has waited for a DMA slot, a staging buffer, its page or its link. Returns whether a control
    /// message has left.
    #[inline(never)]
    fn resume_operations<P: Platform>(&mut self, p: &mut P, now: Nanos) -> bool {
        self.resume_parked(p, now);
        self.resume_reads(p, now);
        self.resume_atomics(p, now);
        self.links.any_control_waits() && self.links.send_controls(p, &mut self.env, now)
    }

    /// Whether an operation waits for something that is not its port's turn.
    #[inline]
    fn anything_parked(&self) -> bool {
        let parked = self.dmas.anything_parked() | self.staging.any_read_waits() | self.inbound.any_ready();
        parked | self.links.any_control_waits()
    }

    /// Whether an operation waits for what is free: the next pass takes it up.
    fn parked_could_go(&self) -> bool {
        self.dmas.parked_could_go() || self.staging.parked_could_go() || self.inbound.any_ready()
    }

    /// Takes up to `budget` events of the host driver. Returns whether more wait.
    #[inline]
    pub fn handle_host_events<P: Platform>(&mut self, p: &mut P, now: Nanos, budget: u32) -> bool {
        self.env.now = now;
        self.host_events(p, now, budget)
    }

    /// Does what is due at `now`. Returns whether more is due.
    #[inline]
    pub fn handle_timers<P: Platform>(&mut self, p: &mut P, now: Nanos) -> bool {
        self.env.now = now;
        self.run_timers(p, now)
    }

    /// A part of the second look of the sleep protocol: whether a host event waits, or a doorbell or a fence of up to
    /// `budget` open ports behind `after`; the first ones, if that is none. To look at all ports, call it again with
    /// what [`Found::More`] names. In between the inputs may be looked at, but nothing may be handled.
    pub fn find_work<P: Platform>(&self, p: &P, after: Option<PortId>, budget: u32) -> Found {
        if self.host_waits(p) {
            return Found::Work;
        }
        let mut looked = 0;
        for port in self.ports.open_after(after) {
            if self.command_waits(p, port) || port.fence_reached(p, &self.env) {
                return Found::Work;
            }
            looked += 1;
            if looked >= budget && !mutant::is(Mutant::SleepLooksAtAllPorts) {
                return Found::More(port.id());
            }
        }
        Found::Nothing
    }

    /// Whether a doorbell, a fence or a host event waits, for observers: what this costs grows with the open ports.
    pub fn has_work<P: Platform>(&self, p: &P) -> bool {
        self.find_work(p, None, u32::MAX) == Found::Work
    }

    /// When [`handle_timers`](Self::handle_timers) wants to be called; nothing: not at all.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.links.deadline()
    }

    /// What this NIC has done.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.env.counters
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.env.config
    }

    /// DMAs in flight.
    #[must_use]
    pub const fn dmas_in_flight(&self) -> u32 {
        self.dmas.in_flight()
    }
}
