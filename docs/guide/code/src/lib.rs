//! The guide's code. Each block of Rust in `docs/guide/src` is a piece of a file here, which `cargo test -p netvm-guide` holds
//! (`tests/pages.rs`).
//!
//! | file | chapter |
//! |---|---|
//! | `src/bin/inbox.rs`, `src/bin/greet.rs` | start in five minutes |
//! | [`store`], `src/bin/kv.rs` | tutorial: a store larger than memory |
//! | `tests/` | the others |

pub mod store;
