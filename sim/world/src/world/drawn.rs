//! What a world of a seed draws: where counts begin, and the sizes of its cards' tables.

use crate::config::Config;
use crate::dice::Dice;
use crate::workload;
use netvm_abi::Geometry;

/// Where the counts of commands begin: in a quarter of the worlds shortly before they wrap, in another where half of all
/// numbers are behind them.
pub(super) fn counts(seed: u64) -> u32 {
    // Of dice of their own: everything else is as it is where they begin at 0.
    let mut dice = Dice::new(!seed);
    let before = dice.below(300) as u32;
    match dice.below(8) {
        0 | 1 => u32::MAX - before,
        2 | 3 => (1 << 31) - 1 - before,
        _ => 0,
    }
}

/// Messages of each card's window: in a quarter of the worlds more than an acknowledgement speaks of one by one. In a half of
/// these each card has a window of its own, and the smaller one of a link's two counts.
pub(super) fn messages_of_windows(seed: u64, nodes: u16) -> Vec<u16> {
    // Of dice of their own, too.
    let mut dice = Dice::new(seed.rotate_left(32) ^ 0x0057_494E_444F_5753);
    let usual = Geometry::default().window;
    let kind = dice.below(8);
    let of_card = |_| match kind {
        0 => 4 * usual,
        1 => usual << dice.below(3),
        _ => usual,
    };
    (0..nodes).map(of_card).collect()
}

/// Windows in each direction of each card: in three of eight worlds some cards have fewer than there are nodes, down to one besides the
/// own one.
pub(super) fn windows(seed: u64, nodes: u16) -> Vec<u16> {
    // Of dice of their own, too.
    let mut dice = Dice::new(seed.rotate_left(16) ^ 0x0043_524F_5744_4544);
    // With very many nodes a window for each would be most of a world's memory.
    let usual = match nodes {
        ..=128 => Geometry::default().windows,
        _ => 8,
    };
    let kind = dice.below(8);
    let few = |dice: &mut Dice| 2 + dice.below(u64::from(nodes.min(usual))) as u16;
    let common = few(&mut dice);
    let of_card = |_| match kind {
        0 => 2,
        1 => common,
        2 if dice.below(2) == 0 => few(&mut dice),
        _ => usual,
    };
    (0..nodes).map(of_card).collect()
}

/// The tables of a card.
pub(super) fn geometry(dice: &mut Dice, config: &Config) -> Geometry {
    Geometry {
        payload: [4096, 4096, 1408, 512][dice.index(4)],
        ports: workload::PORTS + [0, 0, workload::EXTRA_PORTS][dice.index(3)],
        nodes: config.nodes + 1,
        page_rows: [16, 64, 256][dice.index(3)],
        capabilities: 128,
        staging: [8, 16, 64][dice.index(3)],
        reads: [4, 16, 64][dice.index(3)],
        ..Geometry::default()
    }
}

/// The same with this window, and with room for what that lets it send.
pub(super) fn widened(geometry: Geometry, window: u16) -> Geometry {
    Geometry {
        staging: geometry.staging * (window / Geometry::default().window),
        window,
        ..geometry
    }
}
