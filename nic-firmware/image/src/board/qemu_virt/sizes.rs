//! How large the tables of this board's card are. `cargo xtask firmware` prints from this very file, and a program that
//! starts such a machine gives it as much NIC memory as follows from it.

use netvm_abi::Geometry;

/// Pages of the host that the card is made for: 256 MiB. The page table has a row, which holds two pages, for each of them
/// (docs/decisions/0001): a page may be mapped more than once, by several ports. A host may be larger: what it has mapped at a
/// time has its place here, whatever it could map.
pub(crate) const HOST_PAGES: u32 = 1 << 16;

/// What the card starts with; its driver finds it in NIC memory.
pub(crate) fn geometry() -> Geometry {
    Geometry {
        page_rows: HOST_PAGES,
        ..Geometry::default()
    }
}
