//! Programs that use shared objects from all sides. What each asks and is answered goes into the
//! [histories](crate::history) of the run.

mod locks;
mod queues;
mod tokens;
mod words;

use crate::dice::Dice;
use crate::history::{Call, Histories, Kept};
use crate::workload::{Env, Role};
use netvm::{Error, OpId, Result, Status, Timeout};
use netvm_abi::NodeId;
use std::cell::Cell;
use std::rc::Rc;

/// The owners of the objects, and the programs on up to four nodes that use them.
pub(crate) fn roles(dice: &mut Dice, nodes: u16) -> Vec<Role> {
    let mut home = || NodeId(dice.below(u64::from(nodes)) as u16);
    let (words, locks, queues) = (home(), home(), home());
    let mut roles = words::roles(words, nodes);
    roles.extend(locks::roles(locks, words, nodes));
    roles.extend(queues::roles(queues, nodes));
    roles
}

/// The present life of an object's owner, 0 for none. It is in the names of what is exported, so that a program knows
/// which life's object it uses.
#[derive(Clone, Default)]
struct Life(Rc<Cell<u64>>);

impl Life {
    /// The life after it, which it is from now on.
    fn next(&self) -> u64 {
        self.0.update(|life| life + 1);
        self.0.get()
    }
}

/// Does something with the histories of the run, while there is one.
fn record<T>(env: &Env, what: impl FnOnce(&mut Histories) -> T) -> Option<T> {
    let sim = env.sim.upgrade()?;
    let mut histories = sim.histories.borrow_mut();
    Some(what(&mut histories))
}

/// A program calls.
fn calls<O: Kept>(env: &Env, object: crate::history::ObjectId, op: impl Into<O::Op>) -> Option<Call<O>> {
    let op = op.into();
    record(env, |histories| histories.call(object, op))
}

/// It is answered.
fn returns<O: Kept>(env: &Env, call: Option<Call<O>>, answer: O::Answer) {
    if let Some(call) = call {
        record(env, |histories| histories.returns(call, answer));
    }
}

/// It has had no effect.
fn refused<O: Kept>(env: &Env, call: Option<Call<O>>) {
    if let Some(call) = call {
        record(env, |histories| histories.is_refused(call));
    }
}

/// Whether an operation has certainly not been carried out. Of a lost link that is not known, nor where the failure of
/// another operation is told.
fn was_refused(error: &Error, own: Option<OpId>) -> bool {
    matches!(error, Error::Failed(failure) if own == Some(failure.op) && failure.status != Status::LinkLost)
}

/// How long a program waits for what another one offers. In the calm that is until a page comes that is slow to come.
fn patience(env: &Env) -> Timeout {
    Timeout::After(env.millis(if env.calm { 20 } else { 2 }))
}

/// Tries to reach what another program offers until that is there. Nothing: the run is to stop.
fn reach<T>(env: &Env, mut reach: impl FnMut() -> Result<T>) -> Result<Option<T>> {
    loop {
        if env.stage.stopped() && !env.calm {
            return Ok(None);
        }
        match reach() {
            Ok(reached) => return Ok(Some(reached)),
            Err(Error::Import { .. } | Error::TimedOut) if !env.calm => {}
            Err(error) => return Err(error),
        }
    }
}
