//! Processes that wait in, and signal, one wait queue or semaphore.

use crate::{Delivery, Ends, Nic, World};
use netvm::sync::protocol::{Await, Insert, Machine, Remove, SeatId, Signal, TryWait, Wait, Want};
use netvm_abi::atomic::{AtomicResult, EMPTY, NOBODY};
use netvm_abi::descriptor::Opcode;
use netvm_abi::words::split;
use stateright::{Model, Property};

/// Something that a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Job {
    /// Stands in the wait queue, and waits.
    Queue,
    /// Wakes the first waiter.
    Wake,
    /// Takes a token.
    Wait,
    /// Takes a token if there is one.
    Try,
    /// Gives a token.
    Signal,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum At {
    Insert(Insert),
    Await(Await),
    Remove(Remove),
    Wait(Wait),
    Try(TryWait),
    Signal(Signal),
    Done,
}

/// Does the same with whichever machine it is.
macro_rules! any {
    ($at:expr, $machine:ident => $do:expr, $done:expr) => {
        match $at {
            At::Insert($machine) => $do,
            At::Await($machine) => $do,
            At::Remove($machine) => $do,
            At::Wait($machine) => $do,
            At::Try($machine) => $do,
            At::Signal($machine) => $do,
            At::Done => $done,
        }
    };
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    me: SeatId,
    done: usize,
    at: At,
}

/// What should be, told in one place: no queue, no network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Truth {
    /// The waiters that have been promised nothing.
    line: Vec<usize>,
    /// The waiters that have been promised a wake-up and have not had it.
    promised: Vec<usize>,
    /// Of these, those whose name the signaller could not be told, in order.
    pending: Vec<usize>,
    /// The semaphore.
    tokens: u32,
}

impl Truth {
    /// An operation acts on the block. Tells what is wrong with its answer.
    fn see(
        &mut self,
        who: usize,
        opcode: Opcode,
        operand: u64,
        result: AtomicResult,
    ) -> Option<&'static str> {
        let [low, high] = split(result.second);
        match opcode {
            Opcode::Enqueue => self.line.push(who),
            Opcode::SemP => {
                if high != 0 && low == 0 {
                    return Some("an epoch out of nothing");
                }
                if low != self.tokens {
                    return Some("the semaphore has another value than it should");
                }
                if low > 0 {
                    self.tokens -= 1;
                } else if operand != EMPTY {
                    self.line.push(who);
                }
            }
            Opcode::Dequeue | Opcode::SemV if !self.line.is_empty() => {
                let first = self.line.remove(0);
                self.promised.push(first);
                match result.value {
                    EMPTY if low == NOBODY => return Some("a signal has found no waiter though one waits"),
                    EMPTY => self.pending.push(first),
                    head if World::who(SeatId(head)) == first => {}
                    _ => return Some("a signal has found a waiter that was not the first"),
                }
            }
            Opcode::SemV => self.tokens += 1,
            Opcode::NewHead if result.value == 1 => {
                let first = self.pending.first().copied();
                if first != Some(World::who(SeatId(operand))) {
                    return Some("a pending wake-up goes to another waiter than it should");
                }
                self.pending.remove(0);
            }
            _ => {}
        }
        None
    }

    /// A waiter wakes up.
    fn wake(&mut self, who: usize) -> Option<&'static str> {
        match self.promised.iter().position(|&other| other == who) {
            Some(at) => {
                self.promised.remove(at);
                None
            }
            None => Some("a wake-up out of nothing"),
        }
    }
}

/// A state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    world: World,
    processes: Vec<Process>,
    truth: Truth,
    wrong: Option<&'static str>,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A step of a process.
    Step(usize),
    /// A message moves on.
    Deliver(Delivery),
}

/// The model: what each process does, one after the other.
#[derive(Clone, Debug)]
pub struct QueueModel {
    /// By process.
    pub jobs: Vec<Vec<Job>>,
    /// What carries out atomic operations.
    pub nic: Nic,
}

impl QueueModel {
    /// With the operations that are shipped: so many processes for each list of jobs.
    #[must_use]
    pub fn new(jobs: &[(usize, &[Job])]) -> Self {
        let processes = jobs.iter().flat_map(|(count, jobs)| vec![jobs.to_vec(); *count]);
        Self {
            jobs: processes.collect(),
            nic: Nic::Shipped,
        }
    }

    /// With other operations.
    #[must_use]
    pub const fn on(mut self, nic: Nic) -> Self {
        self.nic = nic;
        self
    }

    fn begin(&self, who: usize, process: &mut Process) {
        process.me = process.me.next_turn();
        let me = process.me;
        process.at = match self.jobs[who].get(process.done) {
            Some(Job::Queue) => At::Insert(Insert::new(me)),
            Some(Job::Wake) => At::Remove(Remove::new()),
            Some(Job::Wait) => At::Wait(Wait::new(me)),
            Some(Job::Try) => At::Try(TryWait::new()),
            Some(Job::Signal) => At::Signal(Signal::new()),
            None => At::Done,
        };
    }

    fn step(&self, state: &mut State, who: usize) {
        let State {
            world,
            processes,
            truth,
            wrong,
        } = state;
        let process = &mut processes[who];
        let me = process.me;
        let mut seen = None;
        let ended = any!(&mut process.at, machine => {
            let want = machine.want();
            let answer = world.perform(me, &want, self.nic);
            machine.answer(answer);
            seen = match (want, answer) {
                (Want::Atomic(_, atomic), netvm::sync::protocol::Answer::Atomic(result)) => {
                    truth.see(who, atomic.opcode, atomic.operand, result)
                }
                (Want::AwaitGrant { .. }, _) => truth.wake(who),
                _ => None,
            };
            matches!(machine.want(), Want::Ended(_))
        }, false);
        *wrong = wrong.or(seen);
        if !ended {
            return;
        }
        if let At::Insert(machine) = &process.at
            && let Want::Ended(inserted) = machine.want()
        {
            process.at = At::Await(Await::new(process.me, inserted.epoch));
            return;
        }
        process.done += 1;
        self.begin(who, process);
    }
}

impl Model for QueueModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let processes = (0..self.jobs.len()).map(|who| {
            let mut process = Process {
                me: World::id(who),
                done: 0,
                at: At::Done,
            };
            self.begin(who, &mut process);
            process
        });
        vec![State {
            world: World::new(self.jobs.len()),
            processes: processes.collect(),
            truth: Truth::default(),
            wrong: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (who, process) in state.processes.iter().enumerate() {
            if any!(&process.at, machine => state.world.ready(who, &machine.want()), false) {
                actions.push(Action::Step(who));
            }
        }
        actions.extend(state.world.deliveries().map(Action::Deliver));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Step(who) => self.step(&mut state, who),
            Action::Deliver(delivery) => state.world.deliver(delivery),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        // Judged when all states are known, so that all of them are counted.
        vec![Property::always("all states are visited", |_, _| true)]
    }
}

impl Ends for QueueModel {
    fn wrong(&self, state: &State) -> Option<&'static str> {
        state.wrong
    }

    fn wrong_at_end(&self, state: &State) -> Option<&'static str> {
        let truth = &state.truth;
        if !truth.promised.is_empty() {
            return Some("a waiter was promised a wake-up and never had it");
        }
        let waiting = state.processes.iter().filter(|process| process.at != At::Done);
        if waiting.count() != truth.line.len() {
            return Some("a process waits for ever");
        }
        if truth.tokens > 0 && !truth.line.is_empty() {
            return Some("there are tokens, and waiters");
        }
        let block = netvm_abi::atomic::QueueBlock::decode(&state.world.main);
        let right = block.pending == 0
            && block.count as usize == truth.line.len()
            && block.value == truth.tokens
            && state.world.seats.iter().all(|seat| seat.signals == 0);
        (!right).then_some("the block does not say what is")
    }
}
