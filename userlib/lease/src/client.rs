//! A client: asks for leases.

use crate::config::{ClientConfig, Wish, nanos};
use crate::error::{Error, Refusal, Result};
use crate::lease::Lease;
use crate::manager::answers_of;
use crate::wire::{ANSWER, Answer, Ask, PLACES, Request, Terms, WORDS, next_number, place};
use netvm::{Access, Export, Modes, NodeId, Notification, Port, PortId, Region, SharedSender, Timeout};
use std::sync::Arc;
use std::time::Duration;

/// Asks a manager for leases. It has one request at a time: a program that wants more of them under way opens more ports.
///
/// As every call of the library to a node, one that asks reports first what has failed before on this port to the manager's node and was not
/// reported, such as a write under a lease that was over. Nothing was asked for then.
#[derive(Debug)]
pub struct Client {
    requests: SharedSender,
    // The name goes before the memory.
    _export: Export,
    answers: Region,
    answered: Notification,
    number: u32,
    manager: (NodeId, PortId),
    config: ClientConfig,
    // Last: all else is of it.
    port: Arc<Port>,
}

impl Client {
    /// Connects a port to the manager of this name at another port. A port has one client of a manager.
    ///
    /// # Errors
    /// [`Error::NoAnswer`] if what has that name does not serve; [`Error::Library`]: as [`SharedSender::join`] and [`Port::export`]:
    /// there is no such port or name in time, or it is no shared queue.
    pub fn connect(
        port: impl Into<Arc<Port>>,
        manager: (NodeId, PortId),
        name: &str,
        config: ClientConfig,
    ) -> Result<Self> {
        let port = port.into();
        let number = config.notification;
        let answers = port.alloc(u64::from(PLACES) * ANSWER as u64)?;
        let access = Access::nobody()
            .and_port(manager.0, manager.1, Modes::WRITE | Modes::NOTIFY)
            .notify(number.0..=number.0);
        let export = port.export(&answers_of(manager.0, manager.1), &answers, .., access)?;
        let mut client = Self {
            requests: SharedSender::join(&port, manager.0, manager.1, name, config.patience)?,
            answers,
            _export: export,
            answered: port.notification(number)?,
            number: 0,
            manager,
            config,
            port,
        };
        let notification = number.0;
        client.ask(Ask::Hello { notification }, Duration::ZERO)?;
        Ok(client)
    }

    /// Asks for the part of a key.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`NoSuchKey`](Refusal::NoSuchKey), [`BadTime`](Refusal::BadTime), [`Conflict`](Refusal::Conflict) (at once, or
    /// after the wish has waited), [`TableFull`](Refusal::TableFull), [`CannotLend`](Refusal::CannotLend); [`Error::NoAnswer`];
    /// [`Error::Library`].
    pub fn acquire(&mut self, key: u64, wish: Wish) -> Result<Lease> {
        let terms = terms(wish);
        self.lease(Ask::Acquire { key, terms }, wish)
    }

    /// Asks for a part of at least so many bytes: the next power of two from 64 on. It has a key of its own then, until no lease of it is left.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`NoRoom`](Refusal::NoRoom) (at once, or after the wish has waited) and [`BadSize`](Refusal::BadSize); else as
    /// [`acquire`](Self::acquire).
    pub fn allocate(&mut self, bytes: u64, wish: Wish) -> Result<Lease> {
        let terms = terms(wish);
        self.lease(Ask::Allocate { len: bytes, terms }, wish)
    }

    /// Gives a lease back before it is over. What was written under it is there for the next holder of its key.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`NoSuchLease`](Refusal::NoSuchLease) if it was over, or taken away; [`Error::Library`] if a write to the
    /// manager's node has failed, mostly one of this lease, which is given back all the same; [`Error::NoAnswer`].
    pub fn relinquish(&mut self, lease: Lease) -> Result<()> {
        let (node, id) = (lease.node(), lease.token().id());
        // What is under way lands before another has the memory.
        let landed = self.port.flush_remote(node);
        drop(lease);
        let mut told = self.ask(Ask::Relinquish { id }, Duration::ZERO);
        if landed.is_err() && matches!(told, Err(Error::Library(_))) {
            // There was more to report.
            told = self.ask(Ask::Relinquish { id }, Duration::ZERO);
        }
        landed?;
        told.map(drop)
    }

    /// A round trip to the manager that does nothing: it serves.
    ///
    /// # Errors
    /// [`Error::NoAnswer`]; [`Error::Library`].
    pub fn echo(&mut self) -> Result<()> {
        self.ask(Ask::Echo, Duration::ZERO).map(drop)
    }

    /// Its port.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Node and port of its manager.
    #[must_use]
    pub const fn manager(&self) -> (NodeId, PortId) {
        self.manager
    }

    pub(crate) const fn patience(&self) -> Duration {
        self.config.patience
    }

    fn lease(&mut self, ask: Ask, wish: Wish) -> Result<Lease> {
        // It begins after this.
        let asked = self.port.now();
        let Answer::Granted { key, token } = self.ask(ask, wish.waits)? else {
            return Err(Error::Refused(Refusal::Malformed));
        };
        let leased = self.port.use_lease(&token)?;
        Ok(Lease::new(leased, key, Arc::clone(&self.port), asked))
    }

    /// Asks, and waits for the answer. It comes after `waits` at the latest, if all is well.
    fn ask(&mut self, ask: Ask, waits: Duration) -> Result<Answer> {
        self.number = next_number(self.number);
        let number = self.number;
        let request = Request { number, ask }.to_bytes();
        let patience = self.config.patience;
        let end = self.port.now().after(nanos(patience.saturating_add(waits)));
        self.requests.send(&request, patience)?;
        loop {
            if let Some(answer) = self.answer(number)? {
                return match answer {
                    Answer::Refused(why) => Err(Error::Refused(why)),
                    answer => Ok(answer),
                };
            }
            let now = self.port.now();
            let left = end.0.saturating_sub(now.0);
            if left == 0 {
                return Err(Error::NoAnswer);
            }
            let span = Duration::from_nanos(left).min(patience);
            match self.answered.wait(Timeout::After(span)) {
                Ok(_) => self.answered.ack()?,
                // A manager that makes a wish wait says nothing. One that has gone does not take the next message.
                Err(netvm::Error::TimedOut) if left > nanos(patience).0 => self.look_after(patience)?,
                Err(netvm::Error::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The answer to this request, if all of it is there.
    fn answer(&self, number: u32) -> Result<Option<Answer>> {
        let mut words = [0; WORDS];
        let mut at = place(number);
        for word in &mut words {
            *word = self.answers.word64(at)?.load()?;
            at += 8;
        }
        Ok(Answer::from_words(number, &words))
    }

    /// Fails if the manager is gone.
    fn look_after(&self, patience: Duration) -> Result<()> {
        // It is no request of a number, and is passed over.
        Ok(self.requests.send(&[0; 8], patience)?)
    }
}

fn terms(wish: Wish) -> Terms {
    Terms {
        write: wish.write,
        exclusive: wish.exclusive,
        duration: nanos(wish.duration).0,
        patience: nanos(wish.waits).0,
    }
}
