//! Many-to-one: several channels, each with its sender, and one receiver that waits for all (thesis chapter 7).

use super::Receiver;
use crate::backend::Refusal;
use crate::error::{Error, Result};
use crate::notify::{Group, Watch, Wish};
use crate::port::Port;
use crate::timeout::Timeout;
use netvm_abi::{Nanos, NotificationId};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Receivers of one port, and a wait for any of them that has something: by the notifications that come,
/// so that it costs the same however many they are, and no sender keeps the others waiting.
///
/// While a receiver is in a set, its notification goes to the set and not to the port's
/// [notification queue](crate::NotificationQueue). So a port may have several sets and readers of its queue. A
/// receiver whose notification has a [handler](crate::Notification::arm) may be in a set: both see it.
///
/// ```no_run
/// # fn serve(port: &netvm::Port) -> netvm::Result<()> {
/// use netvm::{ChannelConfig, Error, Receiver, ReceiverSet, Timeout};
/// let mut clients = ReceiverSet::new(port);
/// for client in 0..4 {
///     clients.add(Receiver::open(port, &format!("requests of {client}"), ChannelConfig::default())?)?;
/// }
/// while !clients.is_empty() {
///     let client = clients.wait(Timeout::Never)?;
///     let Some(requests) = clients.get_mut(client) else { continue };
///     match requests.recv(Timeout::Now).and_then(|request| request.to_vec()) {
///         Ok(request) => println!("{client} asks: {request:?}"),
///         Err(Error::ChannelClosed) => drop(clients.remove(client)),
///         Err(error) => return Err(error),
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct ReceiverSet {
    group: Group,
    places: Vec<Place>,
    by_number: HashMap<NotificationId, usize>,
    /// Places to look at, in this order.
    due: VecDeque<usize>,
    /// The place that was named last: the program may not have taken all that is there.
    named: Option<usize>,
}

#[derive(Default)]
struct Place {
    receiver: Option<Receiver>,
    /// It stands in `due`.
    is_due: bool,
}

impl ReceiverSet {
    /// For receivers of this port.
    #[must_use]
    pub fn new(port: &Port) -> Self {
        Self {
            group: Group::new(&port.inner),
            places: Vec::new(),
            by_number: HashMap::new(),
            due: VecDeque::new(),
            named: None,
        }
    }

    /// Adds a receiver. Returns the number under which [`wait`](Self::wait) names it: the lowest that is free.
    ///
    /// # Errors
    /// [`Error::Refused`] for a receiver of another port, which ends with that.
    pub fn add(&mut self, receiver: Receiver) -> Result<usize> {
        if !Arc::ptr_eq(receiver.port(), self.group.port()) {
            return Err(Error::Refused {
                what: "add a receiver to a set",
                reason: Refusal::Unsupported("it belongs to another port: make a set for each port"),
            });
        }
        let index = self.places.iter().position(|place| place.receiver.is_none());
        let index = index.unwrap_or(self.places.len());
        if index == self.places.len() {
            self.places.push(Place::default());
        }
        self.by_number.insert(receiver.notification().id(), index);
        self.group.add(receiver.notification().id());
        if let Some(place) = self.places.get_mut(index) {
            place.receiver = Some(receiver);
        }
        // Its number may have come out of the port's queue before.
        self.look_at(index);
        Ok(index)
    }

    /// Takes a receiver out.
    pub fn remove(&mut self, index: usize) -> Option<Receiver> {
        let receiver = self.places.get_mut(index)?.receiver.take()?;
        self.by_number.remove(&receiver.notification().id());
        self.group.remove(receiver.notification().id());
        Some(receiver)
    }

    /// A receiver.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut Receiver> {
        self.places.get_mut(index)?.receiver.as_mut()
    }

    /// How many receivers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    /// Waits until one of them has a message, an end or an error to tell: its next receive will not wait. One
    /// that has ended is named again and again until it is removed.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::PortClosed`], [`Error::PortEnded`], [`Error::Memory`].
    pub fn wait(&mut self, timeout: impl Into<Timeout>) -> Result<usize> {
        let deadline = timeout.into().deadline(self.now());
        loop {
            if let Some(index) = self.next_due()? {
                return Ok(index);
            }
            let until = self.look_due().min(deadline);
            match self.group.wait_until(until) {
                Ok(id) => self.note(id),
                Err(Error::TimedOut) => {
                    self.look_around();
                    if self.due.is_empty() && self.now() >= deadline {
                        return Err(Error::TimedOut);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A future that ends as [`wait`](Self::wait) does. It runs under any executor, and may be dropped at any time: what it would have
    /// named is named by the next.
    pub const fn ready(&mut self) -> SetReady<'_> {
        SetReady {
            set: self,
            watch: Watch::new(),
        }
    }

    /// One of them that has something to tell, if any has.
    fn next_due(&mut self) -> Result<Option<usize>> {
        // Behind those that have come meanwhile, or a busy sender would have all the attention.
        while let Some(id) = self.group.pop() {
            self.note(id);
        }
        if let Some(index) = self.named.take() {
            self.look_at(index);
        }
        while let Some(index) = self.due.pop_front() {
            let Some(place) = self.places.get_mut(index) else {
                continue;
            };
            place.is_due = false;
            if let Some(receiver) = &place.receiver
                && receiver.has_news()?
            {
                self.named = Some(index);
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// One of them that has something to tell. If none has, what changes before one does, and when to look again.
    fn await_news(&mut self) -> Result<std::result::Result<usize, Wish>> {
        loop {
            if let Some(index) = self.next_due()? {
                return Ok(Ok(index));
            }
            if self.look_due() <= self.now() {
                self.look_around();
            }
            if self.due.is_empty() {
                return Ok(Err(self.group.want().until(self.look_due())));
            }
        }
    }

    /// When the next look at a sender is due.
    fn look_due(&mut self) -> Nanos {
        let now = self.now();
        let receivers = self.places.iter_mut().filter_map(|place| place.receiver.as_mut());
        let looks = receivers.map(|receiver| receiver.look_due(now)).min();
        looks.unwrap_or(Nanos::MAX)
    }

    fn now(&self) -> Nanos {
        self.group.port().backend.now()
    }

    /// A number has been signalled. One that is not known has been removed meanwhile.
    fn note(&mut self, id: NotificationId) {
        if let Some(&index) = self.by_number.get(&id) {
            self.look_at(index);
        }
    }

    fn look_at(&mut self, index: usize) {
        if let Some(place) = self.places.get_mut(index)
            && !std::mem::replace(&mut place.is_due, true)
        {
            self.due.push_back(index);
        }
    }

    /// After a silence: a sender may have died, or its farewell's signal may have been suppressed.
    fn look_around(&mut self) {
        for index in 0..self.places.len() {
            let Some(receiver) = self.get_mut(index) else {
                continue;
            };
            if let Err(error) = receiver.look_when_due() {
                receiver.say_later(error);
            }
            if !matches!(receiver.has_news(), Ok(false)) {
                self.look_at(index);
            }
        }
    }
}

impl fmt::Debug for ReceiverSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReceiverSet({} channels)", self.len())
    }
}

/// Ends with the number of a receiver that has something to tell. From [`ReceiverSet::ready`].
#[must_use = "futures do nothing unless they are polled"]
pub struct SetReady<'a> {
    set: &'a mut ReceiverSet,
    watch: Watch,
}

impl Future for SetReady<'_> {
    type Output = Result<usize>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { set, watch } = &mut *self;
        let port = Arc::clone(set.group.port());
        let polled = watch.poll(&port, context, || match set.await_news() {
            Ok(Ok(index)) => Ok(Ok(index)),
            Ok(Err(wish)) => Err(wish),
            Err(error) => Ok(Err(error)),
        });
        polled.map(|ended| ended.and_then(|looked| looked))
    }
}

impl fmt::Debug for SetReady<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SetReady({:?})", self.set)
    }
}
