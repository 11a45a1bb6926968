//! Commands that a signal ends: their peers hear of it at once, also where they would wait ten minutes for one that is silent.

mod support;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use netvm::{Error, Modes, Port, PortConfig, Timeout};
use netvm_process::SoftNode;
use rustix::process::{Pid, Signal, kill_process};
use support::{PATIENCE, Running, json, name, says, serve_with, text};

/// Far longer than any test waits.
const SILENCE: Duration = Duration::from_secs(600);

/// Those that end a command. One that is ignored here is so in every child: in the background of a shell, for instance.
fn signals() -> impl Iterator<Item = Signal> {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.expect("a set").trim(), 16).expect("a number");
    [Signal::HUP, Signal::INT, Signal::TERM]
        .into_iter()
        .filter(move |signal| ignored >> (signal.as_raw() - 1) & 1 == 0)
}

fn send(process: &Child, signal: Signal) {
    kill_process(Pid::from_child(process), signal).expect("a child");
}

fn ends(process: &mut Child) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = process.try_wait().expect("a child") {
            return status;
        }
        assert!(begin.elapsed() < PATIENCE, "it goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn patient_server(of: &str) -> (Running, String, String) {
    let silence = SILENCE.as_millis().to_string();
    serve_with(&name(of), &["--peer-timeout", &silence])
}

#[test]
fn a_server_bids_farewell_and_has_ended_well() {
    for (at, signal) in signals().enumerate() {
        let (mut server, number, udp) = patient_server(&format!("farewell-{at}"));
        let builder = SoftNode::builder().udp("127.0.0.1:0").peer_timeout(SILENCE);
        let node = builder.start().expect("a node");
        let peer = node.connect(&format!("udp://{udp}"), PATIENCE).expect("a link");
        assert_eq!(peer.0.to_string(), number);
        let port = Port::open(&node.node(), PortConfig::default()).expect("a port");
        let modes = Modes::READ | Modes::WRITE;
        let remote = port
            .import_with(peer, 1.into(), "netvm-serve", modes, PATIENCE)
            .expect("an import");
        remote.write(0, &[1_u8; 8]).post().expect("posted");
        port.flush_remote(peer).expect("landed");

        send(&server.0, signal);
        assert!(ends(&mut server.0).success(), "{signal:?}");
        let begin = Instant::now();
        let end = loop {
            let posted = remote.write(0, &[2_u8; 8]).post();
            if let Err(error) = posted.and_then(|_| port.flush_remote_for(peer, Timeout::After(PATIENCE))) {
                break error;
            }
        };
        assert!(
            begin.elapsed() < PATIENCE && !matches!(end, Error::TimedOut),
            "{end}"
        );
    }
}

#[test]
fn a_client_bids_farewell_and_tells_which_signal_it_was() {
    let (_server, number, udp) = patient_server("left");
    let links = ["show", "links", "--node", &number, "--json"];
    let is_up = || {
        let shown = json(&links);
        let mut links = shown["links"].as_array().expect("links").iter();
        links.any(|link| link["kind"] == "udp" && link["state"] == "up")
    };
    for signal in signals() {
        let silence = SILENCE.as_millis().to_string();
        let name = format!("udp://{udp}");
        let mut client = Running::start(&["ping", &name, "--count", "1000000", "--peer-timeout", &silence]);
        client.line();
        assert!(is_up());
        send(&client.0, signal);
        assert_eq!(ends(&mut client.0).code(), Some(128 + signal.as_raw()));
        let begin = Instant::now();
        while is_up() {
            assert!(begin.elapsed() < PATIENCE, "{signal:?}: the server waits for it");
        }
    }
}

/// As under `nohup`.
#[test]
fn an_ignored_signal_stays_ignored() {
    let name = name("ignored");
    let program = env!("CARGO_BIN_EXE_netvm");
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh", program, "serve", &name])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = shell.spawn().expect("a shell");
    let mut out = BufReader::new(child.stdout.take().expect("its output"));
    let mut server = Running::beside(child);
    out.read_line(&mut String::new()).expect("a line");
    send(&server.0, Signal::HUP);
    says(&["ping", &name, "--count", "2", "--interval", "0"]);
    send(&server.0, Signal::TERM);
    assert!(ends(&mut server.0).success());
}

#[test]
fn a_relay_tells_what_it_has_passed_on() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netvm"));
    command.args(["relay", "127.0.0.1:0", "127.0.0.1:9"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("netvm starts");
    let mut out = BufReader::new(child.stdout.take().expect("its output"));
    let mut relay = Running::beside(child);
    out.read_line(&mut String::new()).expect("a line");
    send(&relay.0, Signal::TERM);
    assert!(ends(&mut relay.0).success());
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).expect("its output");
    assert_eq!(text(&rest), "0 datagrams, 0 of them harmed\n");
}
