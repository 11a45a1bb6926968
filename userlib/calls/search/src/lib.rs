//! Monte Carlo tree search by many processes, from a description of a game that knows of one thread: an application of
//! remote calls ([`netvm_calls`]).
//!
//! A program says what its game is ([`Game`]): states, moves, the winner. Members in as many threads, processes and machines as there
//! are each have a part of one tree. The first one searches:
//!
//! ```no_run
//! use netvm::Port;
//! use netvm_calls::Address;
//! use netvm_search::hex::Hex11;
//! use netvm_search::{Member, MemberConfig, Result, Search, SearchConfig};
//!
//! /// At every member but the first.
//! fn take_part(port: Port, members: &[Address]) -> Result<()> {
//!     Member::<Hex11>::open(port, members, MemberConfig::default())?.run()
//! }
//!
//! fn first(port: Port, members: &[Address]) -> Result<()> {
//!     let mut search = Search::open(port, members, SearchConfig::default())?;
//!     search.begin(Hex11::new())?;
//!     let phase = search.phase(100_000)?; // So many visits.
//!     println!("{:?}", phase.choices.first());
//!     if let Some(best) = phase.best() {
//!         search.advance(best)?; // What is known of the move is kept.
//!     }
//!     search.end()
//! }
//! ```
//!
//! `cargo run --release --example hex` plays [Hex](hex) so.
//!
//! # How it is distributed
//!
//! As section 5.3 of the Seriema paper has it, after which the words are named. There is one tree. A *visit* begins above the root, goes
//! down from node to node, makes a leaf, plays from there to the end of the game at random as often as the rules say
//! ([`SearchConfig::simulations`]), and goes back up. Each step is a call that nothing waits for.
//!
//! | call | from, to | carries | bytes of it |
//! |---|---|---|---|
//! | `search.select` | a node's member, its child's | the child's number: a visit comes | 4 |
//! | `search.birth` | a node's member, one drawn at random | the node's number, which child, the state of the game: the visit makes the child | 8 and the state |
//! | `search.born` | the child's member, the node's | the node's number, which child, the child's number | 12 |
//! | `search.back` | the child's member, the node's | the node's number, which child, visits that are over, their points | 16 |
//! | `search.prune`, `search.adopt` | a parent's member, its child's | the number of a node that is given up, or becomes the root | 4 |
//!
//! - *Random owners.* The member that gets a new node is drawn with the same chance for each, so work is spread evenly, and so is the tree.
//! - *Virtual loss.* A node counts a visit for the child that it chooses at once, and what the visit has won when it is back. Meanwhile it
//!   counts as lost, so the visits that follow choose others.
//! - *Deferred selection.* A visit that chooses a child whose number is not known yet is counted at the parent, and goes on when
//!   `search.born` comes.
//! - *Phases.* [`Search::phase`] begins so many visits, and is over when all are back. Then nothing of the tree is under way, so the
//!   statistics of the root are read, and a move can be made, which gives up the rest of the tree. Within a phase visits begin in rounds of a
//!   quarter of those that the tree has: so a member that stands still for a while delays a round, and does not leave the choice to visits
//!   that know nothing of its own.
//! - *Conservation.* A phase ends with [`Error::NotConserved`] unless as many visits have begun as are back, as the root counts, and as its
//!   children and its own end together. [`Search::census`] checks the same of every node of the tree, and that as many ended at its nodes.
//! - *Together.* What goes back from a node at one time goes in one call, and calls to one member go in one write (`netvm-calls`' packing,
//!   the paper's trad).
//! - *UCB*: the child with the highest wins / visits + c · √(ln N / visits), where visits and N count playouts, as in Seriema's own
//!   program, and c is 1.0 by default. A draw is half a win. A node whose moves have not all been tried tries a new one first, in a
//!   random order.
//!
//! # What is left out of the paper's, and why
//!
//! - *Threads that share the nodes of their process*, with atomic counters and wait-free queues: a member is a thread, and has its nodes alone. So
//!   visits begin at one member, and a leaf is played by the member that has it. The paper draws its thread among those of the process;
//!   here the drawing of the owner has that effect.
//! - *`call_buffer` for the state*: it goes as the call's argument, whose signature tells games apart: a member that plays another one is an error,
//!   and no board of nonsense.
//! - *128 visits under way for each thread from the first one on*: while the tree is small, fewer. With 256 visits under way a search of 1,000
//!   would choose four times.
//! - *NUMA placement*: see the decision on remote calls.
//!
//! # What it costs, and its limits
//!
//! A visit is a call or two for each level of the tree that it crosses. A node takes its state and some 150 bytes, and another 28 and its move for
//! each child. The root's statistics fit a chunk of the calls (64 KiB by default): some 5,000 moves. Points are counted in 32 bits, so a tree has
//! at most 2^31 playouts ([`Error::TooManyVisits`]).
//!
//! # When a member dies
//!
//! Its part of the tree is gone, so the search is: every call of it ends in [`Error::Lost`], here and at all other members, as soon as their
//! links have heard of it ([`netvm_calls`] says when). Nothing waits for ever. The same holds where two members live and only the link
//! between them has ended: both tell the first one (`search.lost`), which ends the search unless it is over anyway.

#![forbid(unsafe_code)]

mod config;
mod error;
mod game;
pub mod hex;
mod member;
mod message;
mod node;
mod search;
mod shard;

pub use config::{MemberConfig, SearchConfig};
pub use error::{Error, Result};
pub use game::{Game, Outcome, Player};
pub use member::{Done, Member};
pub use search::{Census, Choice, Phase, Search};
