//! The manager: moves requests, answers and leases between clients, the port, and the [`Book`] that decides.

use crate::book::{ALLOCATED, Book, Card, Client, NotLent, Rules, Said};
use crate::config::{ManagerConfig, nanos};
use crate::error::{Error, Refusal, Result};
use crate::pool::Part;
use crate::stats::ManagerStats;
use crate::wire::{ANSWER, Answer, Ask, PLACES, REQUEST, Request, place};
use netvm::{
    Access, Export, LeaseTerms, LeaseToken, Lent, Modes, Nanos, NodeId, NotificationId, PendingImport, Port,
    PortId, Region, RemoteSegment, SharedConfig, SharedReceiver, Status, Timeout,
};
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Requests that one turn takes.
const BATCH: u32 = 64;
/// Failures of others that an answer hears of before it is given up.
const FAILURES: u32 = 64;
/// How long the import of a client's answers may take.
const GREETING: Duration = Duration::from_secs(1);
/// Longer than this is for ever.
const YEAR: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The name under which a client takes the answers of the manager at this port.
pub(crate) fn answers_of(node: NodeId, port: PortId) -> String {
    format!("netvm-lease.{node}.{port}")
}

/// Lends memory to clients. It works only while [`serve`](Self::serve) is called; leases end without it.
///
/// Dropping it revokes all leases.
pub struct Manager {
    // The queue goes first, then leases, the memory and the port.
    requests: SharedReceiver,
    clients: BTreeMap<(NodeId, PortId), Known>,
    /// Clients whose place for answers is being imported.
    joining: Vec<Joining>,
    lives: u32,
    book: Option<Book<Lent>>,
    lender: Lender,
}

/// A client that has connected.
struct Known {
    client: Client,
    answers: RemoteSegment,
    notification: NotificationId,
}

/// A client that connects.
struct Joining {
    client: Client,
    number: u32,
    notification: NotificationId,
    import: PendingImport,
    /// How that has ended, if it has.
    end: Option<netvm::Result<RemoteSegment>>,
}

/// The port, as the book sees it.
struct Lender {
    export: Export,
    memory: Region,
    longest: Duration,
    port: Port,
}

impl Card for Lender {
    type Lent = Lent;

    fn now(&self) -> Nanos {
        self.port.now()
    }

    fn lend(
        &mut self,
        part: Part,
        to: Client,
        write: bool,
        duration: Nanos,
    ) -> std::result::Result<(LeaseToken, Lent), NotLent> {
        let mut modes = Modes::READ;
        if write {
            modes |= Modes::WRITE | Modes::ATOMIC;
        }
        let terms = LeaseTerms::lasting(Duration::from_nanos(duration.0)).at_most(self.longest);
        let range = part.offset..part.offset + part.len;
        match self.export.lend(range, (to.node, to.port), modes, terms) {
            Ok(lent) => Ok((*lent.token(), lent)),
            Err(netvm::Error::Refused {
                reason: netvm::Refusal::Status(Status::TableFull),
                ..
            }) => Err(NotLent::TableFull),
            // The back end cannot lend, or knows no such node.
            Err(netvm::Error::Refused { .. }) => Err(NotLent::Never),
            Err(error) => Err(NotLent::Broken(error)),
        }
    }

    fn left(&mut self, lent: &Lent) -> netvm::Result<Option<Nanos>> {
        Ok(lent.left()?.map(nanos))
    }

    fn revoke(&mut self, lent: Vec<Lent>) -> netvm::Result<()> {
        Lent::revoke_all(lent)
    }

    fn clear(&mut self, part: Part) -> netvm::Result<()> {
        let zeros = [0; 4096];
        let (mut at, end) = (part.offset, part.offset + part.len);
        while at < end {
            let len = (end - at).min(zeros.len() as u64);
            self.memory
                .write_from(at, zeros.get(..len as usize).unwrap_or_default())?;
            at += len;
        }
        Ok(())
    }
}

impl Manager {
    /// Makes a pool of so many bytes in the port's memory, and takes requests under this name. The port can have no other
    /// shared queue.
    ///
    /// # Errors
    /// [`Error::BadPool`] for less than 64 bytes, and for a longest life of no time or of more than a year; as [`SharedReceiver::open`],
    /// [`Port::alloc`] and [`Port::export`].
    pub fn open(port: Port, name: &str, bytes: u64, config: ManagerConfig) -> Result<Self> {
        if bytes < 64 {
            return Err(Error::BadPool("it has less than 64 bytes"));
        }
        if config.longest.is_zero() || config.longest > YEAR {
            return Err(Error::BadPool(
                "its leases would last for no time at all, or for more than a year",
            ));
        }
        let memory = port.alloc(bytes)?;
        let modes = Modes::READ | Modes::WRITE | Modes::ATOMIC;
        let export = port.export(&format!("{name}.pool"), &memory, .., Access::lent(modes))?;
        let queue = SharedConfig::default()
            .message_bytes(REQUEST as u64)
            .capacity(config.requests);
        let requests = SharedReceiver::open(&port, name, queue)?;
        let rules = Rules {
            longest: nanos(config.longest).0,
            clears: config.clears,
        };
        Ok(Self {
            requests,
            clients: BTreeMap::new(),
            joining: Vec::new(),
            lives: 0,
            book: Some(Book::new(bytes, rules)),
            lender: Lender {
                export,
                memory,
                longest: config.longest,
                port,
            },
        })
    }

    /// Gives a key to so many bytes of the pool: clients can acquire them by it. Tells where they are in [`memory`](Self::memory).
    ///
    /// # Errors
    /// [`Error::BadPool`] for a key that is taken or from 2^63 on, and for no byte or more than there is room for in one piece.
    pub fn define(&mut self, key: u64, bytes: u64) -> Result<Range<u64>> {
        let parts = self.define_row(key, &[bytes])?;
        parts.into_iter().next().ok_or(Error::BadPool("it has no part"))
    }

    /// Gives keys from this one on to parts of so many bytes, which lie one behind the other, each at a multiple of 64 bytes.
    ///
    /// # Errors
    /// As [`define`](Self::define).
    pub fn define_row(&mut self, first: u64, sizes: &[u64]) -> Result<Vec<Range<u64>>> {
        let (book, _) = self.parts()?;
        let parts = book.define(first, sizes)?;
        Ok(parts
            .into_iter()
            .map(|part| part.offset..part.offset + part.len)
            .collect())
    }

    /// The pool, as the manager's own program sees it. Leases do not bind that program.
    #[must_use]
    pub const fn memory(&self) -> &Region {
        &self.lender.memory
    }

    /// The port.
    pub const fn port(&self) -> &Port {
        &self.lender.port
    }

    /// What it has done.
    #[must_use]
    pub fn stats(&self) -> ManagerStats {
        self.book.as_ref().map(Book::stats).unwrap_or_default()
    }

    /// Bytes that are free for allocations. Those of leases that are over are free when they were revoked, so there may be room for more.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.book.as_ref().map_or(0, |book| book.pool().free())
    }

    /// Leases that are not known to be over.
    #[must_use]
    pub fn live(&self) -> usize {
        self.book.as_ref().map_or(0, Book::live)
    }

    /// Does what there is to do: takes requests, and looks at leases that are due. Waits so long if there is nothing. Tells how many
    /// requests it took. A program that serves from its own event loop calls it with [`Timeout::Now`].
    ///
    /// # Errors
    /// Of the manager's own port: it works no more. What a client does, or its end, is no failure of the manager.
    pub fn serve(&mut self, timeout: impl Into<Timeout>) -> Result<u32> {
        let now = self.lender.now();
        let end = match timeout.into() {
            Timeout::Now => Some(now),
            Timeout::After(span) => Some(now.after(nanos(span))),
            Timeout::Never => None,
        };
        loop {
            self.turn()?;
            let mut taken = 0;
            while taken < BATCH && self.take(Timeout::Now)? {
                taken += 1;
            }
            self.answer()?;
            let now = self.lender.now();
            if taken > 0 || end.is_some_and(|end| now >= end) {
                return Ok(taken);
            }
            let next = self.book.as_ref().and_then(Book::next);
            let until = [next, end].into_iter().flatten().min();
            let span = until.map_or(Timeout::Never, |until| {
                Timeout::After(Duration::from_nanos(until.0.saturating_sub(now.0)))
            });
            if self.joining.is_empty() {
                if self.take(span)? {
                    self.answer()?;
                    return Ok(1);
                }
            } else {
                self.wait_for_either(span)?;
            }
        }
    }

    /// Takes all leases of a part away. When this returns no client touches it.
    ///
    /// # Errors
    /// [`Error::Refused`] for a key that there is not; of the manager's own port.
    pub fn revoke(&mut self, key: u64) -> Result<()> {
        let (book, lender) = self.parts()?;
        book.revoke(lender, key)?;
        self.answer()
    }

    /// Takes all leases of a client away. When this returns it touches no memory of the pool. It may ask anew.
    ///
    /// # Errors
    /// Of the manager's own port.
    pub fn revoke_client(&mut self, node: NodeId, port: PortId) -> Result<()> {
        let (book, lender) = self.parts()?;
        book.revoke_client(lender, (node, port))?;
        self.answer()
    }

    fn parts(&mut self) -> Result<(&mut Book<Lent>, &mut Lender)> {
        // It is there until the manager is dropped.
        let book = self.book.as_mut();
        Ok((
            book.ok_or(Error::Library(netvm::Error::Released))?,
            &mut self.lender,
        ))
    }

    /// Time passes.
    fn turn(&mut self) -> Result<()> {
        self.welcome()?;
        let (book, lender) = self.parts()?;
        book.turn(lender)?;
        self.answer()
    }

    /// Takes a request, if one comes in time.
    fn take(&mut self, timeout: Timeout) -> Result<bool> {
        let message = match self.requests.recv(timeout) {
            Ok(message) => message,
            Err(netvm::Error::TimedOut) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let from = message.sender();
        let bytes = message.array::<REQUEST>(0);
        let bytes = bytes.ok().filter(|_| message.len() == REQUEST);
        drop(message);
        let request = bytes.and_then(|bytes| Request::from_bytes(&bytes));
        let known = self.clients.get(&from).map(|known| known.client);
        match (request, known) {
            (Some((number, Some(Ask::Hello { notification }))), _) => {
                self.greet(from, number, notification)?
            }
            (Some((number, Some(ask))), Some(client)) => {
                let (book, lender) = self.parts()?;
                book.request(lender, client, number, ask)?;
            }
            (Some((number, None)), Some(to)) => {
                self.nonsense();
                let answer = Answer::Refused(Refusal::Malformed);
                self.say(Said { to, number, answer })?;
            }
            _ => self.nonsense(),
        }
        Ok(true)
    }

    fn nonsense(&mut self) {
        if let Some(book) = &mut self.book {
            book.stats_mut().nonsense += 1;
        }
    }

    fn unreachable(&mut self) {
        if let Some(book) = &mut self.book {
            book.stats_mut().unreachable += 1;
        }
    }

    /// A client connects: its place for answers is imported, which a slow node may take long for.
    fn greet(&mut self, (node, port): (NodeId, PortId), number: u32, notification: u32) -> Result<()> {
        self.lives = self.lives.wrapping_add(1);
        let client = Client {
            node,
            port,
            life: self.lives,
        };
        // Whatever was there before, this is another one.
        self.clients.remove(&(node, port));
        let other = |joining: &Joining| (joining.client.node, joining.client.port) != (node, port);
        self.joining.retain(other);
        let (book, lender) = self.parts()?;
        book.forget(lender, client)?;
        let name = answers_of(lender.port.node().id(), lender.port.id());
        match lender
            .port
            .begin_import(node, port, &name, Modes::WRITE | Modes::NOTIFY, GREETING)
        {
            Ok(import) => self.joining.push(Joining {
                client,
                number,
                notification: NotificationId(notification),
                import,
                end: None,
            }),
            Err(error @ (netvm::Error::PortClosed | netvm::Error::PortEnded { .. })) => {
                return Err(error.into());
            }
            // It hears nothing, and gives up.
            Err(_) => self.unreachable(),
        }
        Ok(())
    }

    /// Clients whose answers were imported are there from now on.
    fn welcome(&mut self) -> Result<()> {
        let mut at = 0;
        while let Some(joining) = self.joining.get_mut(at) {
            let Some(end) = joining.end.take().or_else(|| joining.import.end()) else {
                at += 1;
                continue;
            };
            let Joining {
                client,
                number,
                notification,
                ..
            } = self.joining.swap_remove(at);
            match end {
                Ok(answers) if answers.len() >= u64::from(PLACES) * ANSWER as u64 => {
                    let known = Known {
                        client,
                        answers,
                        notification,
                    };
                    self.clients.insert((client.node, client.port), known);
                    let answer = Answer::Done;
                    self.say(Said {
                        to: client,
                        number,
                        answer,
                    })?;
                }
                // It hears nothing, and gives up.
                _ => self.unreachable(),
            }
        }
        Ok(())
    }

    /// Waits until there is a request, or a client whose answers were imported.
    fn wait_for_either(&mut self, timeout: Timeout) -> Result<()> {
        let (mut ready, joining) = (self.requests.ready(), &mut self.joining);
        let either = poll_fn(|context: &mut Context<'_>| {
            for joining in joining.iter_mut() {
                if let Poll::Ready(end) = Pin::new(&mut joining.import).poll(context) {
                    joining.end = Some(end);
                    return Poll::Ready(Ok(()));
                }
            }
            Pin::new(&mut ready).poll(context)
        });
        match self.lender.port.block_on_for(either, timeout) {
            Ok(there) => Ok(there?),
            Err(netvm::Error::TimedOut) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends what the book says.
    fn answer(&mut self) -> Result<()> {
        let said = self.book.as_mut().map(|book| std::mem::take(&mut book.said));
        said.into_iter().flatten().try_for_each(|said| self.say(said))
    }

    /// Answers a client, if it is still the one that asked.
    fn say(&mut self, said: Said) -> Result<()> {
        let place_of = (said.to.node, said.to.port);
        let known = self.clients.get(&place_of);
        let Some(known) = known.filter(|known| known.client == said.to) else {
            return Ok(());
        };
        let bytes = said.answer.to_bytes(said.number);
        for _ in 0..FAILURES {
            // It stands alone: another client that has gone holds up no answer.
            let write = known.answers.write(place(said.number), &bytes);
            match write.notify(known.notification).regardless().post() {
                Ok(_) => return Ok(()),
                Err(error @ (netvm::Error::PortClosed | netvm::Error::PortEnded { .. })) => {
                    return Err(error.into());
                }
                // Of something that was sent before, to this client or another: nothing was sent now.
                Err(netvm::Error::Failed(_) | netvm::Error::FailuresLost { .. }) => {}
                Err(_) => break,
            }
        }
        self.clients.remove(&place_of);
        self.unreachable();
        Ok(())
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let lent = self.book.take().map(Book::into_lent);
        // With one wait for all of them. If the port has ended, its leases are over.
        let _ = Lent::revoke_all(lent.into_iter().flatten());
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager")
            .field("name", &self.requests.name())
            .field("clients", &self.clients.len())
            .field("live", &self.live())
            .finish_non_exhaustive()
    }
}

// Keys of clients' own and of allocations are told apart by their highest bit.
const _: () = assert!(ALLOCATED.trailing_zeros() == 63);
