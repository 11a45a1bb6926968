//! A participant of a wait queue.

use crate::history::{Histories, ObjectId, WaitQueue as Judged, WaitQueueAnswer, WaitQueueOp};
use crate::judged::{calls, record, returns};
use crate::workload::Env;
use netvm::sync::{WaitQueue, Waiting, Woken};
use netvm::{Error, Result, Timeout};
use std::time::Duration;

/// A participant.
pub(super) struct Turns {
    object: ObjectId,
    queue: WaitQueue,
}

/// One standing in the queue.
pub(super) struct Turn<'a> {
    object: ObjectId,
    number: u64,
    waiting: Waiting<'a>,
}

impl Turns {
    /// One that has joined the queue of this life of its home.
    pub(super) const fn new(life: u64, queue: WaitQueue) -> Self {
        let object = ObjectId { life, index: 0 };
        Self { object, queue }
    }

    /// This process takes part no more.
    pub(super) fn leave(&self, env: &Env) {
        calls::<Judged>(env, self.object, WaitQueueOp::Leave);
    }

    /// Wakes the first. Whether a program waited.
    pub(super) fn signal(&self, env: &Env) -> Result<bool> {
        let call = calls::<Judged>(env, self.object, WaitQueueOp::Signal);
        let found = self.queue.signal()?;
        returns(env, call, WaitQueueAnswer::Found(found));
        Ok(found)
    }

    /// Stands in the queue.
    pub(super) fn stand(&mut self, env: &Env) -> Result<Turn<'_>> {
        let number = record(env, Histories::number).unwrap_or_default();
        let op = WaitQueueOp::Stand {
            turn: number,
            woken: false,
        };
        let call = calls::<Judged>(env, self.object, op);
        let waiting = self.queue.insert()?;
        returns(env, call, WaitQueueAnswer::Done);
        Ok(Turn {
            object: self.object,
            number,
            waiting,
        })
    }
}

impl Turn<'_> {
    /// Waits for the end of the turn, first this long.
    pub(super) fn wait(mut self, env: &Env, first: Duration) -> Result<()> {
        let turn = self.number;
        let call = calls::<Judged>(env, self.object, WaitQueueOp::Wait { turn });
        let woken = match self.waiting.wait(first) {
            Err(Error::TimedOut) => self.waiting.wait(Timeout::Never),
            ended => ended,
        };
        let answer = match woken? {
            Woken::Signal => WaitQueueAnswer::Woken,
            Woken::Reset => WaitQueueAnswer::LetOut,
        };
        returns(env, call, answer);
        Ok(())
    }

    /// Leaves the queue before it was woken, as if this process had died.
    pub(super) fn leave(self, env: &Env) {
        let turn = self.number;
        calls::<Judged>(env, self.object, WaitQueueOp::Reset { turn });
    }
}
