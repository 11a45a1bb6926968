//! How long a silent peer over UDP is waited for, as a program chooses.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::time::Duration;

use netvm::{Access, Error, Port, PortConfig, PortId, Status};
use netvm_process::{SoftError, SoftNode};
use netvm_relay::{Faults, Relay};

const PATIENCE: Duration = Duration::from_secs(20);
const SERVED: PortId = PortId(7);
const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Node numbers of this program, which no other test has.
const NODES: u16 = 200;
const SERVER: u16 = 185;

fn node(number: u16, timeout: Option<Duration>) -> SoftNode {
    let builder = SoftNode::builder().nodes(NODES).number(number).udp("127.0.0.1:0");
    let builder = match timeout {
        Some(timeout) => builder.peer_timeout(timeout),
        None => builder,
    };
    builder.start().unwrap()
}

/// The network fails for as long as a node waits that has not chosen. One that chose less has given up before, one that chose more
/// has noticed nothing but time.
#[test]
fn a_silent_peer_is_lost_after_the_time_that_was_chosen() {
    let long = Some(Duration::from_secs(60));
    let server = node(SERVER, long);
    let served = Port::open(&server.node(), PortConfig::number(SERVED.0)).unwrap();
    let memory = served.alloc(4096).unwrap();
    let _export = served.export("memory", &memory, .., Access::everyone()).unwrap();
    let target = server.udp_address().unwrap();
    let (say, hear) = mpsc::channel();
    std::thread::scope(|scope| {
        let (mut relays, mut begin) = (Vec::new(), Vec::new());
        let mut patient = None;
        for (at, timeout) in [Some(Duration::from_millis(400)), None, long]
            .into_iter()
            .enumerate()
        {
            let relay = Relay::start(HERE, target, Faults::default(), 1).unwrap();
            let client = node(SERVER + 1 + at as u16, timeout);
            let name = format!("udp://{}", relay.address());
            let to = client.connect(&name, PATIENCE).unwrap();
            let port = Port::open(&client.node(), PortConfig::default()).unwrap();
            let remote = port.import(to, SERVED, "memory", PATIENCE).unwrap();
            assert_eq!(remote.word64(8 * at as u64).unwrap().fetch_add(1).unwrap(), 0);
            relays.push(relay);
            patient = Some(client);
            let (cut, wait) = mpsc::channel::<()>();
            begin.push(cut);
            let say = say.clone();
            scope.spawn(move || {
                let _port = port;
                wait.recv().unwrap();
                let word = remote.word64(8 * at as u64).unwrap();
                say.send((at, word.fetch_add(1))).unwrap();
            });
        }
        relays.iter().for_each(|relay| relay.cut(true));
        begin.iter().for_each(|cut| cut.send(()).unwrap());
        for wanted in [0, 1] {
            let (at, end) = hear.recv_timeout(PATIENCE).unwrap();
            assert_eq!(at, wanted);
            assert!(
                matches!(&end, Err(Error::Failed(failure)) if failure.status == Status::LinkLost),
                "{end:?}"
            );
        }
        assert!(hear.try_recv().is_err() && patient.unwrap().is_up(server.number()));
        relays.iter().for_each(|relay| relay.cut(false));
        let (at, end) = hear.recv_timeout(PATIENCE).unwrap();
        assert_eq!((at, end.unwrap()), (2, 1));
    });
    assert_eq!(memory.word64(16).unwrap().load().unwrap(), 2);
}

#[test]
fn a_time_that_makes_no_sense_is_an_error_that_says_which_do() {
    let refused = |millis, udp| {
        let builder = SoftNode::builder().peer_timeout(Duration::from_millis(millis));
        let builder = if udp { builder.udp("127.0.0.1:0") } else { builder };
        match builder.start() {
            Err(SoftError::Config(text)) => text,
            other => panic!("{other:?}"),
        }
    };
    for millis in [0, 199, 600_001, u64::MAX] {
        let text = refused(millis, true);
        assert!(text.contains("200 to 600000 milliseconds"), "{text}");
    }
    assert!(refused(1_000, false).contains("udp"));
}
