//! A host core over plain memory, and the NIC's ends of its rings, which the test moves by hand.

mod calls;
mod nic_side;
mod platform;
mod stand;

pub use platform::{Fake, boot, fake};
pub use stand::*;
