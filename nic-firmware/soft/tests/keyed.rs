//! What a machine that records every datagram can do to nodes with a cluster key: nothing.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use netvm_abi::{Nanos, NodeId};
use netvm_soft::message::{Message, Pools, Spare};
use netvm_soft::udp::{ClusterKey, Udp};

const PATIENCE: Duration = Duration::from_secs(5);

/// A node.
struct Node {
    udp: Udp,
    spare: Spare,
    now: Nanos,
}

impl Node {
    fn new(number: u16, key: &ClusterKey) -> Self {
        let udp = Udp::bind("127.0.0.1:0".parse().unwrap(), (NodeId(number), 8), 1024).unwrap();
        Self {
            udp: udp.with_key(Some(key.clone())),
            spare: Spare::new(&Pools::default()),
            now: Nanos(1),
        }
    }

    /// Gets a datagram from the middle, and takes it.
    fn get(&mut self, middle: &UdpSocket, bytes: &[u8]) {
        middle
            .send_to(bytes, self.udp.socket().local_addr().unwrap())
            .unwrap();
        let before = (self.udp.stats(), self.udp.has_input());
        let begin = Instant::now();
        loop {
            let mut more = [0; 1];
            let lies = self.udp.socket().peek_from(&mut more).is_ok();
            self.udp.look(self.now, &mut self.spare, |_| false);
            self.udp.flush();
            if lies {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "it does not come: {before:?}");
        }
    }
}

/// The machine in the middle: each node knows the other by its address.
struct Middle {
    socket: UdpSocket,
    recorded: Vec<Vec<u8>>,
}

impl Middle {
    fn new() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            socket,
            recorded: Vec::new(),
        }
    }

    /// Hands on the next datagram.
    fn pass(&mut self, to: &mut Node) {
        let mut bytes = [0; 4096];
        let len = self.socket.recv(&mut bytes).unwrap();
        self.recorded.push(bytes[..len].to_vec());
        to.get(&self.socket, &bytes[..len]);
    }

    /// Links two nodes, and sends a message. The datagrams 0, 2 and 4 are for the second one.
    fn play(&mut self, one: &mut Node, two: &mut Node) {
        let id = one.udp.dial(self.socket.local_addr().unwrap()).unwrap();
        for _ in 0..2 {
            self.pass(two);
            self.pass(one);
        }
        assert_eq!(one.udp.end_of(id), Some(Ok(NodeId(2))));
        one.udp.send(NodeId(2), &Message::default());
        one.udp.flush();
        self.pass(two);
        assert!(two.udp.pop().is_some(), "the link works");
    }
}

#[test]
fn a_recorded_session_does_nothing_to_its_node_and_to_a_later_one() {
    let key = ClusterKey::generate().unwrap();
    let (mut one, mut two, mut middle) = (Node::new(1, &key), Node::new(2, &key), Middle::new());
    middle.play(&mut one, &mut two);
    let mut later = Node::new(2, &key);
    for node in [&mut two, &mut later] {
        for at in [0, 2, 4] {
            node.get(&middle.socket, &middle.recorded[at]);
            assert!(node.udp.pop().is_none(), "datagram {at}");
        }
    }
    assert!(!later.udp.has(NodeId(1)));
    assert_eq!(two.udp.stats().replayed, 1, "the message");
    assert_eq!(later.udp.stats().replayed, 1, "the token is of another card");
    assert_eq!(later.udp.stats().strange, 1, "the message has no link");
}

#[test]
fn an_old_confirm_makes_no_link() {
    let key = ClusterKey::generate().unwrap();
    let (mut one, mut two, mut middle) = (Node::new(1, &key), Node::new(2, &key), Middle::new());
    one.udp.dial(middle.socket.local_addr().unwrap()).unwrap();
    middle.pass(&mut two);
    middle.pass(&mut one);
    two.now = Nanos::from_millis(11_000);
    middle.pass(&mut two);
    assert!(!two.udp.has(NodeId(1)));
    assert_eq!(two.udp.stats().replayed, 1);
}

#[test]
fn a_hello_that_comes_back_is_not_answered() {
    let key = ClusterKey::generate().unwrap();
    let (mut one, mut middle) = (Node::new(1, &key), Middle::new());
    one.udp.dial(middle.socket.local_addr().unwrap()).unwrap();
    middle.pass(&mut one);
    assert_eq!(one.udp.stats().replayed, 1);
    middle.socket.set_nonblocking(true).unwrap();
    assert!(middle.socket.recv(&mut [0; 16]).is_err(), "an answer");
}
