//! Peers that are none of ours: they say whatever comes to their mind, and hurt no connection but their own.

use netvm::{Port, PortConfig, SharedConfig, SharedReceiver, SharedSender};
use netvm_net::{Net, NetConfig};
use netvm_process::SoftNode;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Numbers that look random, the same in each run.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

/// A message of this kind, with everything else as the dice fall.
fn message(dice: &mut Dice, kind: u8, session: u32, number: u32) -> Vec<u8> {
    let len = 32 + [0, 0, 8, 12, 12, 8, 100][dice.next() as usize % 7];
    let mut bytes: Vec<u8> = (0..len)
        .map(|_| ((dice.next() % 3) as u8).wrapping_mul(dice.next() as u8))
        .collect();
    (bytes[0], bytes[1]) = (kind, 1);
    bytes[4..8].copy_from_slice(&session.to_le_bytes());
    bytes[8..12].copy_from_slice(&number.to_le_bytes());
    bytes
}

#[test]
fn a_peer_that_says_anything_hurts_itself_alone() {
    let nodes = [
        SoftNode::builder().start().unwrap(),
        SoftNode::builder().start().unwrap(),
    ];
    let name = format!("#{}", nodes[0].number());
    nodes[1].connect(&name, PATIENCE).unwrap();
    let server = Net::open(
        &nodes[0].node(),
        NetConfig::default().keepalive(Duration::from_millis(50)),
    )
    .unwrap();
    let mut listener = server.listen(80).unwrap();
    let client = Net::open(&nodes[1].node(), NetConfig::default()).unwrap();
    let mut good = client.connect(listener.local_address()).unwrap();
    let mut echo = listener.accept().unwrap();
    let mut dice = Dice(7);
    for round in 0..30_u32 {
        // Another port of the client's node. In half of the rounds it is greeted back.
        let port = Port::open(&nodes[1].node(), PortConfig::default()).unwrap();
        let config = SharedConfig::default().message_bytes(4096).capacity(1024);
        let queue = (round % 2 == 0).then(|| SharedReceiver::open(&port, "netvm-net", config).unwrap());
        let to = SharedSender::join(&port, server.node(), server.port(), "netvm-net", PATIENCE).unwrap();
        let session = dice.next() as u32;
        if round % 3 > 0 {
            let mut hello = message(&mut dice, 1, session, 0);
            hello.truncate(32);
            to.send(&hello, PATIENCE).unwrap();
        }
        let kinds = [
            1, 2, 3, 4, 5, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 99,
        ];
        for number in 1..200 {
            let kind = kinds[dice.next() as usize % kinds.len()];
            // Farewells end the round, so there are few.
            let kind = if kind == 5 && number < 150 { 23 } else { kind };
            let mut bytes = message(&mut dice, kind, session, number);
            if kind == 16 {
                // Often to the listener that there is.
                bytes[28..32].copy_from_slice(&80_u32.to_le_bytes());
            }
            if number % 50 == 0 {
                bytes.truncate(1 + dice.next() as usize % 31);
            }
            to.send(&bytes, PATIENCE).unwrap();
        }
        good.write_all(&round.to_le_bytes()).unwrap();
        let mut copy = [0; 4];
        echo.read_exact(&mut copy).unwrap();
        echo.write_all(&copy).unwrap();
        good.read_exact(&mut copy).unwrap();
        assert_eq!(u32::from_le_bytes(copy), round);
        drop((queue, to, port));
        // Connections that it has made are over with it.
        listener.set_nonblocking(true);
        while let Ok(mut stream) = listener.accept() {
            stream.set_read_timeout(Some(PATIENCE));
            let mut rest = Vec::new();
            let end = stream.read_to_end(&mut rest);

            let over = end.map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true);
            assert!(over, "{rest:?}");
        }
    }
    assert!(server.stats().unwrap().ignored > 0);
}
