//! An endpoint: its port, its connections, and what of its operations is under way.

mod background;
pub(crate) mod conn;
pub(crate) mod matching;
mod meet;
mod pull;
mod receive;
mod ring;
pub(crate) mod send;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use netvm::{Export, Notification, Port, PortConfig, Region};
use parking_lot::Mutex;

use crate::address::{Address, random};
use crate::av::Av;
use crate::cntr::Counter;
use crate::cq::{Completion, Cq, Failed};
use crate::domain::{Child, Domain, refused};
use crate::eq::Eq;
use crate::fi::*;
use crate::service::{Registrar, Service};
use crate::wire::{Head, Kind};
use background::Background;
use conn::Conn;
use matching::Queue;
pub(crate) use meet::{at_once, connect as meet_node};
use receive::Arriving;
pub(crate) use receive::Asked;
pub(crate) use ring::Calls;
use send::Sent;

/// Flags of operations that have none of their own: of those that are no receives, and of receives.
#[derive(Debug, Default)]
pub(crate) struct Flags([AtomicU64; 2]);

impl Flags {
    /// Flags of both kinds.
    pub(crate) const fn new(others: u64, receives: u64) -> Self {
        Self([AtomicU64::new(others), AtomicU64::new(receives)])
    }

    /// Those of this kind of operations.
    pub(crate) const fn of(&self, counted: Counted) -> &AtomicU64 {
        let [others, receives] = &self.0;
        match counted {
            Counted::Receive => receives,
            Counted::Send | Counted::Read | Counted::Write => others,
        }
    }
}

/// An endpoint.
pub(crate) struct Endpoint {
    pub(crate) caps: u64,
    /// Its atomics take effect in their order.
    pub(crate) orders_atomics: bool,
    flags: Flags,
    pub(crate) address: Address,
    /// Its messages go by this port.
    pub(crate) port: Port,
    enabled: AtomicBool,
    closed: AtomicBool,
    /// Changes when the program looks.
    looks: AtomicU32,
    /// Only operations that ask for it have a completion: those that are no receives, and receives.
    selective: [AtomicBool; 2],
    background: OnceLock<Background>,
    /// Tells its address at its service, if it has one.
    registrar: Mutex<Option<Registrar>>,
    state: Mutex<State>,
    child: Child,
}

/// A kind of operations, as counters tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    Send = 0,
    Receive = 1,
    Read = 2,
    Write = 3,
}

/// Where the ends of operations are told.
#[derive(Default)]
pub(crate) struct Ends {
    pub(crate) tx: Option<Arc<Cq>>,
    pub(crate) rx: Option<Arc<Cq>>,
    counters: [Option<Arc<Counter>>; 4],
}

impl Ends {
    fn cq(&self, counted: Counted) -> Option<&Arc<Cq>> {
        if counted == Counted::Receive {
            self.rx.as_ref()
        } else {
            self.tx.as_ref()
        }
    }

    /// Whether the end of an operation makes a difference.
    pub(crate) fn counts(&self, counted: Counted) -> bool {
        self.counter(counted).is_some()
    }

    fn counter(&self, counted: Counted) -> Option<&Arc<Counter>> {
        self.counters.get(counted as usize)?.as_ref()
    }

    /// An operation has ended well.
    pub(crate) fn good(&self, counted: Counted, completes: bool, completion: Completion) {
        if completes && let Some(cq) = self.cq(counted) {
            cq.push(completion);
        }
        if let Some(counter) = self.counter(counted) {
            counter.count(true);
        }
    }

    /// An operation has failed.
    pub(crate) fn bad(&self, counted: Counted, failed: Failed) {
        if let Some(cq) = self.cq(counted) {
            cq.push_failed(failed);
        }
        if let Some(counter) = self.counter(counted) {
            counter.count(false);
        }
    }

    /// Binds a counter.
    pub(crate) fn bind_counter(&mut self, counted: Counted, counter: &Arc<Counter>) -> Answer {
        let place = self.counters.get_mut(counted as usize).ok_or(Errno::INVAL)?;
        *place = Some(Arc::clone(counter));
        Ok(())
    }
}

/// What of an endpoint changes.
pub(crate) struct State {
    pub(crate) ends: Ends,
    pub(crate) av: Option<Arc<Av>>,
    /// Bound, and told nothing: an endpoint without connections has no events.
    pub(crate) eq: Option<Arc<Eq>>,
    /// The version of the vector that `routes` and the connections' addresses are of.
    av_seen: u64,
    pub(crate) conns: Vec<Conn>,
    by_address: HashMap<Address, usize>,
    /// The connection of each index of the vector.
    routes: Vec<Option<usize>>,
    /// What messages of each index of the vector say that they are from.
    senders: Vec<Option<u64>>,
    pub(crate) tagged: Queue,
    pub(crate) untagged: Queue,
    /// Messages whose receiver is to say something, by their cookies.
    sent: HashMap<u64, Sent>,
    /// Messages that come in pieces, by the cookies that this side gave.
    arriving: HashMap<u64, Arriving>,
    /// Receives of several messages that take no more, and have not given their buffer back.
    full: Vec<u64>,
    next_cookie: u64,
    /// A receive of several messages ends when less than this is left of its buffer.
    pub(crate) least: usize,
    /// Where others introduce themselves.
    mailbox: Region,
    _mailbox: Export,
    knocks: Notification,
    /// Rounds of progress until links are looked at again.
    patience: u32,
}

/// Rounds of progress between two looks whether links are up.
const LINK_LOOKS: u32 = 4096;

impl Endpoint {
    /// Opens one.
    ///
    /// # Errors
    /// The node has no port, or no memory, for it.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        caps: u64,
        orders_atomics: bool,
        flags: Flags,
    ) -> Answer<Arc<Self>> {
        let port = Port::open(&domain.node.node(), PortConfig::default()).map_err(|error| refused(&error))?;
        let (mailbox, export, knocks) = meet::mailbox(&port).map_err(|error| refused(&error))?;
        let address = Address::new(
            domain.node.number(),
            port.id(),
            domain.memory.id(),
            domain.node.udp_address(),
            random(),
        );
        Ok(Arc::new(Self {
            caps,
            orders_atomics,
            flags,
            address,
            port,
            enabled: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            looks: AtomicU32::new(0),
            selective: Default::default(),
            background: OnceLock::new(),
            registrar: Mutex::new(None),
            state: Mutex::new(State {
                ends: Ends::default(),
                av: None,
                eq: None,
                av_seen: 0,
                conns: Vec::new(),
                by_address: HashMap::new(),
                routes: Vec::new(),
                senders: Vec::new(),
                tagged: Queue::default(),
                untagged: Queue::default(),
                sent: HashMap::new(),
                arriving: HashMap::new(),
                full: Vec::new(),
                next_cookie: 1,
                least: 64,
                mailbox,
                _mailbox: export,
                knocks,
                patience: LINK_LOOKS,
            }),
            child: domain.child(),
        }))
    }

    /// Gives it a service, in the place of the one that it has. One without a port has no other address than its own.
    ///
    /// # Errors
    /// The port is taken, or the IP address is not this machine's: it keeps the service that it has.
    pub(crate) fn serve_at(&self, service: &Service) -> Answer {
        let mut registrar = self.registrar.lock();
        if registrar.as_ref().is_some_and(|has| has.is_at(service)) {
            return Ok(());
        }
        let reached = self.domain().node.udp_address().is_some();
        let next = service
            .is_at_a_port()
            .then(|| Registrar::start(service, self.address, reached))
            .transpose()?;
        *registrar = next;
        Ok(())
    }

    /// Its domain.
    pub(crate) const fn domain(&self) -> &Arc<Domain> {
        self.child.domain()
    }

    /// Its state, for a call of the program's.
    ///
    /// # Errors
    /// It is not enabled.
    pub(crate) fn active(&self) -> Answer<parking_lot::MutexGuard<'_, State>> {
        if self.enabled.load(Ordering::Acquire) {
            Ok(self.state.lock())
        } else {
            Err(Errno::OPBADSTATE)
        }
    }

    /// Its state, enabled or not.
    pub(crate) fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether it is enabled.
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    /// Enables it: everything is bound.
    pub(crate) fn enable(self: &Arc<Self>) -> Answer {
        let state = self.state.lock();
        if state.av.is_none() {
            return Err(Errno::NOAV);
        }
        if state.ends.tx.is_none()
            && state.ends.rx.is_none()
            && state.ends.counters.iter().all(Option::is_none)
        {
            return Err(Errno::NOCQ);
        }
        drop(state);
        self.enabled.store(true, Ordering::Release);
        if self.domain().auto {
            self.serve_in_background();
        }
        Ok(())
    }

    /// The flags of an operation that has none of its own.
    pub(crate) fn flags(&self, counted: Counted) -> u64 {
        self.flags.of(counted).load(Ordering::Relaxed)
    }

    /// Operations have these from now on.
    pub(crate) fn set_flags(&self, counted: Counted, flags: u64) {
        self.flags.of(counted).store(flags, Ordering::Relaxed);
    }

    /// Whether the end of an operation with these flags is told by a completion.
    pub(crate) fn completes(&self, counted: Counted, flags: u64) -> bool {
        flags & FI_COMPLETION != 0 || !self.selective(counted).load(Ordering::Acquire)
    }

    /// Whether only operations of a kind that ask for it have a completion.
    pub(crate) const fn selective(&self, counted: Counted) -> &AtomicBool {
        let [others, receives] = &self.selective;
        match counted {
            Counted::Receive => receives,
            Counted::Send | Counted::Read | Counted::Write => others,
        }
    }

    /// Tells the end of an operation.
    pub(crate) fn tell(&self, tell: impl FnOnce(&Ends)) {
        tell(&self.state.lock().ends);
    }

    /// Tells another endpoint that its memory was written.
    pub(crate) fn tell_of_write(self: &Arc<Self>, to: u64, data: u64, len: u64) {
        let mut state = self.state.lock();
        if let Ok(at) = state.route(self, to)
            && let Some(conn) = state.conns.get_mut(at)
        {
            conn.note(Head {
                data,
                total: len,
                ..Head::new(Kind::Written)
            });
        }
    }

    /// Does what is to be done, and waits for nothing.
    #[inline]
    pub(crate) fn progress(self: &Arc<Self>) {
        // Two threads at a time may count as one: it changes all the same.
        let looks = self.looks.load(Ordering::Relaxed);
        self.looks.store(looks.wrapping_add(1), Ordering::Relaxed);
        self.work();
    }

    #[inline]
    fn work(self: &Arc<Self>) {
        if !self.enabled.load(Ordering::Acquire) {
            return;
        }
        self.port.progress();
        self.state.lock().progress(self);
        if self.domain().rma.is_busy() {
            self.domain().rma.progress(self.domain());
        }
    }

    /// The program is going to wait: a thread takes over.
    pub(crate) fn rest(&self) {
        if let Some(background) = self.background.get() {
            background.take_over();
        }
    }

    /// From now on a thread serves it while the program does not.
    pub(crate) fn serve_in_background(self: &Arc<Self>) {
        self.background.get_or_init(|| Background::start(self));
    }

    /// Closes it.
    pub(crate) fn close(self: &Arc<Self>) {
        self.closed.store(true, Ordering::Release);
        self.enabled.store(false, Ordering::Release);
        drop(self.registrar.lock().take());
        if let Some(background) = self.background.get() {
            background.stop(self);
        }
        self.domain().rma.forget(self);
        let mut state = self.state.lock();
        state.say_goodbye(&self.port);
        let ends = std::mem::take(&mut state.ends);
        let (av, eq) = (state.av.take(), state.eq.take());
        drop(state);
        for cq in [&ends.tx, &ends.rx].into_iter().flatten() {
            cq.unbind(self);
        }
        for counter in ends.counters.iter().flatten() {
            counter.unbind(self);
        }
        drop((ends, av, eq));
        self.child.close();
    }
}

impl State {
    /// A number by which something under way is known.
    fn cookie(&mut self) -> u64 {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        cookie
    }

    fn progress(&mut self, endpoint: &Arc<Endpoint>) {
        if self.knocks.pending() > 0 {
            self.answer_knocks(endpoint);
        }
        for at in 0..self.conns.len() {
            self.receive(endpoint, at);
            self.transmit(endpoint, at);
        }
        self.patience -= 1;
        if self.patience == 0 {
            self.patience = LINK_LOOKS;
            self.check_links(endpoint);
        }
    }

    /// Whether something is under way whose end no signal tells.
    fn is_busy(&self) -> bool {
        self.conns.iter().any(Conn::is_busy)
    }

    /// Acknowledges what was taken. Says whether all was.
    fn rest(&mut self) -> bool {
        let mut all = self.knocks.pending() == 0;
        for conn in &mut self.conns {
            conn.rest();
            all &= !conn.has_more();
        }
        all
    }
}
