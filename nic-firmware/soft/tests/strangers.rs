//! Datagrams of every shape, from an address that never answers a challenge and from one that does.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use netvm_abi::wire::HEADER_BYTES;
use netvm_abi::{Nanos, NodeId};
use netvm_soft::message::{Message, Pools, Spare};
use netvm_soft::udp::Udp;
use netvm_soft::udp::datagram::{self, Kind, Letter};
use proptest::prelude::*;
use zerocopy::IntoBytes as _;

const HERE: &str = "127.0.0.1:0";
const PATIENCE: Duration = Duration::from_secs(5);

struct Stand {
    udp: Udp,
    spare: Spare,
    at: SocketAddr,
    stranger: UdpSocket,
}

impl Stand {
    fn new() -> Self {
        let udp = Udp::bind(HERE.parse().unwrap(), (NodeId(3), 64), 1024).unwrap();
        let stranger = UdpSocket::bind(HERE).unwrap();
        Self {
            at: udp.socket().local_addr().unwrap(),
            udp,
            spare: Spare::new(&Pools::default()),
            stranger,
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stranger.send_to(bytes, self.at).unwrap();
        self.udp.look(Nanos(1), &mut self.spare, |node| node == NodeId(9));
        self.udp.flush();
    }

    /// What was sent may come only now.
    fn look_until(&mut self, enough: impl Fn(&Udp) -> bool) {
        let begin = Instant::now();
        while !enough(&self.udp) {
            assert!(
                begin.elapsed() < PATIENCE,
                "it does not come: {:?}",
                self.udp.stats()
            );
            self.udp.look(Nanos(1), &mut self.spare, |_| false);
        }
    }

    fn hear(&mut self) -> (Kind, u64, Letter, usize) {
        let mut bytes = [0; 4096];
        self.stranger.set_nonblocking(true).unwrap();
        let begin = Instant::now();
        let len = loop {
            assert!(begin.elapsed() < PATIENCE, "no answer");
            // What was sent may come only now.
            self.udp.look(Nanos(1), &mut self.spare, |_| false);
            self.udp.flush();
            if let Ok(len) = self.stranger.recv(&mut bytes) {
                break len;
            }
        };
        let (kind, id, content) = datagram::read(&bytes[..len]).unwrap();
        (kind, id, Letter::read(content).unwrap(), len)
    }

    /// Makes a link as node 5, and gives the number that the card gave to it.
    fn meet(&mut self) -> u64 {
        let hello = write(Kind::Hello, 0, Letter::from(NodeId(5), 77).as_bytes());
        self.send(&hello);
        let (kind, id, letter, len) = self.hear();
        assert_eq!((kind, id), (Kind::Challenge, 77));
        assert!(len <= hello.len());
        let answer = Letter::from(NodeId(5), 77).with_token(letter.token);
        self.send(&write(Kind::Confirm, 0, answer.as_bytes()));
        let (kind, id, letter, _) = self.hear();
        assert_eq!((kind, id), (Kind::Welcome, 77));
        letter.id()
    }
}

fn write(kind: Kind, link: u64, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    datagram::write(&mut bytes, kind, link, &[content], 0);
    bytes
}

#[test]
fn a_token_is_good_for_its_address_number_and_node_alone() {
    let mut stand = Stand::new();
    stand.send(&write(Kind::Hello, 0, Letter::from(NodeId(5), 77).as_bytes()));
    let token = stand.hear().2.token;
    for (node, id, flip) in [(5, 78, 0), (6, 77, 0), (5, 77, 1)] {
        let mut token = token;
        token[7] ^= flip;
        let letter = Letter::from(NodeId(node), id).with_token(token);
        stand.send(&write(Kind::Confirm, 0, letter.as_bytes()));
    }
    stand.stranger = UdpSocket::bind(HERE).unwrap();
    let letter = Letter::from(NodeId(5), 77).with_token(token);
    stand.send(&write(Kind::Confirm, 0, letter.as_bytes()));
    stand.look_until(|udp| udp.stats().strange == 4);
    assert!(!stand.udp.has(NodeId(5)) && !stand.udp.has(NodeId(6)));
    assert_eq!(stand.udp.stats().strange, 4);
}

/// A number that was overheard is of no use to a machine at another address.
#[test]
fn a_message_counts_only_from_where_its_node_was_met() {
    let mut stand = Stand::new();
    let link = stand.meet();
    let friend = std::mem::replace(&mut stand.stranger, UdpSocket::bind(HERE).unwrap());
    let message = write(Kind::Message, link, &[0; HEADER_BYTES]);
    stand.send(&message);
    stand.look_until(|udp| udp.stats().strange == 1 || udp.has_input());
    assert!(stand.udp.pop().is_none());
    stand.stranger = friend;
    stand.send(&message);
    stand.look_until(Udp::has_input);
    stand.udp.pop();
}

/// A letter that brings the token of an attempt back which was given up makes a pair that the other side does not know: messages
/// go by the one that it uses.
#[test]
fn a_late_confirm_does_not_turn_a_link_to_numbers_that_are_not_known() {
    let mut stand = Stand::new();
    stand.send(&write(Kind::Hello, 0, Letter::from(NodeId(5), 66).as_bytes()));
    let late = stand.hear().2.token;
    let link = stand.meet();
    let letter = Letter::from(NodeId(5), 66).with_token(late);
    stand.send(&write(Kind::Confirm, 0, letter.as_bytes()));
    assert_eq!(stand.hear().0, Kind::Welcome);
    let message = Message::default();
    let sent_by = |stand: &mut Stand| {
        stand.udp.send(NodeId(5), &message);
        stand.udp.flush();
        let mut bytes = [0; 4096];
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < PATIENCE, "nothing is sent");
            if let Ok(len) = stand.stranger.recv(&mut bytes) {
                return datagram::read(&bytes[..len]).unwrap().1;
            }
        }
    };
    assert_eq!(sent_by(&mut stand), 77);
    // By the old pair it is still reached.
    stand.send(&write(Kind::Message, link, &[0; HEADER_BYTES]));
    stand.look_until(Udp::has_input);
    stand.udp.pop();
    assert_eq!(sent_by(&mut stand), 77);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// What is not a message of a link is dropped or answered with a letter; nothing panics, no link is made.
    #[test]
    fn nothing_is_taken_of_a_stranger(
        kind in 0usize..6,
        link in prop_oneof![Just(0), any::<u64>()],
        content in proptest::collection::vec(any::<u8>(), 0..5000),
        cut in 0usize..24,
    ) {
        let mut stand = Stand::new();
        let bytes = write(Kind::ALL[kind], link, &content);
        stand.send(&bytes);
        stand.send(&bytes[..bytes.len() - cut.min(bytes.len())]);
        stand.send(&content);
        prop_assert!(stand.udp.pop().is_none());
        prop_assert!((0..64).all(|node| !stand.udp.has(NodeId(node))));
    }

    /// A message of a link is taken as it is, whatever it holds; one that is longer than a page is not.
    #[test]
    fn a_message_of_a_link_is_taken_whole(content in proptest::collection::vec(any::<u8>(), 0..5000)) {
        let mut stand = Stand::new();
        let link = stand.meet();
        stand.send(&write(Kind::Message, link, &content));
        let fits = (HEADER_BYTES..=HEADER_BYTES + 4096).contains(&content.len());
        if fits {
            stand.look_until(Udp::has_input);
        }
        let taken = stand.udp.pop();
        prop_assert_eq!(taken.is_some(), fits);
        if let Some(message) = taken {
            prop_assert_eq!(message.payload(), &content[HEADER_BYTES..]);
            let sent = content[..HEADER_BYTES].to_vec();
            // But for the two nodes, which the link tells.
            prop_assert_eq!(&message.header[..8], &sent[..8]);
            prop_assert_eq!(&message.header[12..], &sent[12..]);
            prop_assert_eq!(&message.header[8..12], &[5, 0, 3, 0]);
        }
    }
}
