//! Nodes that UDP links, over the loopback interface and over a relay that harms datagrams.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use netvm::{Access, Error, NodeId, Port, PortConfig, PortId, Region, Status};
use netvm_process::soft::LinkError;
use netvm_process::{SoftError, SoftNode};
use netvm_relay::{Faults, Relay};

const PATIENCE: Duration = Duration::from_secs(20);
const NAME: &str = "memory";
const SERVED: PortId = PortId(7);
/// Any port of the loopback interface.
const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Node numbers that no other test of the machine claims: `spread` has those from 44 on, programs the lowest.
fn udp_node(number: u16) -> SoftNode {
    SoftNode::builder()
        .number(number)
        .udp("127.0.0.1:0")
        .start()
        .unwrap()
}

fn address(node: &SoftNode) -> String {
    format!("udp://{}", node.udp_address().unwrap())
}

/// A node with memory that others may use.
struct Server {
    node: SoftNode,
    _port: Port,
    memory: Region,
    _export: netvm::Export,
}

impl Server {
    fn start(number: u16, bytes: u64) -> Self {
        let node = udp_node(number);
        let port = Port::open(&node.node(), PortConfig::number(SERVED.0)).unwrap();
        let memory = port.alloc(bytes).unwrap();
        let access = Access::everyone().notify(1..=8);
        let export = port.export(NAME, &memory, .., access).unwrap();
        Self {
            node,
            _port: port,
            memory,
            _export: export,
        }
    }
}

fn import(port: &Port, server: NodeId) -> netvm::RemoteSegment {
    port.import(server, SERVED, NAME, PATIENCE).unwrap()
}

/// Writes of many sizes, reads of them, and atomics: each byte is where it belongs and each addition counts once.
fn exercise(client: &SoftNode, server: &Server, to: NodeId, rounds: u64) {
    let port = Port::open(&client.node(), PortConfig::default()).unwrap();
    let remote = import(&port, to);
    let counter = remote.word64(0).unwrap();
    for round in 0..rounds {
        let len = [1, 8, 100, 1000, 4096, 9000][round as usize % 6];
        let bytes: Vec<u8> = (0..len).map(|at| (at as u64 * 7 + round) as u8).collect();
        remote.write(4096, &bytes[..]).post().unwrap();
        let mut back = vec![0; len];
        remote.read(4096, &mut back[..]).ordered().call().unwrap();
        assert!(bytes == back, "round {round}");
        assert_eq!(counter.fetch_add(1).unwrap(), round);
    }
    let mut sum = [0; 8];
    server.memory.read_into(0, &mut sum).unwrap();
    assert_eq!(u64::from_le_bytes(sum), rounds);
}

#[test]
fn two_nodes_write_read_and_count_over_udp() {
    let server = Server::start(20, 1 << 16);
    let client = udp_node(21);
    let to = client.connect(&address(&server.node), PATIENCE).unwrap();
    assert_eq!(to, NodeId(20));
    exercise(&client, &server, to, 600);
    let stats = client.stats();
    assert_eq!((stats.udp.refused, stats.udp.strange), (0, 0));
    assert!(server.node.is_up(NodeId(21)));
}

#[test]
fn what_a_network_loses_doubles_delays_and_spoils_is_made_good() {
    let server = Server::start(22, 1 << 16);
    let faults = Faults {
        lost: 50,
        doubled: 20,
        late: 20,
        spoilt: 10,
    };
    let relay = Relay::start(HERE, server.node.udp_address().unwrap(), faults, 1).unwrap();
    let client = udp_node(23);
    let to = client
        .connect(&format!("udp://{}", relay.address()), PATIENCE)
        .unwrap();
    exercise(&client, &server, to, 600);
    let (passed, harmed) = relay.counts();
    assert!(harmed > passed / 20, "{harmed} of {passed}");
    let sides = [client.stats(), server.node.stats()];
    let strange: u64 = sides.iter().map(|side| side.udp.strange).sum();
    assert!(strange > 0, "spoilt datagrams are not taken");
    let again: u64 = sides.iter().map(|side| side.counters.retransmitted).sum();
    assert!(again > 0);
}

#[test]
fn a_number_that_is_taken_is_named_with_one_that_is_free() {
    let server = udp_node(24);
    let first = udp_node(25);
    first.connect(&address(&server), PATIENCE).unwrap();
    // Numbers are claimed on this machine, so the second one's is made to clash over the network.
    let to = server.udp_address().unwrap();
    let reason = dial_as(NodeId(25), to);
    assert_eq!(reason, Some(netvm_soft::udp::datagram::Reason::Taken(NodeId(0))));
    assert_eq!(
        dial_as(NodeId(24), to),
        Some(netvm_soft::udp::datagram::Reason::Taken(NodeId(0)))
    );
    assert_eq!(
        dial_as(NodeId(999), to),
        Some(netvm_soft::udp::datagram::Reason::TooHigh(64))
    );
    assert_eq!(dial_as(NodeId(26), to), None);
}

/// What a node says to a `Hello` of a node with this number.
fn dial_as(node: NodeId, to: std::net::SocketAddr) -> Option<netvm_soft::udp::datagram::Reason> {
    use netvm_soft::udp::datagram::{self, Kind, Letter};
    use zerocopy::IntoBytes;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut hello = Vec::new();
    let letter = Letter::from(node, 99);
    datagram::write(&mut hello, Kind::Hello, 0, &[letter.as_bytes()], 0);
    socket.send_to(&hello, to).unwrap();
    let mut answer = [0; 4096];
    let len = socket.recv(&mut answer).unwrap();
    let (kind, id, content) = datagram::read(&answer[..len]).unwrap();
    assert_eq!(id, 99);
    let reason = Letter::read(content).unwrap().reason();
    assert_eq!(kind == Kind::Refusal, reason.is_some());
    reason
}

#[test]
fn no_link_is_an_error_that_says_why() {
    let other_machines = SoftNode::builder().number(27).udp("0.0.0.0:0").start();
    assert!(matches!(other_machines, Err(SoftError::Insecure(_))));
    let text = other_machines.unwrap_err().to_string();
    assert!(text.contains("insecure"), "{text}");
    let no_address = SoftNode::builder().number(27).udp("nowhere").start();
    assert!(matches!(no_address, Err(SoftError::Address { .. })));
    let node = SoftNode::builder().number(28).start().unwrap();
    let none = node.connect("udp://127.0.0.1:9", PATIENCE);
    assert!(matches!(none, Err(SoftError::Link(LinkError::NoUdp))), "{none:?}");
    drop(node);
    let node = udp_node(28);
    let silent = node.connect("udp://127.0.0.1:9", Duration::from_millis(200));
    assert!(
        matches!(silent, Err(SoftError::Link(LinkError::TimedOut))),
        "{silent:?}"
    );
}

#[test]
fn a_network_that_is_cut_is_an_error_and_not_a_hang_and_the_link_comes_back() {
    let server = Server::start(29, 1 << 16);
    let relay = Relay::start(HERE, server.node.udp_address().unwrap(), Faults::default(), 1).unwrap();
    let client = udp_node(30);
    let name = format!("udp://{}", relay.address());
    let to = client.connect(&name, PATIENCE).unwrap();
    let port = Port::open(&client.node(), PortConfig::default()).unwrap();
    let remote = import(&port, to);
    let word = remote.word64(0).unwrap();
    assert_eq!(word.fetch_add(1).unwrap(), 0);
    relay.cut(true);
    let begin = Instant::now();
    let lost = word.fetch_add(1);
    assert!(
        matches!(&lost, Err(Error::Failed(failure)) if failure.status == Status::LinkLost),
        "{lost:?}"
    );
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    relay.cut(false);
    client.connect(&name, PATIENCE).unwrap();
    let again = import(&port, to);
    again.word64(8).unwrap().fetch_add(5).unwrap();
    let mut word = [0; 8];
    server.memory.read_into(8, &mut word).unwrap();
    assert_eq!(u64::from_le_bytes(word), 5);
}

/// Neither a message with a guessed number nor one from another address is taken.
#[test]
fn a_stranger_writes_nothing() {
    let server = Server::start(31, 1 << 16);
    let client = udp_node(32);
    let to = client.connect(&address(&server.node), PATIENCE).unwrap();
    exercise(&client, &server, to, 6);
    let before = server.node.stats();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let header = netvm_abi::wire::Header::of(netvm_abi::wire::Body::Bye, NodeId(32), NodeId(31)).encode();
    for id in 0..200u64 {
        let mut datagram = Vec::new();
        let kind = netvm_soft::udp::datagram::Kind::Message;
        netvm_soft::udp::datagram::write(&mut datagram, kind, id, &[&header], 0);
        socket
            .send_to(&datagram, server.node.udp_address().unwrap())
            .unwrap();
    }
    exercise_more(&client, to);
    let after = server.node.stats();
    assert_eq!(after.udp.strange - before.udp.strange, 200);
}

fn exercise_more(client: &SoftNode, to: NodeId) {
    let port = Port::open(&client.node(), PortConfig::default()).unwrap();
    import(&port, to).word64(16).unwrap().fetch_add(1).unwrap();
}
