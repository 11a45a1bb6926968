//! Processes that acquire and release one lock.

use crate::{Delivery, Ends, Nic, World};
use netvm::sync::protocol::{Acquire, Acquired, Machine, Release, SeatId, TryAcquire, Want};
use netvm_abi::descriptor::Opcode;
use stateright::{Model, Property};

/// Runs a machine's next step: gives its end once it has come.
macro_rules! step {
    ($world:expr, $me:expr, $machine:expr) => {{
        let want = $machine.want();
        let answer = $world.perform($me, &want, Nic::Shipped);
        $machine.answer(answer);
        // Where a participant stands, nobody looks at while all live.
        while let want @ Want::Stand(_) = $machine.want() {
            let answer = $world.perform($me, &want, Nic::Shipped);
            $machine.answer(answer);
        }
        match $machine.want() {
            Want::Ended(how) => Some(how),
            _ => None,
        }
    }};
}

/// What a process is at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum At {
    /// Getting the lock.
    Acquire(Acquire),
    /// Trying to.
    Try(TryAcquire),
    /// Has it.
    Inside,
    /// Letting go of it.
    Release(Release),
    /// Done with everything.
    Done,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// Its name in its present turn.
    pub me: SeatId,
    /// Turns that are left.
    pub rounds: u8,
    /// What it is at.
    pub at: At,
}

/// A state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Words and messages.
    pub world: World,
    /// Processes.
    pub processes: Vec<Process>,
    /// Who has asked and not had it, in order.
    pub line: Vec<usize>,
    /// What went wrong.
    pub wrong: Option<&'static str>,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A step of a process.
    Step(usize),
    /// A message moves on.
    Deliver(Delivery),
}

/// The model: for each process how often it acquires, and whether its first time is only a try.
#[derive(Clone, Debug)]
pub struct LockModel {
    /// By process: turns, and whether the first of them only tries.
    pub processes: Vec<(u8, bool)>,
}

impl LockModel {
    fn begin(process: &mut Process, tries: bool) {
        if process.rounds == 0 {
            process.at = At::Done;
            return;
        }
        process.rounds -= 1;
        process.me = process.me.next_turn();
        process.at = if tries {
            At::Try(TryAcquire::new(process.me))
        } else {
            At::Acquire(Acquire::new(process.me))
        };
    }
}

impl State {
    fn step(&mut self, who: usize) {
        let Self {
            world,
            processes,
            line,
            wrong,
        } = self;
        let process = &mut processes[who];
        let me = process.me;
        match &mut process.at {
            At::Acquire(machine) => {
                if let Want::Atomic(_, atomic) = machine.want()
                    && atomic.opcode == Opcode::Swap
                {
                    line.push(who);
                }
                if let Some(how) = step!(world, me, machine) {
                    if how != (Acquired::Held { broken: false }) || line.first() != Some(&who) {
                        *wrong = Some("the lock came out of order");
                    }
                    process.at = At::Inside;
                }
            }
            At::Try(machine) => match step!(world, me, machine) {
                Some(Acquired::Held { .. }) => {
                    line.push(who);
                    process.at = At::Inside;
                }
                Some(Acquired::Taken) => LockModel::begin(process, false),
                None => {}
            },
            At::Inside => {
                line.retain(|&other| other != who);
                process.at = At::Release(Release::new(me));
            }
            At::Release(machine) => {
                if step!(world, me, machine).is_some() {
                    LockModel::begin(process, false);
                }
            }
            At::Done => {}
        }
        let inside = self.processes.iter().filter(|process| process.at == At::Inside);
        if inside.count() > 1 {
            self.wrong = Some("two hold the lock");
        }
    }

    fn ready(&self, who: usize) -> bool {
        let world = &self.world;
        match &self.processes[who].at {
            At::Acquire(machine) => world.ready(who, &machine.want()),
            At::Try(machine) => world.ready(who, &machine.want()),
            At::Inside => true,
            At::Release(machine) => world.ready(who, &machine.want()),
            At::Done => false,
        }
    }
}

impl Model for LockModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let processes = self.processes.iter().enumerate().map(|(who, &(rounds, tries))| {
            let mut process = Process {
                me: World::id(who),
                rounds,
                at: At::Done,
            };
            Self::begin(&mut process, tries);
            process
        });
        vec![State {
            world: World::new(self.processes.len()),
            processes: processes.collect(),
            line: Vec::new(),
            wrong: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let steps = (0..state.processes.len()).filter(|&who| state.ready(who));
        actions.extend(steps.map(Action::Step));
        actions.extend(state.world.deliveries().map(Action::Deliver));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Step(who) => state.step(who),
            Action::Deliver(delivery) => state.world.deliver(delivery),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        // Judged when all states are known, so that all of them are counted.
        vec![Property::always("all states are visited", |_, _| true)]
    }
}

impl Ends for LockModel {
    fn wrong(&self, state: &State) -> Option<&'static str> {
        state.wrong
    }

    fn wrong_at_end(&self, state: &State) -> Option<&'static str> {
        if state.processes.iter().any(|process| process.at != At::Done) {
            return Some("somebody waits for ever");
        }
        let clean = state.world.main == [0; 4] && state.world.seats.iter().all(|seat| seat.signals == 0);
        (!clean).then_some("the lock is not free")
    }
}
