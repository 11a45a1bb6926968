//! Members on nodes of the software card in this process, one thread each, and a small game with draws.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part")]

use netvm::{Port, PortConfig};
use netvm_calls::{Address, Argument, signature};
use netvm_process::SoftNode;
use netvm_search::{Game, Member, MemberConfig, Outcome, Player, Result, Search, SearchConfig};
use std::time::Duration;

/// Longest wait for another process or thread.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// So many nodes, each linked to all others.
pub fn nodes(count: usize) -> Vec<SoftNode> {
    let nodes: Vec<_> = (0..count).map(|_| SoftNode::builder().start().unwrap()).collect();
    for (at, node) in nodes.iter().enumerate() {
        for other in &nodes[..at] {
            node.connect(&format!("#{}", other.number()), PATIENCE).unwrap();
        }
    }
    nodes
}

/// The ports of so many members on these nodes, in turn, and their addresses.
pub fn ports(nodes: &[SoftNode], members: usize) -> (Vec<Port>, Vec<Address>) {
    let open = |at: usize| {
        let node = nodes[at % nodes.len()].node();
        // Visits often wait for a moment, and to be woken takes longer than that.
        Port::open(&node, PortConfig::default().spins(2000)).unwrap()
    };
    let ports: Vec<_> = (0..members).map(open).collect();
    let address = |port: &Port| Address::new(port.node().id(), port.id());
    let addresses = ports.iter().map(address).collect();
    (ports, addresses)
}

/// A member that waits long for the others.
pub fn patient() -> MemberConfig {
    MemberConfig::default().patience(PATIENCE)
}

/// Searches with so many members on so many nodes of this process.
pub fn search_with<G: Game, T>(
    nodes: usize,
    members: usize,
    config: SearchConfig,
    body: impl FnOnce(&mut Search<G>) -> T,
) -> T {
    let nodes = self::nodes(nodes);
    let (mut ports, addresses) = ports(&nodes, members);
    let others: Vec<_> = ports
        .split_off(1)
        .into_iter()
        .map(|port| {
            let addresses = addresses.clone();
            std::thread::spawn(move || -> Result<()> {
                Member::<G>::open(port, &addresses, patient())?.run()
            })
        })
        .collect();
    let mut search = Search::open(ports.remove(0), &addresses, config.member(patient())).unwrap();
    let result = body(&mut search);
    search.end().unwrap();
    for other in others {
        other.join().unwrap().unwrap();
    }
    result
}

/// Noughts and crosses, on three by three cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Noughts {
    pub cells: [u16; 2],
}

impl Argument for Noughts {
    const SIGNATURE: u64 = signature("Noughts { first: u16, second: u16 }");

    fn put(&self, to: &mut Vec<u8>) {
        self.cells.put(to);
    }

    fn take(bytes: &[u8]) -> Option<Self> {
        let cells = <[u16; 2]>::take(bytes)?;
        let is_board = cells[0] & cells[1] == 0 && (cells[0] | cells[1]) < 1 << 9;
        is_board.then_some(Self { cells })
    }
}

impl Noughts {
    /// The first of all states that are this one, turned or mirrored.
    #[must_use]
    pub fn alike(self) -> Self {
        let moved = |cells: u16, to: &dyn Fn(u16) -> u16| {
            let cell = |at: u16| (cells >> at & 1) << to(at);
            (0..9).map(cell).fold(0, |all, bit| all | bit)
        };
        let turned = |game: Self| Self {
            cells: game
                .cells
                .map(|cells| moved(cells, &|at| at % 3 * 3 + 2 - at / 3)),
        };
        let mirrored = Self {
            cells: self
                .cells
                .map(|cells| moved(cells, &|at| at / 3 * 3 + 2 - at % 3)),
        };
        let mut first = self;
        for mut game in [self, mirrored] {
            for _ in 0..4 {
                game = turned(game);
                first = if game.cells < first.cells { game } else { first };
            }
        }
        first
    }

    fn has_line(self, player: Player) -> bool {
        const LINES: [u16; 8] = [0o007, 0o070, 0o700, 0o111, 0o222, 0o444, 0o421, 0o124];
        let cells = self.cells[player as usize];
        LINES.iter().any(|line| cells & line == *line)
    }
}

impl Game for Noughts {
    type Move = u8;

    fn player(&self) -> Player {
        if self.cells[0].count_ones() == self.cells[1].count_ones() {
            Player::First
        } else {
            Player::Second
        }
    }

    fn moves(&self, to: &mut Vec<u8>) {
        let free = |cell: &u8| (self.cells[0] | self.cells[1]) >> cell & 1 == 0;
        to.extend((0..9).filter(free));
    }

    fn apply(&mut self, by: u8) {
        self.cells[self.player() as usize] |= 1 << by;
    }

    fn outcome(&self) -> Option<Outcome> {
        let won = [Player::First, Player::Second]
            .into_iter()
            .find(|&player| self.has_line(player));
        let is_full = (self.cells[0] | self.cells[1]).count_ones() == 9;
        won.map(Outcome::Won).or(is_full.then_some(Outcome::Draw))
    }
}

/// A game of one move after the other, which the first player wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ladder {
    /// Moves that are left.
    pub left: u32,
}

impl Argument for Ladder {
    const SIGNATURE: u64 = signature("Ladder { left: u32 }");

    fn put(&self, to: &mut Vec<u8>) {
        self.left.put(to);
    }

    fn take(bytes: &[u8]) -> Option<Self> {
        u32::take(bytes).map(|left| Self { left })
    }
}

impl Game for Ladder {
    type Move = u8;

    fn player(&self) -> Player {
        if self.left.is_multiple_of(2) {
            Player::First
        } else {
            Player::Second
        }
    }

    fn moves(&self, to: &mut Vec<u8>) {
        to.push(0);
    }

    fn apply(&mut self, _: u8) {
        self.left = self.left.saturating_sub(1);
    }

    fn outcome(&self) -> Option<Outcome> {
        (self.left == 0).then_some(Outcome::Won(Player::First))
    }
}
