//! What the programs of a run asked of shared objects and were answered, judged at the end.
//!
//! A checker that watches frames and memory trusts what it is shown of them. Here the programs themselves are believed: a
//! history has what each of them asked, when, and what it was answered. That some order of single operations explains it is
//! judged by [`linear`] alone, which knows nothing of cards, pages or links.

mod linear;
mod word;

use linear::{Judgement, Object, Operation};
use std::collections::BTreeMap;
pub(crate) use word::{Word, WordOp};

/// A shared object of a run: a new one for each life of the program that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectId {
    /// The life of its program.
    pub(crate) life: u64,
    /// Which of that life's.
    pub(crate) index: u32,
}

/// A call that has not returned.
#[derive(Debug)]
pub(crate) struct Call {
    object: ObjectId,
    /// Its place in the object's history.
    at: usize,
}

/// All histories of a run.
#[derive(Default)]
pub(crate) struct Histories {
    lives: u64,
    moments: u64,
    words: BTreeMap<ObjectId, Vec<Option<Operation<Word>>>>,
}

/// What a run's histories come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    /// Operations in histories that are linearizable.
    pub(crate) operations: u64,
    /// Histories whose search took too long.
    pub(crate) undecided: u64,
}

impl Histories {
    /// A program begins that shares objects.
    pub(crate) fn begin_life(&mut self) -> u64 {
        self.lives += 1;
        self.lives
    }

    fn moment(&mut self) -> u64 {
        self.moments += 1;
        self.moments
    }

    /// A program calls.
    pub(crate) fn call(&mut self, object: ObjectId, op: WordOp) -> Call {
        let operation = Operation {
            op,
            called: self.moment(),
            returned: None,
        };
        let history = self.words.entry(object).or_default();
        history.push(Some(operation));
        Call {
            object,
            at: history.len() - 1,
        }
    }

    fn place(&mut self, call: &Call) -> Option<&mut Option<Operation<Word>>> {
        self.words.get_mut(&call.object)?.get_mut(call.at)
    }

    /// It is answered: with the word's old value, where the operation tells it.
    #[expect(clippy::needless_pass_by_value, reason = "a call returns once")]
    pub(crate) fn returns(&mut self, call: Call, old: Option<u64>) {
        let now = self.moment();
        if let Some(Some(operation)) = self.place(&call) {
            operation.returned = Some((now, old));
        }
    }

    /// It was refused: it has had no effect, and never will.
    #[expect(clippy::needless_pass_by_value, reason = "a call returns once")]
    pub(crate) fn is_refused(&mut self, call: Call) {
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
        for (object, history) in &self.words {
            let history: Vec<Operation<Word>> = history.iter().flatten().cloned().collect();
            match linear::judge::<Word>(Word::NEW, &history) {
                Judgement::Linearizable => judged.operations += history.len() as u64,
                Judgement::Undecided => judged.undecided += 1,
                Judgement::Not { placed } => {
                    return Err(format!(
                        "word {} of life {}: no order explains its {} operations, at most {placed} of them:{}",
                        object.index,
                        object.life,
                        history.len(),
                        told(history)
                    ));
                }
            }
        }
        Ok(judged)
    }
}

/// A history as text, by calls.
fn told<O: Object>(mut history: Vec<Operation<O>>) -> String
where
    O::Op: std::fmt::Debug,
    O::Answer: std::fmt::Debug,
{
    use std::fmt::Write;
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

    #[test]
    fn a_refused_call_had_no_effect() {
        let mut histories = Histories::default();
        let refused = histories.call(OBJECT, WordOp::Add(7));
        histories.is_refused(refused);
        let load = histories.call(OBJECT, WordOp::Load);
        histories.returns(load, Some(0));
        assert_eq!(histories.judge().map(|judged| judged.operations), Ok(1));
        let load = histories.call(OBJECT, WordOp::Load);
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
        assert_ne!(histories.begin_life(), histories.begin_life());
        for (life, index) in [(1, 0), (1, 1), (2, 0)] {
            let add = histories.call(ObjectId { life, index }, WordOp::Add(1));
            histories.returns(add, Some(0));
        }
        assert_eq!(histories.judge().map(|judged| judged.operations), Ok(3));
    }
}
