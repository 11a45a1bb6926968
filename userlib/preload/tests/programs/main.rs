//! Programs that know nothing of the library, with it and without. They are this test's own program, started in another part.

mod forks;
mod messages;
mod sets;
mod streams;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// Names the part that a process plays, and where its server is.
const PART: &str = "NETVM_TEST_PART";
const SERVER: &str = "NETVM_TEST_SERVER";
/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(30);

fn library() -> PathBuf {
    let library = std::env::current_exe()
        .unwrap()
        .with_file_name("libnetvm_preload.so");
    assert!(library.exists(), "{} is not there", library.display());
    library
}

/// A process, and what it says.
struct Program {
    child: Child,
    out: BufReader<ChildStdout>,
    said: Receiver<String>,
    /// Connections that have moved, as far as it is known.
    moved: u64,
    last: String,
}

impl Drop for Program {
    /// Nothing of a test that has failed stays.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let rest: Vec<String> = self.said.try_iter().collect();
            eprintln!("it has said:\n{}{}", self.last, rest.join("\n"));
        }
    }
}

impl Program {
    fn start(part: &str, preloaded: bool, server: Option<SocketAddr>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "plays_its_part", "--nocapture", "--test-threads=1"]);
        command.env(PART, part).env("NETVM_PRELOAD_VERBOSE", "1");
        if let Some(server) = server {
            command.env(SERVER, server.to_string());
        }
        if preloaded {
            command.env("LD_PRELOAD", library());
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let errors = BufReader::new(child.stderr.take().unwrap());
        let (says, said) = mpsc::channel();
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                let _ = says.send(line);
            }
        });
        Self {
            child,
            out,
            said,
            moved: 0,
            last: String::new(),
        }
    }

    /// The address that a server says it listens at.
    fn address(&mut self) -> SocketAddr {
        loop {
            let mut line = String::new();
            assert!(self.out.read_line(&mut line).unwrap() > 0, "the server has ended");
            if let Some((_, address)) = line.split_once("listens at ") {
                return address.trim().parse().unwrap();
            }
        }
    }

    /// Waits until it has printed this.
    fn wait_for_output(&mut self, words: &str) {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert!(self.out.read_line(&mut line).unwrap() > 0, "not '{words}'");
        }
    }

    fn hear(&mut self, line: String) {
        self.moved += u64::from(line.ends_with("a connection has moved"));
        self.last.push_str(&line);
        self.last.push('\n');
    }

    /// Waits until so many connections have moved, here and in its children.
    fn wait_moved(&mut self, wanted: u64) {
        while self.moved < wanted {
            let line = self.said.recv_timeout(PATIENCE);
            let line =
                line.unwrap_or_else(|_| panic!("{} of {wanted} have moved: {}", self.moved, self.last));
            self.hear(line);
        }
    }

    /// Waits until it has said this.
    fn wait_for(&mut self, words: &str) {
        while !self.last.contains(words) {
            let line = self.said.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("not '{words}': {}", self.last));
            self.hear(line);
        }
    }

    /// A client has asked small questions until now.
    fn go_on(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Waits for its end, and tells how many connections have moved, in it and in its children.
    fn end(mut self) -> u64 {
        self.go_on();
        let began = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            if began.elapsed() > PATIENCE {
                let _ = self.child.kill();
                panic!("it does not end: {}", self.last);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        // Until all that have its standard error have ended.
        while let Ok(line) = self.said.recv_timeout(PATIENCE) {
            self.hear(line);
        }
        assert!(self.child.wait().unwrap().success(), "{}", self.last);
        self.moved
    }
}

/// A server and a client of these parts, each with the library or without. With both, so many connections move before the client goes on.
fn both(server: (&str, bool), client: (&str, bool), connections: u64) {
    let mut serves = Program::start(server.0, server.1, None);
    let address = serves.address();
    let mut asks = Program::start(client.0, client.1, Some(address));
    let connections = if server.1 && client.1 { connections } else { 0 };
    serves.wait_moved(connections);
    asks.wait_moved(connections);
    assert_eq!([asks.end(), serves.end()], [connections; 2]);
}

/// Plays a part, if the environment names one.
#[test]
fn plays_its_part() {
    match std::env::var(PART).as_deref() {
        Ok("echo") => echo(&listener(), 1),
        Ok("echo twice") => echo(&listener(), 2),
        Ok("asks") => asks(&connect()),
        Ok("asks little") => many_small(&mut connect(), 20),
        Ok("says and closes") => says_and_closes(),
        Ok("listens only") => listens_only(),
        Ok("answers and closes") => answers_and_closes(),
        Ok("asks and closes") => asks_and_closes(),
        Ok("forks") => forks::first(),
        Ok("forks later") => forks::later(),
        Ok("forks in halves") => forks::halves(),
        Ok("forks twice") => forks::grandchild(),
        Ok("forks, and ends") => forks::orphan(),
        Ok("forks, and both close") => forks::closes(),
        Ok("forks, and is left") => forks::is_left(),
        Ok("forks and hands over") => forks::hands_over(),
        Ok("execs") => execs(),
        Ok("spawns beside") => spawns_beside(),
        Ok("epoll") => sets::serve(&listener(), 0, 40),
        Ok("epoll, nanoseconds") => sets::serve(&listener(), sets::NANOSECONDS, 40),
        Ok("epoll, edges") => sets::serve(&listener(), libc::EPOLLET, 40),
        Ok("epoll, once") => sets::serve(&listener(), libc::EPOLLONESHOT, 40),
        Ok("epoll for one") => sets::serve(&listener(), 0, 1),
        Ok("epoll for one, edges") => sets::serve(&listener(), libc::EPOLLET, 1),
        Ok("epoll for one, once") => sets::serve(&listener(), libc::EPOLLONESHOT, 1),
        Ok("many") => many(),
        Ok("options") => options(),
        Ok("selects") => selects(),
        Ok("messages") => messages::ask(),
        Ok("streams serve") => streams::serve(),
        Ok("streams ask") => streams::ask(),
        Ok("is sed") => streams::serve_by_sed(&[]),
        Ok("is sed, unbuffered") => streams::serve_by_sed(&["-u"]),
        Ok("asks sed") => streams::ask_sed(),
        Ok("tells sed") => streams::tell_sed(BufReader::new(connect_now())),
        Ok("says last words") => streams::last_words(),
        Ok("reads last words") => streams::reads_last_words(),
        Ok("is redirected") => streams::redirected(),
        Ok("reads what is redirected") => streams::reads_redirected(),
        Ok("dies") => dies(),
        Ok("is left") => is_left(),
        _ => {}
    }
}

fn listener() -> TcpListener {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    println!("listens at {}", listener.local_addr().unwrap());
    listener
}

fn connect_now() -> TcpStream {
    let server: SocketAddr = std::env::var(SERVER).unwrap().parse().unwrap();
    TcpStream::connect(server).unwrap()
}

/// Whether the test has seen enough: it closes the standard input.
fn goes_on() -> bool {
    static GOES_ON: AtomicBool = AtomicBool::new(false);
    static LISTENS: Once = Once::new();
    LISTENS.call_once(|| {
        std::thread::spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            GOES_ON.store(true, Ordering::Release);
        });
    });
    GOES_ON.load(Ordering::Acquire)
}

/// Connects to a server that sends back what comes, and asks small questions until the test has seen enough.
fn connect() -> TcpStream {
    let mut stream = connect_now();
    while !goes_on() {
        many_small(&mut stream, 10);
    }
    stream
}

fn copy_back(stream: &mut TcpStream) {
    let mut bytes = vec![0; 50_000];
    loop {
        match stream.read(&mut bytes).unwrap() {
            0 => return,
            count => stream.write_all(&bytes[..count]).unwrap(),
        }
    }
}

fn echo(listener: &TcpListener, times: u32) {
    for _ in 0..times {
        copy_back(&mut listener.accept().unwrap().0);
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Small questions, then much both ways at once, then the end of one direction.
fn asks(stream: &TcpStream) {
    for len in [1, 5, 64, 1000, 4096, 30_000] {
        let (question, mut answer) = (pattern(len), vec![0; len]);
        (&mut &*stream).write_all(&question).unwrap();
        (&mut &*stream).read_exact(&mut answer).unwrap();
        assert!(answer == question, "{len} bytes");
    }
    let much = pattern(3_000_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (&mut &*stream).write_all(&much).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        });
        let mut answer = Vec::new();
        (&mut &*stream).read_to_end(&mut answer).unwrap();
        assert!(answer == much);
    });
}

#[test]
fn connections_move_where_both_ends_have_the_library() {
    for (server, client) in [(true, true), (false, true), (true, false)] {
        both(("echo", server), ("asks", client), 1);
    }
}

fn says_and_closes() {
    let listener = listener();
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"it is late").unwrap();
}

fn listens_only() {
    let mut all = String::new();
    connect_now().read_to_string(&mut all).unwrap();
    assert_eq!(all, "it is late");
}

#[test]
fn a_server_may_say_something_and_close_without_reading() {
    for _ in 0..20 {
        let mut server = Program::start("says and closes", true, None);
        let address = server.address();
        Program::start("listens only", true, Some(address)).end();
        server.end();
    }
}

/// How many connections are made one after the other. The other end is told of a stream at another time in each.
const HURRIED: u32 = 200;

/// Waits with `poll`, as programs with time-outs do.
fn wait_readable(stream: &TcpStream) {
    let mut one = libc::pollfd {
        fd: stream.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: it is one.
    let found = unsafe { libc::poll(&raw mut one, 1, 10_000) };
    assert_eq!(found, 1, "nothing comes, and no end");
}

fn read_all(stream: &mut TcpStream, until: usize) -> Vec<u8> {
    stream.set_nonblocking(true).unwrap();
    let (mut all, mut bytes) = (Vec::new(), [0; 4096]);
    while all.len() < until {
        wait_readable(stream);
        match stream.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => all.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
    all
}

fn answers_and_closes() {
    let listener = listener();
    for round in 0..HURRIED {
        let (mut stream, _) = listener.accept().unwrap();
        // Of each second one nothing more is read than the question, and of the others the end as well.
        let until = if round % 2 == 0 { 1000 } else { usize::MAX };
        assert_eq!(read_all(&mut stream, until), pattern(1000));
        stream.set_nonblocking(false).unwrap();
        if round % 2 == 0 {
            // A stream comes while the answer is being made, or just before it leaves.
            let mut one = libc::pollfd {
                fd: stream.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            let made = Instant::now() + Duration::from_micros(u64::from(round % 40) * 10);
            while Instant::now() < made {
                // SAFETY: it is one.
                unsafe { libc::poll(&raw mut one, 1, 0) };
            }
            stream.write_all(&pattern(3000)).unwrap();
        }
    }
}

fn asks_and_closes() {
    for round in 0..HURRIED {
        let mut stream = connect_now();
        stream.write_all(&pattern(1000)).unwrap();
        // Connections end at other places of the way.
        std::thread::sleep(Duration::from_micros(u64::from(round % 7) * 100));
        if round % 2 == 0 {
            assert!(
                read_all(&mut stream, usize::MAX) == pattern(3000),
                "round {round}"
            );
        }
    }
}

#[test]
fn short_connections_lose_nothing_while_they_move() {
    for _ in 0..3 {
        let mut server = Program::start("answers and closes", true, None);
        let address = server.address();
        Program::start("asks and closes", true, Some(address)).end();
        server.end();
    }
}

/// Takes a connection and gives it to another program, as its input and output.
fn execs() {
    let listener = listener();
    let (stream, _) = listener.accept().unwrap();
    let output = OwnedFd::from(stream);
    let input = output.try_clone().unwrap();
    // Each direction is one name of the connection, and this process keeps none.
    let mut cat = Command::new("cat");
    let mut cat = cat.stdin(input).stdout(output).spawn().unwrap();
    assert!(cat.wait().unwrap().success());
}

#[test]
fn a_program_that_inherits_a_connection_reads_no_hello() {
    both(("execs", true), ("asks", true), 1);
}

/// Starts programs while a connection is there that has moved.
fn spawns_beside() {
    let listener = listener();
    let (mut stream, _) = listener.accept().unwrap();
    let mut bytes = [0; 1];
    while stream.read(&mut bytes).unwrap() == 1 {
        assert!(Command::new("true").status().unwrap().success());
        stream.write_all(&bytes).unwrap();
    }
}

/// Below `!`, which ends a server.
fn many_small(stream: &mut TcpStream, count: u8) {
    for number in (0..count).map(|number| number % 32) {
        let mut answer = [0];
        stream.write_all(&[number]).unwrap();
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [number]);
    }
}

#[test]
fn programs_that_are_started_change_nothing() {
    both(("spawns beside", true), ("asks little", true), 1);
}

/// Several connections of a program, each with questions.
fn many() {
    std::thread::scope(|scope| {
        for _ in 0..40 {
            scope.spawn(|| many_small(&mut connect(), 50));
        }
    });
}

/// Calls that look, and options.
fn options() {
    let mut stream = connect();
    many_small(&mut stream, 100);
    let fd = stream.as_raw_fd();
    stream.write_all(b"abcdef").unwrap();
    let mut bytes = [0; 6];
    while stream.peek(&mut bytes).unwrap() < 6 {}
    assert_eq!(bytes, *b"abcdef");
    let mut there: libc::c_int = 0;
    // SAFETY: there is room for a number.
    assert_eq!(unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut there) }, 0);
    assert_eq!(there, 6);
    stream.read_exact(&mut bytes[..2]).unwrap();
    assert_eq!(bytes[..2], *b"ab");
    let mut rest = [0; 4];
    let places = [
        libc::iovec {
            iov_base: rest.as_mut_ptr().cast(),
            iov_len: 1,
        },
        libc::iovec {
            iov_base: rest[1..].as_mut_ptr().cast(),
            iov_len: 3,
        },
    ];
    // SAFETY: there are two places.
    assert_eq!(unsafe { libc::readv(fd, places.as_ptr(), 2) }, 4);
    assert_eq!(rest, *b"cdef");
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let began = Instant::now();
    let late = stream.read(&mut bytes).unwrap_err();
    assert_eq!(late.kind(), std::io::ErrorKind::WouldBlock);
    assert!(began.elapsed() >= Duration::from_millis(20));
    stream.set_nonblocking(true).unwrap();
    assert_eq!(
        stream.read(&mut bytes).unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock
    );
    let mut second = stream.try_clone().unwrap();
    stream.set_nonblocking(false).unwrap();
    drop(stream);
    many_small(&mut second, 20);
}

/// Waits by `select` and by `poll`.
fn selects() {
    let mut stream = connect();
    let fd = stream.as_raw_fd();
    stream.set_nonblocking(true).unwrap();
    for number in 0..200_u8 {
        stream.write_all(&[number]).unwrap();
        if number % 2 == 0 {
            let mut one = libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: it is one.
            assert_eq!(unsafe { libc::poll(&raw mut one, 1, 10_000) }, 1);
        } else {
            // SAFETY: the set is there, and no other and no time.
            unsafe {
                let mut set = std::mem::zeroed();
                libc::FD_SET(fd, &raw mut set);
                let none = std::ptr::null_mut();
                assert_eq!(
                    libc::select(fd + 1, &raw mut set, none, none, std::ptr::null_mut()),
                    1
                );
                assert!(libc::FD_ISSET(fd, &raw const set));
            }
        }
        let mut answer = [0];
        assert_eq!((stream.read(&mut answer).unwrap(), answer), (1, [number]));
    }
    // Nothing comes, and it may be written to.
    let mut one = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: it is one.
    assert_eq!(unsafe { libc::poll(&raw mut one, 1, 5) }, 0);
    one.events = libc::POLLOUT;
    // SAFETY: it is one.
    assert_eq!(unsafe { libc::poll(&raw mut one, 1, 5) }, 1);
    assert_eq!(one.revents, libc::POLLOUT);
}

#[test]
fn calls_look_and_wait_as_those_of_the_kernel() {
    for preloaded in [true, false] {
        both(("echo", true), ("options", preloaded), 1);
        both(("echo", true), ("selects", preloaded), 1);
    }
}

fn dies() {
    let listener = listener();
    let (mut stream, _) = listener.accept().unwrap();
    let mut bytes = [0; 1];
    loop {
        stream.read_exact(&mut bytes).unwrap();
        if bytes == *b"?" {
            // It makes no call while others wait for one.
            std::thread::sleep(Duration::from_millis(300));
        }
        if bytes == *b"!" || bytes == *b"?" {
            break;
        }
        stream.write_all(&bytes).unwrap();
    }
    // SAFETY: no destructor runs, and no other call.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

fn is_left() {
    let mut stream = connect();
    stream.write_all(b"!").unwrap();
    reads_an_end(&mut stream);
}

/// As TCP: an end or a reset, and soon.
fn reads_an_end(stream: &mut TcpStream) {
    let began = Instant::now();
    let end = stream.read(&mut [0]);
    assert!(
        matches!(&end, Ok(0)) || end.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
    );
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_process_that_is_killed_ends_its_connections() {
    let mut server = Program::start("dies", true, None);
    let address = server.address();
    let mut client = Program::start("is left", true, Some(address));
    client.wait_moved(1);
    server.wait_moved(1);
    assert_eq!(client.end(), 1);
    let _ = server.child.wait();
}

#[test]
fn two_clients_one_after_the_other() {
    let mut server = Program::start("echo twice", true, None);
    let address = server.address();
    for number in 1..=2 {
        let mut client = Program::start("asks", true, Some(address));
        client.wait_moved(1);
        server.wait_moved(number);
        assert_eq!(client.end(), 1);
    }
    assert_eq!(server.end(), 2);
}
