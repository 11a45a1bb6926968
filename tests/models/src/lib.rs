//! Models of the synchronization algorithms, explored whole for the sizes that each test names.
//!
//! The library runs its algorithms as step machines that say what they want next and are told the
//! answer; a model answers for a network of NICs and memories in every order that there is. So what
//! is checked is what ships.

pub mod graph;
