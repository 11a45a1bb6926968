//! Visiting every state of a model that comes to an end.

use stateright::{Checker, Model, StateRecorder};
use std::fmt::Debug;
use std::hash::Hash;

/// A model of which it can be said whether a state without steps is as it should be.
pub trait Ends: Model {
    /// What is wrong with a state in which nothing can happen any more.
    fn wrong_at_end(&self, state: &Self::State) -> Option<&'static str>;

    /// What went wrong on the way.
    fn wrong(&self, state: &Self::State) -> Option<&'static str>;
}

/// What became of a model.
#[derive(Debug)]
pub struct Verdict {
    /// States reached.
    pub states: usize,
    /// Of these, such in which nothing can happen any more.
    pub ends: usize,
    /// Of these, such that are wrong.
    pub stuck: usize,
    /// The first thing that went wrong on the way, or at an end.
    pub wrong: Option<String>,
}

/// Visits every state of a model.
///
/// # Panics
/// When the checker did not come to an end.
pub fn explore<M>(name: &str, model: M) -> Verdict
where
    M: Ends + Clone + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let (recorder, states) = StateRecorder::new_with_accessor();
    let checker = model.clone().checker().visitor(recorder).spawn_bfs().join();
    assert!(checker.is_done());
    let mut verdict = Verdict {
        states: checker.unique_state_count(),
        ends: 0,
        stuck: 0,
        wrong: None,
    };
    let mut actions = Vec::new();
    for state in states() {
        if let Some(what) = model.wrong(&state) {
            verdict.wrong.get_or_insert_with(|| format!("{what}: {state:?}"));
        }
        actions.clear();
        model.actions(&state, &mut actions);
        if actions.is_empty() {
            verdict.ends += 1;
            if let Some(what) = model.wrong_at_end(&state) {
                verdict.stuck += 1;
                verdict.wrong.get_or_insert_with(|| format!("{what}: {state:?}"));
            }
        }
    }
    println!(
        "{name}: {} states, {} ends, {} of them wrong",
        verdict.states, verdict.ends, verdict.stuck
    );
    verdict
}
