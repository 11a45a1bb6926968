//! Processes that acquire and release one lock.

use crate::{Delivery, Ends, Message, Nic, Payload, World};
use netvm::sync::protocol::{Acquire, Acquired, Machine, Place, Release, SeatId, TryAcquire, Want};
use netvm_abi::descriptor::Opcode;
use stateright::{Model, Property};

/// Runs a machine's next step: gives its end once it has come.
macro_rules! step {
    ($world:expr, $me:expr, $machine:expr, $mortal:expr) => {{
        let want = $machine.want();
        let answer = $world.perform($me, &want, Nic::Shipped);
        $machine.answer(answer);
        // While all live, no participant looks at where another stands.
        while let (false, want @ Want::Stand(_)) = ($mortal, $machine.want()) {
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
    Inside {
        /// Whether its chain is broken.
        broken: bool,
    },
    /// About to let go of it: looks for a successor.
    Looks {
        /// Whether its chain is broken.
        broken: bool,
    },
    /// Letting go of it.
    Release(Release),
    /// A visitor that is no member just now.
    Away,
    /// A visitor that is about to leave.
    Leaves,
    /// Done with everything.
    Done,
    /// Dead.
    Dead,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// Its name in its present turn.
    pub me: SeatId,
    /// Turns that are left.
    pub rounds: u8,
    /// How often the lock has been recovered, as far as it knows.
    pub recoveries: u64,
    /// What it is at.
    pub at: At,
}

/// What a participant adrift does and sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Count {
    /// How often it has read the table of members to look at all of them.
    pub passes: u8,
    /// The processes that have made a step since it last paused, by bit.
    pub moved: u8,
}

/// A state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Words and messages.
    pub world: World,
    /// Processes.
    pub processes: Vec<Process>,
    /// The processes that have asked and not had it, in order.
    pub line: Vec<usize>,
    /// How many may still die.
    pub deaths: u8,
    /// How many names of the living may still be lost.
    pub losses: u8,
    /// By process, if that is counted.
    pub counts: Vec<Count>,
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
    /// A message of the dead, or to them, is lost; or a name of the living, where a link fails for a moment.
    Lose(Delivery),
    /// A process dies.
    Die(usize),
    /// A waiter looks at its predecessor.
    Look(usize),
    /// A process that paused goes on.
    Again(usize),
    /// A process that lets go looks whether the successor that has asked is still there.
    Seek(usize),
}

/// The model: for each process how often it acquires, and whether its first time is only a try.
///
/// Where processes may die, waiters look at those before them, at any time; the lock is recovered only once one is dead.
#[derive(Clone, Debug, Default)]
pub struct LockModel {
    /// By process: turns, and whether the first of them only tries.
    pub processes: Vec<(u8, bool)>,
    /// How many processes may die, each anywhere.
    pub deaths: u8,
    /// How many messages that name a holder's successor may be lost although all live.
    pub losses: u8,
    /// If there are any: it begins with all in one chain, the first holding the lock, when these have died.
    pub killed: Vec<usize>,
    /// How many of the processes, the last ones, are visitors: they become members for each turn and leave after it. In
    /// each turn they only try, if they do so in their first.
    pub visitors: usize,
    /// All that do not try in their first turn only try in their last.
    pub tries_last: bool,
    /// In which turn of their seats all begin.
    pub turn: u16,
    /// Whether passes are counted; then a process that pauses does so until all processes that can make a step have
    /// made one.
    pub counts: bool,
    /// Control: surveys do not see in which turn a visitor is.
    pub turnless: bool,
    /// Control: participants adrift do not count how often the lock has been recovered.
    pub forgetful: bool,
}

impl LockModel {
    const fn mortal(&self) -> bool {
        self.deaths > 0 || self.losses > 0 || !self.killed.is_empty()
    }

    /// What tells whether this one is a visitor, and whether it only tries then.
    fn visits(&self, who: usize) -> Option<bool> {
        let first = self.processes.len() - self.visitors;
        let visitor = (who >= first).then(|| self.processes.get(who));
        visitor.flatten().map(|&(_, tries)| tries)
    }

    /// Its turn is over.
    fn end(&self, process: &mut Process, who: usize) {
        match self.visits(who) {
            Some(_) => process.at = At::Leaves,
            None => Self::begin(process, self.tries_last && process.rounds == 1),
        }
    }

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
            At::Acquire(Acquire::new(process.me, process.recoveries))
        };
    }
}

impl State {
    fn step(&mut self, who: usize, model: &LockModel) {
        let mortal = model.mortal();
        let Self {
            world,
            processes,
            line,
            counts,
            wrong,
            ..
        } = self;
        for count in counts.iter_mut() {
            count.moved |= 1 << who;
        }
        world.turnless = if model.turnless { model.visitors } else { 0 };
        let process = &mut processes[who];
        let me = process.me;
        match &mut process.at {
            At::Acquire(machine) => {
                if let Want::Atomic(_, atomic) = machine.want()
                    && atomic.opcode == Opcode::Swap
                    && !mortal
                {
                    line.push(who);
                }
                if model.forgetful {
                    world.recoveries = [0; 4];
                }
                if let (Some(count), Want::Member(0)) = (counts.get_mut(who), machine.want()) {
                    count.passes = count.passes.saturating_add(1);
                }
                let ended = step!(world, me, machine, mortal);
                process.recoveries = machine.recoveries();
                if ended == Some(Acquired::Astray) {
                    process.me = me.next_turn();
                    process.at = At::Acquire(Acquire::new(process.me, process.recoveries));
                } else if let Some(how) = ended {
                    let all_live =
                        self.deaths == model.deaths && model.losses == 0 && model.killed.is_empty();
                    if all_live && matches!(how, Acquired::Held { recovered: true, .. }) {
                        *wrong = Some("the lock was recovered, and all live");
                    }
                    let whole = Acquired::Held {
                        broken: false,
                        recovered: false,
                    };
                    if !mortal && (how != whole || line.first() != Some(&who)) {
                        *wrong = Some("the lock came out of order");
                    }
                    process.at = At::Inside {
                        broken: matches!(how, Acquired::Held { broken: true, .. }),
                    };
                }
            }
            At::Try(machine) => match step!(world, me, machine, mortal) {
                Some(Acquired::Held { broken, .. }) => {
                    line.push(who);
                    process.at = At::Inside { broken };
                }
                Some(Acquired::Taken | Acquired::Astray) => model.end(process, who),
                None => {}
            },
            At::Inside { broken } => {
                line.retain(|&other| other != who);
                process.at = At::Looks { broken: *broken };
            }
            At::Looks { broken } => {
                let next = me.follower(world.seats[who].next);
                process.at = At::Release(Release::new(me, *broken, next));
            }
            At::Release(machine) => {
                if step!(world, me, machine, mortal).is_some() {
                    model.end(process, who);
                }
            }
            At::Away => {
                world.members |= 1 << who;
                process.recoveries = world.recoveries[0];
                LockModel::begin(process, model.visits(who) == Some(true));
            }
            At::Leaves => {
                world.members &= !(1 << who);
                process.at = if process.rounds == 0 { At::Done } else { At::Away };
            }
            At::Done | At::Dead => {}
        }
        let inside = |process: &&Process| matches!(process.at, At::Inside { .. });
        if self.processes.iter().filter(inside).count() > 1 {
            self.wrong = Some("two hold the lock");
        }
    }

    fn die(&mut self, who: usize) {
        self.world.die(who);
        self.processes[who].at = At::Dead;
    }

    /// Whether all living processes are done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let mut processes = self.processes.iter();
        processes.all(|process| matches!(process.at, At::Done | At::Dead))
    }

    /// What surveys do, and what death does. A waiter looks only where there is something to see: a look at a process
    /// that is alive and well changes nothing.
    fn mortal_actions(&self, model: &LockModel, actions: &mut Vec<Action>) {
        let world = &self.world;
        for (who, process) in self.processes.iter().enumerate() {
            let done = matches!(process.at, At::Done | At::Dead);
            if !done && self.deaths > 0 {
                actions.push(Action::Die(who));
            }
            match &process.at {
                At::Acquire(machine) if machine.pauses() => {
                    let moved = self.counts.get(who).map_or(u8::MAX, |count| count.moved);
                    let all = |other| other == who || !self.ready(other) || moved >> other & 1 == 1;
                    if (0..self.processes.len()).all(all) {
                        actions.push(Action::Again(who));
                    }
                }
                At::Acquire(machine) => {
                    let mut looks = machine.clone();
                    looks.look();
                    if let (Want::AwaitGrant { .. }, Want::View(of)) = (machine.want(), looks.want()) {
                        let view = world.seats[World::who(of)].view;
                        let well = view.is_some_and(|view| {
                            let over = view.turn != of.turn() || matches!(view.place, Place::Over(_));
                            !over || view.given == process.me
                        });
                        if !well {
                            actions.push(Action::Look(who));
                        }
                    }
                }
                At::Release(machine) if machine.want() == Want::AwaitNext => {
                    // A name that is about to come will: a look changes nothing. One that came may have been
                    // overwritten by one that came late.
                    let links = |other: &Process| matches!(&other.at, At::Acquire(machine) if machine.want() == Want::Link(process.me));
                    let comes = |message: &Message| {
                        message.to == who
                            && matches!(message.payload, Payload::Next(id) if !process.me.follower(id).is_nobody())
                    };
                    if model.losses > 0
                        || !(self.processes.iter().any(links) || world.messages.iter().any(comes))
                    {
                        actions.push(Action::Seek(who));
                    }
                }
                _ => {}
            }
        }
        actions.extend(world.losses().map(Action::Lose));
        if self.losses > 0 {
            actions.extend(world.names_between_the_living().map(Action::Lose));
        }
    }

    fn ready(&self, who: usize) -> bool {
        let world = &self.world;
        match &self.processes[who].at {
            At::Acquire(machine) => world.ready(who, &machine.want()),
            At::Try(machine) => world.ready(who, &machine.want()),
            At::Inside { .. } | At::Looks { .. } | At::Away | At::Leaves => true,
            At::Release(machine) => world.ready(who, &machine.want()),
            At::Done | At::Dead => false,
        }
    }
}

impl Model for LockModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let processes = self.processes.iter().enumerate().map(|(who, &(rounds, tries))| {
            let mut process = Process {
                me: World::id(who).in_turn(self.turn),
                rounds,
                recoveries: 0,
                at: At::Away,
            };
            if self.visits(who).is_none() {
                Self::begin(&mut process, tries);
            }
            process
        });
        let mut state = State {
            world: World::new(self.processes.len()),
            processes: processes.collect(),
            line: Vec::new(),
            deaths: self.deaths,
            losses: self.losses,
            counts: Vec::new(),
            wrong: None,
        };
        for seat in &mut state.world.seats {
            if let Some(view) = &mut seat.view {
                view.turn = self.turn;
            }
        }
        let stay = self.processes.len() - self.visitors;
        state.world.members = (1 << stay) - 1;
        if !self.killed.is_empty() {
            for who in 0..stay {
                while state.ready(who) && !matches!(state.processes[who].at, At::Inside { .. }) {
                    state.step(who, self);
                }
                while !state.world.messages.is_empty() {
                    state.world.deliver(Delivery(0));
                }
            }
            for &who in &self.killed {
                state.die(who);
            }
        }
        if self.counts {
            state.counts = vec![Count::default(); self.processes.len()];
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let steps = (0..state.processes.len()).filter(|&who| state.ready(who));
        actions.extend(steps.map(Action::Step));
        actions.extend(state.world.deliveries().map(Action::Deliver));
        if self.mortal() {
            state.mortal_actions(self, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Step(who) => state.step(who, self),
            Action::Deliver(delivery) => state.world.deliver(delivery),
            Action::Lose(delivery) => {
                let of_the_living = state
                    .world
                    .names_between_the_living()
                    .any(|name| name == delivery);
                state.losses -= u8::from(of_the_living);
                state.world.lose(delivery);
            }
            Action::Die(who) => {
                state.deaths -= 1;
                state.die(who);
            }
            Action::Look(who) => {
                if let At::Acquire(machine) = &mut state.processes[who].at {
                    machine.look();
                }
            }
            Action::Again(who) => {
                if let At::Acquire(machine) = &mut state.processes[who].at {
                    machine.again();
                }
                if let Some(count) = state.counts.get_mut(who) {
                    count.moved = 0;
                }
            }
            Action::Seek(who) => {
                if let At::Release(machine) = &mut state.processes[who].at {
                    machine.look();
                }
            }
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
            return Some("a process waits for ever");
        }
        let clean = state.world.main == [0; 4] && state.world.seats.iter().all(|seat| seat.signals == 0);
        (!clean).then_some("the lock is not free")
    }
}
