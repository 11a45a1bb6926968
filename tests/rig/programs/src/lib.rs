//! What the programs that run on the rig's hosts share.
//!
//! Each host runs the same program at the same time, and knows from its card which node it is. Nothing but NetVM connects
//! them: a program meets its peer by exporting a name and importing the peer's name, which waits for it.
//!
//! | file | what it is |
//! |---|---|
//! | [`spread`] | a cluster of the conformance suite whose nodes are different machines |
//! | `orders` | what those machines tell each other: which process to kill |
//! | [`meeting`] | two programs that meet, and bytes that both know |
//! | [`memory`] | memory as the kernel sees it: pressed out, resident, pinned |
//! | [`raw`] | the device without the library |
//! | [`storm`] | page events of every kind |
//! | `bin/` | the programs |

pub mod meeting;
pub mod memory;
mod orders;
pub mod raw;
pub mod spread;
pub mod storm;
