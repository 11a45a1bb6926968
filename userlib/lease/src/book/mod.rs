//! What a manager decides: which wishes are granted, which wait, and what is revoked when.
//!
//! No thread, no port and no clock of its own: what it needs of them is a [`Card`], and the answers are left in [`said`](Book::said) for
//! the manager to send. So the tests run it against a model of a card in virtual time.
//!
//! A lease that is over, or was given back, is *stale*. Its capability is revoked before its memory goes to another, and otherwise when
//! there are many of them, or too little of something else. One revocation serves any number of stale leases.

mod wishes;

use self::wishes::{For, Wish, Wishes};
use crate::error::{Error, Refusal, Result};
use crate::pool::{FRAME, Part, Pool};
use crate::stats::ManagerStats;
use crate::wire::{Answer, Ask, Terms};
use netvm::{LeaseToken, Nanos, NodeId, PortId};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// Keys of allocated parts begin here.
pub(crate) const ALLOCATED: u64 = 1 << 63;
/// Leases that are looked at, and wishes that are refused, in one turn: requests come in between.
const BATCH: u32 = 64;
/// So many stale leases are revoked together, and at the latest when there are so many.
const STALE: usize = 256;
/// Room is scarce when less than this part of the pool is free.
const SCARCE: u64 = 8;

/// A client, in one of its lives: a port may be opened again by another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) node: NodeId,
    pub(crate) port: PortId,
    pub(crate) life: u32,
}

/// A client in its life, as a key.
type Holder = (NodeId, PortId, u32);

impl Client {
    const fn key(self) -> Holder {
        (self.node, self.port, self.life)
    }
}

/// What lends memory, and ends that: the manager's port.
pub(crate) trait Card {
    /// A lease that was given.
    type Lent;

    /// The time by the port's clock.
    fn now(&self) -> Nanos;

    /// Lends a part for so many ns.
    fn lend(
        &mut self,
        part: Part,
        to: Client,
        write: bool,
        duration: Nanos,
    ) -> std::result::Result<(LeaseToken, Self::Lent), NotLent>;

    /// How much of a lease is left at least. `None`: it is over for good.
    fn left(&mut self, lent: &Self::Lent) -> netvm::Result<Option<Nanos>>;

    /// Ends leases. When it returns nothing that they allowed is under way.
    fn revoke(&mut self, lent: Vec<Self::Lent>) -> netvm::Result<()>;

    /// Writes zeros over bytes of the pool that no lease is of.
    fn clear(&mut self, part: Part) -> netvm::Result<()>;
}

/// Why nothing was lent.
#[derive(Debug)]
pub(crate) enum NotLent {
    /// The table of capabilities is full.
    TableFull,
    /// Not to this client.
    Never,
    /// The port does not work any more.
    Broken(netvm::Error),
}

/// How a manager decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// The longest duration, in ns.
    pub(crate) longest: u64,
    /// Whether what is allocated holds zeros.
    pub(crate) clears: bool,
}

/// An answer to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) to: Client,
    pub(crate) number: u32,
    pub(crate) answer: Answer,
}

/// A part of the pool that may be lent.
#[derive(Debug)]
struct Area {
    part: Part,
    /// Leases that count.
    live: BTreeSet<u64>,
    /// Whether the one that counts is exclusive.
    exclusive: bool,
    /// Leases that are over or were given back, and not yet revoked, by their holders: a grant asks for those of others, and one holder
    /// may have many.
    stale: BTreeMap<Holder, BTreeSet<u64>>,
    /// Wishes for it.
    waiting: BTreeSet<u64>,
}

impl Area {
    fn new(part: Part) -> Self {
        Self {
            part,
            live: BTreeSet::new(),
            exclusive: false,
            stale: BTreeMap::new(),
            waiting: BTreeSet::new(),
        }
    }

    fn conflicts(&self, terms: &Terms) -> bool {
        !self.live.is_empty() && (self.exclusive || terms.exclusive)
    }

    /// Forgets a lease.
    fn remove(&mut self, id: u64, holder: Client) {
        self.live.remove(&id);
        if let Entry::Occupied(mut theirs) = self.stale.entry(holder.key()) {
            theirs.get_mut().remove(&id);
            if theirs.get().is_empty() {
                theirs.remove();
            }
        }
    }

    /// No client has it or will have it.
    fn is_unused(&self) -> bool {
        self.live.is_empty() && self.waiting.is_empty()
    }
}

/// A lease whose capability was not revoked.
#[derive(Debug)]
struct Held<L> {
    lent: L,
    key: u64,
    holder: Client,
    /// When the card is to be asked about it. `None`: it is stale.
    due: Option<Nanos>,
}

/// The state of a manager.
pub(crate) struct Book<L> {
    rules: Rules,
    pool: Pool,
    areas: BTreeMap<u64, Area>,
    held: BTreeMap<u64, Held<L>>,
    /// Live leases, by when the card is to be asked.
    due: BTreeSet<(Nanos, u64)>,
    stale: BTreeSet<u64>,
    /// Stale leases of allocated parts.
    stale_allocated: usize,
    wishes: Wishes,
    next_key: u64,
    stats: ManagerStats,
    /// Answers to be sent, oldest first.
    pub(crate) said: Vec<Said>,
}

impl<L> Book<L> {
    pub(crate) fn new(bytes: u64, rules: Rules) -> Self {
        Self {
            rules,
            pool: Pool::new(bytes),
            areas: BTreeMap::new(),
            held: BTreeMap::new(),
            due: BTreeSet::new(),
            stale: BTreeSet::new(),
            stale_allocated: 0,
            wishes: Wishes::default(),
            next_key: ALLOCATED,
            stats: ManagerStats::default(),
            said: Vec::new(),
        }
    }

    /// Gives keys from this one on to parts of so many bytes, one behind the other in memory.
    pub(crate) fn define(&mut self, first: u64, sizes: &[u64]) -> Result<Vec<Part>> {
        const NO_ROOM: Error = Error::BadPool("no room for so many bytes, or for none");
        let last = first.checked_add(sizes.len().saturating_sub(1) as u64);
        let last = last.filter(|last| *last < ALLOCATED);
        let last = last.ok_or(Error::BadPool("keys from 2^63 on are those of allocations"))?;
        if self.areas.range(first..=last).next().is_some() {
            return Err(Error::BadPool("a part has this key already"));
        }
        let mut parts = Vec::with_capacity(sizes.len());
        let mut end = 0_u64;
        for &len in sizes {
            parts.push(Part { offset: end, len });
            let frames = len.checked_next_multiple_of(FRAME).filter(|_| len != 0);
            end = frames.and_then(|len| end.checked_add(len)).ok_or(NO_ROOM)?;
        }
        let whole = self.pool.carve(end).ok_or(NO_ROOM)?;
        for (key, part) in (first..).zip(&mut parts) {
            part.offset += whole.offset;
            self.areas.insert(key, Area::new(*part));
        }
        Ok(parts)
    }

    pub(crate) const fn stats(&self) -> ManagerStats {
        self.stats
    }

    pub(crate) const fn stats_mut(&mut self) -> &mut ManagerStats {
        &mut self.stats
    }

    pub(crate) const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Leases that are not known to be over.
    pub(crate) fn live(&self) -> usize {
        self.due.len()
    }

    /// When the next [`turn`](Self::turn) has something to do.
    pub(crate) fn next(&self) -> Option<Nanos> {
        let due = self.due.first().map(|(at, _)| *at);
        [due, self.wishes.first()].into_iter().flatten().min()
    }

    /// All leases that were not revoked: for the manager that ends.
    pub(crate) fn into_lent(self) -> Vec<L> {
        self.held.into_values().map(|held| held.lent).collect()
    }

    /// A client has come, or has come back: what it wished for before has no meaning any more.
    pub(crate) fn forget<C: Card<Lent = L>>(&mut self, card: &mut C, client: Client) -> Result<()> {
        match self.wishes.take_of(client) {
            Some((seq, wish)) => self.left_the_queue(card, seq, &wish),
            None => Ok(()),
        }
    }

    /// A request has come.
    pub(crate) fn request<C: Card<Lent = L>>(
        &mut self,
        card: &mut C,
        client: Client,
        number: u32,
        ask: Ask,
    ) -> Result<()> {
        // A client has one request at a time, so it has given up the one before.
        self.forget(card, client)?;
        let wish = |terms, what| Wish {
            client,
            number,
            terms,
            what,
        };
        match ask {
            // A manager has greeted it before the book hears of it.
            Ask::Hello { .. } | Ask::Echo => self.say(client, number, Answer::Done),
            Ask::Relinquish { id } => {
                let live = self.held.get(&id).filter(|held| held.due.is_some());
                match live.filter(|held| held.holder == client) {
                    Some(_) => {
                        self.stats.relinquished += 1;
                        self.say(client, number, Answer::Done);
                        self.retire(card, id)?;
                    }
                    None => self.say(client, number, Answer::Refused(Refusal::NoSuchLease)),
                }
            }
            Ask::Acquire { key, terms } => self.wish_for(card, key, wish(terms, For::Part(key)))?,
            Ask::Allocate { len, terms } => match self.pool.size_of(len) {
                Some(size) => self.wish_for_room(card, size, wish(terms, For::Room(size)))?,
                None => self.say(client, number, Answer::Refused(Refusal::BadSize)),
            },
        }
        Ok(())
    }

    /// Looks at leases that are due, and at wishes that have waited for long enough; revokes what is due for that.
    pub(crate) fn turn<C: Card<Lent = L>>(&mut self, card: &mut C) -> Result<()> {
        for _ in 0..BATCH {
            let Some(&(at, id)) = self.due.first().filter(|(at, _)| *at <= card.now()) else {
                break;
            };
            let Some(held) = self.held.get_mut(&id) else {
                self.due.remove(&(at, id));
                continue;
            };
            self.stats.asked += 1;
            match card.left(&held.lent)? {
                Some(left) => {
                    let due = card.now().after(left);
                    held.due = Some(due);
                    self.due.remove(&(at, id));
                    self.due.insert((due, id));
                }
                None => {
                    self.stats.ended += 1;
                    self.retire(card, id)?;
                }
            }
        }
        for _ in 0..BATCH {
            let Some((seq, wish)) = self.wishes.take_if_over(card.now()) else {
                break;
            };
            let why = match wish.what {
                For::Part(_) => Refusal::Conflict,
                For::Room(_) => Refusal::NoRoom,
            };
            self.say(wish.client, wish.number, Answer::Refused(why));
            self.left_the_queue(card, seq, &wish)?;
        }
        let scarce = self.pool.free() < self.pool.size() / SCARCE;
        if self.stale.len() >= STALE || (scarce && self.stale_allocated > 0) {
            self.reclaim(card)?;
            self.feed(card)?;
        }
        Ok(())
    }

    /// Takes all leases of a key away.
    pub(crate) fn revoke<C: Card<Lent = L>>(&mut self, card: &mut C, key: u64) -> Result<()> {
        let area = self.areas.get(&key);
        let area = area.ok_or(Error::Refused(Refusal::NoSuchKey))?;
        let ids = area
            .live
            .iter()
            .chain(area.stale.values().flatten())
            .copied()
            .collect();
        self.end_all(card, ids)?;
        self.settle(card, key)
    }

    /// Takes all leases of a client away, and what it waits for.
    pub(crate) fn revoke_client<C: Card<Lent = L>>(
        &mut self,
        card: &mut C,
        (node, port): (NodeId, PortId),
    ) -> Result<()> {
        let life = 0;
        self.forget(card, Client { node, port, life })?;
        let theirs = |held: &Held<L>| (held.holder.node, held.holder.port) == (node, port);
        let theirs = self.held.iter().filter(|(_, held)| theirs(held));
        let (ids, keys): (Vec<u64>, BTreeSet<u64>) = theirs.map(|(id, held)| (*id, held.key)).unzip();
        self.end_all(card, ids)?;
        for key in keys {
            self.settle(card, key)?;
        }
        Ok(())
    }

    fn has_time(&self, terms: &Terms) -> bool {
        terms.duration != 0 && terms.duration <= self.rules.longest
    }

    fn wish_for<C: Card<Lent = L>>(&mut self, card: &mut C, key: u64, wish: Wish) -> Result<()> {
        // An allocation that is over has no key any more, though its part may not be free yet.
        let area = self.areas.get(&key);
        let area = area.filter(|area| key < ALLOCATED || !area.is_unused());
        let answer = match area {
            _ if !self.has_time(&wish.terms) => Answer::Refused(Refusal::BadTime),
            None => Answer::Refused(Refusal::NoSuchKey),
            Some(area) if area.waiting.is_empty() && !area.conflicts(&wish.terms) => {
                self.grant(card, key, &wish)?
            }
            Some(_) if wish.terms.patience == 0 => Answer::Refused(Refusal::Conflict),
            Some(_) => {
                self.wait(card, wish);
                return Ok(());
            }
        };
        self.say(wish.client, wish.number, answer);
        Ok(())
    }

    fn wish_for_room<C: Card<Lent = L>>(&mut self, card: &mut C, size: u64, wish: Wish) -> Result<()> {
        let answer = if !self.has_time(&wish.terms) {
            Answer::Refused(Refusal::BadTime)
        } else if let Some(answer) = self.allocate(card, size, &wish)? {
            answer
        } else if wish.terms.patience == 0 {
            Answer::Refused(Refusal::NoRoom)
        } else {
            self.wait(card, wish);
            return Ok(());
        };
        self.say(wish.client, wish.number, answer);
        Ok(())
    }

    fn wait<C: Card<Lent = L>>(&mut self, card: &C, wish: Wish) {
        self.stats.waited += 1;
        let until = card.now().after(Nanos(wish.terms.patience));
        let seq = self.wishes.add(wish, until);
        if let For::Part(key) = wish.what
            && let Some(area) = self.areas.get_mut(&key)
        {
            area.waiting.insert(seq);
        }
    }

    /// A wish has ended without a grant: those behind it may have their turn now.
    fn left_the_queue<C: Card<Lent = L>>(&mut self, card: &mut C, seq: u64, wish: &Wish) -> Result<()> {
        match wish.what {
            For::Room(_) => self.feed(card),
            For::Part(key) => {
                if let Some(area) = self.areas.get_mut(&key) {
                    area.waiting.remove(&seq);
                }
                self.settle(card, key)
            }
        }
    }

    /// Room for a wish, from what is free or stale. `None`: there is none, or others of this size are before it.
    fn allocate<C: Card<Lent = L>>(
        &mut self,
        card: &mut C,
        size: u64,
        wish: &Wish,
    ) -> Result<Option<Answer>> {
        if self.wishes.is_before(size, wish) {
            return Ok(None);
        }
        let before = self.pool.fresh();
        let part = loop {
            if let Some(part) = self.pool.allocate(size) {
                break part;
            }
            if self.stale_allocated == 0 {
                return Ok(None);
            }
            self.reclaim(card)?;
        };
        if self.rules.clears && part.offset < before {
            let len = part.len.min(before - part.offset);
            card.clear(Part { len, ..part })?;
        }
        let key = self.next_key;
        self.next_key += 1;
        self.areas.insert(key, Area::new(part));
        self.grant(card, key, wish).map(Some)
    }

    /// Lends a part that nothing conflicts with, after what is stale of others has been revoked.
    fn grant<C: Card<Lent = L>>(&mut self, card: &mut C, key: u64, wish: &Wish) -> Result<Answer> {
        let Some(area) = self.areas.get(&key) else {
            return Ok(Answer::Refused(Refusal::NoSuchKey));
        };
        let part = area.part;
        let asks = wish.client.key();
        let others = area.stale.iter().filter(|(holder, _)| **holder != asks);
        let others: Vec<u64> = others.flat_map(|(_, theirs)| theirs).copied().collect();
        self.end_all(card, others)?;
        let duration = Nanos(wish.terms.duration);
        let lent = loop {
            match card.lend(part, wish.client, wish.terms.write, duration) {
                Ok(lent) => break Ok(lent),
                Err(NotLent::TableFull) if !self.stale.is_empty() => self.reclaim(card)?,
                Err(NotLent::TableFull) => break Err(Refusal::TableFull),
                Err(NotLent::Never) => break Err(Refusal::CannotLend),
                Err(NotLent::Broken(error)) => return Err(error.into()),
            }
        };
        let (token, lent) = match lent {
            Ok(lent) => lent,
            Err(why) => {
                self.release(key);
                return Ok(Answer::Refused(why));
            }
        };
        let id = token.id();
        let due = card.now().after(duration);
        self.due.insert((due, id));
        let held = Held {
            lent,
            key,
            holder: wish.client,
            due: Some(due),
        };
        self.held.insert(id, held);
        if let Some(area) = self.areas.get_mut(&key) {
            area.live.insert(id);
            area.exclusive = wish.terms.exclusive;
        }
        self.stats.granted += 1;
        Ok(Answer::Granted { key, token })
    }

    /// A lease is over, or was given back.
    fn retire<C: Card<Lent = L>>(&mut self, card: &mut C, id: u64) -> Result<()> {
        let Some(held) = self.held.get_mut(&id) else {
            return Ok(());
        };
        let (key, holder) = (held.key, held.holder);
        if let Some(due) = held.due.take() {
            self.due.remove(&(due, id));
            self.stale.insert(id);
            self.stale_allocated += usize::from(key >= ALLOCATED);
        }
        if let Some(area) = self.areas.get_mut(&key) {
            area.live.remove(&id);
            area.stale.entry(holder.key()).or_default().insert(id);
        }
        self.settle(card, key)
    }

    /// A lease of a part has ended, or a wish for it: whose turn it is has it.
    fn settle<C: Card<Lent = L>>(&mut self, card: &mut C, key: u64) -> Result<()> {
        while let Some(area) = self.areas.get(&key) {
            let first = area.waiting.first().copied();
            let Some((seq, wish)) = first.and_then(|seq| Some((seq, self.wishes.get(seq)?))) else {
                break;
            };
            if area.conflicts(&wish.terms) {
                return Ok(());
            }
            // Its part is not free while it waits.
            let answer = self.grant(card, key, &wish)?;
            if let Some(area) = self.areas.get_mut(&key) {
                area.waiting.remove(&seq);
            }
            self.wishes.take(seq);
            self.say(wish.client, wish.number, answer);
        }
        self.release(key);
        self.feed(card)
    }

    /// Room for allocations that wait, if there is some by now.
    fn feed<C: Card<Lent = L>>(&mut self, card: &mut C) -> Result<()> {
        let mut size = self.wishes.hungry(0);
        while let Some((bytes, seq, wish)) = size {
            size = match self.allocate(card, bytes, &wish)? {
                Some(answer) => {
                    self.wishes.take(seq);
                    self.say(wish.client, wish.number, answer);
                    self.wishes.hungry(bytes)
                }
                // If this is too much, what is larger is, too.
                None => None,
            };
        }
        Ok(())
    }

    /// Revokes stale leases, with one wait.
    fn reclaim<C: Card<Lent = L>>(&mut self, card: &mut C) -> Result<()> {
        let ids: Vec<u64> = self.stale.iter().take(STALE).copied().collect();
        self.end_all(card, ids)
    }

    /// Revokes leases, with one wait. Parts that were allocated and have no lease any more are free then.
    fn end_all<C: Card<Lent = L>>(&mut self, card: &mut C, ids: Vec<u64>) -> Result<()> {
        let mut keys = BTreeSet::new();
        let mut lent = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(held) = self.held.remove(&id) else {
                continue;
            };
            match held.due {
                Some(due) => self.due.remove(&(due, id)),
                None => {
                    self.stale_allocated -= usize::from(held.key >= ALLOCATED);
                    self.stale.remove(&id)
                }
            };
            if let Some(area) = self.areas.get_mut(&held.key) {
                area.remove(id, held.holder);
            }
            keys.insert(held.key);
            lent.push(held.lent);
        }
        if lent.is_empty() {
            return Ok(());
        }
        self.stats.revoked += lent.len() as u64;
        self.stats.revocations += 1;
        card.revoke(lent)?;
        for key in keys {
            self.release(key);
        }
        Ok(())
    }

    /// A part that was allocated, and has no lease and no wish any more, is free.
    fn release(&mut self, key: u64) {
        let unused = |area: &Area| area.is_unused() && area.stale.is_empty();
        if key >= ALLOCATED
            && self.areas.get(&key).is_some_and(unused)
            && let Some(area) = self.areas.remove(&key)
        {
            self.pool.give_back(area.part);
        }
    }

    fn say(&mut self, to: Client, number: u32, answer: Answer) {
        self.stats.refused += u64::from(matches!(answer, Answer::Refused(_)));
        self.said.push(Said { to, number, answer });
    }
}

#[cfg(test)]
mod tests;
