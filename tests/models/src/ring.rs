//! The chunk protocol of remote calls: the shipped machines of sender and receiver, and between them memory in which what is
//! written lands in any order.
//!
//! A batch is written in pieces: the jump before it, its head, its records. Pieces of all batches land in any order. A batch is
//! signalled when all of its pieces and those of earlier batches have landed (promise P4). The receiver tells how far it is
//! when it has followed a jump, and never else: as seldom as the shipped one may. These words land in order.

use crate::Ends;
use netvm_calls::ring::{HEAD, Reader, Shape, Step, Writer};
use stateright::{Model, Property};
use std::collections::VecDeque;

/// What is left out, for controls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// Nothing: what is shipped.
    #[default]
    None,
    /// A batch is signalled before all of it has landed.
    EarlySignal,
    /// The receiver tells of a batch that it has not consumed.
    EarlyCredit,
    /// The receiver never tells.
    NoCredit,
}

/// A sender of some batches, and their receiver.
#[derive(Clone, Debug)]
pub struct RingModel {
    /// How the memory is divided.
    pub shape: Shape,
    /// The batches' lengths: multiples of 8.
    pub batches: Vec<u64>,
    /// What is left out.
    pub flaw: Flaw,
}

/// A write under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Piece {
    batch: u64,
    at: u64,
    words: Vec<u64>,
}

/// Sender, receiver, and what is between them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RingState {
    writer: Writer,
    reader: Reader,
    memory: Vec<u64>,
    under_way: Vec<Piece>,
    signalled: u64,
    owes: bool,
    credits: VecDeque<u64>,
    wrong: Option<&'static str>,
}

/// What happens next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RingAction {
    /// The next batch is written.
    Send,
    /// This write lands.
    Land(usize),
    /// The next batch is signalled.
    Signal,
    /// The next batch is taken, behind a jump if there is one.
    Take,
    /// The receiver tells how far it is.
    Tell,
    /// That lands.
    Hear,
}

impl RingState {
    /// What a batch's records say.
    const fn filling(batch: u64) -> u64 {
        0xF1_0000 + batch
    }

    fn send(&mut self, len: u64) {
        let batch = self.writer.sent();
        let Some(place) = self.writer.place(len) else {
            return;
        };
        let mut write = |at: u64, words: Vec<u64>| {
            self.under_way.push(Piece {
                batch,
                at: at / 8,
                words,
            })
        };
        if let Some((at, jump)) = place.jump {
            write(at, vec![u64::from_le_bytes(jump)]);
        }
        write(place.offset, vec![u64::from_le_bytes(place.head)]);
        write(
            place.offset + HEAD,
            vec![Self::filling(batch); (len / 8) as usize],
        );
    }

    fn land(&mut self, piece: usize) {
        let piece = self.under_way.remove(piece);
        for (at, word) in (piece.at as usize..).zip(piece.words) {
            self.memory[at] = word;
        }
    }

    fn take(&mut self) {
        let batch = self.reader.taken();
        // A jump and the batch behind it in one go, as the shipped receiver does.
        loop {
            let head = self.memory[(self.reader.offset() / 8) as usize];
            match self.reader.take(head.to_le_bytes()) {
                None => self.wrong = Some("a head that no sender wrote"),
                Some(Step::Jump) => {
                    self.owes = true;
                    continue;
                }
                Some(Step::Batch { offset, len }) => {
                    let records = &self.memory[(offset / 8) as usize..((offset + len) / 8) as usize];
                    if records.iter().any(|&word| word != Self::filling(batch)) {
                        self.wrong = Some("records of another batch");
                    }
                }
            }
            return;
        }
    }
}

impl Model for RingModel {
    type State = RingState;
    type Action = RingAction;

    fn init_states(&self) -> Vec<RingState> {
        vec![RingState {
            writer: Writer::new(self.shape),
            reader: Reader::new(self.shape),
            memory: vec![0; (self.shape.bytes() / 8) as usize],
            under_way: Vec::new(),
            signalled: 0,
            owes: false,
            credits: VecDeque::new(),
            wrong: None,
        }]
    }

    fn actions(&self, state: &RingState, actions: &mut Vec<RingAction>) {
        if state.wrong.is_some() {
            return;
        }
        if let Some(&len) = self.batches.get(state.writer.sent() as usize)
            && state.writer.clone().place(len).is_some()
        {
            actions.push(RingAction::Send);
        }
        actions.extend((0..state.under_way.len()).map(RingAction::Land));
        let landed = state.under_way.iter().all(|piece| piece.batch > state.signalled);
        if state.signalled < state.writer.sent() && (landed || self.flaw == Flaw::EarlySignal) {
            actions.push(RingAction::Signal);
        }
        if state.reader.taken() < state.signalled {
            actions.push(RingAction::Take);
        }
        if state.owes && self.flaw != Flaw::NoCredit {
            actions.push(RingAction::Tell);
        }
        if !state.credits.is_empty() {
            actions.push(RingAction::Hear);
        }
    }

    fn next_state(&self, last: &RingState, action: RingAction) -> Option<RingState> {
        let mut state = last.clone();
        match action {
            RingAction::Send => state.send(*self.batches.get(state.writer.sent() as usize)?),
            RingAction::Land(piece) => state.land(piece),
            RingAction::Signal => state.signalled += 1,
            RingAction::Take => state.take(),
            RingAction::Tell => {
                let early = u64::from(self.flaw == Flaw::EarlyCredit);
                let told = (state.reader.taken() + early).min(state.writer.sent());
                state.credits.push_back(told);
                state.owes = false;
            }
            RingAction::Hear => {
                let told = state.credits.pop_front()?;
                if !state.writer.note_consumed(told) {
                    state.wrong = Some("a count that fell or passed what was sent");
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("visited", |_, _| true)]
    }
}

impl Ends for RingModel {
    fn wrong_at_end(&self, state: &RingState) -> Option<&'static str> {
        let all = self.batches.len() as u64;
        if (state.writer.sent(), state.reader.taken()) != (all, all) {
            return Some("batches that never come");
        }
        None
    }

    fn wrong(&self, state: &RingState) -> Option<&'static str> {
        state.wrong
    }
}
