//! Nodes that UDP links, over the loopback interface and over a relay that harms datagrams.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use netvm::{Access, Error, NodeId, Port, PortConfig, PortId, Region, Status};
use netvm_process::soft::{ClusterKey, DEFAULT_UDP_WINDOW, LinkError};
use netvm_process::{SoftError, SoftNode};
use netvm_relay::{Faults, Relay};

const PATIENCE: Duration = Duration::from_secs(20);
const NAME: &str = "memory";
const SERVED: PortId = PortId(7);
/// Any port of the loopback interface.
const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// What a bad network does, to so many datagrams of a thousand.
const FAULTS: Faults = Faults {
    lost: 50,
    doubled: 20,
    late: 20,
    spoilt: 10,
    delay: Duration::ZERO,
};

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
        Self::on(udp_node(number), bytes)
    }

    fn on(node: SoftNode, bytes: u64) -> Self {
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
    let relay = Relay::start(HERE, server.node.udp_address().unwrap(), FAULTS, 1).unwrap();
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

/// How many requests of a node to another one may be on the wire.
fn on_the_wire(node: NodeId, to: NodeId) -> u64 {
    use netvm_process::soft::report::{self, Section};
    let links = report::all(&format!("#{node}"), Section::Links, Instant::now() + PATIENCE).unwrap();
    let link = links.iter().find(|link| link.number == u32::from(to.0));
    link.and_then(|link| link.count("congestion_window")).unwrap()
}

/// Of what is not acknowledged a port has half of the link's window, and the link's window is the smaller one.
#[test]
fn as_much_is_on_its_way_as_the_smaller_window_allows() {
    // How fast it grows is the machine's: beside six spinning programs it may take twenty seconds.
    let patience = 3 * PATIENCE;
    let with = |number: u16, window: u16| {
        let builder = SoftNode::builder().number(number).udp("127.0.0.1:0");
        // The wire is cut until something has left again, however long a busy machine takes for it.
        builder.window(window).peer_timeout(patience).start().unwrap()
    };
    let server = Server::on(with(42, 256), 1 << 16);
    let relay = Relay::start(HERE, server.node.udp_address().unwrap(), Faults::default(), 1).unwrap();
    let client = with(43, 1024);
    let to = client
        .connect(&format!("udp://{}", relay.address()), PATIENCE)
        .unwrap();
    let port = Port::open(&client.node(), PortConfig::default()).unwrap();
    let remote = import(&port, to);
    // The wire must have room for as many, too: that grows as it is used up. On a busy machine it may be less by the time that
    // counts, and then it is tried again.
    let begin = Instant::now();
    loop {
        while on_the_wire(client.number(), to) < 128 {
            assert!(begin.elapsed() < patience, "the congestion window stays small");
            for word in 0..160u64 {
                remote.write(8 * word, &0u64.to_le_bytes()[..]).post().unwrap();
            }
            port.flush_remote(to).unwrap();
        }
        let before = client.stats().counters;
        relay.cut(true);
        let write = |word: u64| remote.write(8 * word, &(word + 1).to_le_bytes()[..]).try_post();
        // Where the wire has room for fewer by now, the port's queue is full before: nothing may wait for a wire that is cut.
        let posted = (0..160).take_while(|word| write(*word).is_ok()).count() as u64;
        // What can leave has left when some of it leaves again.
        let again = client.stats().counters.retransmitted;
        while client.stats().counters.retransmitted < again + 2 {
            assert!(begin.elapsed() < patience, "nothing leaves again");
            std::thread::yield_now();
        }
        // Some of what left before the cut may not be acknowledged, too.
        let left = client.stats().counters.messages_sent - before.messages_sent;
        relay.cut(false);
        for word in posted..160 {
            while write(word).is_err() {
                assert!(begin.elapsed() < patience, "no room for what is left");
                port.progress();
            }
        }
        port.flush_remote(to).unwrap();
        assert!(left <= 128, "{left} messages have left");
        if left >= 120 {
            break;
        }
        assert!(begin.elapsed() < patience, "only {left} messages have left");
    }
    for word in 0..160 {
        let there = server.memory.word64(8 * word).unwrap().load().unwrap();
        assert_eq!(there, word + 1);
    }
    let refused = SoftNode::builder().window(100).start();
    assert!(matches!(refused, Err(SoftError::Config(_))), "{refused:?}");
}

/// Messages that may be under way on a node's link to another one.
fn window(node: &SoftNode, to: NodeId) -> Option<u64> {
    use netvm_process::soft::report::{self, Section};
    let name = format!("#{}", node.number());
    let links = report::all(&name, Section::Links, Instant::now() + PATIENCE).unwrap();
    let link = links.iter().find(|link| link.number == u32::from(to.0));
    link.and_then(|link| link.count("window"))
}

/// If nothing is said, more messages are under way over UDP than over shared memory; the smaller window of both ends counts.
#[test]
fn a_node_with_udp_has_a_wider_window() {
    let (server, client) = (udp_node(54), udp_node(55));
    let to = client.connect(&address(&server), PATIENCE).unwrap();
    assert_eq!(window(&client, to), Some(u64::from(DEFAULT_UDP_WINDOW)));
    let narrow = SoftNode::builder().number(56).start().unwrap();
    let to = narrow
        .connect(&format!("#{}", server.number()), PATIENCE)
        .unwrap();
    assert_eq!(window(&narrow, to), Some(64));
}

/// What a node, and its link to another one, say of the largest payload.
fn payloads(node: &SoftNode, to: NodeId) -> (Option<u64>, Option<u64>) {
    use netvm_process::soft::report::{self, Section};
    let name = format!("#{}", node.number());
    let said = |section| report::all(&name, section, Instant::now() + PATIENCE).unwrap();
    let own = said(Section::Node).first().and_then(|node| node.count("payload"));
    let links = said(Section::Links);
    let link = links.iter().find(|link| link.number == u32::from(to.0));
    (own, link.and_then(|link| link.count("payload")))
}

/// A name may have addresses at which no node answers, and one whose socket knows both kinds reaches both.
#[test]
fn a_node_is_reached_at_either_kind_of_address() {
    let four = udp_node(51);
    let six = match SoftNode::builder().number(52).udp("[::1]:0").start() {
        Err(SoftError::Address { source, .. }) => return eprintln!("skipped: no IPv6 here: {source}"),
        six => six.unwrap(),
    };
    let both = SoftNode::builder().number(53).udp("[::]:0").insecure();
    let both = both.start().unwrap();
    assert_eq!(both.connect(&address(&four), PATIENCE).unwrap(), four.number());
    assert_eq!(both.connect(&address(&six), PATIENCE).unwrap(), six.number());
    let error = four.connect(&address(&six), PATIENCE).unwrap_err().to_string();
    assert!(error.contains("IPv6"), "{error}");
}

/// Of two that differ the smaller one counts, for the link between them.
#[test]
fn the_payload_is_a_page_where_no_program_sets_another() {
    let server = udp_node(44);
    let small = SoftNode::builder()
        .number(45)
        .udp("127.0.0.1:0")
        .payload(1000)
        .start()
        .unwrap();
    let to = small.connect(&address(&server), PATIENCE).unwrap();
    assert_eq!(payloads(&small, to), (Some(1000), Some(1000)));
    let large = udp_node(46);
    large.connect(&address(&server), PATIENCE).unwrap();
    assert_eq!(payloads(&large, to), (Some(4096), Some(4096)));
    assert_eq!(payloads(&server, small.number()), (Some(4096), Some(1000)));
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

/// The farewell of the first one is lost, as far as the server knows when the second one asks. Its own patience is short, so
/// the number becomes free while that goes on asking.
#[test]
fn a_number_of_a_node_that_has_just_ended_is_asked_for_again() {
    let server = SoftNode::builder()
        .number(45)
        .udp("127.0.0.1:0")
        .peer_timeout(std::time::Duration::from_millis(250))
        .start()
        .unwrap();
    let relay = Relay::start(HERE, server.udp_address().unwrap(), Faults::default(), 1).unwrap();
    let first = udp_node(46);
    first
        .connect(&format!("udp://{}", relay.address()), PATIENCE)
        .unwrap();
    relay.cut(true);
    drop(first);
    let second = udp_node(46);
    assert_eq!(second.connect(&address(&server), PATIENCE).unwrap(), NodeId(45));
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
    assert!(len <= hello.len(), "an answer to an address that is not proven");
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

/// Both sides ask for the link at the same moment, as two programs do that know each other's address.
#[test]
fn two_that_dial_each_other_have_one_link() {
    let (one, two) = (Server::start(33, 1 << 16), Server::start(34, 1 << 16));
    for _ in 0..5 {
        std::thread::scope(|scope| {
            for (from, to) in [(&one, &two), (&two, &one)] {
                scope.spawn(move || {
                    let number = from.node.connect(&address(&to.node), PATIENCE).unwrap();
                    assert_eq!(number, to.node.number());
                });
            }
        });
        exercise_more(&one.node, two.node.number());
        exercise_more(&two.node, one.node.number());
    }
}

/// A process that ends and is started again has the number and the address that it had.
#[test]
fn a_node_that_comes_back_at_its_address_is_found_again() {
    let client = udp_node(35);
    let mut at = "127.0.0.1:0".to_owned();
    for _ in 0..3 {
        let builder = SoftNode::builder().number(36).udp(&at);
        let node = builder.start().unwrap();
        at = node.udp_address().unwrap().to_string();
        let port = Port::open(&node.node(), PortConfig::number(SERVED.0)).unwrap();
        let memory = port.alloc(4096).unwrap();
        let _export = port.export(NAME, &memory, .., Access::everyone()).unwrap();
        let to = client.connect(&format!("udp://{at}"), PATIENCE).unwrap();
        exercise_more(&client, to);
        assert_eq!(memory.word64(16).unwrap().load().unwrap(), 1, "its own memory");
    }
}

/// A program that is started again has its number, and a port that the kernel chose.
#[test]
fn a_node_that_said_farewell_leaves_its_number_to_another_address() {
    let server = Server::start(39, 1 << 16);
    for round in 0..3 {
        let client = udp_node(40);
        let begin = Instant::now();
        let to = client.connect(&address(&server.node), PATIENCE).unwrap();
        exercise_more(&client, to);
        assert_eq!(server.memory.word64(16).unwrap().load().unwrap(), round + 1);
        assert!(begin.elapsed() < PATIENCE);
    }
}

/// Each of many nodes counts in the memory of each other one, and signals it, all at once: their windows together are more than
/// a socket holds.
#[test]
fn many_nodes_at_once_lose_nothing() {
    const NODES: u16 = 8;
    const ROUNDS: u64 = 300;
    // The numbers below those of `two_nodes...`; other programs of this machine take the lowest.
    let servers: Vec<Server> = (0..NODES).map(|at| Server::start(12 + at, 1 << 16)).collect();
    for (at, server) in servers.iter().enumerate() {
        for other in &servers[..at] {
            server.node.connect(&address(&other.node), PATIENCE).unwrap();
        }
    }
    std::thread::scope(|scope| {
        for server in &servers {
            let servers = &servers;
            scope.spawn(move || {
                let port = Port::open(&server.node.node(), PortConfig::default()).unwrap();
                let others = servers.iter().map(|other| other.node.number());
                let others: Vec<NodeId> = others.filter(|other| *other != server.node.number()).collect();
                let remotes: Vec<_> = others.iter().map(|other| import(&port, *other)).collect();
                let bytes = [server.node.number().0 as u8; 900];
                for round in 0..ROUNDS {
                    for remote in &remotes {
                        let place = 4096 + u64::from(server.node.number().0) * 1024;
                        remote.write(place, &bytes[..]).post().unwrap();
                        if round % 8 == 0 {
                            remote.word64(0).unwrap().fetch_add(1).unwrap();
                        }
                    }
                }
                for other in others {
                    port.flush_remote(other).unwrap();
                }
            });
        }
    });
    for server in &servers {
        let counted = server.memory.word64(0).unwrap().load().unwrap();
        assert_eq!(counted, u64::from(NODES - 1) * ROUNDS.div_ceil(8));
        for other in servers.iter().map(|other| other.node.number().0) {
            let mut bytes = [0; 900];
            server
                .memory
                .read_into(4096 + u64::from(other) * 1024, &mut bytes)
                .unwrap();
            let wanted = if other == server.node.number().0 {
                0
            } else {
                other as u8
            };
            assert!(bytes.iter().all(|byte| *byte == wanted), "from {other}");
        }
    }
}

/// A node that has nothing to do costs no processor, and a datagram wakes it all the same.
#[test]
fn an_idle_node_sleeps_and_wakes_for_a_datagram() {
    let server = Server::start(37, 1 << 16);
    let client = udp_node(38);
    let to = client.connect(&address(&server.node), PATIENCE).unwrap();
    exercise_more(&client, to);
    let begin = Instant::now();
    let quiet = |node: &SoftNode| node.is_quiet();
    while !(quiet(&server.node) && quiet(&client)) {
        assert!(begin.elapsed() < PATIENCE, "something stays outstanding");
        std::thread::yield_now();
    }
    // `is_quiet` visits the card, which counts as a run: the helper looks in once more, and then sleeps.
    let settled = || {
        let before = server.node.stats().wakeups;
        std::thread::sleep(Duration::from_millis(300));
        server.node.stats().wakeups - before
    };
    settled();
    let woken = settled();
    assert!(woken <= 20, "{woken} times awake in 300 ms without a message");
    exercise_more(&client, to);
    assert_eq!(server.memory.word64(16).unwrap().load().unwrap(), 2);
}

fn keyed(number: u16, key: Option<&ClusterKey>) -> SoftNode {
    let mut builder = SoftNode::builder().number(number).udp("127.0.0.1:0");
    if let Some(key) = key {
        builder = builder.key(key.clone());
    }
    builder.start().unwrap()
}

/// Over a network that loses, doubles, delays and spoils, with noise and recorded datagrams among what comes.
#[test]
fn nodes_with_a_key_exchange_what_a_bad_network_leaves_and_take_nothing_else() {
    let key = ClusterKey::generate().unwrap();
    let server = Server::on(keyed(8, Some(&key)), 1 << 16);
    let relay = Relay::start(HERE, server.node.udp_address().unwrap(), FAULTS, 1).unwrap();
    let client = keyed(9, Some(&key));
    let name = format!("udp://{}", relay.address());
    let to = client.connect(&name, PATIENCE).unwrap();
    exercise(&client, &server, to, 300);
    let sides = [client.stats().udp, server.node.stats().udp];
    assert!(
        sides.iter().any(|udp| udp.forged > 0),
        "spoilt datagrams: {sides:?}"
    );
    assert!(
        sides.iter().any(|udp| udp.replayed > 0),
        "doubled datagrams: {sides:?}"
    );
}

#[test]
fn nodes_with_different_keys_or_none_get_no_link_and_say_why() {
    let (one, two) = (ClusterKey::generate().unwrap(), ClusterKey::generate().unwrap());
    let plain = keyed(8 + 2, None);
    let first = keyed(8 + 3, Some(&one));
    let second = keyed(41, Some(&two));
    let link = |from: &SoftNode, to: &SoftNode| match from.connect(&address(to), PATIENCE) {
        Err(SoftError::Link(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(link(&plain, &first), LinkError::WantsKey);
    assert_eq!(link(&first, &plain), LinkError::NoKey);
    assert_eq!(link(&first, &second), LinkError::OtherKey);
    assert!(!first.is_up(plain.number()) && !first.is_up(second.number()));
}
