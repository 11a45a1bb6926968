//! What the program tells of links on standard error: nothing unless it is asked, and never among its results.

mod support;

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{ChildStderr, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use support::{PATIENCE, Running, name, says, serve, text};

fn with(log: Option<&str>, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netvm"));
    command.args(args).stdin(Stdio::null()).env_remove("NETVM_LOG");
    if let Some(log) = log {
        command.env("NETVM_LOG", log);
    }
    command.output().expect("netvm starts")
}

/// A server that tells what happens, and what it has told.
struct Teller {
    process: Running,
    told: Receiver<String>,
    all: Vec<String>,
}

impl Teller {
    fn serve(args: &[&str]) -> (Self, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netvm"));
        command.args(["serve", "-vv", "--json"]).args(args);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Running::beside(command.spawn().expect("netvm starts"));
        let errors = process.0.stderr.take().expect("its errors");
        let mut first = String::new();
        let mut output = BufReader::new(process.0.stdout.take().expect("its output"));
        output.read_line(&mut first).expect("a line");
        let teller = Self {
            process,
            told: lines(errors),
            all: Vec::new(),
        };
        (teller, first)
    }

    /// Waits until all of these words stand in one line, and gives that.
    fn tells(&mut self, words: &[&str]) -> String {
        let begin = Instant::now();
        let has = |line: &str| words.iter().all(|word| line.contains(word));
        loop {
            if let Some(line) = self.all.iter().find(|line| has(line)) {
                return line.clone();
            }
            let left = PATIENCE.saturating_sub(begin.elapsed());
            match self.told.recv_timeout(left) {
                Ok(line) => self.all.push(line),
                Err(_) => panic!("never {words:?}: {:#?}", self.all),
            }
        }
    }
}

fn lines(errors: ChildStderr) -> Receiver<String> {
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(errors).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

#[test]
fn nothing_is_told_unless_it_is_asked_for() {
    let name = name("logs-quiet");
    let _server = serve(&name);
    let ping = ["ping", &name, "--count", "3", "--json"];
    for log in [None, Some(""), Some("off"), Some("other=debug")] {
        let output = with(log, &ping);
        assert!(output.status.success(), "{log:?}");
        assert_eq!(text(&output.stderr), "", "{log:?}");
    }
    let asked = [
        (Some("info"), &ping[..]),
        (Some("netvm_soft=info"), &ping[..]),
        (None, &["-v", "ping", &name, "--json"]),
        // The command line comes first.
        (Some("off"), &["ping", "-vv", &name, "--json"]),
    ];
    for (log, args) in asked {
        let output = with(log, args);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{log:?} {args:?}: {err}");
        let told = |line: &str| line.contains("a link is made") && line.contains("shared memory");
        assert!(err.lines().any(told), "{log:?} {args:?}: {err}");
        assert!(!err.contains('\x1b'), "{err}");
        let result: serde_json::Value = serde_json::from_str(&out).expect("one JSON object alone");
        assert!(result["microseconds"].is_object(), "{out}");
    }
    let output = with(Some("info"), &["ping", "udp://127.0.0.1:9", "--json"]);
    let err = text(&output.stderr);
    assert!(
        err.contains("a node is given up") && err.contains("127.0.0.1:9"),
        "{err}"
    );
    let output = with(Some("netvm=loud"), &ping);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("NETVM_LOG=netvm=loud"), "{err}");
}

#[test]
fn a_server_tells_who_comes_and_goes() {
    let name = name("logs-served");
    let (mut server, _) = Teller::serve(&[&name]);
    let client = Running::in_background(&["ping", &name, "--count", "1000000", "--interval", "1"]);
    let made = server.tells(&["a link is made", "shared memory"]);
    let peer = made.split_whitespace().find(|word| word.starts_with("peer="));
    server.tells(&["a peer is there", peer.expect("a number")]);
    drop(client);
    server.tells(&["a link is lost: the peer's process has ended"]);
    server.tells(&["a peer is gone"]);
    assert!(
        server.process.0.try_wait().expect("asked").is_none(),
        "it goes on"
    );
}

#[test]
fn forged_datagrams_are_told_at_most_once_a_second() {
    let folder = std::env::temp_dir().join(format!("netvm-logs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let key = folder.join("key");
    let key = key.to_str().expect("UTF-8");
    says(&["key", "new", "--out", key]);
    let (mut server, first) =
        Teller::serve(&[&name("logs-keyed"), "--udp", "127.0.0.1:0", "--key-file", key]);
    let served: serde_json::Value = serde_json::from_str(&first).expect("JSON");
    let address = served["udp"].as_str().expect("an address");
    // A greeting of a node with another key, as a network gives it: recorded, and sent again and again.
    let other = folder.join("other");
    let other = other.to_str().expect("UTF-8");
    says(&["key", "new", "--out", other]);
    let trap = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    trap.set_read_timeout(Some(PATIENCE)).expect("a time");
    let trapped = format!("udp://{}", trap.local_addr().expect("an address"));
    let greets = Running::in_background(&["ping", &trapped, "--key-file", other]);
    let mut greeting = [0; 2048];
    let (len, _) = trap.recv_from(&mut greeting).expect("a greeting");
    drop(greets);
    let begin = Instant::now();
    let mut sent = 0u32;
    while begin.elapsed() < Duration::from_millis(2_500) {
        trap.send_to(&greeting[..len], address).expect("sent");
        sent += 1;
        std::thread::yield_now();
    }
    server.tells(&["datagrams are refused", "forged="]);
    let took = begin.elapsed().as_secs();
    server.all.extend(server.told.try_iter());
    let told = |line: &&String| line.contains("datagrams are refused");
    let told = server.all.iter().filter(told).count() as u64;
    assert!(sent > 100, "{sent} were sent");
    assert!(told <= took + 1, "{told} times within {took} s");
    std::fs::remove_dir_all(&folder).expect("removed");
}
