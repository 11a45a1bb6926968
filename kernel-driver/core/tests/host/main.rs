//! The host core against a modelled NIC: the NIC's side of the word spaces, driven by each test.

mod atomics;
mod card;
mod counters;
mod imports;
mod leases;
mod life;
mod lost_peer;
#[cfg(netvm_mutant)]
mod mutants;
mod names;
mod nonsense;
mod page_events;
mod paging;
mod refused;
mod releases;
mod shadow;
mod sources;
mod stuck;
mod unmap;
mod watch;
