//! ALock (`netvm::sync::alock::machine`): mutual exclusion, progress, bounded bypass.
//!
//! One step of a model is one access to memory. A remote process's read-modify-write is two, a NIC's read and its
//! write: whatever a processor does can fall between, and so can other NICs' plain accesses, but no second
//! read-modify-write of the same page, because the page's own NIC does them one after the other. A NIC that finds the
//! value already there writes nothing back, as `Atomic::apply` says.
//!
//! An explicit-state run of another encoding of the algorithm has 996, 1,336 and 1,676 states for 2 + 1 with budgets 1 to
//! 3, and 12,576, 21,440 and 32,384 for 2 + 2. Here, uncounted and with whole operations, it is 2,464 to 4,264 and 71,179 to
//! 213,043: beginning, making ready, and coming to rest are steps of their own, and a descriptor keeps what was last in it
//! until it is made ready again, as memory does. The bounds are the same: a waiting leader is overtaken B times at most,
//! and can be.

use netvm::sync::alock::machine::{Acquire, Class, NOBODY, Release, Step, WAITING, Want};
use netvm::sync::protocol::Machine;
use netvm_models::graph::Graph;
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::time::Instant;

/// What to explore.
#[derive(Clone, Copy, Debug)]
struct Lock {
    local: usize,
    remote: usize,
    budget: u64,
    /// Whether a NIC's read-modify-write is two steps.
    split: bool,
    /// A remote poll is one read of the whole line, whose words may be fetched in either order: whether the victim is
    /// fetched first.
    victim_first: bool,
    /// Whether a local leader's victim is in memory before it loads the other tail; without, the store stays in its
    /// processor's store buffer for as long as that may, and it is the negative control for the fence in `local.rs`.
    fenced: bool,
    /// Whether a process that is passed a budget of 0 asks the other class; without, the negative control.
    reacquires: bool,
    /// Whether states tell how often a waiting leader was overtaken.
    counts: bool,
}

/// Processes that a state has room for.
const MOST: usize = 4;

/// A member's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Descriptor {
    budget: u64,
    next: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Rests,
    Acquires(Acquire),
    Holds(Release),
    Releases(Release),
}

/// What the NIC is at for a process; of a local one, what its processor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Nic {
    Idle,
    /// It has stored the victim, which no other process sees yet.
    Stored(u64),
    /// It has read the operand.
    Fetched(u64),
    /// A poll has fetched the victim, and is about to fetch the tail.
    Victim(u64),
    /// A poll has fetched both; the tail was told.
    Polled(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    /// Of local and of remote processes.
    tails: [u64; 2],
    victim: u64,
    descriptors: [Descriptor; MOST],
    doing: [Doing; MOST],
    nics: [Nic; MOST],
    /// How often the other class has got the lock since the class's leader yielded to it.
    overtaken: [u8; 2],
}

/// This process makes a step; from [`MOST`] on, its processor's store buffer runs dry.
type Turn = usize;

/// What a NIC does one after the other: the page of the lock, and each one of descriptors.
fn page(step: Step) -> u64 {
    match step {
        Step::Link {
            predecessor: descriptor,
            ..
        }
        | Step::Pass {
            successor: descriptor,
            ..
        } => descriptor,
        _ => NOBODY,
    }
}

impl Lock {
    const fn new(local: usize, remote: usize, budget: u64) -> Self {
        Self {
            local,
            remote,
            budget,
            split: true,
            victim_first: false,
            fenced: true,
            reacquires: true,
            counts: true,
        }
    }

    const fn class(&self, process: usize) -> Class {
        if process < self.local {
            Class::Local
        } else {
            Class::Remote
        }
    }

    const fn processes(&self) -> usize {
        self.local + self.remote
    }

    /// Whether a step of the process would wait for a NIC that is inside of another's read-modify-write.
    fn nic_is_taken(&self, state: &State, process: usize, step: Step) -> bool {
        (0..self.processes()).any(|other| {
            other != process
                && matches!(state.nics[other], Nic::Fetched(_))
                && step_of(&state.doing[other]).is_some_and(|taken| page(taken) == page(step))
        })
    }

    /// A state in which the process can wait for ever, though every process that has begun goes on, and every NIC
    /// serves all in turn.
    fn starved(&self, graph: &Graph<State>, process: usize) -> Option<State> {
        let may_stay = |state: &State, who: usize, can_move: bool| {
            let waits_for_nic = || {
                self.class(who) == Class::Remote
                    && step_of(&state.doing[who]).is_some_and(|step| self.nic_is_taken(state, who, step))
            };
            state.doing[who] == Doing::Rests || !(can_move || waits_for_nic())
        };
        graph
            .starves(self.processes(), |state| state.acquires(process), may_stay)
            .copied()
    }

    /// Does what the process wants, or the first half of it; gives the answer if it is done.
    fn carry_out(&self, state: &mut State, process: usize, step: Step) -> Option<u64> {
        let class = self.class(process);
        let (mine, others) = (class as usize, class.other() as usize);
        let split = self.split && class == Class::Remote;
        let writes = matches!(
            step,
            Step::SwapTail(_)
                | Step::ClearTail { .. }
                | Step::Link { .. }
                | Step::Yield(_)
                | Step::Pass { .. }
        );
        if let Nic::Stored(victim) = state.nics[process] {
            if writes || step == Step::Reset {
                // Stores stay in order, and a processor's read-modify-write waits for them.
                state.drain(process);
            } else if step == Step::Victim {
                return Some(victim);
            }
        }
        if let Step::Yield(victim) = step
            && class == Class::Local
            && !self.fenced
        {
            state.nics[process] = Nic::Stored(victim.code());
            return Some(0);
        }
        if split && writes && state.nics[process] == Nic::Idle {
            if !self.nic_is_taken(state, process, step) {
                let old = *state.word(step, mine)?;
                state.nics[process] = Nic::Fetched(old);
            }
            return None;
        }
        let fetched = match std::mem::replace(&mut state.nics[process], Nic::Idle) {
            Nic::Fetched(old) => Some(old),
            before => {
                state.nics[process] = before;
                None
            }
        };
        if writes {
            let word = state.word(step, mine)?;
            let old = fetched.unwrap_or(*word);
            let new = match step {
                Step::SwapTail(own) | Step::Link { own, .. } => own,
                Step::ClearTail { expected } if old == expected => NOBODY,
                Step::Yield(class) => class.code(),
                Step::Pass { budget, .. } => budget,
                _ => old,
            };
            if new != old {
                *word = new;
            }
            return Some(old);
        }
        let polls = class == Class::Remote && self.victim_first;
        match (step, state.nics[process]) {
            (Step::Reset, _) => {
                state.descriptors[process] = Descriptor {
                    budget: WAITING,
                    next: NOBODY,
                };
                Some(0)
            }
            (Step::OwnBudget, _) => match state.descriptors[process].budget {
                0 if !self.reacquires => Some(self.budget),
                budget => Some(budget),
            },
            (Step::OwnNext, _) => Some(state.descriptors[process].next),
            (Step::OtherTail, Nic::Idle) if polls => {
                state.nics[process] = Nic::Victim(state.victim);
                None
            }
            (Step::OtherTail, Nic::Victim(victim)) => {
                let tail = state.tails[others];
                state.nics[process] = if tail == NOBODY {
                    Nic::Idle
                } else {
                    Nic::Polled(victim)
                };
                Some(tail)
            }
            (Step::OtherTail, _) => Some(state.tails[others]),
            (Step::Victim, Nic::Polled(victim)) => {
                state.nics[process] = Nic::Idle;
                Some(victim)
            }
            (Step::Victim, _) => Some(state.victim),
            _ => None,
        }
    }
}

fn step_of(doing: &Doing) -> Option<Step> {
    match doing {
        Doing::Acquires(machine) => step(machine.want()),
        Doing::Releases(machine) => step(machine.want()),
        Doing::Rests | Doing::Holds(_) => None,
    }
}

fn step<R>(want: Want<R>) -> Option<Step> {
    match want {
        Want::Step(step) => Some(step),
        Want::Ended(_) => None,
    }
}

impl State {
    /// The word that a read-modify-write or a write is about.
    fn word(&mut self, step: Step, class: usize) -> Option<&mut u64> {
        let at = |descriptor: u64| (descriptor - 1) as usize;
        match step {
            Step::SwapTail(_) | Step::ClearTail { .. } => self.tails.get_mut(class),
            Step::Yield(_) => Some(&mut self.victim),
            Step::Link { predecessor, .. } => Some(&mut self.descriptors.get_mut(at(predecessor))?.next),
            Step::Pass { successor, .. } => Some(&mut self.descriptors.get_mut(at(successor))?.budget),
            _ => None,
        }
    }

    /// What the process has stored is visible to all.
    fn drain(&mut self, process: usize) {
        if let Nic::Stored(victim) = self.nics[process] {
            self.victim = victim;
            self.nics[process] = Nic::Idle;
        }
    }

    fn holders(&self) -> usize {
        self.doing
            .iter()
            .filter(|doing| matches!(doing, Doing::Holds(_)))
            .count()
    }

    fn holds(&self, process: usize) -> bool {
        matches!(self.doing[process], Doing::Holds(_))
    }

    fn acquires(&self, process: usize) -> bool {
        matches!(self.doing[process], Doing::Acquires(_))
    }
}

impl Model for Lock {
    type State = State;
    type Action = Turn;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            tails: [NOBODY; 2],
            victim: 0,
            descriptors: [Descriptor {
                budget: WAITING,
                next: NOBODY,
            }; MOST],
            doing: [Doing::Rests; MOST],
            nics: [Nic::Idle; MOST],
            overtaken: [0; 2],
        }]
    }

    fn actions(&self, _: &State, actions: &mut Vec<Turn>) {
        actions.extend(0..self.processes());
        if !self.fenced {
            actions.extend(MOST..MOST + self.local);
        }
    }

    fn next_state(&self, state: &State, process: Turn) -> Option<State> {
        let mut next = *state;
        if process >= MOST {
            next.drain(process - MOST);
            return (next != *state).then_some(next);
        }
        let class = self.class(process);
        next.doing[process] = match state.doing[process] {
            Doing::Rests => Doing::Acquires(Acquire::new(class, process as u64 + 1, self.budget)),
            Doing::Holds(release) => Doing::Releases(release),
            Doing::Acquires(mut machine) => {
                let step = step(machine.want())?;
                match self.carry_out(&mut next, process, step) {
                    None => Doing::Acquires(machine),
                    Some(answer) => {
                        machine.answer(answer);
                        match machine.want() {
                            Want::Step(_) => Doing::Acquires(machine),
                            Want::Ended(release) => {
                                if self.counts {
                                    next.overtaken[class as usize] = 0;
                                    // Has the other class's leader yielded, and not been told since?
                                    let other = class.other();
                                    let waits = next.doing.iter().any(|doing| {
                                        matches!(doing, Doing::Acquires(machine)
                                            if machine.leads() && machine.class() == other)
                                    });
                                    if waits {
                                        // Enough to see that it is too many.
                                        let count = &mut next.overtaken[other as usize];
                                        *count = (*count + 1).min(self.budget as u8 + 1);
                                    }
                                }
                                Doing::Holds(release)
                            }
                        }
                    }
                }
            }
            Doing::Releases(mut machine) => {
                let step = step(machine.want())?;
                if let Some(answer) = self.carry_out(&mut next, process, step) {
                    machine.answer(answer);
                }
                match machine.want() {
                    Want::Ended(()) => Doing::Rests,
                    Want::Step(_) => Doing::Releases(machine),
                }
            }
        };
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one holder at most", |_, state: &State| state.holders() <= 1),
            Property::always("bounded bypass", |lock: &Self, state: &State| {
                state
                    .overtaken
                    .iter()
                    .all(|&count| u64::from(count) <= lock.budget)
            }),
            // The bound is not slack.
            Property::sometimes("the budget is used up", |lock: &Self, state: &State| {
                state
                    .overtaken
                    .iter()
                    .any(|&count| u64::from(count) == lock.budget)
            }),
        ]
    }
}

/// Explores it with the checker for what each state must show, and the graph for what only all of them do.
fn explore(lock: Lock) -> usize {
    let begin = Instant::now();
    let checker = lock
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    checker.assert_no_discovery("one holder at most");
    checker.assert_no_discovery("bounded bypass");
    if lock.counts {
        checker.assert_any_discovery("the budget is used up");
    }
    let states = checker.unique_state_count();
    let graph = Graph::new(&lock, |&process| process);
    assert_eq!(graph.states.len(), states, "the two explorations differ");
    // One of each class; the others of the class are the same under another name.
    for process in [0, lock.local] {
        assert_eq!(
            graph.cut_off(|state| state.holds(process)),
            None,
            "it can never get the lock again"
        );
        assert_eq!(
            lock.starved(&graph, process),
            None,
            "a fair schedule keeps it waiting for ever"
        );
    }
    println!(
        "{}+{} B={} split={} victim first={} counted={}: {states} states, {} ms",
        lock.local,
        lock.remote,
        lock.budget,
        lock.split,
        lock.victim_first,
        lock.counts,
        begin.elapsed().as_millis()
    );
    states
}

fn explore_all(local: usize, remote: usize) {
    for budget in 1..=3 {
        let lock = Lock::new(local, remote, budget);
        explore(Lock {
            split: false,
            counts: false,
            ..lock
        });
        explore(Lock { split: false, ..lock });
        explore(lock);
        explore(Lock {
            victim_first: true,
            ..lock
        });
    }
}

#[test]
fn two_local_and_one_remote() {
    explore_all(2, 1);
}

#[test]
fn one_local_and_two_remote() {
    explore_all(1, 2);
}

#[test]
fn two_local_and_two_remote() {
    explore_all(2, 2);
}

/// Negative control: both leaders find the other's queue empty, because the local one's store has not come out yet. That
/// its loads and stores are in order each for itself does not help.
#[test]
fn without_the_fence_there_are_two_holders() {
    for budget in 1..=3 {
        let fenced = Lock::new(1, 1, budget);
        let checker = fenced.checker().spawn_bfs().join();
        checker.assert_no_discovery("one holder at most");
        let lock = Lock {
            fenced: false,
            ..fenced
        };
        lock.checker()
            .spawn_bfs()
            .join()
            .assert_any_discovery("one holder at most");
    }
}

/// Negative control: a class that never asks the other class may overtake its leader for ever.
#[test]
fn without_reacquiring_the_bypass_has_no_bound() {
    for budget in 1..=3 {
        let lock = Lock {
            reacquires: false,
            ..Lock::new(2, 1, budget)
        };
        let checker = lock.checker().spawn_bfs().join();
        checker.assert_no_discovery("one holder at most");
        checker.assert_any_discovery("bounded bypass");
        let graph = Graph::new(&lock, |&process| process);
        assert!(
            lock.starved(&graph, lock.local).is_some(),
            "the remote one cannot starve"
        );
    }
}
