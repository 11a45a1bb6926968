//! Nodes that UDP links, while a machine on their path and a stranger send noise, forgeries and recordings: what the nodes say to
//! each other arrives with every byte right, no link ends, and what is refused costs no memory.
//!
//! Some seconds; with `cargo xtask test --long`, a minute for each pair.

mod support;

use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use netvm::{Access, NodeId, Port, PortConfig, PortId, RemoteSegment};
use netvm_kit::length::is_long;
use netvm_process::SoftNode;
use netvm_process::soft::ClusterKey;
use netvm_soft::udp::datagram::{self, Kind, Letter, Reason};
use netvm_soft::udp::sealed::{self, Letters, Proof};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use zerocopy::IntoBytes as _;

use support::tap::{Attack, Tap, Way};
use support::{PATIENCE, Player, scene, status};

/// Node numbers of this program, which no other test has: of the server with a key, and of the one without. Its clients have the
/// next ones.
const NODES: u16 = 200;
const KEYED: u16 = 170;
const PLAIN: u16 = 180;
const CLIENTS: u16 = 2;
const SERVED: PortId = PortId(7);
/// Each client's part of the server's memory.
const PART: u64 = 1 << 16;
/// What must have been sprayed in each half of a test for its memory to say something, and how much of that may be kept.
const SPRAYED: u64 = 12 << 20;
const MAY_GROW: u64 = SPRAYED / 3;

/// Datagrams of each direction that are kept to be sent again: the first ones, which make the link, and some of the others.
const FIRST: usize = 16;
const KEPT: usize = 256;

/// Not a test: what the other processes do, whose memory is no other test's.
#[test]
fn play() {
    match scene().as_deref() {
        None => {}
        Some("keyed") => spray(KEYED, Some(&ClusterKey::generate().unwrap())),
        Some("plain") => spray(PLAIN, None),
        Some(other) => panic!("no scene {other}"),
    }
}

#[test]
fn noise_forgeries_and_recordings_do_nothing_to_nodes_with_a_key() {
    let mut player = Player::start("keyed", &[]);
    println!("{}", player.hear("all was well: "));
    player.end();
}

#[test]
fn noise_does_nothing_to_nodes_without_a_key() {
    let mut player = Player::start("plain", &[]);
    println!("{}", player.hear("all was well: "));
    player.end();
}

fn node(number: u16, key: Option<&ClusterKey>) -> SoftNode {
    let builder = SoftNode::builder().nodes(NODES).number(number).udp("127.0.0.1:0");
    let builder = match key {
        Some(key) => builder.key(key.clone()),
        None => builder,
    };
    builder.start().unwrap()
}

/// The server that is attacked.
#[derive(Clone)]
struct Target {
    number: u16,
    address: SocketAddr,
    key: Option<ClusterKey>,
    /// Some of what has gone to it from any client.
    told: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// What a machine without the key adds to the traffic of one client.
struct Hostile {
    target: Target,
    random: SmallRng,
    /// Some of what has passed, for each direction.
    passed: [Vec<Vec<u8>>; 2],
    other_key: Letters,
    stranger: UdpSocket,
}

impl Hostile {
    fn new(target: &Target, seed: u64) -> Self {
        Self {
            target: target.clone(),
            random: SmallRng::seed_from_u64(seed),
            passed: [Vec::new(), Vec::new()],
            other_key: Letters::new(&ClusterKey::generate().unwrap()),
            stranger: UdpSocket::bind("127.0.0.1:0").unwrap(),
        }
    }

    fn has_key(&self) -> bool {
        self.target.key.is_some()
    }

    fn record(&mut self, way: Way, bytes: &[u8]) {
        let place = self.random.random_range(FIRST..KEPT);
        let keep = |list: &mut Vec<Vec<u8>>| {
            if list.len() < KEPT {
                list.push(bytes.to_vec());
            } else {
                list[place] = bytes.to_vec();
            }
        };
        keep(&mut self.passed[way as usize]);
        if way == Way::There {
            keep(&mut self.target.told.lock().unwrap());
        }
    }

    fn noise(&mut self) -> Vec<u8> {
        let len = self.random.random_range(0..1500);
        (0..len).map(|_| self.random.random()).collect()
    }

    /// A letter that says anything, as any node of the test or none.
    fn letter(&mut self, id: u64) -> (Kind, Letter) {
        let kind = Kind::ALL[self.random.random_range(0..Kind::ALL.len())];
        let node = NodeId(self.target.number + self.random.random_range(0..CLIENTS + 2));
        let letter = Letter::from(
            node,
            if self.random.random() {
                id
            } else {
                self.random.random()
            },
        );
        let reasons = [Reason::NoKey, Reason::OtherKey, Reason::WantsKey, Reason::Full];
        let reason = reasons[self.random.random_range(0..reasons.len())];
        let letter = letter.with_token(self.random.random());
        (
            kind,
            if kind == Kind::Refusal {
                letter.refusing(reason)
            } else {
                letter
            },
        )
    }

    /// A datagram of nodes without a key. One that bears a link's number and a sum that is right would be a message there.
    fn plain_letter(&mut self, id: u64) -> Vec<u8> {
        let (kind, letter) = self.letter(id);
        let link = if self.has_key() || kind != Kind::Message {
            id
        } else {
            self.random.random()
        };
        let mut bytes = Vec::new();
        datagram::write(&mut bytes, kind, link, &[letter.as_bytes()], 1000);
        bytes
    }

    fn sealed_letter(&mut self, id: u64) -> Vec<u8> {
        let (kind, letter) = self.letter(id);
        let mut proof = Proof::default().stamped(self.random.random());
        proof.nonce = self.random.random();
        let mut bytes = Vec::new();
        self.other_key
            .write(&mut bytes, (kind, id), &letter, &proof, 1000);
        bytes
    }

    /// What passes, with something else in the place of a part of it.
    fn forged(&mut self, passes: &[u8]) -> Vec<u8> {
        let mut bytes = passes.to_vec();
        let last = bytes.len() - 1;
        match self.random.random_range(0..4) {
            // The number of a message: one that is far ahead would close the window for all that come.
            0 if self.has_key() && last > sealed::HEAD => {
                let number = u64::from_le_bytes(*bytes[12..].first_chunk().unwrap());
                let ahead = number + (1 << self.random.random_range(0..60));
                bytes[12..20].copy_from_slice(&ahead.to_le_bytes());
            }
            1 if last > sealed::HEAD => self.random.fill(&mut bytes[sealed::HEAD..]),
            2 => bytes.truncate(self.random.random_range(0..last)),
            _ => bytes[self.random.random_range(0..=last)] ^= 1 << self.random.random_range(0..8),
        }
        bytes
    }

    fn make(&mut self, way: Way, passes: &[u8]) -> Vec<u8> {
        let at = if self.has_key() { 4 } else { 8 };
        let id = passes[at..].first_chunk().map_or(0, |id| u64::from_le_bytes(*id));
        let place = self.random.random_range(0..KEPT);
        let one_of = |list: &Vec<Vec<u8>>| list[place % list.len()].clone();
        match self.random.random_range(0..9) {
            0 | 1 => self.noise(),
            2 => self.plain_letter(id),
            3 => self.sealed_letter(id),
            4 | 5 => self.forged(passes),
            // Without a key, what passes is as good the second time, and the cards count it once.
            _ if !self.has_key() => self.noise(),
            6 => one_of(&self.passed[way as usize]),
            // Back to its sender, if that has said anything yet.
            7 if !self.passed[1 - way as usize].is_empty() => one_of(&self.passed[1 - way as usize]),
            // Of a link that another client may have.
            _ => one_of(&self.target.told.lock().unwrap()),
        }
    }
}

impl Attack for Hostile {
    fn add(&mut self, way: Way, passes: &[u8], send: &mut dyn FnMut(&[u8])) {
        self.record(way, passes);
        for _ in 0..2 {
            send(&self.make(way, passes));
        }
        // The same from an address that no node was met at.
        let strange = self.make(Way::There, passes);
        let _ = self.stranger.send_to(&strange, self.target.address);
    }
}

/// A client, and the way on which it reaches the server.
struct Client {
    node: SoftNode,
    server: NodeId,
    tap: Tap,
    port: Port,
    remote: RemoteSegment,
    part: u64,
    rounds: u64,
}

impl Client {
    fn new(at: u16, target: &Target) -> Self {
        let number = target.number + 1 + at;
        let tap = Tap::start(target.address, Hostile::new(target, u64::from(number)));
        if target.key.is_some() {
            // From the first letter on. Without a key a machine on the path can spoil the making of a link.
            tap.arm();
        }
        let node = node(number, target.key.as_ref());
        let server = node.connect(&tap.name(), PATIENCE).unwrap();
        assert_eq!(server, NodeId(target.number));
        tap.arm();
        let port = Port::open(&node.node(), PortConfig::default()).unwrap();
        let remote = port.import(server, SERVED, "memory", PATIENCE).unwrap();
        Self {
            node,
            server,
            tap,
            port,
            remote,
            part: PART * u64::from(at),
            rounds: 0,
        }
    }

    /// Writes, reads and counts until enough was sprayed, and so long at least.
    fn exercise(&mut self, time: Duration) {
        let counter = self.remote.word64(self.part).unwrap();
        let (begin, sprayed) = (Instant::now(), self.tap.added().1);
        while begin.elapsed() < time || self.tap.added().1 < sprayed + SPRAYED {
            let round = self.rounds;
            let len = [1, 8, 100, 1000, 4096, 9000][round as usize % 6];
            let bytes: Vec<u8> = (0..len).map(|at| (at as u64 * 7 + round) as u8).collect();
            let at = self.part + 4096;
            self.remote.write(at, &bytes[..]).post().unwrap();
            let mut back = vec![0; len];
            self.remote.read(at, &mut back[..]).ordered().call().unwrap();
            assert!(bytes == back, "round {round}");
            assert_eq!(counter.fetch_add(1).unwrap(), round);
            self.rounds += 1;
        }
        self.port.flush_remote(self.server).unwrap();
    }
}

/// Links that came up, that ended, and peers that began anew, for each node.
fn links(nodes: &[SoftNode]) -> Vec<[u64; 3]> {
    let of = |node: &SoftNode| {
        let counters = node.stats().counters;
        [counters.links_up, counters.links_lost, counters.peer_resets]
    };
    nodes.iter().map(of).collect()
}

fn spray(number: u16, key: Option<&ClusterKey>) {
    let server = node(number, key);
    let port = Port::open(&server.node(), PortConfig::number(SERVED.0)).unwrap();
    let memory = port.alloc(PART * u64::from(CLIENTS)).unwrap();
    let _export = port.export("memory", &memory, .., Access::everyone()).unwrap();
    let target = Target {
        number,
        address: server.udp_address().unwrap(),
        key: key.cloned(),
        told: Arc::default(),
    };
    let mut clients: Vec<Client> = (0..CLIENTS).map(|at| Client::new(at, &target)).collect();
    let nodes: Vec<SoftNode> = std::iter::once(&server)
        .chain(clients.iter().map(|client| &client.node))
        .cloned()
        .collect();
    let before = links(&nodes);
    let time = Duration::from_secs(if is_long() { 30 } else { 1 });
    let mut exercise = || {
        std::thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(|| client.exercise(time));
            }
        });
        // In kilobytes.
        status("VmRSS")
    };
    let (first, second) = (exercise(), exercise());
    let grown = second.saturating_sub(first) * 1024;
    assert!(grown < MAY_GROW, "{grown} bytes more after the second half");
    assert_eq!(links(&nodes), before, "links that came up and ended");
    for client in &clients {
        assert!(client.node.is_up(server.number()) && server.is_up(client.node.number()));
        let counter = memory.word64(client.part).unwrap().load().unwrap();
        assert_eq!(counter, client.rounds);
    }
    let mut sums = [0; 3];
    for node in &nodes {
        let udp = node.stats().udp;
        let of_one = [udp.strange, udp.forged, udp.replayed];
        let enough = |count: u64| count > 100;
        let counted = if key.is_some() {
            of_one.into_iter().all(enough)
        } else {
            enough(udp.strange) && udp.forged == 0 && udp.replayed == 0
        };
        assert!(counted, "{node:?}: {udp:?}");
        sums = std::array::from_fn(|at| sums[at] + of_one[at]);
    }
    let added: u64 = clients.iter().map(|client| client.tap.added().0).sum();
    let rounds: u64 = clients.iter().map(|client| client.rounds).sum();
    println!(
        "\nall was well: {rounds} rounds, {added} datagrams added on the path; strange, forged, replayed: {sums:?}; \
         memory grew by {grown} bytes"
    );
}
