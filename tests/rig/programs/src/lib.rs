//! What the programs that run on the rig's hosts share.
//!
//! Each host runs the same program at the same time, and knows from its card which node it is. Nothing but NetVM connects
//! them: who wants to meet the other exports a name, and imports the other's, which waits.
//!
//! | file | what it is |
//! |---|---|
//! | [`spread`] | a cluster of the conformance suite whose nodes are different machines |
//! | [`memory`] | a cgroup's memory, pressed out |
//! | `bin/rig-conformance.rs` | the conformance suite |

pub mod memory;
pub mod spread;
