//! What handles say of what they stand for.

use netvm::{Access, Error, Modes, NodeId, PortConfig, PortId, Refusal, Status};
use netvm_abi::VirtAddr;
use netvm_kit::port::Card;

#[test]
fn a_slice_knows_its_region_and_its_place_there() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let region = port.alloc(4 * 4096).unwrap();
    let slice = region.slice(4097..4097 + 300).unwrap();
    assert_eq!((slice.offset(), slice.len()), (4097, 300));
    assert_eq!(slice.region().address(), region.address());
    assert_eq!(slice.region().len(), 4 * 4096);
    // A slice keeps its region.
    drop(region);
    assert_eq!(slice.region().slice(slice.offset()..8192).unwrap().len(), 4095);
}

#[test]
fn an_export_is_a_part_of_its_region() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let region = port.alloc(4 * 4096).unwrap();
    let export = port
        .export("part", &region, 100..5100, Access::everyone())
        .unwrap();
    assert_eq!(export.region().address(), region.address());
    assert_eq!(export.address(), VirtAddr(region.address().0 + 100));
    assert_eq!((export.name(), export.len()), ("part", 5000));
}

#[test]
fn an_access_list_has_sixteen_lines_and_no_more() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let region = port.alloc(4096).unwrap();
    let named = |ports: u16| {
        let lines = 0..ports;
        lines.fold(Access::nobody(), |access, at| {
            access.and_port(NodeId(1), PortId(at), Modes::READ)
        })
    };
    let _whole = port.export("sixteen", &region, .., named(16)).unwrap();
    let refused = port.export("more", &region, .., named(17)).map(drop);
    assert!(
        matches!(refused, Err(Error::AccessTooLong { lines: 17, limit: 16 })),
        "{refused:?}"
    );
    // The line for all others counts, too.
    let others = port.export("others", &region, .., named(16).modes(Modes::READ));
    assert!(matches!(
        others.map(drop),
        Err(Error::AccessTooLong { lines: 17, .. })
    ));
}

#[test]
fn a_node_names_its_back_end() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    assert_eq!(port.node().backend_name(), "test card");
}

#[test]
fn an_atomic_has_the_number_that_its_failure_names() {
    let card = Card::new();
    let (_port, remote, _) = card.open(PortConfig::default());
    let word = remote.word64(8).unwrap();
    let pending = word.add(1).post().unwrap();
    let op = pending.op();
    let commands = card.carry_out(Status::CapabilityRefused);
    assert_eq!(commands[0].0.op, op);
    match pending.wait() {
        Err(Error::Failed(failure)) => {
            assert_eq!((failure.op, failure.status), (op, Status::CapabilityRefused))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_refusal_says_what_its_status_says() {
    for status in [Status::ReadOnly, Status::CapabilityRefused, Status::LinkLost] {
        assert_eq!(Refusal::Status(status).to_string(), netvm::explain(status));
    }
}
