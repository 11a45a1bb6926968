//! Wire 2: UDP between machines, or between processes that share no memory.
//!
//! UDP loses, doubles and reorders datagrams; the NIC core sends again what was lost
//! ([`Wire::path_to`](crate::wire::Wire::path_to)). A datagram holds one message, behind a prefix with a checksum and
//! the number that its receiver gave to the link ([`datagram`]). Two nodes make a link by four datagrams ([`links`]), which
//! also show how long messages may be ([`sizes`]).
//!
//! **What is trusted.** Without a cluster key nothing is encrypted. Each side chooses a random number of 64 bits for a link and
//! takes messages that bear it from the address that it was told to alone. So a machine that does not see the traffic can
//! neither begin a link in another's name nor write into one. A machine that sees the traffic can do both.
//!
//! With a [key](ClusterKey) everything is sealed ([`sealed`]): a machine without it reads and writes nothing, and what it repeats
//! is refused. It can still lose what passes it. There is no forward secrecy: the key opens what was recorded before.

pub(crate) mod attention;
pub mod datagram;
pub mod key;
pub mod key_file;
pub mod links;
mod meeting;
pub(crate) mod refusals;
mod replay;
pub mod sealed;
pub mod sizes;
mod socket;
mod wiped;

pub use key::ClusterKey;
pub use key_file::KeyFileError;
pub use links::{Udp, UdpStats};
