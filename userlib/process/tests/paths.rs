//! How long messages are over paths that take only so much: found out while a link is made, and again after a path has changed.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use netvm::{Access, Error, NodeId, Port, PortConfig, PortId, Region, Status};
use netvm_process::SoftNode;
use netvm_process::soft::ClusterKey;
use netvm_process::soft::report::{self, Section};
use netvm_relay::{Faults, Relay};

const PATIENCE: Duration = Duration::from_secs(20);
const NAME: &str = "memory";
const SERVED: PortId = PortId(7);
/// More than a window of the shortest messages holds.
const BYTES: usize = 100_000;

/// A node with memory, a relay before it, and a node that reaches it over that.
struct Pair {
    server: SoftNode,
    _served: Port,
    memory: Region,
    _export: netvm::Export,
    relay: Relay,
    client: SoftNode,
    port: Port,
}

impl Pair {
    /// The numbers are of no other test of the machine.
    fn start(number: u16, key: Option<&ClusterKey>) -> Self {
        let node = |number| {
            let builder = SoftNode::builder().number(number).udp("127.0.0.1:0");
            let builder = builder.peer_timeout(Duration::from_secs(2));
            match key {
                Some(key) => builder.key(key.clone()),
                None => builder,
            }
        };
        let server = node(number).start().unwrap();
        let served = Port::open(&server.node(), PortConfig::number(SERVED.0)).unwrap();
        let memory = served.alloc(BYTES as u64).unwrap();
        let export = served.export(NAME, &memory, .., Access::everyone()).unwrap();
        let here = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        let relay = Relay::start(here, server.udp_address().unwrap(), Faults::default(), 1).unwrap();
        let client = node(number + 1).start().unwrap();
        Self {
            port: Port::open(&client.node(), PortConfig::default()).unwrap(),
            server,
            _served: served,
            memory,
            _export: export,
            relay,
            client,
        }
    }

    fn connect(&self) -> NodeId {
        let address = format!("udp://{}", self.relay.address());
        self.client.connect(&address, PATIENCE).unwrap()
    }

    fn import(&self) -> netvm::RemoteSegment {
        let server = self.server.number();
        self.port.import(server, SERVED, NAME, PATIENCE).unwrap()
    }

    /// What both ends say of the link's largest payload.
    fn payload(&self) -> u64 {
        agreed([&self.client, &self.server])
    }

    /// Writes a page, which does not arrive, and loses the link.
    fn loses(&self, remote: &netvm::RemoteSegment) {
        remote.write(0, &[1; 4096][..]).post().unwrap();
        let lost = self.port.flush_remote(self.server.number());
        assert!(
            matches!(&lost, Err(Error::Failed(failure)) if failure.status == Status::LinkLost),
            "{lost:?}"
        );
    }

    /// Loses the link, and lets a new one be made.
    fn cut(&self) {
        let remote = self.import();
        self.cut_now(&remote);
    }

    /// The same, where the server has nothing to send any more.
    fn cut_in_quiet(&self) {
        let remote = self.import();
        let begin = Instant::now();
        while !self.server.is_quiet() || !self.client.is_quiet() {
            assert!(begin.elapsed() < PATIENCE, "it is never quiet");
            std::thread::yield_now();
        }
        self.cut_now(&remote);
    }

    fn cut_now(&self, remote: &netvm::RemoteSegment) {
        self.relay.cut(true);
        self.loses(remote);
        self.relay.cut(false);
    }

    /// Writes and reads more than a window of messages.
    fn exercise(&self) {
        let remote = self.import();
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at * 7) as u8).collect();
        remote.write(0, &bytes[..]).post().unwrap();
        let mut back = vec![0; BYTES];
        remote.read(0, &mut back[..]).ordered().call().unwrap();
        assert!(bytes == back);
        self.memory.read_into(0, &mut back).unwrap();
        assert!(bytes == back);
    }
}

/// The largest payload between two nodes, as both say.
fn agreed([one, other]: [&SoftNode; 2]) -> u64 {
    let [said, answered] = [(one, other), (other, one)].map(|(of, to)| {
        let name = format!("#{}", of.number());
        let links = report::all(&name, Section::Links, Instant::now() + PATIENCE).unwrap();
        let link = links.iter().find(|link| link.number == u32::from(to.number().0));
        link.and_then(|link| link.count("payload")).unwrap()
    });
    assert_eq!(said, answered, "the ends do not agree");
    said
}

/// A datagram with so much payload, in bytes.
const fn plain(payload: usize) -> usize {
    payload + 80 + 16
}

const fn sealed(payload: usize) -> usize {
    payload + 80 + 36
}

#[test]
fn messages_are_as_long_as_the_path_takes_each_way() {
    let all = usize::MAX;
    for (there, back, payload) in [
        (all, all, 4096),
        (plain(4096), plain(4096), 4096),
        (plain(4096) - 1, all, 2048),
        (all, plain(2048) - 1, 1368),
        (plain(1368), plain(2048), 1368),
        (plain(1368) - 1, plain(1368) - 1, 1024),
        (plain(1024), plain(1024), 1024),
    ] {
        let pair = Pair::start(50, None);
        pair.relay.takes(there, back);
        pair.connect();
        assert_eq!(pair.payload(), payload, "{there} and {back} bytes");
        pair.exercise();
        let counters = pair.client.stats().counters;
        assert_eq!(counters.links_lost, 0, "{there} and {back} bytes");
    }
}

#[test]
fn sealed_messages_are_as_long_as_the_path_takes() {
    let key = ClusterKey::generate().unwrap();
    for (takes, payload) in [
        (sealed(4096), 4096),
        (sealed(4096) - 1, 2048),
        (sealed(1024), 1024),
    ] {
        let pair = Pair::start(52, Some(&key));
        pair.relay.takes(takes, takes);
        pair.connect();
        assert_eq!(pair.payload(), payload, "{takes} bytes");
        pair.exercise();
    }
}

/// The link is lost, because its messages are; no program does anything but import again.
#[test]
fn a_path_that_takes_less_than_before_gets_shorter_messages() {
    let pair = Pair::start(54, None);
    pair.connect();
    pair.exercise();
    assert_eq!(pair.payload(), 4096);
    let remote = pair.import();
    pair.relay.takes(1500, 1500);
    pair.loses(&remote);
    pair.exercise();
    assert_eq!(pair.payload(), 1024);
    // With letters before it, a life has messages as long as the path takes by then.
    pair.connect();
    pair.cut();
    pair.exercise();
    assert_eq!(pair.payload(), 1368);
}

/// What was lost in silence says nothing of lengths.
#[test]
fn a_path_that_was_cut_takes_what_it_took() {
    let pair = Pair::start(58, None);
    pair.connect();
    for cut in [Pair::cut_in_quiet, Pair::cut, Pair::cut_in_quiet] {
        pair.exercise();
        assert_eq!(pair.payload(), 4096);
        cut(&pair);
    }
    pair.exercise();
    assert_eq!(pair.payload(), 4096);
}

/// The other side still sends what was for the one before, when the new one is met at its address. That says nothing of lengths.
#[test]
fn a_node_that_is_started_again_has_long_messages() {
    let pair = Pair::start(60, None);
    pair.connect();
    let memory = pair.port.alloc(4096).unwrap();
    let export = pair
        .port
        .export("theirs", &memory, .., Access::everyone())
        .unwrap();
    let back = Port::open(&pair.server.node(), PortConfig::default()).unwrap();
    let (number, at) = (pair.client.number(), pair.client.udp_address().unwrap());
    let theirs = back.import(number, pair.port.id(), "theirs", PATIENCE).unwrap();
    let Pair {
        server,
        _served,
        memory: _memory,
        _export,
        relay,
        client,
        port,
    } = pair;
    // Nothing is heard of its farewell.
    relay.cut(true);
    theirs.write(0, &[1; 8][..]).post().unwrap();
    drop((export, memory, port, client));
    relay.cut(false);
    let again = SoftNode::builder()
        .number(number.0)
        .udp(at.to_string())
        .start()
        .unwrap();
    again
        .connect(&format!("udp://{}", relay.address()), PATIENCE)
        .unwrap();
    assert_eq!(agreed([&again, &server]), 4096);
}

/// Each side asks for the link, and each begins a life of it: neither takes that for a life that was lost.
#[test]
fn two_that_ask_each_other_have_long_messages() {
    for _ in 0..4 {
        let node = |number| {
            SoftNode::builder()
                .number(number)
                .udp("127.0.0.1:0")
                .start()
                .unwrap()
        };
        let nodes = [node(56), node(57)];
        let addresses = nodes
            .each_ref()
            .map(|node| format!("udp://{}", node.udp_address().unwrap()));
        std::thread::scope(|scope| {
            for (from, to) in [(0, 1), (1, 0)] {
                let (from, to) = (&nodes[from], &addresses[to]);
                scope.spawn(move || from.connect(to, PATIENCE).unwrap());
            }
        });
        assert_eq!(agreed(nodes.each_ref()), 4096);
    }
}
