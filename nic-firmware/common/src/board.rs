//! How large the tables of QEMU's `virt` machine as a card are. A
//! program that starts such a machine gives it as much NIC memory as follows from it.

use netvm_abi::Geometry;

/// Pages of the host that the card is made for: 256 MiB. The page table has a row, which holds two pages, for each of them
/// (docs/decisions/0001): a page may be mapped more than once, by several ports. A host may be larger: what it has mapped at a
/// time has its place here, whatever it could map.
pub const HOST_PAGES: u32 = 1 << 16;

/// What the card starts with; its driver finds it in NIC memory.
#[must_use]
pub fn geometry() -> Geometry {
    Geometry {
        page_rows: HOST_PAGES,
        ..Geometry::default()
    }
}
