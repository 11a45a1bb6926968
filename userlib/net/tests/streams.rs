//! Streams between two nodes of the software card.

use netvm_net::{Address, Net, NetConfig, Stream, Way, has_left};
use netvm_process::SoftNode;
use std::future::poll_fn;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Two linked nodes, and a network on each.
struct Two {
    server: Net,
    client: Net,
    nodes: [SoftNode; 2],
}

fn two_with(server: NetConfig, client: NetConfig) -> Two {
    // Without a number each gets the lowest that is free: tests of one machine may run at the same time.
    let start = || SoftNode::builder().start().unwrap();
    let nodes = [start(), start()];
    let name = format!("#{}", nodes[0].number());
    nodes[1].connect(&name, Duration::from_secs(10)).unwrap();
    Two {
        server: Net::open(&nodes[0].node(), server).unwrap(),
        client: Net::open(&nodes[1].node(), client).unwrap(),
        nodes,
    }
}

fn two() -> Two {
    two_with(NetConfig::default(), NetConfig::default())
}

impl Two {
    fn address(&self, service: u16) -> Address {
        Address::new(self.server.node(), self.server.port(), service)
    }

    fn pair(&self) -> (Stream, Stream) {
        let mut listener = self.server.listen(0).unwrap();
        let client = self.client.connect(listener.local_address()).unwrap();
        (listener.accept().unwrap(), client)
    }
}

/// Bytes that tell their place.
fn pattern(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn kind<T: std::fmt::Debug>(result: std::io::Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

#[test]
fn bytes_go_both_ways_and_end() {
    let two = two();
    let (mut server, mut client) = two.pair();
    client.write_all(b"what time is it?").unwrap();
    let mut question = [0; 16];
    server.read_exact(&mut question).unwrap();
    assert_eq!(&question, b"what time is it?");
    server.write_all(b"late").unwrap();
    server.shutdown(Shutdown::Write);
    assert_eq!(kind(server.write(b"more")), ErrorKind::BrokenPipe);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "late");
    // The other direction is open still.
    client.write_all(b"thanks").unwrap();
    drop(client);
    let mut thanks = String::new();
    server.read_to_string(&mut thanks).unwrap();
    assert_eq!(thanks, "thanks");
    assert!(server.was_accepted());
}

fn carries(way: Way) -> netvm_net::NetStats {
    const LEN: usize = 3 << 20;
    let two = two();
    let (mut server, mut client) = two.pair();
    client.set_way(way);
    let sender = std::thread::spawn(move || {
        let bytes = pattern(0, LEN);
        let mut at = 0;
        for len in [1, 63, 64, 5000, 100_000, 131_072, 400_000, usize::MAX] {
            let now = len.min(LEN - at);
            client.write_all(&bytes[at..at + now]).unwrap();
            at += now;
        }
        client.shutdown(Shutdown::Write);
        client
    });
    let mut bytes = Vec::new();
    server.read_to_end(&mut bytes).unwrap();
    assert!(bytes == pattern(0, LEN), "other bytes have come");
    drop(sender.join().unwrap());
    two.client.stats().unwrap()
}

#[test]
fn large_ones_take_the_way_that_is_forced() {
    let by = carries(Way::Message);
    assert_eq!((by.by_write, by.by_read), (0, 0), "{by:?}");
    let by = carries(Way::Write);
    assert!(by.by_write > 5 && by.by_read == 0, "{by:?}");
    let by = carries(Way::Read);
    assert!(by.by_read > 5 && by.by_write == 0, "{by:?}");
    let by = carries(Way::Auto);
    assert!(by.by_read + by.by_write > 5, "{by:?}");
}

#[test]
fn errors_are_those_of_sockets() {
    let two = two();
    assert_eq!(
        kind(two.client.connect(two.address(80))),
        ErrorKind::ConnectionRefused
    );
    let listener = two.server.listen(80).unwrap();
    assert_eq!(kind(two.server.listen(80)), ErrorKind::AddrInUse);
    let nowhere = Address::new(two.server.node(), netvm::PortId(60), 80);
    assert_eq!(kind(two.client.connect(nowhere)), ErrorKind::ConnectionRefused);
    let no_node = Address::new(netvm::NodeId(999), netvm::PortId(1), 80);
    assert_eq!(kind(two.client.connect(no_node)), ErrorKind::InvalidInput);
    let mut client = two.client.connect(two.address(80)).unwrap();
    client.set_nonblocking(true);
    assert_eq!(kind(client.read(&mut [0])), ErrorKind::WouldBlock);
    client.set_nonblocking(false);
    client.set_read_timeout(Some(Duration::from_millis(5)));
    assert_eq!(kind(client.read(&mut [0])), ErrorKind::TimedOut);
    // Never accepted.
    drop(listener);
    client.set_read_timeout(None);
    assert_eq!(kind(client.read(&mut [0])), ErrorKind::ConnectionReset);
    assert_eq!(kind(client.write(&[0])), ErrorKind::ConnectionReset);
    assert_eq!(
        kind(two.client.connect(two.address(80))),
        ErrorKind::ConnectionRefused
    );
}

#[test]
fn a_backlog_is_kept_to() {
    let two = two();
    let mut listener = two.server.listen_with(80, 2).unwrap();
    let _first = two.client.connect(two.address(80)).unwrap();
    let _second = two.client.connect(two.address(80)).unwrap();
    assert_eq!(
        kind(two.client.connect(two.address(80))),
        ErrorKind::ConnectionRefused
    );
    let _accepted = listener.accept().unwrap();
    let _third = two.client.connect(two.address(80)).unwrap();
}

#[test]
fn unread_bytes_reset() {
    let two = two();
    let (mut server, client) = two.pair();
    server.write_all(b"unread").unwrap();
    // It has come when it can be read.
    while two.client.stats().unwrap().received < 3 {
        two.client.progress();
    }
    drop(client);
    assert_eq!(kind(server.read(&mut [0])), ErrorKind::ConnectionReset);
}

#[test]
fn a_slow_reader_delays_no_other_connection() {
    for way in [Way::Message, Way::Write, Way::Read] {
        let config = || NetConfig::default().window(64 << 10);
        let two = two_with(config(), config());
        let mut slow: Vec<_> = (0..20).map(|_| two.pair()).collect();
        for (_, client) in &mut slow {
            client.set_nonblocking(true);
            let mut sent = 0;
            let bytes = pattern(0, 200_000);
            let full = loop {
                match client.send(&bytes[sent..], way) {
                    Ok(count) => sent += count,
                    // Room at the peer comes back, room in the window does not.
                    Err(error) if sent == 64 << 10 => break error,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            };
            assert_eq!(full.kind(), ErrorKind::WouldBlock);
        }
        let (mut server, mut client) = two.pair();
        client.set_way(way);
        let mut copy = vec![0; 10_000];
        for round in 0..200 {
            let bytes = pattern(round, 10_000);
            client.write_all(&bytes).unwrap();
            server.read_exact(&mut copy).unwrap();
            assert!(copy == bytes, "round {round}");
        }
        // Nothing of the slow ones is lost.
        for (server, client) in &mut slow {
            client.shutdown(Shutdown::Write);
            let mut bytes = Vec::new();
            server.read_to_end(&mut bytes).unwrap();
            assert!(bytes == pattern(0, 64 << 10));
        }
    }
}

#[test]
fn thousands_of_connections_share_the_queue() {
    let two = two();
    let mut listener = two.server.listen(80).unwrap();
    let mut pairs = Vec::new();
    for _ in 0..2000 {
        let client = two.client.connect(two.address(80)).unwrap();
        pairs.push((listener.accept().unwrap(), client));
    }
    assert_eq!(two.server.stats().unwrap().connections, 2000);
    assert_eq!(two.server.stats().unwrap().peers, 1);
    for (number, (_, client)) in pairs.iter_mut().enumerate() {
        client.write_all(&(number as u64).to_le_bytes()).unwrap();
    }
    for (number, (server, _)) in pairs.iter_mut().enumerate().rev() {
        let mut bytes = [0; 8];
        server.read_exact(&mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), number as u64);
    }
    drop(pairs);
    // Both ends have let go: nothing stays in the tables.
    while two.server.stats().unwrap().connections + two.client.stats().unwrap().connections > 0 {
        two.server.progress();
        two.client.progress();
    }
}

#[test]
fn zero_copy_hands_out_pieces() {
    let two = two();
    let (mut server, mut client) = two.pair();
    client.set_way(Way::Write);
    let sender = std::thread::spawn(move || {
        client.write_all(&pattern(0, 1 << 20)).unwrap();
    });
    let (mut at, mut in_place) = (0, 0);
    while let Some(piece) = server.recv_zero_copy().unwrap() {
        assert!(piece.to_vec().unwrap() == pattern(at, piece.len()));
        assert_eq!(
            kind(piece.read_into(piece.len(), &mut [0])),
            ErrorKind::InvalidInput
        );
        at += piece.len();
        in_place += usize::from(piece.is_in_place());
    }
    assert_eq!(at, 1 << 20);
    assert!(in_place > 0);
    sender.join().unwrap();
}

#[test]
fn threads_share_one_network() {
    let two = two();
    let mut listener = two.server.listen(80).unwrap();
    std::thread::scope(|scope| {
        for number in 0..8_u8 {
            let (two, address) = (&two, two.address(80));
            scope.spawn(move || {
                let mut client = two.client.connect(address).unwrap();
                for round in 0..100 {
                    let bytes = vec![number; 1 + round * 37];
                    client.write_all(&bytes).unwrap();
                    let mut echo = vec![0; bytes.len()];
                    client.read_exact(&mut echo).unwrap();
                    assert!(echo == bytes);
                }
            });
        }
        for _ in 0..8 {
            let mut server = listener.accept().unwrap();
            scope.spawn(move || {
                let mut buffer = [0; 2048];
                loop {
                    match server.read(&mut buffer).unwrap() {
                        0 => break,
                        len => server.write_all(&buffer[..len]).unwrap(),
                    }
                }
            });
        }
    });
}

#[test]
fn a_network_that_ends_resets_its_connections() {
    let two = two();
    let (server, mut client) = two.pair();
    drop(server);
    let (_kept, _) = two.pair();
    let Two {
        server,
        client: net,
        nodes: _nodes,
    } = two;
    drop((server, _kept));
    assert_eq!(
        client.read(&mut [0]).unwrap(),
        0,
        "it had said that no more comes"
    );
    let end = loop {
        match client.write_all(b"anyone?") {
            Ok(()) => net.progress(),
            Err(error) => break error.kind(),
        }
    };
    assert_eq!(end, ErrorKind::ConnectionReset);
}

/// What was said before is read first, either way.
#[test]
fn a_network_that_leaves_is_told_from_one_that_is_lost() {
    for leaves in [true, false] {
        let two = two();
        let (mut server, mut client) = two.pair();
        server.write_all(b"last words").unwrap();
        let mut words = [0; 10];
        if leaves {
            two.server.leave();
            client.read_exact(&mut words).unwrap();
        } else {
            client.read_exact(&mut words).unwrap();
            assert!(two.nodes[0].kill(two.server.port()));
        }
        assert_eq!(&words, b"last words");
        let end = client.read(&mut [0]).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset);
        assert_eq!(has_left(&end), leaves, "{end}");
    }
}

/// A peer without connections is not watched: another program may have its place by now, of which the first connection to it finds out.
#[test]
fn a_program_in_the_place_of_one_that_died_is_reached() {
    for waits in [true, false] {
        let two = two();
        drop(two.pair());
        let Two {
            server,
            client,
            nodes,
        } = two;
        while client.stats().unwrap().connections > 0 {
            client.progress();
        }
        let port = server.port();
        assert!(nodes[0].kill(port));
        drop(server);
        let heir = loop {
            match Net::open(&nodes[0].node(), NetConfig::at(port)) {
                Ok(heir) => break heir,
                // What the dead one had is being taken back.
                Err(_) => std::thread::yield_now(),
            }
        };
        let mut listener = heir.listen(0).unwrap();
        let at = listener.local_address();
        let mut stream = if waits {
            client.connect_timeout(at, Duration::from_secs(60)).unwrap()
        } else {
            client.block_on(client.connect_async(at)).unwrap()
        };
        let mut server = listener.accept().unwrap();
        stream.write_all(b"heir").unwrap();
        let mut heard = [0; 4];
        server.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"heir");
    }
}

/// What was written to a process that died fails late. The process that has its place by then does not pay for it.
#[test]
fn failures_of_a_dead_process_are_not_those_of_its_heir() {
    let two = two_with(NetConfig::default(), NetConfig::default().background(false));
    let (server_stream, mut stream) = two.pair();
    let Two {
        server,
        client,
        nodes,
    } = two;
    let mut listener = client.listen(0).unwrap();
    let at = listener.local_address();
    let port = server.port();
    assert!(nodes[0].kill(port));
    // It leaves, and this end hears of its failure when it next posts something: to the heir.
    stream.write_all(b"anyone?").unwrap();
    drop((server_stream, server));
    let heir = loop {
        match Net::open(&nodes[0].node(), NetConfig::at(port)) {
            Ok(heir) => break heir,
            Err(_) => std::thread::yield_now(),
        }
    };
    std::thread::scope(|scope| {
        let heirs = scope.spawn(|| {
            // Asks once.
            let mut stream = heir.begin_connect(at).unwrap();
            let connected = poll_fn(|context| heir.poll_connected(&stream, context));
            heir.block_on(connected).unwrap();
            stream.write_all(b"heir").unwrap();
            let mut heard = [0; 4];
            stream.read_exact(&mut heard).unwrap();
        });
        let mut accepted = loop {
            match listener.poll_accept(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(accepted) => break accepted.unwrap(),
                Poll::Pending => client.progress(),
            }
            assert!(
                !heirs.is_finished(),
                "its connection was taken for the dead one's"
            );
        };
        let mut heard = [0; 4];
        accepted.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"heir");
        accepted.write_all(b"well").unwrap();
        // Until it has been read there.
        assert_eq!(accepted.read(&mut heard).unwrap(), 0);
    });
    assert_eq!(kind(stream.read(&mut [0])), ErrorKind::ConnectionReset);
}

/// A large write asks the other end for memory, which a program that is in no call may not answer. The bytes leave all the same.
#[test]
fn a_large_write_to_a_program_that_is_in_no_call_ends() {
    let two = two_with(NetConfig::default().background(false), NetConfig::default());
    let mut listener = two.server.listen(0).unwrap();
    let address = listener.local_address();
    // Such a network answers a connect in a call of its program.
    let accepting = std::thread::spawn(move || listener.accept().unwrap());
    let mut client = two.client.connect(address).unwrap();
    let mut server = accepting.join().unwrap();
    client.set_way(Way::Write);
    client.set_write_timeout(Some(Duration::from_secs(30)));
    let sent = pattern(0, 200 << 10);
    client.write_all(&sent).unwrap();
    let mut heard = vec![0; sent.len()];
    server.read_exact(&mut heard).unwrap();
    assert!(heard == sent, "other bytes than were sent");
}

/// What is written is read by the other end's card, after the last handle of this end has gone.
#[test]
fn bytes_that_are_still_to_be_read_are_waited_for() {
    for way in [Way::Message, Way::Write, Way::Read] {
        let Two {
            server,
            client,
            nodes: _nodes,
        } = two();
        let mut listener = server.listen(0).unwrap();
        let mut stream = client.connect(listener.local_address()).unwrap();
        let mut accepted = listener.accept().unwrap();
        let bytes = pattern(0, 900_000);
        let written = bytes.clone();
        let writes = std::thread::spawn(move || {
            stream.set_way(way);
            stream.write_all(&written).unwrap();
            drop(stream);
            drop(client);
        });
        let mut read = Vec::new();
        let read_all = accepted.read_to_end(&mut read);
        assert!(read_all.is_ok(), "{way:?}: {} bytes, {read_all:?}", read.len());
        assert!(read == bytes, "{way:?}");
        writes.join().unwrap();
    }
}

/// An event loop's writes to one peer go in few messages, and the last of them leaves also if the program calls nothing more.
#[test]
fn small_writes_are_gathered_until_the_program_waits() {
    const CONNECTIONS: u64 = 20;
    let two = two_with(NetConfig::default(), NetConfig::default().gather(true));
    let mut listener = two.server.listen(0).unwrap();
    let address = listener.local_address();
    let mut clients: Vec<Stream> = (0..CONNECTIONS)
        .map(|_| two.client.connect(address).unwrap())
        .collect();
    let mut servers: Vec<Stream> = (0..CONNECTIONS).map(|_| listener.accept().unwrap()).collect();
    // The first writes between two waits are as many messages: only then it is known that there are several.
    for (round, most) in [(0_u8, CONNECTIONS), (1, 3), (2, 3)] {
        let before = two.client.stats().unwrap().messages;
        for client in &mut clients {
            client.write_all(&[round; 10]).unwrap();
        }
        two.client.progress();
        for server in &mut servers {
            let mut bytes = [0; 10];
            server.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes, [round; 10]);
        }
        let messages = two.client.stats().unwrap().messages - before;
        assert!(messages <= most, "round {round}: {messages} messages");
    }
    clients[0].write_all(b"alone").unwrap();
    let mut bytes = [0; 5];
    servers[0].read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, *b"alone");
}

/// What can be done with a stream is told without doing it.
#[test]
fn a_stream_tells_what_can_be_done_with_it() {
    let two = two();
    let (mut server, mut client) = two.pair();
    let context = Context::from_waker(Waker::noop());
    let readable = |stream: &mut Stream| match stream.poll_readable(&Context::from_waker(Waker::noop())) {
        Poll::Ready(count) => Some(count.unwrap()),
        Poll::Pending => None,
    };
    assert_eq!(readable(&mut server), None);
    assert!(matches!(client.poll_writable(&context), Poll::Ready(Ok(()))));
    client.write_all(b"seven b").unwrap();
    let found = two.server.spin(Duration::from_secs(10), || readable(&mut server));
    assert_eq!(found, Some(7));
    server.read_exact(&mut [0; 5]).unwrap();
    assert_eq!(readable(&mut server), Some(2));
    // What comes behind bytes that were taken is counted, too.
    client.write_all(b"more").unwrap();
    let all = || readable(&mut server).filter(|count| *count > 2);
    assert_eq!(two.server.spin(Duration::from_secs(10), all), Some(6));
    // A window that is full is no room, and its reader makes some.
    while let Poll::Ready(sent) = client.poll_write(&context, &[0; 5000]) {
        sent.unwrap();
    }
    assert!(client.poll_writable(&context).is_pending());
    let mut taken = vec![0; 2 << 20];
    let room = two.server.spin(Duration::from_secs(10), || {
        while let Poll::Ready(read) = server.poll_read(&context, &mut taken) {
            read.unwrap();
        }
        matches!(client.poll_writable(&context), Poll::Ready(Ok(()))).then_some(())
    });
    assert_eq!(room, Some(()));
    client.shutdown(Shutdown::Write);
    assert!(
        matches!(client.poll_writable(&context), Poll::Ready(Err(error)) if error.kind() == ErrorKind::BrokenPipe)
    );
    let end = two.server.asleep(|| {
        loop {
            match server.poll_read(&context, &mut taken) {
                Poll::Ready(read) => {
                    if read.unwrap() == 0 {
                        break;
                    }
                }
                Poll::Pending => std::thread::yield_now(),
            }
        }
        readable(&mut server)
    });
    assert_eq!(end, Some(0));
    // Its network ends, though it has handles.
    two.client.leave();
    assert!(client.read(&mut [0]).is_err());
}

/// While another thread has the state of a network for long, bytes are handed over to it. When there are too many of them a writer waits,
/// and is woken.
#[test]
fn a_writer_that_finds_another_thread_at_work_is_woken() {
    /// Keeps the thread that wakes it, which has the state.
    struct Keeps(mpsc::Sender<()>, Mutex<mpsc::Receiver<()>>);
    impl Wake for Keeps {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(());
            let _ = self.1.lock().unwrap().recv();
        }
    }
    struct Tells(mpsc::Sender<()>);
    impl Wake for Tells {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(());
        }
    }
    let patience = Duration::from_secs(20);
    let two = two_with(NetConfig::default().window(16 << 20), NetConfig::default());
    let (mut server, mut client) = two.pair();
    let (mut other_server, mut other) = two.pair();
    let ((kept, is_kept), (go, goes)) = (mpsc::channel(), mpsc::channel());
    let keeps = Waker::from(Arc::new(Keeps(kept, Mutex::new(goes))));
    assert!(
        other
            .poll_read(&Context::from_waker(&keeps), &mut [0; 4])
            .is_pending()
    );
    other_server.write_all(b"come").unwrap();
    is_kept.recv_timeout(patience).unwrap();
    let (told, is_told) = mpsc::channel();
    let tells = Waker::from(Arc::new(Tells(told)));
    let context = Context::from_waker(&tells);
    let mut sent = 0;
    while let Poll::Ready(part) = client.poll_write(&context, &[7; 50_000]) {
        sent += part.unwrap();
    }
    assert!(client.poll_writable(&context).is_pending());
    go.send(()).unwrap();
    is_told.recv_timeout(patience).unwrap();
    let reads = std::thread::spawn(move || server.read_exact(&mut vec![0; sent + 50_000]));
    loop {
        match client.poll_write(&context, &[7; 50_000]) {
            Poll::Ready(part) => {
                let part = part.unwrap();
                client.write_all(&vec![7; 50_000 - part]).unwrap();
                break;
            }
            Poll::Pending => is_told.recv_timeout(patience).unwrap(),
        }
    }
    reads.join().unwrap().unwrap();
}

/// Which way the bytes go is soon known. A program that would write meanwhile is not told that it can, or it would try again and again.
#[test]
fn a_writer_that_waits_for_memory_has_no_room() {
    // Its program answers nothing while it is in no call. After a millisecond the writer waits no more, and may have been slower.
    let two = two_with(NetConfig::default().background(false), NetConfig::default());
    let mut listener = two.server.listen(0).unwrap();
    let address = listener.local_address();
    let context = Context::from_waker(Waker::noop());
    let waits = |_| {
        let mut client = std::thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept().unwrap());
            let client = two.client.connect(address).unwrap();
            drop(accepting.join().unwrap());
            client
        });
        client.set_way(Way::Write);
        let first = client.poll_write(&context, &[7; 100_000]);
        first.is_pending() && client.poll_writable(&context).is_pending()
    };
    assert!((0..100).any(waits));
}

/// In the midst of large writes an end is offered memory ahead. What it does not use is others' again.
#[test]
fn memory_that_is_not_used_goes_back() {
    const LEN: usize = 64 << 10;
    let patience = Duration::from_secs(20);
    let config = || NetConfig::default().large_memory(2, LEN as u32).way(Way::Write);
    let two = two_with(config(), config());
    let mut heard = vec![0; LEN];
    let mut write = |(server, client): &mut (Stream, Stream)| {
        let before = two.client.stats().unwrap().by_write;
        client.write_all(&pattern(0, LEN)).unwrap();
        server.read_exact(&mut heard).unwrap();
        assert!(heard == pattern(0, LEN));
        two.client.stats().unwrap().by_write - before
    };
    // Each of these may be left with a piece, and there are two.
    let mut others: Vec<_> = (0..4).map(|_| two.pair()).collect();
    for pair in &mut others {
        for _ in 0..4 {
            write(pair);
        }
    }
    let mut last = two.pair();
    let begin = std::time::Instant::now();
    while write(&mut last) == 0 {
        assert!(begin.elapsed() < patience, "the others keep it all");
    }
}
