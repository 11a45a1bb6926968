//! The shadow page table: rows, quota, displacement, marks (promise P3).

use netvm_abi::page_lock::{Clear, Used};
use netvm_abi::*;
use netvm_host::platform::{PageGone, Resident};
use netvm_host::ports::OpenPort;
use netvm_host::shadow::MapError;
use netvm_host::unmap::{UnmapKind, UnmapStep};
use netvm_kit::host::*;

pub(crate) fn world() -> (Stand, OpenPort) {
    let mut stand = Stand::new();
    let port = stand.open();
    stand.register(port, 0, 1000);
    (stand, port)
}

#[test]
pub(crate) fn only_registered_pages_of_open_ports_are_mapped() {
    let (mut stand, port) = world();
    assert_eq!(
        stand.map(page_of(port, 1000), 1, true),
        Err(MapError::NotRegistered)
    );
    assert_eq!(
        stand.map(Vpn::new(PortId(5), 1), 1, true),
        Err(MapError::NotRegistered)
    );
    assert_eq!(
        stand.map(Vpn::new(PortId(u16::MAX), 1), 1, true),
        Err(MapError::NotRegistered)
    );
    assert_eq!(stand.map(page_of(port, 999), 1, true), Ok(None));
    let ticket = stand.host.map_begin(page_of(port, 5)).expect("registered");
    stand.close(port);
    let page = Resident {
        ppn: Ppn(1),
        frame: 0,
        writable: true,
    };
    let late = stand.host.map_commit(&mut stand.platform, ticket, page);
    assert_eq!(late, Err(MapError::NotRegistered));
}

#[test]
pub(crate) fn a_ticket_of_an_earlier_segment_is_void() {
    let (mut stand, port) = world();
    let segment = stand.register(port, 2000, 1);
    let vpn = page_of(port, 2000);
    let ticket = stand.host.map_begin(vpn).expect("registered");
    let mut end = stand.host.unregister_begin(port.port, segment).expect("there");
    assert_eq!(
        stand.map(vpn, 1, true),
        Err(MapError::NotRegistered),
        "it is ending"
    );
    let done = stand
        .host
        .unregister_step(&mut stand.platform, &mut end, stand.now, 8, &mut |_| {});
    assert_eq!(done, netvm_host::Progress::Done);
    let again = stand.register(port, 2000, 1);
    assert_ne!(segment, again, "the id has another generation");
    let page = Resident {
        ppn: Ppn(1),
        frame: 0,
        writable: true,
    };
    let late = stand.host.map_commit(&mut stand.platform, ticket, page);
    assert_eq!(late, Err(MapError::NotRegistered));
}

#[test]
pub(crate) fn one_frame_under_two_pages_has_two_locks() {
    let (mut stand, port) = world();
    let (a, b) = (page_of(port, 1), page_of(port, 2));
    stand.map(a, 7, true).expect("maps");
    stand.map(b, 7, true).expect("maps");
    let held = stand.lock(a, true).expect("mapped");
    assert_eq!(
        stand.unmap(b, 1, UnmapKind::Remove),
        UnmapStep::Done,
        "only a is held"
    );
    assert_eq!(stand.unmap(a, 1, UnmapKind::Remove), UnmapStep::InUse);
    stand.unlock(held, Used::Written);
    assert_eq!(stand.unmap(a, 1, UnmapKind::Remove), UnmapStep::Done);
    assert_eq!(stand.gone.len(), 2);
    assert!(!stand.gone[0].dirty && stand.gone[1].dirty);
    assert_eq!(stand.host.mapped_pages(), 0);
}

#[test]
pub(crate) fn mapping_again_changes_frame_or_permission_by_a_full_unmap() {
    let (mut stand, port) = world();
    let vpn = page_of(port, 1);
    stand.map(vpn, 7, true).expect("maps");
    assert_eq!(stand.map(vpn, 7, true), Ok(None));
    let held = stand.lock(vpn, true).expect("mapped");
    assert_eq!(
        stand.map(vpn, 7, false),
        Err(MapError::Busy),
        "a locked slot is never rewritten"
    );
    stand.unlock(held, Used::Written);
    let before = stand
        .map(vpn, 7, false)
        .expect("maps")
        .expect("the earlier entry");
    assert!(before.dirty, "P3: what the NIC wrote before is not lost");
    assert!(stand.lock(vpn, true).is_err());
    let held = stand.lock(vpn, false).expect("still readable");
    stand.unlock(held, Used::Read);
    let before = stand.map(vpn, 8, true).expect("maps").expect("the earlier entry");
    assert!(!before.dirty && before.referenced);
    assert_eq!(stand.lock(vpn, true).map(|page| page.ppn), Ok(Ppn(8)));
    assert_eq!(stand.count("pages_already_mapped"), 1);
    assert_eq!(stand.count("pages_replaced"), 2);
}

#[test]
pub(crate) fn a_page_is_mapped_without_a_look_into_nic_memory() {
    let (mut stand, port) = world();
    let vpn = page_of(port, 1);
    for round in 0..4u64 {
        // Used in different ways in between, so that the NIC's marks differ.
        let before = stand.platform.bar.loads();
        assert_eq!(stand.map(vpn, round, true), Ok(None));
        assert_eq!(stand.platform.bar.loads(), before);
        let used = stand
            .host
            .take_use(&mut stand.platform, vpn, Clear::Nothing)
            .expect("mapped");
        assert!(!used.dirty && !used.referenced, "a page starts clean");
        let held = stand.lock(vpn, true).expect("mapped");
        stand.unlock(held, if round % 2 == 0 { Used::Written } else { Used::Read });
        let used = stand
            .host
            .take_use(&mut stand.platform, vpn, Clear::Both)
            .expect("mapped");
        assert_eq!((used.dirty, used.referenced), (round % 2 == 0, true));
        assert_eq!(stand.unmap(vpn, 1, UnmapKind::Remove), UnmapStep::Done);
    }
}

/// A stand whose page table has only `page_rows` rows of two slots.
fn small(page_rows: u32) -> (Stand, OpenPort) {
    let small = Geometry {
        page_rows,
        ..geometry()
    };
    let config = netvm_host::attach::HostConfig {
        geometry: Some(small),
        ..config()
    };
    let mut stand = Stand::with(&config, &small);
    let port = stand.open();
    stand.register(port, 0, 200_000);
    (stand, port)
}

#[test]
pub(crate) fn full_rows_displace_a_page_and_tell_its_marks() {
    let (mut stand, port) = small(4);
    let mut told: Vec<PageGone> = Vec::new();
    for page in 0..64 {
        let vpn = page_of(port, page);
        told.extend(stand.map(vpn, page, true).expect("maps"));
        let held = stand.lock(vpn, true).expect("mapped");
        assert_eq!(held.ppn, Ppn(page));
        stand.unlock(held, Used::Written);
    }
    assert!(told.iter().all(|page| page.ppn == Ppn(page.vpn.page_number())));
    for page in 0..64 {
        let vpn = page_of(port, page);
        let dirty = told.iter().filter(|page| page.vpn == vpn && page.dirty).count();
        let left = stand.host.take_use(&mut stand.platform, vpn, Clear::Dirty);
        let total = dirty + usize::from(left.is_some_and(|used| used.dirty));
        assert_eq!(total, 1, "P3: page {page} was written once and told dirty once");
    }
    let out = told.iter().filter(|page| !page.still_readable).count();
    assert_eq!(stand.count("pages_displaced") as usize, out);
    assert_eq!(stand.count("pages_moved") as usize, told.len() - out);
    assert!(stand.count("pages_moved") > 0 && out > 40);
    assert_eq!(stand.host.mapped_pages() as usize, 64 - out);
}

#[test]
pub(crate) fn a_page_that_the_nic_holds_makes_no_room() {
    let (mut stand, port) = small(1);
    let vpns: Vec<_> = (0..3).map(|page| page_of(port, page)).collect();
    for &vpn in &vpns[..2] {
        assert_eq!(stand.map(vpn, 1, true), Ok(None));
    }
    let a = stand.lock(vpns[0], true).expect("mapped");
    let b = stand.lock(vpns[1], false).expect("mapped");
    assert_eq!(stand.map(vpns[2], 1, true), Err(MapError::Busy));
    stand.unlock(b, Used::Read);
    let out = stand.map(vpns[2], 1, true).expect("maps").expect("displaces");
    assert_eq!(out.vpn, vpns[1]);
    stand.unlock(a, Used::Not);
    assert_eq!(stand.count("map_rows_busy"), 1);
}

#[test]
pub(crate) fn no_port_crowds_another_out_of_its_rows() {
    let (mut stand, port) = small(16);
    let other = stand.open();
    stand.register(other, 0, 200_000);
    let mine = Vpn::new(other.port, 0);
    let rows = stand.table.rows_of(mine);
    stand.map(mine, 1, true).expect("maps");
    let theirs = (0..200_000)
        .map(|page| Vpn::new(port.port, page))
        .filter(|&vpn| stand.table.rows_of(vpn).iter().all(|row| rows.contains(row)))
        .take(60)
        .collect::<Vec<_>>();
    assert!(theirs.len() > 20);
    for vpn in theirs {
        let _ = stand.map(vpn, 2, true);
    }
    assert!(stand.host.mapping(mine).is_some(), "a port's first page stays");
}

#[test]
pub(crate) fn the_port_that_holds_most_gives_way_to_a_new_one() {
    let (mut stand, a) = small(2);
    let (b, c) = (stand.open(), stand.open());
    stand.register(b, 0, 1000);
    stand.register(c, 0, 1000);
    // Pages that may be in any of the four slots.
    let anywhere = |stand: &Stand, port: OpenPort, count: usize| {
        let vpns = (0..1000).map(|page| page_of(port, page));
        let spread = |vpn: &Vpn| {
            let [first, second] = stand.table.rows_of(*vpn);
            first != second
        };
        vpns.filter(spread).take(count).collect::<Vec<_>>()
    };
    let (mine, one, more) = (
        anywhere(&stand, a, 3),
        anywhere(&stand, b, 1),
        anywhere(&stand, c, 5),
    );
    for order in 0..4 {
        let _ = stand.unmap(page_of(a, 0), 200_000, UnmapKind::Remove);
        let _ = stand.unmap(page_of(b, 0), 1000, UnmapKind::Remove);
        let _ = stand.unmap(page_of(c, 0), 1000, UnmapKind::Remove);
        for i in 0..4 {
            let vpn = if i == order {
                one[0]
            } else {
                mine[i - usize::from(i > order)]
            };
            assert_eq!(stand.map(vpn, 1, true), Ok(None));
        }
        let mut lost = Vec::new();
        for &vpn in &more {
            let out = stand.map(vpn, 1, true).expect("maps").expect("displaces");
            lost.push(out.vpn.port());
        }
        assert_eq!(lost, [a.port, a.port, c.port, c.port, c.port], "order {order}");
        assert!(stand.host.mapping(one[0]).is_some());
    }
}

/// What the host does under its lock, and the kernel's page-table locks, waits for no more of the bus than it must.
#[test]
pub(crate) fn reads_of_registers_are_few() {
    const PAGES: u32 = 60;
    let (mut stand, port) = world();
    let loads = |stand: &Stand| stand.platform.bar.loads();
    for page in 0..u64::from(PAGES) {
        stand.map(page_of(port, page), 7 + page, true).expect("maps");
    }
    let first = page_of(port, 0);
    let before = loads(&stand);
    let used = stand.host.take_use(&mut stand.platform, first, Clear::Referenced);
    assert_eq!(used.map(|used| used.referenced), Some(false));
    assert_eq!(loads(&stand), before + 1, "the NIC's word");
    for page in [3, 4, 5] {
        let held = stand.lock(page_of(port, page), true).expect("mapped");
        stand.unlock(held, Used::Read);
    }
    let before = loads(&stand);
    let used = stand
        .host
        .take_use_of(&mut stand.platform, first, PAGES.into(), Clear::Referenced);
    assert!(used.referenced && !used.dirty);
    assert!(
        loads(&stand) <= before + PAGES + 1,
        "each NIC's word, and one across the bus"
    );
    let again = stand
        .host
        .take_use_of(&mut stand.platform, first, PAGES.into(), Clear::Referenced);
    assert!(!again.referenced, "told once");
    let mapped = stand.host.mapped_pages();
    let before = loads(&stand);
    let mut unmap = stand.host.unmap_begin(first, PAGES.into(), UnmapKind::Remove);
    assert_eq!(stand.step(&mut unmap, u32::MAX), UnmapStep::Done);
    stand.host.unmap_end(unmap);
    assert_eq!(stand.host.mapped_pages(), 0);
    assert!(
        loads(&stand) <= before + mapped + 2,
        "{} loads for {mapped} pages",
        loads(&stand) - before
    );
}

#[test]
pub(crate) fn marks_are_taken_once_and_a_held_page_is_young() {
    let (mut stand, port) = world();
    let vpn = page_of(port, 1);
    assert_eq!(stand.host.take_use(&mut stand.platform, vpn, Clear::Both), None);
    stand.map(vpn, 7, true).expect("maps");
    let take = |stand: &mut Stand, clear| {
        let used = stand
            .host
            .take_use(&mut stand.platform, vpn, clear)
            .expect("mapped");
        (used.dirty, used.referenced)
    };
    assert_eq!(take(&mut stand, Clear::Both), (false, false));
    let held = stand.lock(vpn, true).expect("mapped");
    assert_eq!(take(&mut stand, Clear::Both), (false, true), "held");
    stand.unlock(held, Used::Written);
    assert_eq!(take(&mut stand, Clear::Dirty), (true, true));
    assert_eq!(take(&mut stand, Clear::Referenced), (false, true));
    assert_eq!(take(&mut stand, Clear::Nothing), (false, false));
}
