//! The book against a model of a card, in virtual time.

use super::*;
use crate::wire::tests::token;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

const MS: u64 = 1_000_000;
const LONGEST: u64 = 100 * MS;
const POOL: u64 = 16 * 1024;

/// A lease at the card.
#[derive(Clone, Copy, Debug)]
struct Valid {
    part: Part,
    holder: Client,
    begun: u64,
    end: u64,
}

/// A card: its clock, and the leases whose capability was not revoked.
#[derive(Debug, Default)]
struct Model {
    now: u64,
    valid: BTreeMap<u64, Valid>,
    ids: u64,
    table: usize,
    revocations: u64,
    cleared: Vec<Part>,
}

#[derive(Clone, Debug, Default)]
struct Fake(Rc<RefCell<Model>>);

impl Fake {
    fn pass(&self, span: u64) {
        self.0.borrow_mut().now += span;
    }

    /// One operation at the card, of which the book hears nothing.
    fn extend(&self, id: u64, by: u64) -> bool {
        let mut model = self.0.borrow_mut();
        let now = model.now;
        match model.valid.get_mut(&id).filter(|lease| lease.end > now) {
            Some(lease) => {
                lease.end = lease.end.max((now + by).min(lease.begun + LONGEST));
                true
            }
            None => false,
        }
    }
}

impl Card for Fake {
    type Lent = u64;

    fn now(&self) -> Nanos {
        Nanos(self.0.borrow().now)
    }

    fn lend(
        &mut self,
        part: Part,
        holder: Client,
        _: bool,
        duration: Nanos,
    ) -> std::result::Result<(LeaseToken, u64), NotLent> {
        let mut model = self.0.borrow_mut();
        if model.valid.len() >= model.table {
            return Err(NotLent::TableFull);
        }
        model.ids += 1;
        let (token, begun) = (token(model.ids, part.len), model.now);
        let lease = Valid {
            part,
            holder,
            begun,
            end: begun + duration.0,
        };
        model.valid.insert(token.id(), lease);
        Ok((token, token.id()))
    }

    fn left(&mut self, lent: &u64) -> netvm::Result<Option<Nanos>> {
        let model = self.0.borrow();
        let left = model.valid[lent].end.saturating_sub(model.now);
        Ok((left != 0).then_some(Nanos(left)))
    }

    fn revoke(&mut self, lent: Vec<u64>) -> netvm::Result<()> {
        let mut model = self.0.borrow_mut();
        model.revocations += 1;
        for id in lent {
            assert!(model.valid.remove(&id).is_some(), "revoked twice");
        }
        Ok(())
    }

    fn clear(&mut self, part: Part) -> netvm::Result<()> {
        let mut model = self.0.borrow_mut();
        let meets = |lease: &Valid| overlap(lease.part, part);
        assert!(!model.valid.values().any(meets), "cleared under a lease");
        model.cleared.push(part);
        Ok(())
    }
}

fn overlap(one: Part, other: Part) -> bool {
    one.offset < other.offset + other.len && other.offset < one.offset + one.len
}

/// A book, its card, and what its clients know.
struct World {
    card: Fake,
    book: Book<u64>,
    number: u32,
}

fn client(port: u16) -> Client {
    Client {
        node: NodeId(0),
        port: PortId(port),
        life: 1,
    }
}

fn terms(exclusive: bool, duration: u64, patience: u64) -> Terms {
    Terms {
        write: true,
        exclusive,
        duration,
        patience,
    }
}

impl World {
    fn new(table: usize) -> Self {
        let card = Fake::default();
        card.0.borrow_mut().table = table;
        let rules = Rules {
            longest: LONGEST,
            clears: true,
        };
        Self {
            card,
            book: Book::new(POOL, rules),
            number: 0,
        }
    }

    /// Asks, and tells the number of the request.
    fn ask(&mut self, client: Client, ask: Ask) -> u32 {
        self.number += 1;
        self.book
            .request(&mut self.card, client, self.number, ask)
            .unwrap();
        self.number
    }

    fn turn(&mut self) {
        self.book.turn(&mut self.card).unwrap();
    }

    /// Lets time pass, with a turn whenever one is due.
    fn pass(&mut self, span: u64) {
        let end = self.card.now().0 + span;
        while let Some(next) = self.book.next().filter(|next| next.0 <= end) {
            self.card.pass(next.0.saturating_sub(self.card.now().0));
            self.turn();
        }
        self.card.pass(end - self.card.now().0);
    }

    /// What was said since this was asked.
    fn said(&mut self) -> Vec<(u32, Answer)> {
        let said = std::mem::take(&mut self.book.said);
        said.into_iter().map(|said| (said.number, said.answer)).collect()
    }

    /// Asks, and is granted it at once.
    fn get(&mut self, client: Client, ask: Ask) -> (u64, LeaseToken) {
        let number = self.ask(client, ask);
        match self.said()[..] {
            [(told, Answer::Granted { key, token })] if told == number => (key, token),
            ref other => panic!("not granted: {other:?}"),
        }
    }

    /// Asks, and is refused at once.
    fn refused(&mut self, client: Client, ask: Ask) -> Refusal {
        let number = self.ask(client, ask);
        match self.said()[..] {
            [(told, Answer::Refused(why))] if told == number => why,
            ref other => panic!("not refused: {other:?}"),
        }
    }
}

fn acquire(key: u64, terms: Terms) -> Ask {
    Ask::Acquire { key, terms }
}

fn allocate(len: u64, terms: Terms) -> Ask {
    Ask::Allocate { len, terms }
}

#[test]
fn shared_leases_go_together_and_exclusive_ones_alone() {
    let mut world = World::new(100);
    world.book.define(7, &[4096]).unwrap();
    let shared = acquire(7, terms(false, MS, 0));
    let alone = acquire(7, terms(true, MS, 0));
    let (_, one) = world.get(client(1), shared);
    world.get(client(2), shared);
    assert_eq!(world.refused(client(3), alone), Refusal::Conflict);
    world.pass(MS);
    world.get(client(3), alone);
    assert_eq!(world.refused(client(1), shared), Refusal::Conflict);
    assert_eq!(world.refused(client(1), alone), Refusal::Conflict);
    let late = Ask::Relinquish { id: one.id() };
    assert_eq!(world.refused(client(1), late), Refusal::NoSuchLease);
}

#[test]
fn a_wish_waits_for_its_turn_and_no_longer_than_it_says() {
    let mut world = World::new(100);
    world.book.define(7, &[4096]).unwrap();
    let (_, held) = world.get(client(1), acquire(7, terms(true, 50 * MS, 0)));
    let short = world.ask(client(2), acquire(7, terms(true, MS, 5 * MS)));
    let first = world.ask(client(3), acquire(7, terms(true, 10 * MS, 80 * MS)));
    let second = world.ask(client(4), acquire(7, terms(false, 10 * MS, 80 * MS)));
    let third = world.ask(client(5), acquire(7, terms(false, 10 * MS, u64::MAX)));
    world.pass(5 * MS);
    assert_eq!(world.said(), [(short, Answer::Refused(Refusal::Conflict))]);
    // Extended at the card: the book finds that out when the lease is due.
    assert!(world.card.extend(held.id(), 50 * MS));
    world.pass(49 * MS);
    assert_eq!(world.said(), []);
    assert_eq!(world.book.stats().asked, 1);
    world.pass(MS);
    let said = world.said();
    assert!(
        matches!(said[..], [(told, Answer::Granted { .. })] if told == first),
        "{said:?}"
    );
    world.pass(10 * MS);
    let said: Vec<u32> = world.said().iter().map(|said| said.0).collect();
    assert_eq!(said, [second, third], "shared ones have their turn together");
    assert_eq!(world.book.stats().waited, 4);
}

#[test]
fn a_shared_wish_does_not_pass_an_exclusive_one_that_waits() {
    let mut world = World::new(100);
    world.book.define(7, &[64]).unwrap();
    let (_, one) = world.get(client(1), acquire(7, terms(false, 50 * MS, 0)));
    let alone = world.ask(client(2), acquire(7, terms(true, MS, 50 * MS)));
    assert_eq!(
        world.refused(client(3), acquire(7, terms(false, MS, 0))),
        Refusal::Conflict
    );
    // A client that asks anew has given up what it asked before.
    world.ask(client(2), Ask::Echo);
    world.said();
    world.get(client(3), acquire(7, terms(false, 50 * MS, 0)));
    world.ask(client(1), Ask::Relinquish { id: one.id() });
    world.pass(60 * MS);
    let answered = world.said().iter().any(|said| said.0 == alone);
    assert!(!answered, "a wish that was given up was granted");
}

#[test]
fn bad_requests_are_refused_with_a_reason() {
    let mut world = World::new(2);
    world.book.define(7, &[64]).unwrap();
    for (key, bytes) in [(7, 64), (8, 0), (8, POOL), (ALLOCATED, 64), (u64::MAX, 64)] {
        assert!(matches!(world.book.define(key, &[bytes]), Err(Error::BadPool(_))));
    }
    let mut refused = |ask| world.refused(client(1), ask);
    for (duration, patience) in [(0, 0), (0, MS), (LONGEST + 1, 0), (u64::MAX, MS)] {
        let terms = terms(true, duration, patience);
        assert_eq!(refused(acquire(7, terms)), Refusal::BadTime);
        assert_eq!(refused(allocate(64, terms)), Refusal::BadTime);
    }
    let good = terms(true, MS, MS);
    for key in [8, ALLOCATED, u64::MAX] {
        assert_eq!(refused(acquire(key, good)), Refusal::NoSuchKey);
    }
    for len in [0, 2 * POOL, u64::MAX] {
        assert_eq!(refused(allocate(len, good)), Refusal::BadSize);
    }
    assert_eq!(refused(Ask::Relinquish { id: 3 }), Refusal::NoSuchLease);
    let (_, token) = world.get(client(1), acquire(7, good));
    // Of another client, and of an earlier life of this port.
    let theirs = Ask::Relinquish { id: token.id() };
    let again = Client { life: 2, ..client(1) };
    assert_eq!(world.refused(client(2), theirs), Refusal::NoSuchLease);
    assert_eq!(world.refused(again, theirs), Refusal::NoSuchLease);
    world.get(client(1), allocate(64, good));
    assert_eq!(world.refused(client(3), allocate(64, good)), Refusal::TableFull);
    // Nothing was lost with that: there is room when the others are over.
    world.pass(MS);
    world.get(client(3), allocate(POOL / 2, good));
}

#[test]
fn parts_of_a_row_lie_one_behind_the_other() {
    let mut world = World::new(10);
    let row = world.book.define(5, &[64, 100, 8]).unwrap();
    let at = row[0].offset;
    let places: Vec<_> = row.iter().map(|part| (part.offset - at, part.len)).collect();
    assert_eq!(places, [(0, 64), (64, 100), (192, 8)]);
    let wish = terms(true, MS, 0);
    for (key, len) in (5..).zip([64, 100, 8]) {
        assert_eq!(world.get(client(1), acquire(key, wish)).1.len(), len);
    }
    for (first, sizes) in [
        (3, &[64; 3][..]),
        (20, &[64, 0]),
        (20, &[u64::MAX, 64]),
        (ALLOCATED - 1, &[64; 2]),
        (20, &[]),
    ] {
        let none = world.book.define(first, sizes);
        assert!(
            matches!(none, Err(Error::BadPool(_))),
            "{first} {sizes:?}: {none:?}"
        );
    }
    let free = world.book.pool().free();
    assert_eq!(free, POOL - 256, "what was refused has taken nothing");
}

#[test]
fn stale_leases_are_revoked_when_it_matters_and_together() {
    let mut world = World::new(10_000);
    world.book.define(7, &[64]).unwrap();
    let wish = acquire(7, terms(true, MS, 0));
    // The same client again and again: its own leases are in no way of it.
    for _ in 0..STALE - 1 {
        let (_, token) = world.get(client(1), wish);
        world.ask(client(1), Ask::Relinquish { id: token.id() });
        world.said();
        world.turn();
    }
    assert_eq!(world.book.stats().revocations, 0);
    let (_, token) = world.get(client(1), wish);
    world.ask(client(1), Ask::Relinquish { id: token.id() });
    world.said();
    world.turn();
    let stats = world.book.stats();
    assert_eq!((stats.revoked, stats.revocations), (STALE as u64, 1));
    assert!(world.card.0.borrow().valid.is_empty());
    // Another client, or another life of this one: at once.
    for next in [client(1), client(2), Client { life: 2, ..client(2) }] {
        let (_, token) = world.get(next, wish);
        assert_eq!(world.card.0.borrow().valid.len(), 1);
        world.ask(next, Ask::Relinquish { id: token.id() });
        world.said();
    }
}

#[test]
fn memory_comes_back_by_itself_where_it_is_scarce() {
    let mut world = World::new(1000);
    let wish = terms(true, MS, 0);
    // Plenty: the client is dead, and its memory stays where it is.
    world.get(client(1), allocate(64, wish));
    world.pass(2 * MS);
    assert_eq!((world.book.live(), world.book.stats().ended), (0, 1));
    assert_eq!(world.book.pool().free(), POOL - 64);
    // Scarce: it comes back when its lease ends, and nothing has to ask.
    world.get(client(2), allocate(POOL / 2, wish));
    world.get(client(3), allocate(POOL / 4, wish));
    world.get(client(4), allocate(POOL / 8, wish));
    assert!(world.book.pool().free() < POOL / SCARCE);
    world.pass(MS);
    assert_eq!(world.book.pool().free(), POOL);
    assert_eq!(world.card.0.borrow().valid.len(), 0);
    // One that waits has the memory when that is over.
    world.get(client(1), allocate(POOL, wish));
    let waits = world.ask(client(2), allocate(64, terms(true, MS, 10 * MS)));
    let larger = world.ask(client(3), allocate(POOL, terms(true, MS, 10 * MS)));
    world.pass(MS);
    let said = world.said();
    assert!(
        matches!(said[..], [(told, Answer::Granted { .. })] if told == waits),
        "{said:?}"
    );
    world.pass(MS);
    let said = world.said();
    assert!(
        matches!(said[..], [(told, Answer::Granted { .. })] if told == larger),
        "{said:?}"
    );
}

#[test]
fn an_allocation_holds_zeros_and_no_key_after_its_end() {
    let mut world = World::new(1000);
    let wish = terms(false, MS, 0);
    let (key, one) = world.get(client(1), allocate(1000, wish));
    assert_eq!((one.len(), key), (1024, ALLOCATED));
    // Shared by its key.
    let (_, two) = world.get(client(2), acquire(key, wish));
    world.ask(client(1), Ask::Relinquish { id: one.id() });
    world.ask(client(2), Ask::Relinquish { id: two.id() });
    world.said();
    let gone = world.refused(client(2), acquire(key, wish));
    assert_eq!(gone, Refusal::NoSuchKey);
    assert_eq!(world.card.0.borrow().cleared, []);
    world.get(client(3), allocate(POOL, wish));
    let part = Part { offset: 0, len: 1024 };
    assert_eq!(world.card.0.borrow().cleared, [part], "what was in use before");
}

#[test]
fn a_manager_takes_leases_away() {
    let mut world = World::new(1000);
    world.book.define(7, &[64]).unwrap();
    assert_eq!(
        world.book.revoke(&mut world.card, 9),
        Err(Error::Refused(Refusal::NoSuchKey))
    );
    let alone = |patience| terms(true, 50 * MS, patience);
    world.get(client(1), acquire(7, alone(0)));
    let next = world.ask(client(2), acquire(7, alone(MS)));
    world.book.revoke(&mut world.card, 7).unwrap();
    let said = world.said();
    assert!(
        matches!(said[..], [(told, Answer::Granted { .. })] if told == next),
        "{said:?}"
    );
    // All of a client: keyed, allocated, and what it waits for.
    let (key, _) = world.get(client(2), allocate(POOL / 2, alone(0)));
    let after = world.ask(client(3), acquire(key, alone(MS)));
    world.ask(client(2), allocate(POOL / 2, alone(MS)));
    world
        .book
        .revoke_client(&mut world.card, (NodeId(0), PortId(2)))
        .unwrap();
    let said = world.said();
    assert!(
        matches!(said[..], [(told, Answer::Granted { .. })] if told == after),
        "{said:?}"
    );
    assert_eq!(world.book.live(), 1);
    assert_eq!(world.book.next(), Some(Nanos(50 * MS)), "nothing else waits");
    world.book.revoke(&mut world.card, key).unwrap();
    assert_eq!(world.book.pool().free(), POOL - 64);
    assert_eq!(world.book.into_lent(), []);
}

#[test]
fn a_hundred_thousand_leases_live_at_once() {
    const MANY: u32 = 100_000;
    let mut world = World::new(MANY as usize);
    world.book.define(7, &[64]).unwrap();
    let wish = acquire(7, terms(false, LONGEST, 0));
    for number in 0..MANY {
        world.get(client((number % 500) as u16), wish);
    }
    assert_eq!(world.book.live(), MANY as usize);
    assert_eq!(world.refused(client(1), wish), Refusal::TableFull);
    world.pass(LONGEST);
    assert_eq!(world.book.live(), 0);
    assert!(world.card.0.borrow().valid.len() < STALE);
}

/// What a client knows of a lease.
#[derive(Clone, Copy, Debug)]
struct Mine {
    key: u64,
    exclusive: bool,
    given_back: bool,
}

/// Random clients that come back, extend and die. Memory that another has, or had until it was revoked, is lent to no client, but for shared
/// leases that live; each wish is answered once, within its patience; all memory comes back.
#[test]
fn random_clients_never_meet_in_memory() {
    for seed in 0..40 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut world = World::new(random.random_range(4..40));
        for key in 0..3 {
            world.book.define(key, &[100 << key]).unwrap();
        }
        let mut clients: Vec<Client> = (0..6).map(client).collect();
        let mut leases: BTreeMap<u64, Mine> = BTreeMap::new();
        // What each request may still hear, and until when.
        let mut open: HashMap<u32, (Client, Ask, u64)> = HashMap::new();
        let mut keys = vec![0, 1, 2];
        for _ in 0..2000 {
            let at = random.random_range(0..clients.len());
            match random.random_range(0..10) {
                // It dies, and another comes in its place.
                0 => {
                    clients[at].life += 1;
                    world.book.forget(&mut world.card, clients[at]).unwrap();
                    open.retain(|_, (client, ..)| client.port != clients[at].port);
                }
                1 => {
                    for _ in 0..2 {
                        let nth = random.random_range(0..=leases.len());
                        if let Some(id) = leases.keys().nth(nth) {
                            world.card.extend(*id, random.random_range(0..20 * MS));
                        }
                    }
                }
                2 => {
                    let key = keys[random.random_range(0..keys.len())];
                    let _ = world.book.revoke(&mut world.card, key);
                }
                _ => {
                    let terms = terms(
                        random.random(),
                        random.random_range(1..20 * MS),
                        [0, random.random_range(1..30 * MS)][random.random_range(0..2)],
                    );
                    let ask = match random.random_range(0..4) {
                        0 => allocate(1 << random.random_range(6..14), terms),
                        1 => {
                            let nth = random.random_range(0..=leases.len());
                            let id = leases.keys().nth(nth).copied().unwrap_or(99);
                            Ask::Relinquish { id }
                        }
                        _ => acquire(keys[random.random_range(0..keys.len())], terms),
                    };
                    open.retain(|_, (client, ..)| client.port != clients[at].port);
                    let until = world.card.now().0 + terms.patience;
                    let number = world.ask(clients[at], ask);
                    open.insert(number, (clients[at], ask, until));
                }
            }
            world.pass(random.random_range(0..2 * MS));
            if random.random() {
                world.turn();
            }
            let model = Rc::clone(&world.card.0);
            for (number, answer) in world.said() {
                let (client, ask, _) = open.remove(&number).expect("an answer that is not awaited");
                match (answer, ask) {
                    (Answer::Granted { key, token }, _) => {
                        let (Ask::Acquire { terms, .. } | Ask::Allocate { terms, .. }) = ask else {
                            panic!("{ask:?} was granted");
                        };
                        keys.push(key);
                        let mine = Mine {
                            key,
                            exclusive: terms.exclusive,
                            given_back: false,
                        };
                        leases.insert(token.id(), mine);
                        let _ = client;
                    }
                    (Answer::Done, Ask::Relinquish { id }) => {
                        leases.get_mut(&id).expect("a lease").given_back = true;
                    }
                    _ => {}
                }
            }
            let now = model.borrow().now;
            for (number, (_, ask, until)) in &open {
                assert!(*until >= now, "seed {seed}: {number} is not answered: {ask:?}");
            }
            let model = model.borrow();
            leases.retain(|id, _| model.valid.contains_key(id));
            let valid: Vec<_> = model.valid.iter().collect();
            for (at, (id, one)) in valid.iter().enumerate() {
                for (other_id, other) in valid.iter().skip(at + 1) {
                    if !overlap(one.part, other.part) || one.holder == other.holder {
                        continue;
                    }
                    let (a, b) = (leases[*id], leases[*other_id]);
                    let live = |lease: &Valid, mine: Mine| lease.end > now && !mine.given_back;
                    let both = live(one, a) && live(other, b);
                    assert_eq!(a.key, b.key, "seed {seed}: {one:?} {other:?}");
                    assert!(
                        !both || !(a.exclusive || b.exclusive),
                        "seed {seed}: {one:?} {other:?}"
                    );
                    // One that is stale stands beside those that were there before it ended, and none that came later.
                    if !both {
                        let (early, late) = if one.begun <= other.begun {
                            (one, other)
                        } else {
                            (other, one)
                        };
                        assert!(early.end > late.begun, "seed {seed}: {early:?} {late:?}");
                        assert!(!(a.exclusive || b.exclusive), "seed {seed}: {one:?} {other:?}");
                    }
                }
            }
        }
        world.pass(2 * LONGEST);
        for key in 0..3 {
            world.book.revoke(&mut world.card, key).unwrap();
        }
        // All of the pool can be had again, but for the parts with keys: 128, 256 and 448 bytes.
        assert_eq!(world.book.live(), 0, "seed {seed}");
        world.card.0.borrow_mut().table = 1000;
        let mut had = 0;
        for len in (6..14).rev().map(|bits| 1 << bits) {
            loop {
                world.ask(client(9), allocate(len, terms(true, LONGEST, 0)));
                match world.said()[..] {
                    [(_, Answer::Granted { .. })] => had += len,
                    _ => break,
                }
            }
        }
        assert_eq!(had, POOL - 832, "seed {seed}: memory is lost");
    }
}
