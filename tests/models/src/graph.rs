//! Properties of the whole graph of states that no single state shows: that a process can always get
//! on, and that no fair schedule keeps it from doing so.

use stateright::Model;
use std::collections::HashMap;
use std::hash::Hash;

/// Every state that a model can reach, with the steps between them.
#[derive(Debug)]
pub struct Graph<S> {
    /// The states; the first ones are those that the model begins in.
    pub states: Vec<S>,
    /// From each: the process that moves, and the state it leads to. Steps that change nothing are left out.
    pub steps: Vec<Vec<(usize, usize)>>,
}

impl<S: Clone + Eq + Hash> Graph<S> {
    /// Explores a model. `mover` tells which process takes a step.
    pub fn new<M: Model<State = S>>(model: &M, mover: impl Fn(&M::Action) -> usize) -> Self {
        let mut states = model.init_states();
        let mut known: HashMap<S, usize> = states
            .iter()
            .enumerate()
            .map(|(at, state)| (state.clone(), at))
            .collect();
        let mut steps = Vec::new();
        while let Some(state) = states.get(steps.len()).cloned() {
            let mut actions = Vec::new();
            model.actions(&state, &mut actions);
            let mut here = Vec::new();
            for action in actions {
                let who = mover(&action);
                let Some(next) = model.next_state(&state, action) else {
                    continue;
                };
                if next == state {
                    continue;
                }
                let to = *known.entry(next).or_insert_with_key(|next| {
                    states.push(next.clone());
                    states.len() - 1
                });
                here.push((who, to));
            }
            steps.push(here);
        }
        Self { states, steps }
    }

    /// A state from which no state with `goal` can be reached any more, if there is one.
    pub fn cut_off(&self, goal: impl Fn(&S) -> bool) -> Option<&S> {
        let mut before = vec![Vec::new(); self.states.len()];
        for (from, steps) in self.steps.iter().enumerate() {
            for &(_, to) in steps {
                before[to].push(from);
            }
        }
        let mut reaches: Vec<bool> = self.states.iter().map(goal).collect();
        let mut open: Vec<usize> = (0..reaches.len()).filter(|&at| reaches[at]).collect();
        while let Some(at) = open.pop() {
            for &from in &before[at] {
                if !std::mem::replace(&mut reaches[from], true) {
                    open.push(from);
                }
            }
        }
        let at = reaches.iter().position(|reaches| !reaches)?;
        self.states.get(at)
    }

    /// A state on a cycle, or a stuck one, in which a *fair* schedule can stay for ever among states with
    /// `waits`: every process moves on the way, or comes to a state where it `may_stay` for ever.
    ///
    /// `may_stay` is told the state, the process and whether it can move there. With `!can_move || rests`
    /// that is weak fairness for all processes that do not rest. A process that cannot move only because of something
    /// that serves all in turn (a NIC that is busy for another) may not stay: it gets its turn.
    pub fn starves(
        &self,
        processes: usize,
        waits: impl Fn(&S) -> bool,
        may_stay: impl Fn(&S, usize, bool) -> bool,
    ) -> Option<&S> {
        let inside: Vec<bool> = self.states.iter().map(waits).collect();
        let component = self.components(&inside);
        let count = component.iter().flatten().max().map_or(0, |last| last + 1);
        // For each component and process: whether it is treated fairly there.
        let mut fair = vec![vec![false; processes]; count];
        let mut first = vec![None; count];
        for (at, state) in self.states.iter().enumerate() {
            let Some(here) = component[at] else { continue };
            first[here].get_or_insert(at);
            let mut can_move = vec![false; processes];
            for &(who, to) in &self.steps[at] {
                can_move[who] = true;
                if component[to] == Some(here) {
                    fair[here][who] = true;
                }
            }
            for (who, can_move) in can_move.into_iter().enumerate() {
                if may_stay(state, who, can_move) {
                    fair[here][who] = true;
                }
            }
        }
        let unfair_to = (0..count).find(|&here| fair[here].iter().all(|&fair| fair))?;
        self.states.get(first[unfair_to]?)
    }

    /// For each state that is inside: the number of its strongly connected component among those.
    fn components(&self, inside: &[bool]) -> Vec<Option<usize>> {
        const UNSEEN: usize = usize::MAX;
        let len = self.states.len();
        let (mut index, mut low) = (vec![UNSEEN; len], vec![0; len]);
        let (mut component, mut stack) = (vec![None; len], Vec::new());
        let (mut next, mut count) = (0, 0);
        for root in (0..len).filter(|&at| inside[at]) {
            if index[root] != UNSEEN {
                continue;
            }
            let mut path = vec![(root, 0)];
            while let Some(&mut (at, ref mut step)) = path.last_mut() {
                if *step == 0 {
                    index[at] = next;
                    low[at] = next;
                    next += 1;
                    stack.push(at);
                }
                let to = self.steps[at].get(*step).map(|&(_, to)| to);
                *step += 1;
                if let Some(to) = to {
                    if !inside[to] {
                    } else if index[to] == UNSEEN {
                        path.push((to, 0));
                    } else if component[to].is_none() {
                        low[at] = low[at].min(index[to]);
                    }
                    continue;
                }
                path.pop();
                if let Some(&(parent, _)) = path.last() {
                    low[parent] = low[parent].min(low[at]);
                }
                if low[at] == index[at] {
                    while let Some(top) = stack.pop() {
                        component[top] = Some(count);
                        if top == at {
                            break;
                        }
                    }
                    count += 1;
                }
            }
        }
        component
    }
}
