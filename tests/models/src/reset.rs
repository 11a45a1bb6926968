//! A wait queue or semaphore whose members die, or are taken for dead: the queue is reset, and all stand in it
//! anew.
//!
//! The machines are the shipped ones. Their driver here does what the library's drivers do. A waiter looks at the block
//! and at its predecessor, and resets the queue of its own epoch. A woken participant that waits in vain for its
//! successor's name does so as well. Tokens that came for an earlier turn are given back at the next. A look is one
//! step with what follows from it: a reset acts for one epoch only, whenever it comes.
//!
//! A token that has come for an earlier turn counts as there, because its owner gives it back the next time. A process
//! that dies may take two with it: the one that it was given, and one that it was about to hand on.

use crate::{Delivery, Ends, Nic, World};
use netvm::sync::protocol::{Answer, Await, Insert, Inserted, Machine, Remove, SeatId, Signal, Wait, Want};
use netvm_abi::atomic::{Atomic, EMPTY, QueueBlock};
use netvm_abi::descriptor::Opcode;
use stateright::{Model, Property};
use std::collections::BTreeSet;

/// Something that a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Job {
    /// Stands in the wait queue, and waits.
    Queue,
    /// Wakes the first waiter.
    Wake,
    /// Takes a token.
    Wait,
    /// Gives a token.
    Signal,
}

/// What is left out, for controls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Without {
    /// Nothing: what is shipped.
    #[default]
    Nothing,
    /// A grant of an epoch that is over is thrown away instead of given back.
    GiveBack,
    /// Wake-ups that are pending when a queue is reset are forgotten.
    Pending,
    /// A reset acts again for a process that asks for it a second time, on what was pending then.
    Once,
    /// No waiter looks whether its predecessor lives.
    Looks,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum At {
    Insert(Insert),
    /// And where it stands.
    Await(Await, Inserted),
    Remove(Remove),
    Wait(Wait),
    Signal(Signal),
    /// Gives back tokens that came too late for an earlier turn.
    GiveBack(Signal),
    Done,
    Dead,
}

macro_rules! any {
    ($at:expr, $machine:ident => $do:expr, $idle:expr) => {
        match $at {
            At::Insert($machine) => $do,
            At::Await($machine, _) => $do,
            At::Remove($machine) => $do,
            At::Wait($machine) => $do,
            At::Signal($machine) | At::GiveBack($machine) => $do,
            At::Done | At::Dead => $idle,
        }
    };
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    me: SeatId,
    done: usize,
    at: At,
}

/// A state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    world: World,
    processes: Vec<Process>,
    /// How many may still die.
    deaths: u8,
    /// How many may still be taken for dead though they are not.
    mistakes: u8,
    /// Tokens or wake-ups: given, had.
    given: u8,
    had: u8,
    /// Turns that a grant was sent for.
    granted: BTreeSet<SeatId>,
    /// A turn in a wait queue was ended by a signal, and none was for it.
    astray: bool,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A step of a process.
    Step(usize),
    /// A message moves on.
    Deliver(Delivery),
    /// A message of the dead is lost.
    Lose(Delivery),
    /// A process dies.
    Die(usize),
    /// A waiter looks, and finds that its queue is over, or that it should be.
    Look(usize),
    /// The same, and it is mistaken.
    Mistake(usize),
}

/// The model: for each process what it does, in order.
#[derive(Clone, Debug, Default)]
pub struct ResetModel {
    /// By process.
    pub jobs: Vec<&'static [Job]>,
    /// How many may die, each anywhere.
    pub deaths: u8,
    /// How often a living process is taken for dead.
    pub mistakes: u8,
    /// What is left out.
    pub without: Without,
}

impl ResetModel {
    fn begin(&self, who: usize, state: &mut State) {
        let process = &mut state.processes[who];
        let job = self.jobs.get(who).and_then(|jobs| jobs.get(process.done));
        let seat = &mut state.world.seats[who];
        process.at = match job {
            // The drivers: those of an earlier turn count for nothing in a wait queue, and are tokens in a semaphore.
            Some(Job::Wait) if seat.signals > 0 => {
                seat.signals -= 1;
                At::GiveBack(Signal::new())
            }
            Some(Job::Queue) => {
                seat.signals = 0;
                process.me = process.me.next_turn();
                At::Insert(Insert::new(process.me))
            }
            Some(Job::Wait) => {
                process.me = process.me.next_turn();
                At::Wait(Wait::new(process.me))
            }
            Some(Job::Wake) => At::Remove(Remove::new()),
            Some(Job::Signal) => At::Signal(Signal::new()),
            None => At::Done,
        };
    }

    fn perform<R>(world: &mut World, me: SeatId, want: &Want<R>) -> Answer {
        match want {
            Want::Link(to) | Want::Grant { to, .. } if !world.lives(World::who(*to)) => Answer::Done,
            _ => world.perform(me, want, Nic::Shipped),
        }
    }

    fn step(&self, state: &mut State, who: usize) {
        let process = &mut state.processes[who];
        let me = process.me;
        let mine = epoch(&process.at);
        let gives = matches!(process.at, At::Signal(_) | At::Remove(_));
        let world = &mut state.world;
        let ended = any!(&mut process.at, machine => {
            let want = machine.want();
            let answer = Self::perform(world, me, &want);
            if let Want::Atomic(_, atomic) = want
                && gives
                && matches!(atomic.opcode, Opcode::SemV | Opcode::Dequeue)
            {
                state.given += 1;
            }
            if let Want::Grant { to, .. } = want {
                state.granted.insert(to);
            }
            machine.answer(answer);
            matches!(machine.want(), Want::Ended(_))
        }, false);
        if let (Without::GiveBack, At::Wait(machine)) = (self.without, &mut process.at)
            && let (Want::Atomic(_, atomic), Some(stands)) = (machine.want(), mine)
            && atomic.opcode == Opcode::SemV
        {
            // As if it had said something of no matter.
            let nothing = QueueBlock {
                epoch: stands,
                ..QueueBlock::default()
            };
            let mut words = nothing.encode();
            machine.answer(Answer::Atomic(atomic.apply(&mut words).0));
        }
        if !ended {
            return;
        }
        match &process.at {
            At::Insert(machine) => {
                if let Want::Ended(stands) = machine.want() {
                    process.at = At::Await(Await::new(process.me, stands.epoch), stands);
                }
                return;
            }
            // For an epoch that is over: it still waits.
            At::Await(machine, stands) if machine.want() == Want::Ended(false) => {
                process.at = At::Await(Await::new(process.me, stands.epoch), *stands);
                return;
            }
            At::GiveBack(_) => {
                self.begin(who, state);
                return;
            }
            At::Await(..) => {
                state.had += 1;
                state.astray |= !state.granted.contains(&me);
            }
            At::Wait(_) => state.had += 1,
            _ => {}
        }
        state.processes[who].done += 1;
        self.begin(who, state);
    }

    /// Resets the queue of this epoch.
    fn reset(&self, world: &mut World, epoch: u32) {
        let before = QueueBlock::decode(&world.main);
        let atomic = Atomic {
            opcode: Opcode::ResetQueue,
            wide: false,
            operand: epoch.into(),
            compare: 0,
        };
        let _ = atomic.apply(&mut world.main);
        if self.without == Without::Once && before.epoch != epoch {
            let value = before.value + 1;
            world.main = QueueBlock { value, ..before }.encode();
        }
        if self.without == Without::Pending {
            let value = before.value;
            world.main = QueueBlock {
                value,
                ..QueueBlock::decode(&world.main)
            }
            .encode();
        }
    }

    /// A waiter resets its queue, or finds that that was done.
    fn look(&self, state: &mut State, who: usize) {
        let Some(epoch) = epoch(&state.processes[who].at) else {
            return;
        };
        self.reset(&mut state.world, epoch);
        let process = &mut state.processes[who];
        match &mut process.at {
            At::Wait(machine) if machine.lingers() => machine.give_up(),
            At::Wait(machine) => machine.again(),
            At::Await(machine, _) if machine.lingers() => machine.give_up(),
            // Let out, with the word that the queue was reset.
            At::Await(..) => {
                process.done += 1;
                return self.begin(who, state);
            }
            _ => return,
        }
        let over = any!(&process.at, machine => matches!(machine.want(), Want::Ended(_)), false);
        if over {
            state.had += 1;
            state.processes[who].done += 1;
            self.begin(who, state);
        }
    }
}

/// The epoch of the queue in which a process waits, for its turn or for its successor's name.
fn epoch(at: &At) -> Option<u32> {
    match at {
        At::Wait(machine) if machine.lingers() => machine.epoch(),
        At::Wait(machine) => machine.stands().map(|stands| stands.epoch),
        At::Await(machine, _) if machine.waits() || machine.lingers() => Some(machine.epoch()),
        _ => None,
    }
}

impl State {
    /// The predecessor of a waiter that has not been woken.
    fn behind(&self, who: usize) -> Option<SeatId> {
        let stands = match &self.processes[who].at {
            At::Wait(machine) => machine.stands(),
            At::Await(machine, stands) if machine.waits() => Some(*stands),
            _ => None,
        };
        stands
            .map(|stands| stands.behind)
            .filter(|behind| !behind.is_nobody())
    }

    /// Whether a look would find something: another epoch, or that its predecessor is dead.
    fn sees(&self, who: usize) -> bool {
        let now = QueueBlock::decode(&self.world.main).epoch;
        let waits =
            any!(&self.processes[who].at, machine => !matches!(machine.want(), Want::AwaitNext), false);
        let over = waits && epoch(&self.processes[who].at).is_some_and(|epoch| epoch != now);
        let dead = |behind| !self.world.lives(World::who(behind));
        over || self.behind(who).is_some_and(dead)
    }

    /// Whether it seems to a waiter that a wake-up was lost, or its successor's name. Only after a long wait.
    fn suspects(&self, who: usize) -> bool {
        let block = QueueBlock::decode(&self.world.main);
        let waits = epoch(&self.processes[who].at).is_some();
        let lingers =
            any!(&self.processes[who].at, machine => matches!(machine.want(), Want::AwaitNext), false);
        lingers || (waits && (block.head == EMPTY || block.count == block.pending))
    }

    fn die(&mut self, who: usize) {
        self.world.die(who);
        self.processes[who].at = At::Dead;
        // What is under way to it does nothing any more.
        self.world.messages.retain(|message| message.to != who);
    }

    /// Tokens that are somewhere: in the count, or with a living process that will give them back.
    fn left(&self) -> u8 {
        let block = QueueBlock::decode(&self.world.main);
        let seats = self.world.seats.iter().filter(|seat| seat.view.is_some());
        (block.value + block.pending) as u8 + seats.map(|seat| seat.signals).sum::<u8>()
    }
}

impl Model for ResetModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        // One more process, which signals when all else has come to its end.
        let processes = (0..=self.jobs.len()).map(|who| Process {
            me: World::id(who),
            done: 0,
            at: At::Done,
        });
        let mut state = State {
            world: World::new(self.jobs.len() + 1),
            processes: processes.collect(),
            deaths: self.deaths,
            mistakes: self.mistakes,
            given: 0,
            had: 0,
            granted: BTreeSet::new(),
            astray: false,
        };
        for who in 0..self.jobs.len() {
            self.begin(who, &mut state);
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (who, process) in state.processes.iter().enumerate() {
            if any!(&process.at, machine => state.world.ready(who, &machine.want()), false) {
                actions.push(Action::Step(who));
            }
            if state.sees(who) && self.without != Without::Looks {
                actions.push(Action::Look(who));
            }
        }
        actions.extend(state.world.deliveries().map(Action::Deliver));
        actions.extend(state.world.losses().map(Action::Lose));
        // Repeated looks see the same only when nothing else happens.
        if actions.is_empty() && self.without != Without::Looks {
            let odd = (0..state.processes.len()).filter(|&who| state.suspects(who));
            actions.extend(odd.map(Action::Look));
        }
        for (who, process) in state.processes.iter().enumerate() {
            if state.deaths > 0 && process.at != At::Done && process.at != At::Dead {
                actions.push(Action::Die(who));
            }
            if state.mistakes > 0 && epoch(&process.at).is_some() {
                actions.push(Action::Mistake(who));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Step(who) => self.step(&mut state, who),
            Action::Deliver(delivery) => state.world.deliver(delivery),
            Action::Lose(delivery) => state.world.lose(delivery),
            Action::Die(who) => {
                state.deaths -= 1;
                state.die(who);
            }
            Action::Look(who) => self.look(&mut state, who),
            Action::Mistake(who) => {
                state.mistakes -= 1;
                self.look(&mut state, who);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        // Judged when all states are known, so that all of them are counted.
        vec![Property::always("all states are visited", |_, _| true)]
    }
}

impl Ends for ResetModel {
    fn wrong(&self, state: &State) -> Option<&'static str> {
        if state.astray {
            return Some("a signal for another turn was taken for its own");
        }
        (state.had > state.given).then_some("more was had than was given")
    }

    fn wrong_at_end(&self, state: &State) -> Option<&'static str> {
        let semaphore = self.jobs.iter().any(|jobs| jobs.contains(&Job::Wait));
        let dead = state
            .processes
            .iter()
            .filter(|process| process.at == At::Dead)
            .count() as u8;
        let waits = |process: &Process| !matches!(process.at, At::Done | At::Dead);
        let block = QueueBlock::decode(&state.world.main);
        if semaphore {
            let lost = state.given.saturating_sub(state.had + state.left());
            if lost > 2 * dead {
                return Some("a token is lost");
            }
            if block.value > 0 && state.processes.iter().any(waits) {
                return Some("there are tokens, and a process waits");
            }
        }
        // A process that still waits is found by the signals that come later.
        let mut later = state.clone();
        let signaller = later.processes.len() - 1;
        for _ in 0..=later.processes.len() {
            let process = &mut later.processes[signaller];
            process.at = if semaphore {
                At::Signal(Signal::new())
            } else {
                At::Remove(Remove::new())
            };
            let mut actions = Vec::new();
            loop {
                actions.clear();
                let calm = Self {
                    deaths: 0,
                    ..self.clone()
                };
                later.deaths = 0;
                later.mistakes = 0;
                calm.actions(&later, &mut actions);
                let Some(next) = actions
                    .first()
                    .and_then(|&action| calm.next_state(&later, action))
                else {
                    break;
                };
                later = next;
            }
        }
        let waits = later.processes.iter().any(waits);
        waits.then_some("a process waits for ever, however often it is signalled")
    }
}
