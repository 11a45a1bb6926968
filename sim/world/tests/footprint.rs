//! What the memory of a world is made of: the parts add up to what the process has.

use netvm_world::{Config, run_measured};

/// The only test of this program: the memory of another one beside it would be measured, too.
#[test]
fn the_parts_of_a_world_add_up() {
    let config = Config {
        nodes: 16,
        messages: 3_000,
        ..Config::default()
    };
    let (_, footprint) = run_measured(3, &config).expect("a good run");
    for (group, name) in [
        ("NIC core", "table of Slot"),
        ("host core", "its own fields"),
        ("shared words", "NIC memory (BAR)"),
        ("card", "staging buffers"),
        ("card", "bounce pages"),
        ("processes", "page frames"),
        ("processes", "stacks"),
        ("simulator", "the checkers' messages"),
    ] {
        let part = footprint
            .parts
            .iter()
            .find(|part| (part.group, part.name.as_str()) == (group, name));
        assert!(part.is_some_and(|part| part.bytes > 0), "{name}: {footprint:#?}");
    }
    assert!(footprint.adds_up(), "rest {}: {footprint:#?}", footprint.rest());
}
