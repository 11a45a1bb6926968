//! Making a NIC: lent tables, wrong configurations, and the memory that it takes (promise P7).

use netvm_abi::geometry::GeometryError;
use netvm_abi::storage::MakeTable;
use netvm_abi::{Geometry, NodeId};
use netvm_kit::Heap;
use netvm_kit::nic::*;
use netvm_nic::tables::{Tables, footprint};
use netvm_nic::{Config, ConfigError, Nic};

#[test]
fn lent_tables_must_have_the_right_length() {
    let config = Config {
        geometry: geometry(2),
        ..Config::default()
    };
    let tables = Tables::make(&config.geometry, &mut Heap::default());
    assert!(Nic::<Heap>::from_tables(config, tables).is_ok());
    let mut tables = Tables::make(&config.geometry, &mut Heap::default());
    tables.reads = Heap::default().table(0, |_| unreachable!());
    let error = Nic::<Heap>::from_tables(config, tables).err();
    let expected = ConfigError::Table {
        name: "reads",
        needed: 8,
        lent: 0,
    };
    assert_eq!(error, Some(expected));
    assert_eq!(expected.to_string(), "table 'reads' needs 8 entries, 0 were lent");
}

#[test]
fn wrong_configurations_say_what_is_wrong() {
    let good = Config {
        geometry: geometry(2),
        ..Config::default()
    };
    let make = |config: Config| Nic::new(config, &mut Heap::default()).err();
    assert_eq!(make(good), None);
    let node = Config {
        node: NodeId(2),
        ..good
    };
    assert_eq!(make(node), Some(ConfigError::Node(NodeId(2))));
    let inline = Config {
        inline_bytes: 129,
        ..good
    };
    assert_eq!(make(inline), Some(ConfigError::InlineBytes(129)));
    let window = Config {
        geometry: Geometry {
            window: 48,
            ..good.geometry
        },
        ..good
    };
    let expected = ConfigError::Geometry(GeometryError::Window { asked: 48 });
    assert_eq!(make(window), Some(expected));
}

#[test]
fn memory_grows_with_nodes_and_ports_and_not_with_host_memory() {
    let base = Geometry::default();
    let small = footprint(&base);
    let pages = footprint(&Geometry {
        page_rows: base.page_rows * 16,
        ..base
    });
    assert_eq!(
        small, pages,
        "the page table lies in the BAR, and nothing else grows with it"
    );
    let nodes = |nodes| footprint(&Geometry { nodes, ..base }).bytes();
    // Few nodes have fewer copies of what is on its way; many share what there is.
    let (few, many) = (nodes(3) - nodes(2), nodes(31) - nodes(30));
    assert_eq!(nodes(4) - nodes(3), few, "linear in nodes");
    assert_eq!(nodes(32) - nodes(31), many, "linear in nodes");
    let text = small.to_string();
    for row in small.rows {
        assert!(text.contains(row.name));
    }
    println!("{text}");
    // The figures that docs quote must not creep up unseen: bytes for each further node.
    assert!(few < 56_000 && many < 11_000, "{few} {many}");
}
