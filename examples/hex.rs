//! Hex, searched by several nodes together: `cargo run --release --example hex`.
//!
//! Each node's thread has a part of the search tree. Visits go from node to node by remote calls, and the playouts that they end with are
//! made where they end. The search plays against a player that makes any move with the same chance, and begins every second game.
//! `-- GAMES VISITS NODES SIMULATIONS SEED` plays longer: `-- 100 1000 2 16` is a match of a few minutes.

use netvm::{Port, PortConfig};
use netvm_calls::Address;
use netvm_process::SoftNode;
use netvm_search::hex::Hex11;
use netvm_search::{Game, Member, MemberConfig, Outcome, Player, Search, SearchConfig};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::error::Error;
use std::time::{Duration, Instant};

/// Longest wait for another node.
const PATIENCE: Duration = Duration::from_secs(10);

/// Looks before a wait blocks. Members often wait for a moment, and to be woken takes longer than that.
const SPINS: u32 = 2000;

/// Plays a game. Whether the search has won.
fn play(
    search: &mut Search<Hex11>,
    own: Player,
    visits: u32,
    random: &mut SmallRng,
) -> Result<bool, netvm_search::Error> {
    let mut game = Hex11::new();
    search.begin(game)?;
    loop {
        match game.outcome() {
            None => {}
            Some(outcome) => return Ok(outcome == Outcome::Won(own)),
        }
        let best = if game.player() == own {
            search.phase(visits)?.best()
        } else {
            let mut moves = Vec::new();
            game.moves(&mut moves);
            let any = random.random_range(0..moves.len());
            moves.get(any).copied()
        };
        // There is a move as long as the game is not over.
        let Some(by) = best else { return Ok(false) };
        search.advance(by)?;
        game.apply(by);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<u32> = std::env::args()
        .skip(1)
        .map(|text| text.parse())
        .collect::<Result<_, _>>()
        .map_err(|_| "numbers: games, visits of a move, nodes, simulations of a visit, seed")?;
    let number = |at: usize, usual| given.get(at).copied().unwrap_or(usual);
    let (games, visits, nodes) = (number(0, 4), number(1, 300), number(2, 2));
    let (simulations, seed) = (number(3, 16), number(4, 1));

    // Every node is linked to all others, and has one member.
    let mut started = Vec::new();
    let mut ports = Vec::new();
    for _ in 0..nodes.max(1) {
        let node = SoftNode::builder().start()?;
        for other in &started {
            let other: &SoftNode = other;
            node.connect(&format!("#{}", other.number()), PATIENCE)?;
        }
        ports.push(Port::open(&node.node(), PortConfig::default().spins(SPINS))?);
        started.push(node);
    }
    let address = |port: &Port| Address::new(port.node().id(), port.id());
    let members: Vec<_> = ports.iter().map(address).collect();
    let mut others = Vec::new();
    for port in ports.split_off(1) {
        let members = members.clone();
        let run = move || Member::<Hex11>::open(port, &members, MemberConfig::default())?.run();
        others.push(std::thread::spawn(run));
    }
    let first = ports.pop().ok_or("no node")?;
    let config = SearchConfig::default().simulations(simulations).seed(seed.into());
    let mut search = Search::<Hex11>::open(first, &members, config)?;

    let began = Instant::now();
    let mut random = SmallRng::seed_from_u64(seed.into());
    let mut won = 0;
    for number in 0..games {
        let own = if number % 2 == 0 {
            Player::First
        } else {
            Player::Second
        };
        won += u32::from(play(&mut search, own, visits, &mut random)?);
        // Says so if a visit was lost.
        search.census()?;
    }
    let took = began.elapsed();
    if let Some(game) = search.game() {
        print!("{game}");
    }
    let census = search.census()?;
    println!(
        "{won} of {games} games won against a uniform player, by {nodes} nodes with {visits} visits a move"
    );
    println!(
        "{} playouts in {took:.1?}, {} calls between nodes, {} of the last game's visits conserved in {} nodes of its tree",
        census.simulations, census.calls, census.evaluated, census.nodes
    );
    search.end()?;
    for other in others {
        other.join().map_err(|_| "a member panicked")??;
    }
    Ok(())
}
