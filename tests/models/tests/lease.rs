//! Leases (`netvm_abi::lease`): a host that lends one slot to one holder after another, a card that ends the leases by its clock, and
//! holders whose accesses and extensions arrive at any time, also when they name a lease that is long over.
//!
//! What the card does is what ships: its steps call [`Lease`]. A step is a message or an event that the card takes, the end of a DMA, something that the host
//! hears or does, or a tick of the clock. Host and card hear of each other in the order in which each spoke; what holders send arrives in any order. The host has no clock
//! in this model: it may ask at any time, and take back at any time.
//!
//! The books of the model know when each lease ends, from the answers alone.

use netvm_abi::capability::{Capability, CapabilityEntry, capability_at};
use netvm_abi::lease::{Lease, Terms, lease_at};
use netvm_abi::{CapabilitySlot, Generation, Nanos, WordIndex};
use netvm_models::{Ends, explore};
use stateright::{Model, Property};
use std::sync::atomic::{AtomicU32, Ordering};

const ENTRY: WordIndex = WordIndex(0);
const ROW: WordIndex = WordIndex(16);
const SLOT: CapabilitySlot = CapabilitySlot(0);
const DURATION: u64 = 1;
const LONGEST: u64 = 3;

/// What is left out, for controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Without {
    Nothing,
    /// The host lends again without waiting for what is under way.
    Barrier,
}

#[derive(Clone, Copy, Debug)]
struct Leases {
    /// Lent one after the other.
    leases: u8,
    /// Accesses of each holder.
    accesses: u8,
    /// Extensions of each holder.
    extensions: u8,
    /// Ticks of the clock.
    ticks: u8,
    without: Without,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ToCard {
    Begin(u8),
    Ask(u8),
    Barrier,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ToHost {
    Left(u8, bool),
    BarrierDone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Sent {
    Access(u8),
    Extension(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Host {
    Lent,
    /// At which time.
    Asked(u8),
    /// Nothing is left: may be taken back.
    Told,
    Retracted,
    /// All leases are over.
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    words: [u32; 24],
    now: u8,
    host: Host,
    /// The lease that the memory is lent by.
    current: u8,
    /// Last time at which the host asked.
    asked_at: Option<u8>,
    to_card: Vec<ToCard>,
    to_host: Vec<ToHost>,
    wire: Vec<Sent>,
    /// Messages that each holder has left: accesses, extensions.
    left: Vec<(u8, u8)>,
    /// The lease under which a DMA is under way.
    dma: Option<u8>,
    /// A barrier waits for it.
    barrier: bool,
    /// When each lease began, and ends, as far as answers say.
    books: Vec<Option<(u8, u8)>>,
    /// Leases of which the host was told that nothing is left.
    over: Vec<bool>,
    wrong: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Tick,
    Card,
    Hear,
    Ask,
    TakeBack,
    Send(Sent),
    Arrive(usize),
    DmaEnds,
}

impl Leases {
    /// Does something with the words.
    fn with<R>(state: &mut State, act: impl FnOnce(&[AtomicU32], Lease<'_, [AtomicU32]>) -> R) -> R {
        let words = state.words.map(AtomicU32::new);
        let result = act(&words[..], Lease::of(&words[..], (ENTRY, ROW), SLOT));
        for (to, from) in state.words.iter_mut().zip(&words) {
            *to = from.load(Ordering::Relaxed);
        }
        result
    }

    fn lend(&self, state: &mut State, lease: u8) {
        Self::with(state, |bar, _| {
            let terms = Terms {
                generation: Generation(lease.into()),
                duration: Nanos(DURATION),
                longest: Nanos(LONGEST),
            };
            terms.publish(bar, lease_at(ROW, SLOT));
            let capability = Capability {
                secret: lease.into(),
                expires: Nanos(0),
                ..Capability::NOTHING
            };
            capability.publish(bar, capability_at(ENTRY, SLOT));
        });
        (state.current, state.host) = (lease, Host::Lent);
        state.asked_at = None;
        state.to_card.push(ToCard::Begin(lease));
        state.left[usize::from(lease) - 1] = (self.accesses, self.extensions);
    }

    fn begun(state: &mut State, lease: u8) {
        let now = state.now;
        let books = &mut state.books[usize::from(lease) - 1];
        if books.is_some() {
            state.wrong = Some("a lease begins twice");
        } else {
            *books = Some((now, now + DURATION as u8));
        }
    }

    /// Checks of a message what is checked of any; whether its lease goes on.
    fn check(state: &mut State, lease: u8) -> bool {
        let now = Nanos(state.now.into());
        let (valid, begins, over) = Self::with(state, |bar, at| {
            let valid = CapabilityEntry::of(bar).is_some_and(|entry| entry.secret() == u64::from(lease));
            if !valid {
                return (false, false, true);
            }
            // As `authorise` does.
            let over = CapabilityEntry::of(bar).is_none_or(|entry| now >= entry.expires());
            let begins = over && at.begin(now);
            (true, begins, at.is_over(now))
        });
        if begins {
            Self::begun(state, lease);
        }
        valid && !over
    }

    fn is_over(state: &State, lease: u8) -> bool {
        let at = usize::from(lease) - 1;
        state.over[at] || state.books[at].is_some_and(|(_, end)| state.now >= end)
    }

    fn arrive(state: &mut State, sent: Sent) {
        match sent {
            Sent::Access(lease) => {
                // The one DMA slot is taken: it waits, and is checked at its turn.
                if Self::check(state, lease) {
                    if Self::is_over(state, lease) {
                        state.wrong = Some("an access is let through after the end");
                    }
                    if state.current != lease {
                        state.wrong = Some("an access to memory that is another's");
                    }
                    state.dma = Some(lease);
                }
            }
            Sent::Extension(lease) => {
                let now = state.now;
                if !Self::check(state, lease) {
                    return;
                }
                let extended = Self::with(state, |_, at| {
                    at.extend(Nanos(now.into()), Generation(lease.into()), Nanos(DURATION + 1))
                });
                let Ok(extended) = extended else { return };
                if Self::is_over(state, lease) {
                    state.wrong = Some("what is over is extended");
                }
                let at = usize::from(lease) - 1;
                if let Some((begun, end)) = state.books[at] {
                    let next = now + extended.value as u8;
                    if next < end
                        || next > begun + LONGEST as u8
                        || u64::from(now) + extended.second != u64::from(begun) + LONGEST
                    {
                        state.wrong = Some("an extension shortens, or goes past the longest life");
                    }
                    state.books[at] = Some((begun, next));
                }
            }
        }
    }

    fn card(state: &mut State) {
        let now = Nanos(state.now.into());
        match state.to_card.remove(0) {
            ToCard::Begin(lease) => {
                if Self::with(state, |_, at| at.begin_generation(now, Generation(lease.into()))) {
                    Self::begun(state, lease);
                }
            }
            ToCard::Ask(lease) => {
                let left = Self::with(state, |_, at| at.left(now, Generation(lease.into())));
                let at = usize::from(lease) - 1;
                if left.0 != 0 && state.books[at].is_some_and(|(_, end)| u64::from(end - state.now) != left.0)
                {
                    state.wrong = Some("the host is told something else than the holder");
                }
                state.over[at] |= left.0 == 0;
                state.to_host.push(ToHost::Left(lease, left.0 == 0));
            }
            ToCard::Barrier if state.dma.is_some() => state.barrier = true,
            ToCard::Barrier => state.to_host.push(ToHost::BarrierDone),
        }
    }

    fn take_back(&self, state: &mut State) {
        Self::with(state, |bar, _| Capability::retract(bar, ENTRY));
        state.host = Host::Retracted;
        if self.without == Without::Barrier {
            self.go_on(state);
        } else {
            state.to_card.push(ToCard::Barrier);
        }
    }

    /// What was lent is the host's again.
    fn go_on(&self, state: &mut State) {
        if state.current < self.leases {
            self.lend(state, state.current + 1);
        } else {
            (state.host, state.current) = (Host::Done, 0);
        }
    }
}

impl Model for Leases {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            words: [0; 24],
            now: 1,
            host: Host::Done,
            current: 0,
            asked_at: None,
            to_card: Vec::new(),
            to_host: Vec::new(),
            wire: Vec::new(),
            left: vec![(0, 0); self.leases.into()],
            dma: None,
            barrier: false,
            books: vec![None; self.leases.into()],
            over: vec![false; self.leases.into()],
            wrong: None,
        };
        self.lend(&mut state, 1);
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.wrong.is_some() {
            return;
        }
        if state.now < self.ticks {
            actions.push(Action::Tick);
        }
        if !state.to_card.is_empty() && !state.barrier {
            actions.push(Action::Card);
        }
        if !state.to_host.is_empty() {
            actions.push(Action::Hear);
        }
        match state.host {
            Host::Lent => {
                if state.asked_at != Some(state.now) {
                    actions.push(Action::Ask);
                }
                actions.push(Action::TakeBack);
            }
            Host::Told => actions.push(Action::TakeBack),
            Host::Asked(_) | Host::Retracted | Host::Done => {}
        }
        for (at, (accesses, extensions)) in state.left.iter().enumerate() {
            let lease = at as u8 + 1;
            if *accesses > 0 {
                actions.push(Action::Send(Sent::Access(lease)));
            }
            if *extensions > 0 {
                actions.push(Action::Send(Sent::Extension(lease)));
            }
        }
        for (at, sent) in state.wire.iter().enumerate() {
            // The card has one DMA in this model; what finds none waits.
            if state.dma.is_none() || matches!(sent, Sent::Extension(_)) {
                actions.push(Action::Arrive(at));
            }
        }
        if state.dma.is_some() {
            actions.push(Action::DmaEnds);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Tick => state.now += 1,
            Action::Card => Self::card(&mut state),
            Action::Hear => match state.to_host.remove(0) {
                ToHost::Left(lease, over)
                    if lease == state.current && matches!(state.host, Host::Asked(_)) =>
                {
                    state.host = if over { Host::Told } else { Host::Lent };
                }
                ToHost::Left(..) => {}
                ToHost::BarrierDone => self.go_on(&mut state),
            },
            Action::Ask => {
                state.to_card.push(ToCard::Ask(state.current));
                state.asked_at = Some(state.now);
                state.host = Host::Asked(state.now);
            }
            Action::TakeBack => self.take_back(&mut state),
            Action::Send(sent) => {
                let lease = match sent {
                    Sent::Access(lease) | Sent::Extension(lease) => lease,
                };
                let (accesses, extensions) = &mut state.left[usize::from(lease) - 1];
                match sent {
                    Sent::Access(_) => *accesses -= 1,
                    Sent::Extension(_) => *extensions -= 1,
                }
                state.wire.push(sent);
                state.wire.sort_by_key(|sent| match sent {
                    Sent::Access(lease) => (*lease, 0),
                    Sent::Extension(lease) => (*lease, 1),
                });
            }
            Action::Arrive(at) => {
                let sent = state.wire.remove(at);
                Self::arrive(&mut state, sent);
            }
            Action::DmaEnds => {
                let lease = state.dma.take();
                if lease.is_some_and(|lease| lease != state.current) {
                    state.wrong = Some("a DMA lands in memory that is another's");
                }
                if std::mem::take(&mut state.barrier) {
                    state.to_host.push(ToHost::BarrierDone);
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("explored", |_, _| true)]
    }
}

impl Ends for Leases {
    fn wrong_at_end(&self, state: &State) -> Option<&'static str> {
        if self.without == Without::Nothing && state.wrong.is_none() && state.host != Host::Done {
            return Some("memory does not come back");
        }
        None
    }

    fn wrong(&self, state: &State) -> Option<&'static str> {
        state.wrong
    }
}

fn run(leases: u8, accesses: u8, extensions: u8, without: Without) -> Option<String> {
    let model = Leases {
        leases,
        accesses,
        extensions,
        ticks: 2 + LONGEST as u8,
        without,
    };
    let name = format!(
        "leases: {leases}, {accesses} accesses and {extensions} extensions each, without {without:?}"
    );
    let verdict = explore(&name, model);
    assert!(verdict.ends > 0);
    verdict.wrong
}

#[test]
fn one_lease_with_several_extensions() {
    assert_eq!(run(1, 2, 3, Without::Nothing), None);
}

#[test]
fn a_slot_that_is_used_again() {
    assert_eq!(run(2, 1, 1, Without::Nothing), None);
}

#[test]
fn without_a_barrier_a_dma_lands_in_the_next_lease() {
    let wrong = run(2, 1, 0, Without::Barrier).expect("it goes wrong");
    assert!(wrong.starts_with("a DMA lands"), "{wrong}");
}
