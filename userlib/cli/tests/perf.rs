//! `netvm perf` and the part that a `netvm serve` takes in it.

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use netvm::{Access, ChannelConfig, Port, PortConfig, PortId, Receiver, Sender, SharedSender, Timeout};
use netvm_process::SoftNode;
use serde_json::Value;
use support::{netvm, text};

const PATIENCE: Duration = Duration::from_secs(20);

/// Runs it, wants this exit status, gives standard output and standard error.
fn exits(status: i32, args: &[&str]) -> (String, String) {
    let output = netvm(args);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "netvm {args:?}\n{out}\n{err}");
    (out, err)
}

/// The lines of a measurement, each with a rate and a time.
fn lines(args: &[&str]) -> Vec<Value> {
    let (out, _) = exits(0, &[&["perf"], args, &["--time", "20", "--json"]].concat());
    let report: Value = serde_json::from_str(&out).expect("JSON");
    let lines = report["lines"].as_array().expect("lines").clone();
    for line in &lines {
        for value in [&line["per_second"], &line["microseconds"]["median"]] {
            assert!(value.as_f64() > Some(0.0), "{line}");
        }
    }
    lines
}

/// A `netvm serve` of a test's own, killed when dropped.
struct Server {
    process: Child,
    name: String,
    node: String,
    udp: Option<String>,
}

impl Server {
    fn start(name: &str, options: &[&str]) -> Self {
        let name = format!("perf-{name}-{}", std::process::id());
        let mut process = Command::new(env!("CARGO_BIN_EXE_netvm"))
            .args(["serve", &name, "--json"])
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .expect("netvm starts");
        let out = process.stdout.take().expect("its output");
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).expect("a line");
        let said: Value = serde_json::from_str(&line).expect("JSON");
        let udp = said["udp"].as_str().map(|udp| format!("udp://{udp}"));
        let node = said["node"].to_string();
        Self {
            process,
            name,
            node,
            udp,
        }
    }

    /// Its ports: one, and one for each session.
    fn ports(&self) -> usize {
        let (out, _) = exits(0, &["show", "ports", "--node", &self.node, "--json"]);
        let said: Value = serde_json::from_str(&out).expect("JSON");
        said["ports"].as_array().expect("a list").len()
    }

    /// Waits until it has so many ports.
    fn until_ports(&mut self, count: usize) {
        let begin = Instant::now();
        while self.ports() != count {
            assert!(begin.elapsed() < PATIENCE, "never {count} ports");
            self.is_well();
        }
    }

    /// It lives, and serves another client.
    fn is_well(&mut self) {
        assert_eq!(self.process.try_wait().expect("a child"), None, "it has ended");
        exits(0, &["ping", &self.name, "--count", "2", "--interval", "0"]);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A node of this process that does what it likes to a server.
struct Client {
    port: Port,
    peer: netvm::NodeId,
    _node: SoftNode,
}

impl Client {
    fn of(server: &Server) -> Self {
        let node = SoftNode::builder().start().expect("a node");
        let peer = node.connect(&server.name, PATIENCE).expect("a link");
        let port = Port::open(&node.node(), PortConfig::default()).expect("a port");
        Self {
            port,
            peer,
            _node: node,
        }
    }

    fn requests(&self) -> SharedSender {
        SharedSender::join(&self.port, self.peer, PortId(1), "netvm-requests", PATIENCE).expect("the queue")
    }

    fn channel(&self, name: &str) -> Receiver {
        Receiver::open(&self.port, name, ChannelConfig::default()).expect("a channel")
    }
}

/// A server in this process, without sessions, of memory that the card never has.
fn serve_adopted() -> (impl Sized, String) {
    let name = format!(
        "perf-adopted-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    );
    let name = name.replace(['(', ')'], "");
    let node = SoftNode::builder().name(&name).start().expect("a node");
    let port = Port::open(&node.node(), PortConfig::number(1)).expect("a port");
    let mut bytes = vec![0_u8; 64 * ((1 << 20) + 4096)];
    let start = NonNull::new(bytes.as_mut_ptr()).expect("an address");
    // SAFETY: the bytes outlive the region, and nothing refers to them meanwhile.
    let memory = unsafe { port.adopt(start, bytes.len() as u64) }.expect("memory");
    let access = Access::everyone().notify(1..=1);
    let export = port
        .export("netvm-serve", &memory, .., access)
        .expect("an export");
    // In this order they go.
    ((export, memory, port, node, bytes), name)
}

fn answer(answers: &mut Receiver) -> Value {
    let message = answers
        .recv(PATIENCE)
        .expect("an answer")
        .to_vec()
        .expect("bytes");
    serde_json::from_slice(&message).expect("JSON")
}

#[test]
fn messages_of_a_channel_are_measured_over_each_wire() {
    let server = Server::start("channel", &["--udp", "127.0.0.1:0"]);
    let by_udp = server.udp.clone().expect("an address");
    for name in [&server.name, &by_udp] {
        let lines = lines(&[name, "--what", "channel", "--sizes", "1,5000,1048576"]);
        let sizes: Vec<u64> = lines.iter().filter_map(|line| line["size"].as_u64()).collect();
        assert_eq!(sizes, [1, 5000, 1_048_576], "{name}");
        for line in &lines {
            assert_eq!(line["operation"], "channel");
            assert_eq!(line["timed"], "half of a round trip");
            let spread = &line["microseconds"];
            let at = |place: &str| spread[place].as_f64().expect("a time");
            assert!(at("least") <= at("median") && at("median") <= at("p99"), "{line}");
            assert!(at("p99") <= at("p999") && at("p999") <= at("most"), "{line}");
        }
    }
    let (out, _) = exits(
        0,
        &[
            "perf",
            &server.name,
            "--what",
            "channel",
            "--sizes",
            "8",
            "--time",
            "20",
        ],
    );
    assert!(out.contains("half of a round trip"), "{out}");
}

#[test]
fn both_directions_are_measured_at_once() {
    let server = Server::start("both", &["--udp", "127.0.0.1:0"]);
    let by_udp = server.udp.clone().expect("an address");
    for name in [&server.name, &by_udp] {
        let lines = lines(&[name, "--both", "--sizes", "8,65536", "--depth", "16"]);
        assert_eq!(lines.len(), 6, "{name}");
        for line in &lines {
            for value in [&line["back"]["per_second"], &line["back"]["microseconds"]["p99"]] {
                assert!(value.as_f64() > Some(0.0), "{line}");
            }
        }
    }
    let (out, _) = exits(
        0,
        &["perf", &server.name, "--both", "--what", "notify", "--time", "20"],
    );
    assert!(out.contains("\n  back"), "{out}");
    let (_, err) = exits(2, &["perf", &server.name, "--both", "--what", "channel"]);
    assert!(err.contains("leave `channel` out"), "{err}");
}

/// Messages that landed in place, and that were bounced.
fn landed(line: &Value) -> (u64, u64) {
    let count = |name: &str| line[name].as_u64().unwrap_or_else(|| panic!("{name} in {line}"));
    (count("in_place"), count("bounced"))
}

#[test]
fn what_is_bounced_is_told_where_the_server_is_on_this_machine() {
    let server = Server::start("landed", &["--udp", "127.0.0.1:0"]);
    let write = ["--what", "write", "--sizes", "1048576", "--depth", "4"];
    let used = lines(&[&[server.name.as_str()], &write[..]].concat());
    let (in_place, bounced) = landed(&used[0]);
    assert!(in_place > 255 && bounced == 0, "{used:?}");

    // Memory that a program hands over is not given to the card, which reaches what is there.
    let (_foreign, name) = serve_adopted();
    for what in ["write", "read", "atomic"] {
        let all = lines(&[&name, "--what", what, "--sizes", "8192", "--depth", "4"]);
        let (in_place, bounced) = landed(&all[0]);
        assert!(in_place + bounced > 2, "{all:?}");
    }

    let udp = server.udp.clone().expect("an address");
    let all = lines(&[&udp, "--both", "--sizes", "64", "--depth", "4"]);
    for line in &all {
        for way in [line, &line["back"]] {
            let (in_place, bounced) = landed(way);
            assert_eq!(in_place + bounced > 0, line["operation"] != "notify", "{line}");
        }
    }

    // A relay stands for a network behind which may be anything.
    let mut relay = Command::new(env!("CARGO_BIN_EXE_netvm"))
        .args(["relay", "127.0.0.1:0", &udp["udp://".len()..], "--lost", "0"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("netvm starts");
    let mut line = String::new();
    let out = relay.stdout.take().expect("its output");
    BufReader::new(out).read_line(&mut line).expect("a line");
    let far = line.split_whitespace().next().expect("an address");
    let unknown = lines(&[&[far], &write[..]].concat());
    assert!(
        unknown[0]["in_place"].is_null() && unknown[0]["bounced"].is_null(),
        "{unknown:?}"
    );
    let (out, _) = exits(
        0,
        &["perf", far, "--what", "read", "--sizes", "8", "--time", "20"],
    );
    assert!(out.contains(" unknown\n"), "{out}");
    relay.kill().expect("a child");
    relay.wait().expect("a child");
}

#[test]
fn a_client_that_dies_in_a_measurement_disturbs_no_other() {
    let mut server = Server::start("dies", &[]);
    for options in [
        &["--both", "--what", "write", "--sizes", "65536"][..],
        &["--both", "--what", "read", "--sizes", "8"],
        &["--what", "channel", "--sizes", "4096"],
    ] {
        let mut client = Command::new(env!("CARGO_BIN_EXE_netvm"))
            .args(["perf", &server.name, "--time", "1000000"])
            .args(options)
            .stdout(Stdio::null())
            .spawn()
            .expect("netvm starts");
        server.until_ports(2);
        server.is_well();
        // One that does not go on keeps its session, and no more.
        let id = rustix::process::Pid::from_child(&client);
        rustix::process::kill_process(id, rustix::process::Signal::STOP).expect("a child");
        server.is_well();
        lines(&[
            &server.name,
            "--both",
            "--what",
            "write",
            "--sizes",
            "8",
            "--depth",
            "4",
        ]);
        client.kill().expect("a child");
        client.wait().expect("a child");
        server.until_ports(1);
    }
    server.is_well();
}

#[test]
fn a_server_without_sessions_is_told_apart() {
    let (_older, name) = serve_adopted();
    let (_, err) = exits(3, &["perf", &name, "--time", "20"]);
    assert!(err.contains("another release") && err.contains("--what"), "{err}");
    lines(&[&name, "--what", "notify"]);
}

#[test]
fn hostile_requests_and_orders_disturb_no_other_client() {
    let mut server = Server::start("hostile", &[]);
    let client = Client::of(&server);
    let requests = client.requests();
    // Requests that are none, and one of which the channel for the answer is not there.
    for text in [
        &b"\0"[..],
        b"{}",
        b"[[[[[[[[[[[[[[[[[[[[[[[[",
        br#"{"version":1}"#,
        br#"{"version":1,"serial":-1}"#,
        br#"{"version":1,"serial":1,"more":2}"#,
        br#"{"version":1,"serial":123}"#,
    ] {
        requests.send(text, PATIENCE).expect("room in the queue");
        server.is_well();
    }
    // Of a later version.
    let mut answers = client.channel("netvm-answers-2");
    requests
        .send(br#"{"version":9,"serial":2}"#, PATIENCE)
        .expect("room in the queue");
    let said = answer(&mut answers);
    assert!(
        said["Refused"]["why"]
            .as_str()
            .is_some_and(|why| why.contains('9')),
        "{said}"
    );

    let mut answers = client.channel("netvm-answers-a");
    requests
        .send(br#"{"version":1,"serial":10}"#, PATIENCE)
        .expect("room in the queue");
    let ready = answer(&mut answers);
    let port = PortId(ready["Ready"]["port"].as_u64().expect("a port") as u16);
    // Another port of this node has no part in it.
    let other = Client::of(&server);
    let joined = Sender::join(&other.port, other.peer, port, "netvm-orders", Timeout::Now);
    assert!(joined.is_err(), "{joined:?}");
    let mut orders = Sender::join(&client.port, client.peer, port, "netvm-orders", PATIENCE).expect("orders");
    let memory = client.port.alloc(4096).expect("memory");
    let _little = client
        .port
        .export("netvm-mirror", &memory, .., Access::everyone());
    for text in [
        &b"\xFF"[..],
        br#""Everything""#,
        br#"{"Channel":{"size":8}}"#,
        br#"{"Channel":{"size":0,"capacity":8}}"#,
        br#"{"Channel":{"size":8,"capacity":0}}"#,
        br#"{"Channel":{"size":1048577,"capacity":1}}"#,
        br#"{"Channel":{"size":1048576,"capacity":1024}}"#,
        br#"{"Channel":{"size":4294967295,"capacity":4294967295}}"#,
        // No memory has been offered yet, and then too little.
        br#"{"Singles":{"kind":"Atomic","depth":1,"millis":1}}"#,
        br#""Mirror""#,
        br#"{"Rate":{"kind":{"Write":0},"depth":1,"millis":1}}"#,
        br#"{"Rate":{"kind":{"Read":1048577},"depth":1,"millis":1}}"#,
        br#"{"Rate":{"kind":"Notify","depth":4294967295,"millis":1}}"#,
        br#"{"Rate":{"kind":"Notify","depth":1,"millis":18446744073709551615}}"#,
    ] {
        orders.send(text, PATIENCE).expect("an order");
        let said = answer(&mut answers);
        assert!(
            said["Refused"].is_object(),
            "{}: {said}",
            String::from_utf8_lossy(text)
        );
    }
    // A channel that carries what has no place in it.
    for message in [&b""[..], b"\x07"] {
        let _returns = client.channel("netvm-returns");
        let order = br#"{"Channel":{"size":64,"capacity":4}}"#;
        orders.send(&order[..], PATIENCE).expect("an order");
        assert_eq!(answer(&mut answers), "Open");
        let messages = Sender::join(&client.port, client.peer, port, "netvm-messages", PATIENCE);
        messages
            .expect("messages")
            .send(message, PATIENCE)
            .expect("a message");
        assert!(answer(&mut answers)["Refused"].is_object());
    }
    lines(&[&server.name, "--what", "channel", "--sizes", "8"]);
    server.is_well();
}
