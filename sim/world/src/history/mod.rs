//! What the programs of a run asked of shared objects and were answered, judged at the end.
//!
//! A checker that watches frames and memory trusts what it is shown of them. Here the programs themselves are believed: a
//! history has what each of them asked, when, and what it was answered. That some order of single operations explains it is
//! judged by [`linear`] alone, which knows nothing of cards, pages or links.

mod channel;
mod entries;
mod linear;
mod lock;
mod semaphore;
mod shared_queue;
mod wait_queue;
mod word;

pub(crate) use channel::{Channel, ChannelAnswer, ChannelOp};
use linear::{Judgement, Object, Operation};
pub(crate) use lock::{Lock, LockAnswer, LockOp, WORDS as LOCKED_WORDS};
pub(crate) use semaphore::{Semaphore, What};
pub(crate) use shared_queue::{SharedAnswer, SharedOp, SharedQueue};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
pub(crate) use wait_queue::{WaitQueue, WaitQueueAnswer, WaitQueueOp};
pub(crate) use word::{Word, WordOp};

/// A shared object of a run: a new one for each life of the program that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectId {
    /// The life of its program.
    pub(crate) life: u64,
    /// Which of that life's.
    pub(crate) index: u32,
}

/// An object whose histories are kept.
pub(crate) trait Kept: Object + Sized {
    /// What it is called in a report.
    const NAME: &'static str;
    /// What a new one holds.
    const NEW: Self::State;

    /// The histories of its kind.
    fn kept(histories: &mut Histories) -> &mut Kind<Self>;

    /// Makes a whole history ready for the judge: what follows from operations that were cut off is added, and what they
    /// cannot have changed is taken out. `faulty`: messages between programs may have been lost.
    fn complete(_history: &mut Vec<Operation<Self>>, _faulty: bool) {}
}

/// A call that has not returned.
pub(crate) struct Call<O> {
    object: ObjectId,
    /// Its place in the object's history.
    at: usize,
    of: PhantomData<O>,
}

/// The histories of one kind of objects. A refused call leaves an empty place.
pub(crate) struct Kind<O: Object>(BTreeMap<ObjectId, Vec<Option<Operation<O>>>>);

impl<O: Object> Default for Kind<O> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

/// All histories of a run.
#[derive(Default)]
pub(crate) struct Histories {
    numbers: u64,
    moments: u64,
    words: Kind<Word>,
    locks: Kind<Lock>,
    semaphores: Kind<Semaphore>,
    wait_queues: Kind<WaitQueue>,
    channels: Kind<Channel>,
    shared_queues: Kind<SharedQueue>,
    /// Faults may have lost messages between programs.
    faulty: bool,
}

/// What a run's histories come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    /// Operations in histories that are linearizable, by the kind of their objects.
    pub(crate) operations: BTreeMap<&'static str, u64>,
    /// Histories whose search took too long.
    pub(crate) undecided: u64,
}

impl Histories {
    /// Those of a run in which anything may fail, or of one in which all messages arrive.
    pub(crate) fn new(faulty: bool) -> Self {
        Self {
            faulty,
            ..Self::default()
        }
    }

    /// A number that nothing else in this run has: for the life of a program that shares objects, or for a turn.
    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn moment(&mut self) -> u64 {
        self.moments += 1;
        self.moments
    }

    /// A program calls.
    pub(crate) fn call<O: Kept>(&mut self, object: ObjectId, op: O::Op) -> Call<O> {
        let operation = Operation {
            op,
            called: self.moment(),
            returned: None,
        };
        let history = O::kept(self).0.entry(object).or_default();
        history.push(Some(operation));
        Call {
            object,
            at: history.len() - 1,
            of: PhantomData,
        }
    }

    fn place<O: Kept>(&mut self, call: &Call<O>) -> Option<&mut Option<Operation<O>>> {
        O::kept(self).0.get_mut(&call.object)?.get_mut(call.at)
    }

    /// It is answered.
    #[expect(clippy::needless_pass_by_value, reason = "a call returns once")]
    pub(crate) fn returns<O: Kept>(&mut self, call: Call<O>, answer: O::Answer) {
        let now = self.moment();
        if let Some(Some(operation)) = self.place(&call) {
            operation.returned = Some((now, answer));
        }
    }

    /// It was refused: it has had no effect, and never will.
    #[expect(clippy::needless_pass_by_value, reason = "a call returns once")]
    pub(crate) fn is_refused<O: Kept>(&mut self, call: Call<O>) {
        if let Some(place) = self.place(&call) {
            *place = None;
        }
    }

    /// Judges all of them.
    ///
    /// # Errors
    /// The history that nothing explains.
    pub(crate) fn judge(&self) -> Result<Judged, String> {
        let mut judged = Judged::default();
        self.words.judge(&mut judged, self.faulty)?;
        self.locks.judge(&mut judged, self.faulty)?;
        self.semaphores.judge(&mut judged, self.faulty)?;
        self.wait_queues.judge(&mut judged, self.faulty)?;
        self.channels.judge(&mut judged, self.faulty)?;
        self.shared_queues.judge(&mut judged, self.faulty)?;
        Ok(judged)
    }
}

impl<O: Kept + Clone> Kind<O>
where
    O::Op: Clone + fmt::Debug,
    O::Answer: Clone + fmt::Debug,
{
    fn judge(&self, judged: &mut Judged, faulty: bool) -> Result<(), String> {
        let operations = judged.operations.entry(O::NAME).or_default();
        for (object, history) in &self.0 {
            let mut history: Vec<Operation<O>> = history.iter().flatten().cloned().collect();
            O::complete(&mut history, faulty);
            match linear::judge::<O>(O::NEW, &history) {
                Judgement::Linearizable => *operations += history.len() as u64,
                Judgement::Undecided => judged.undecided += 1,
                Judgement::Not { placed } => {
                    return Err(format!(
                        "{} {} of life {}: no order explains its {} operations, at most {placed} of them:{}",
                        O::NAME,
                        object.index,
                        object.life,
                        history.len(),
                        told(history)
                    ));
                }
            }
        }
        Ok(())
    }
}

/// A history as text, by calls.
fn told<O: Object>(mut history: Vec<Operation<O>>) -> String
where
    O::Op: fmt::Debug,
    O::Answer: fmt::Debug,
{
    use fmt::Write;
    history.sort_by_key(|operation| operation.called);
    let mut text = String::new();
    for Operation { op, called, returned } in &history {
        // Writing to a string cannot fail.
        let _ = match returned {
            Some((at, answer)) => write!(text, "\n  {called}..{at} {op:?}: {answer:?}"),
            None => write!(text, "\n  {called}.. {op:?}: not known"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: ObjectId = ObjectId { life: 1, index: 2 };

    fn words(histories: &Histories) -> Result<u64, String> {
        histories.judge().map(|judged| judged.operations["word"])
    }

    #[test]
    fn a_refused_call_had_no_effect() {
        let mut histories = Histories::default();
        let refused = histories.call::<Word>(OBJECT, WordOp::Add(7));
        histories.is_refused(refused);
        let load = histories.call::<Word>(OBJECT, WordOp::Load);
        histories.returns(load, Some(0));
        assert_eq!(words(&histories), Ok(1));
        let load = histories.call::<Word>(OBJECT, WordOp::Load);
        histories.returns(load, Some(7));
        let told = histories.judge().expect_err("it had one");
        assert!(
            told.contains("word 2 of life 1") && told.contains("Load: Some(7)"),
            "{told}"
        );
    }

    #[test]
    fn objects_and_lives_are_apart() {
        let mut histories = Histories::default();
        assert_ne!(histories.number(), histories.number());
        for (life, index) in [(1, 0), (1, 1), (2, 0)] {
            let add = histories.call::<Word>(ObjectId { life, index }, WordOp::Add(1));
            histories.returns(add, Some(0));
        }
        assert_eq!(words(&histories), Ok(3));
    }
}
