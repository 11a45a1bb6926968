//! The host core against a modelled NIC: the NIC's side of the word spaces, driven by each test.

mod counters;
mod imports;
mod life;
mod names;
mod paging;
mod rig;
mod shadow;
