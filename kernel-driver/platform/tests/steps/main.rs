//! The common steps of all host platforms, over a modelled NIC: what runs under the lock and what does not, in which
//! order, and how each of them ends.

mod desk;
mod notice;
mod page_wait;
mod paging;
mod process;
mod unmap;
