//! Negative control for ALock: one word that local processes take with their processor's compare-and-swap and remote
//! ones with a NIC's. It is a lock where the two are atomic with one another, and none where they are not.

use stateright::{Checker, Model, Property};

/// Local and remote processes on one word.
#[derive(Clone, Copy, Debug)]
struct Naive {
    local: usize,
    remote: usize,
    /// Whether a NIC's compare-and-swap is a read and a write, between which a processor's may fall.
    split: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Tries,
    /// The NIC has read the word.
    Fetched(usize),
    Holds,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// 0, or the number of the holder.
    word: usize,
    doing: Vec<Doing>,
}

impl Model for Naive {
    type State = State;
    type Action = usize;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            word: 0,
            doing: vec![Doing::Tries; self.local + self.remote],
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<usize>) {
        actions.extend(0..state.doing.len());
    }

    fn next_state(&self, state: &State, process: usize) -> Option<State> {
        let mut next = state.clone();
        let own = process + 1;
        let remote = process >= self.local;
        next.doing[process] = match state.doing[process] {
            // The NIC does one after the other.
            Doing::Tries if remote && self.split => {
                let busy = state.doing.iter().any(|doing| matches!(doing, Doing::Fetched(_)));
                if busy {
                    return None;
                }
                Doing::Fetched(state.word)
            }
            Doing::Tries if state.word == 0 => {
                next.word = own;
                Doing::Holds
            }
            Doing::Fetched(0) => {
                next.word = own;
                Doing::Holds
            }
            Doing::Tries | Doing::Fetched(_) => Doing::Tries,
            Doing::Holds => {
                next.word = 0;
                Doing::Tries
            }
        };
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("one holder at most", |_, state: &State| {
            let holds = |doing: &&Doing| **doing == Doing::Holds;
            state.doing.iter().filter(holds).count() <= 1
        })]
    }
}

#[test]
fn it_is_a_lock_where_all_are_of_one_kind_or_atomic_with_one_another() {
    for (local, remote, split) in [(2, 2, false), (3, 0, true), (0, 3, true)] {
        let lock = Naive { local, remote, split };
        let checker = lock.checker().spawn_bfs().join();
        checker.assert_no_discovery("one holder at most");
        println!("{lock:?}: {} states", checker.unique_state_count());
    }
}

#[test]
fn it_is_none_where_they_are_mixed() {
    let checker = Naive {
        local: 1,
        remote: 1,
        split: true,
    }
    .checker()
    .spawn_bfs()
    .join();
    let path = checker.assert_any_discovery("one holder at most");
    // The NIC reads, the processor takes it, the NIC writes.
    assert_eq!(path.into_actions(), [1, 0, 1]);
}
