//! The server's side of sessions: a thread for each client that has one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netvm::{Error, Node, NodeId, Port, PortConfig, PortId, Receiver, Sender};

use super::client::texts;
use super::{Answer, MIRROR, ORDERS, Order, Request, VERSION, echo, is_fair, is_fair_touch, read, text};
use crate::processes::overcommit::Offered;
use crate::processes::perf::lane::Lane;
use crate::processes::spread::Spread;
use crate::processes::{PART, PATIENCE};

/// How often a session that waits for its client looks whether it is to end.
pub(super) const LOOK: Duration = Duration::from_millis(200);

/// The sessions of a server: one for each client's node at a time, so that no client takes another one's place.
pub(in crate::processes) struct Sessions {
    node: Node,
    offer: Option<Offer>,
    /// By the clients' nodes.
    clients: BTreeMap<NodeId, Arc<Shared>>,
}

/// The mapping that a session may have, if the server offers one.
#[derive(Clone, Copy, Debug)]
pub(in crate::processes) struct Offer {
    /// Its bytes.
    pub(in crate::processes) bytes: u64,
    /// Bytes of memory that the server may use.
    pub(in crate::processes) memory: u64,
}

/// What the thread for a client's node shares with the one that takes requests.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// The session that is running is to end.
    stop: AtomicBool,
}

#[derive(Default)]
struct State {
    /// What comes next: the client's latest request, and its port.
    next: Option<(PortId, Request)>,
    /// A thread takes it.
    has_thread: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next request. Without one the thread ends.
    fn take(&self) -> Option<(PortId, Request)> {
        let mut state = self.state();
        state.has_thread = state.next.is_some();
        self.stop.store(false, Ordering::Relaxed);
        state.next.take()
    }

    /// Replaces the next request and ends the session that is running. Whether a thread is to be made.
    fn put(&self, next: Option<(PortId, Request)>) -> bool {
        let mut state = self.state();
        state.next = next;
        self.stop.store(true, Ordering::Relaxed);
        let is_new = !state.has_thread && state.next.is_some();
        state.has_thread |= is_new;
        is_new
    }
}

impl Sessions {
    /// None yet, of this server.
    pub(in crate::processes) fn new(node: Node, offer: Option<Offer>) -> Self {
        Self {
            node,
            offer,
            clients: BTreeMap::new(),
        }
    }

    /// A message has come to the queue of requests. One that makes no sense has no effect. One from a node that has a session
    /// ends that one first: its process may have died, and another one begun.
    pub(in crate::processes) fn asked(&mut self, (from, port): (NodeId, PortId), message: &[u8]) {
        let Ok(request) = serde_json::from_slice::<Request>(message) else {
            return;
        };
        let client = self.clients.entry(from).or_default();
        if !client.put(Some((port, request))) {
            return;
        }
        let (node, offer, shared) = (self.node.clone(), self.offer, Arc::clone(client));
        let thread = std::thread::Builder::new().name("netvm-session".into());
        let spawned = thread.spawn(move || {
            while let Some((port, request)) = shared.take() {
                // The client hears of the end, or finds its port gone; nothing else depends on it.
                let _ = serve(&node, offer, (from, port), &request, &shared.stop);
            }
        });
        if spawned.is_err() {
            // The client hears nothing, and says so after a while.
            *client.state() = State::default();
        }
    }
}

impl Drop for Sessions {
    /// Does not wait for threads: one may wait for a client that is stopped. They end with the process.
    fn drop(&mut self) {
        for client in self.clients.values() {
            client.put(None);
        }
    }
}

/// A session, as its thread has it. Its port outlives it: what is on it says farewell.
pub(super) struct Served<'a> {
    orders: Receiver,
    answers: Sender,
    pub(super) port: &'a Port,
    /// The client's.
    pub(super) peer: (NodeId, PortId),
    /// The way to the client's memory, once the client has offered some.
    lane: Option<Lane<'a>>,
    offer: Option<Offer>,
    /// What the client has asked for of it.
    overcommit: Option<Offered>,
    stop: &'a AtomicBool,
}

/// Runs a session until its client leaves, or another one is to begin.
fn serve(
    node: &Node,
    offer: Option<Offer>,
    peer: (NodeId, PortId),
    request: &Request,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let port = Port::open(node, PortConfig::default())?;
    let mut answers = Sender::join(&port, peer.0, peer.1, &request.answers(), PATIENCE)?;
    let orders = Receiver::open(&port, ORDERS, texts().from_port(peer.0, peer.1))?;
    if request.version != VERSION {
        let why = format!(
            "it speaks version {VERSION} of sessions, and was asked for {}: use one netvm at both ends",
            request.version
        );
        answers.send(&text(&Answer::Refused { why }), PATIENCE)?;
        return answers.close();
    }
    let mut served = Served {
        orders,
        answers,
        port: &port,
        peer,
        lane: None,
        offer,
        overcommit: None,
        stop,
    };
    served.say(&Answer::Ready {
        port: served.port.id().0,
    })?;
    while let Some(order) = served.next()? {
        served.carry_out(order)?;
    }
    Ok(())
}

impl Served<'_> {
    /// Whether the session is to end.
    pub(super) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn say(&mut self, answer: &Answer) -> Result<(), Error> {
        self.answers.send(&text(answer), PATIENCE)
    }

    pub(super) fn refuse(&mut self, why: impl Into<String>) -> Result<(), Error> {
        self.say(&Answer::Refused { why: why.into() })
    }

    /// The client's next order; none when it has left. One that makes no sense is refused.
    fn next(&mut self) -> Result<Option<Order>, Error> {
        while !self.is_over() {
            let order = match self.orders.recv(LOOK) {
                Ok(message) => read(message)?,
                Err(Error::TimedOut) => continue,
                Err(Error::ChannelClosed) => break,
                Err(error) => return Err(error),
            };
            if order.is_some() {
                return Ok(order);
            }
            self.refuse("the order makes no sense")?;
        }
        Ok(None)
    }

    fn carry_out(&mut self, order: Order) -> Result<(), Error> {
        match order {
            Order::Channel { size, capacity } if is_fair(size, capacity) => echo::run(self, size, capacity),
            Order::Channel { .. } => self.refuse("a channel of that size is not offered"),
            Order::Mirror => self.mirror(),
            Order::Overcommit { touch } if is_fair_touch(touch) => self.overcommit(touch),
            Order::Overcommit { .. } => self.refuse("no client may touch that much"),
            Order::Held => match self.overcommit.as_ref().map(Offered::held) {
                Some(Ok(held)) => self.say(&Answer::Held(held)),
                Some(Err(error)) => self.refuse(error),
                None => self.refuse("no mapping has been asked for"),
            },
            Order::Singles(work) | Order::Rate(work) if !work.is_fair() => {
                self.refuse("no client may ask for that much")
            }
            Order::Singles(work) => self.work(|lane| {
                // As the client has done: pages are touched, the peer is awake.
                lane.single(work.kind)?;
                let times = lane.singles(work.kind, Duration::from_millis(work.millis))?;
                Ok(Answer::Singles(Spread::of(times)))
            }),
            Order::Rate(work) => self.work(|lane| {
                let time = Duration::from_millis(work.millis);
                let (count, took) = lane.rate(work.kind, work.depth, time)?;
                let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
                Ok(Answer::Rate { count, nanos })
            }),
        }
    }

    /// Binds to memory of this client, and of no other.
    fn mirror(&mut self) -> Result<(), Error> {
        let (node, port) = self.peer;
        let remote = match self.port.import(node, port, MIRROR, PATIENCE) {
            Ok(remote) if remote.len() >= PART => remote,
            Ok(_) => return self.refuse("the memory that is offered is too small"),
            Err(error) => return self.refuse(error.to_string()),
        };
        match Lane::new(self.port, remote, 0) {
            Ok(lane) => self.lane = Some(lane.until(self.stop)),
            Err(error) => return self.refuse(error.to_string()),
        }
        self.say(&Answer::Open)
    }

    /// Offers this client, and no other, a mapping of its own.
    fn overcommit(&mut self, touch: u64) -> Result<(), Error> {
        let Some(Offer { bytes, memory }) = self.offer else {
            return self.say(&Answer::NoOvercommit);
        };
        // An earlier one goes first: one client has the room of one.
        self.overcommit = None;
        match Offered::new(self.port, self.peer, bytes, touch) {
            Ok(offered) => self.overcommit = Some(offered),
            Err(why) => return self.refuse(why),
        }
        self.say(&Answer::Overcommit { memory })
    }

    /// Does something to the client's memory. A failure is the client's doing, or its end.
    fn work(&mut self, work: impl FnOnce(&mut Lane<'_>) -> netvm::Result<Answer>) -> Result<(), Error> {
        match self.lane.as_mut().map(work) {
            Some(Ok(answer)) => self.say(&answer),
            Some(Err(error)) => self.refuse(error.to_string()),
            None => self.refuse("no memory has been offered"),
        }
    }
}
