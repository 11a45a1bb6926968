//! TCP connections of programs that are not changed, on NetVM: `LD_PRELOAD=libnetvm_preload.so redis-server`.
//!
//! A TCP socket stays under each connection. Two processes of a machine that both have the library move the bytes of their
//! connection to a stream of [`netvm_net`], after a greeting; with any other the connection stays as it is. Decision 44 has the reasons.
//!
//! | part | see |
//! |---|---|
//! | which listeners of the machine have the library | `directory.rs` |
//! | what the two ends say to one another | `greeting.rs` |
//! | a connection, and how it moves | `socket.rs`, `reading.rs`, `writing.rs` |
//! | how it goes back to TCP, and why | `socket/back.rs`, `rest.rs`, `family.rs` |
//! | the node and the network of a process | `network.rs` |
//! | what belongs to which descriptor, also after a `fork` | `process.rs` |
//! | how threads wait | `watch.rs`, `wait.rs`, `epoll.rs` |
//! | the C library's calls, as programs make them | `calls/` |
//! | the same, as the C library has them | `real.rs` |

mod calls;
mod directory;
mod epoll;
mod errno;
mod family;
mod greeting;
mod network;
mod process;
mod reading;
mod real;
mod rest;
mod socket;
mod wait;
mod watch;
mod writing;
