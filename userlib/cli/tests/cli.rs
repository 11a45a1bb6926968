//! The program as a person meets it: what it prints and how it exits.

use std::fs::File;
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn netvm(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_netvm"))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("netvm starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs it, wants this exit status, gives standard output and standard error.
fn exits(status: i32, args: &[&str]) -> (String, String) {
    let output = netvm(args);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "netvm {args:?}\n{out}\n{err}");
    (out, err)
}

/// Standard output is exactly one JSON object.
fn json(out: &str) -> Value {
    assert_eq!(out.lines().count(), 1, "{out}");
    serde_json::from_str(out).expect("JSON")
}

/// A file of this test's own, gone when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("netvm-cli-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).expect("a scratch file");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a path in UTF-8")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn help_names_commands_options_and_exit_statuses() {
    let (out, _) = exits(0, &["--help"]);
    for word in ["demo", "sim", "doctor", "Exit status", "  3  "] {
        assert!(out.contains(word), "{word} in {out}");
    }
    for (command, options) in [
        (
            "demo",
            &[
                "--file",
                "--mib",
                "--resident-mib",
                "--processes",
                "--pcap",
                "--json",
                "[default: 256]",
            ][..],
        ),
        (
            "sim",
            &["--seeds", "--seed ", "--nodes", "--trace", "--json", "--messages"][..],
        ),
        ("bench", &["sync", "wire", "net", "lease"][..]),
        ("top", &["--interval", "--once", "--json", "--node", "Keys:"][..]),
        ("doctor", &["--json"][..]),
    ] {
        let (out, _) = exits(0, &[command, "--help"]);
        for option in options.iter().chain(&["Exit status"]) {
            assert!(out.contains(option), "{option} in {out}");
        }
    }
    exits(0, &["--version"]);
}

#[test]
fn a_command_line_that_makes_no_sense_is_refused() {
    for args in [
        &[][..],
        &["dance"],
        &["demo", "--loud"],
        &["demo", "--mib", "0"],
        &["demo", "--mib", "99999999999"],
        &["demo", "--mib", "many"],
        &["demo", "--mib", "-1"],
        &["demo", "--resident-mib", "0"],
        &["demo", "--mib", "4", "--resident-mib", "4"],
        &["sim", "--seeds", "0"],
        &["sim", "--nodes", "1"],
        &["sim", "--nodes", "70000"],
        &["sim", "--seed", "1", "--seeds", "2"],
        &["sim", "--trace"],
        &["sim", "--seed", "1", "--trace", "--json"],
        &["sim", "--minutes", "1"],
        &["sim", "--enumerate", "--seeds", "2"],
        &["sim", "--enumerate", "--point", "ping_pong:700:card-hangs"],
        &["sim", "--enumerate", "--from", "1", "--resume", "file"],
        &["sim", "--enumerate", "--resume", "no such folder/file"],
        &["sim", "--enumerate", "--resume", "/"],
        &["sim", "--point", "ping_pong:700:card-hangs", "--nodes", "4"],
        &["sim", "--enumerate", "--body", "no such body"],
        &["sim", "--enumerate", "--fault", "flood"],
        &["sim", "--point", "ping_pong:700"],
        &["sim", "--first-seed", "18446744073709551615", "--seeds", "2"],
    ] {
        let (_, err) = exits(2, args);
        assert!(!err.is_empty(), "{args:?} says nothing");
        assert!(!err.contains("panicked"), "{args:?}: {err}");
    }
    for (args, says) in [
        (&["demo", "--mib", "-1"][..], "a whole number from 1 to 16384"),
        (&["sim", "--nodes", "-1"], "a whole number from 2 to 4096"),
        (
            &["sim", "--first-seed", "-1"],
            "a whole number from 0 to 18446744073709551615",
        ),
        (
            &["sim", "--seed", "x"],
            "a whole number from 0 to 18446744073709551615",
        ),
    ] {
        let (_, err) = exits(2, args);
        assert!(err.contains(says), "{args:?}: {err}");
    }
}

#[test]
fn a_file_that_cannot_be_sent_is_refused_before_anything_runs() {
    let empty = Scratch::new("empty", b"");
    for (path, says) in [
        ("/nowhere/at/all", "No such file"),
        ("/", "directory"),
        ("/dev/null", "not a regular file"),
        ("/proc/self/mem", "error"),
        (empty.path(), "empty"),
    ] {
        let (out, err) = exits(2, &["demo", "--file", path]);
        assert!(
            out.is_empty() && err.contains(says) && err.contains(path),
            "{path}: {out}{err}"
        );
    }
    let (_, err) = exits(
        2,
        &["demo", "--file", "/nowhere", "--mib", "4", "--resident-mib", "4"],
    );
    assert!(err.contains("/nowhere"), "the file is looked at first: {err}");
}

#[test]
fn a_capture_that_cannot_be_written_is_refused() {
    let (_, err) = exits(2, &["demo", "--mib", "2", "--pcap", "/nowhere/x.pcap"]);
    assert!(err.contains("/nowhere/x.pcap"), "{err}");
    let (_, err) = exits(2, &["demo", "--mib", "2", "--pcap", "/dev/full"]);
    assert!(err.contains("not a regular file"), "{err}");
    let both = Scratch::new("both", b"some bytes");
    let (_, err) = exits(
        2,
        &["demo", "--mib", "2", "--file", both.path(), "--pcap", both.path()],
    );
    assert!(err.contains("is the file that is sent"), "{err}");
    assert_eq!(std::fs::read(both.path()).expect("still there"), b"some bytes");
}

#[test]
fn a_machine_without_room_for_swap_is_told_apart() {
    for command in ["demo", "doctor"] {
        let mut netvm = Command::new(env!("CARGO_BIN_EXE_netvm"));
        let output = netvm
            .arg(command)
            .env("TMPDIR", "/nowhere/tmp")
            .output()
            .expect("netvm starts");
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{command}: {err}");
        assert!(err.contains("TMPDIR"), "{command}: {err}");
    }
}

#[test]
fn the_demo_sends_what_the_file_holds() {
    let file = Scratch::new("source", b"NetVM moves pages, not pins. ");
    let pcap = Scratch::new("wires.pcap", b"");
    let args = [
        "demo",
        "--json",
        "--mib",
        "4",
        "--resident-mib",
        "1",
        "--file",
        file.path(),
        "--pcap",
        pcap.path(),
    ];
    let (out, _) = exits(0, &args);
    let report = json(&out);
    assert_eq!(report["ok"], true, "{out}");
    assert_eq!(report["digest_match"], true);
    assert_eq!(report["bytes"], 4 << 20);
    assert_eq!(report["resident_bytes"], 1 << 20);
    assert_eq!(report["notifications"], 4);
    let sent: Vec<u8> = b"NetVM moves pages, not pins. "
        .iter()
        .copied()
        .cycle()
        .take(4 << 20)
        .collect();
    assert_eq!(report["digest"], blake3::hash(&sent).to_hex().to_string());
    assert_eq!(report["file"], file.path());
    for counter in ["dropped", "retransmitted", "pinned_bytes", "staged_bytes"] {
        assert_eq!(report[counter], 0, "{counter}");
    }
    for counter in ["zero_copy_pages", "bounced_pages", "evictions", "bounce_bytes"] {
        assert!(
            report[counter].as_u64().is_some_and(|value| value > 0),
            "{counter}: {out}"
        );
    }
    for speed in ["mib_per_s", "memcpy_mib_per_s", "seconds"] {
        assert!(
            report[speed].as_f64().is_some_and(|value| value > 0.0),
            "{speed}: {out}"
        );
    }
    assert_eq!(report["problems"], Value::Array(Vec::new()));

    let wires = std::fs::read(pcap.path()).expect("the capture");
    assert!(
        wires.len() > 4 << 20,
        "the data crossed the wire: {} bytes",
        wires.len()
    );
    assert!(
        [[0xd4, 0xc3, 0xb2, 0xa1], [0xa1, 0xb2, 0xc3, 0xd4]]
            .iter()
            .any(|magic| wires.starts_with(magic))
    );
}

#[test]
fn the_demo_prints_a_table() {
    let (out, _) = exits(0, &["demo", "--mib", "1"]);
    for word in ["written in place", "bounced", "pinned", "ok: nothing pinned"] {
        assert!(out.contains(word), "{word} in {out}");
    }
}

#[test]
fn seeds_replay_byte_for_byte() {
    let args = [
        "sim",
        "--seed",
        "7",
        "--nodes",
        "3",
        "--messages",
        "500",
        "--trace",
    ];
    let (first, _) = exits(0, &args);
    let (second, _) = exits(0, &args);
    assert!(first.lines().count() > 500, "{} lines", first.lines().count());
    assert!(first == second, "two runs of a seed differ");
    let (other, _) = exits(
        0,
        &[
            "sim",
            "--seed",
            "8",
            "--nodes",
            "3",
            "--messages",
            "500",
            "--trace",
        ],
    );
    assert!(first != other, "the seed makes no difference");
}

#[test]
fn a_crash_point_replays() {
    let point = ["sim", "--point", "ping_pong:700:process-dies", "--trace"];
    let (first, _) = exits(0, &point);
    assert!(first.contains("access=700"), "{first}");
    let (second, _) = exits(0, &point);
    assert!(first == second, "two runs of a point differ");
    // No run has so many accesses.
    let (_, told) = exits(1, &["sim", "--point", "ping_pong:1000000000:card-hangs"]);
    assert!(told.contains("never reached"), "{told}");
}

#[test]
fn a_list_of_seeds_ends_ok() {
    let args = [
        "sim",
        "--seeds",
        "2",
        "--first-seed",
        "40",
        "--nodes",
        "2",
        "--messages",
        "300",
    ];
    let (out, _) = exits(0, &args);
    assert!(out.starts_with("seeds 40 to 41, 2 nodes each"), "{out}");
    assert!(
        out.contains("hostile: frame") && out.ends_with("\n2 seeds: ok\n"),
        "{out}"
    );

    let mut with_json = args.to_vec();
    with_json.push("--json");
    let (out, _) = exits(0, &with_json);
    let sum = json(&out);
    assert_eq!(sum["ok"], true, "{out}");
    assert_eq!(sum["seeds"], 2);
    assert_eq!(sum["seeds_asked"], 2);
    assert_eq!(sum["first_seed"], 40);
    assert_eq!(sum["nodes"], 2);
    assert!(
        sum["fewest_messages"]
            .as_u64()
            .is_some_and(|messages| messages >= 300),
        "{out}"
    );
    for number in ["messages", "events", "virtual_nanos", "bytes_per_node"] {
        assert!(
            sum[number].as_u64().is_some_and(|value| value > 0),
            "{number}: {out}"
        );
    }
    for number in ["seconds", "seconds_per_node"] {
        assert!(
            sum[number].as_f64().is_some_and(|value| value > 0.0),
            "{number}: {out}"
        );
    }
    assert!(
        sum["counters"]["messages_sent"]
            .as_u64()
            .is_some_and(|value| value > 0),
        "{out}"
    );
    assert!(
        sum["coverage"]["bus: store held back"]["in flight"].is_u64(),
        "{out}"
    );
    assert!(
        sum["never_fired"].is_array() && sum["failures"] == Value::Array(Vec::new()),
        "{out}"
    );
}

#[test]
fn the_doctor_knows_every_back_end() {
    let (out, _) = exits(0, &["doctor"]);
    for word in [
        "software card",
        "nothing is encrypted",
        "emulator",
        "userfaultfd",
        "simulator",
        "/dev/netvm0",
        "qemu-system-x86_64",
    ] {
        assert!(out.contains(word), "{word} in {out}");
    }
    let (out, _) = exits(0, &["doctor", "--json"]);
    let found = json(&out);
    assert_eq!(found["ok"], true);
    let backends = found["backends"].as_array().expect("a list");
    assert_eq!(backends.len(), 6);
    for backend in backends {
        assert!(
            backend["works"] == true || backend["everywhere"] == false,
            "{out}"
        );
        for check in backend["checks"].as_array().expect("a list") {
            assert_eq!(
                check["ok"].as_bool(),
                check["fix"].as_str().map(|_| false).or(Some(true)),
                "{check}"
            );
        }
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut netvm = Command::new(env!("CARGO_BIN_EXE_netvm"));
    let mut child = netvm
        .arg("doctor")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("netvm starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("netvm ends");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

/// Where nothing can be said, the exit status still says it.
#[test]
fn messages_that_cannot_be_written_are_no_panic() {
    let full = || File::options().write(true).open("/dev/full").expect("/dev/full");
    let seed = ["sim", "--seed", "1", "--nodes", "2", "--messages", "50"];
    for (status, args) in [(2, &["demo", "--file", "/"][..]), (0, &seed)] {
        let mut netvm = Command::new(env!("CARGO_BIN_EXE_netvm"));
        let output = netvm.args(args).stderr(full()).output().expect("netvm starts");
        assert_eq!(output.status.code(), Some(status), "{args:?}");
    }
    let mut netvm = Command::new(env!("CARGO_BIN_EXE_netvm"));
    let output = netvm.arg("doctor").stdout(full()).output().expect("netvm starts");
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("cannot write the result"), "{err}");
}

/// The thresholds are the program's own: it fails when one is missed.
#[test]
fn bench_sync_measures_what_operations_cost() {
    let (out, _) = exits(0, &["bench", "sync", "--quick", "--json"]);
    let all = json(&out);
    assert_eq!(all["ok"], true, "{out}");
    let operations = all["operations"].as_array().expect("operations");
    let find = |name: &str| {
        let mut found = operations.iter().filter(|one| one["name"] == name);
        found.next().unwrap_or_else(|| panic!("{name} in {out}"))
    };
    // Thesis 8: one round trip to stand in a queue, one to give or take a token, none to hand a lock over.
    for (name, trips, one_way) in [
        ("read 4 B", 1, 0),
        ("enqueue", 1, 0),
        ("Lock: acquire", 1, 0),
        ("Lock: release", 1, 0),
        ("Lock: release to a sleeper, until it has it", 0, 1),
        ("Semaphore: wait, a token there", 1, 0),
        ("Semaphore: signal, in three phases", 3, 1),
        ("WaitQueue: signal to a sleeper, until it goes on", 1, 1),
        ("ALock at home: acquire + release", 0, 0),
    ] {
        let one = find(name);
        assert_eq!(
            (one["round_trips"].as_u64(), one["one_way"].as_u64()),
            (Some(trips), Some(one_way)),
            "{one}"
        );
    }
    assert_eq!(find("ALock at home: acquire + release")["instructions"], 0);
    assert!(all["crowd"]["jain"].as_f64() > Some(0.99), "{out}");
    // Virtual time: the same on every machine.
    let (again, _) = exits(0, &["bench", "sync", "--quick", "--json"]);
    assert_eq!(json(&again)["operations"], all["operations"]);

    let (out, err) = exits(0, &["bench", "sync", "--quick"]);
    assert!(
        out.ends_with("bench sync: ok\n") && err.contains("operations"),
        "{out}{err}"
    );
}

/// A `netvm serve` of this test's own, killed when dropped.
struct Server(std::process::Child, String);

impl Server {
    fn start(name: &str, options: &[&str]) -> Self {
        use std::io::BufRead;
        let name = format!("{name}-{}", std::process::id());
        let mut child = Command::new(env!("CARGO_BIN_EXE_netvm"))
            .args(["serve", &name, "--json"])
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .expect("netvm starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("its output");
        std::io::BufReader::new(out).read_line(&mut line).expect("a line");
        let said = json(line.trim_end());
        assert_eq!(said["name"], name.as_str());
        let at = said["udp"].as_str().map(|udp| format!("udp://{udp}"));
        Self(child, at.unwrap_or(name))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// With more bytes than a message has.
fn ping_three_times(name: &str) {
    let options = ["--count", "3", "--interval", "1", "--size", "10000"];
    let (out, _) = exits(0, &[&["ping", name], &options[..]].concat());
    assert_eq!(out.lines().count(), 4, "{out}");
    assert!(out.contains("every byte was right"), "{out}");
}

#[test]
fn a_process_serves_and_others_ping_and_measure() {
    let server = Server::start("cli-test", &[]);
    let name = server.1.clone();
    ping_three_times(&name);
    let (out, _) = exits(0, &["ping", &name, "--count", "2", "--interval", "0", "--json"]);
    assert!(json(&out)["microseconds"]["median"].as_f64().expect("a time") > 0.0);
    let (out, _) = exits(
        0,
        &["perf", &name, "--time", "20", "--sizes", "8,65536", "--json"],
    );
    let lines = json(&out)["lines"].as_array().expect("lines").clone();
    assert_eq!(lines.len(), 8);
    assert!(
        lines
            .iter()
            .all(|line| line["per_second"].as_f64().is_some_and(|rate| rate > 0.0))
    );
    let (_, err) = exits(2, &["serve", &name]);
    assert!(err.contains("another node"), "{err}");
    drop(server);
    let (_, err) = exits(3, &["ping", &name]);
    assert!(err.contains("netvm serve"), "{err}");
}

#[test]
fn a_process_serves_by_udp_and_says_what_is_wrong_with_an_address() {
    let server = Server::start("cli-udp", &["--udp", "127.0.0.1:0"]);
    let name = server.1.clone();
    ping_three_times(&name);
    drop(server);
    // At each of its addresses.
    for at in ("localhost", 0).to_socket_addrs().expect("addresses") {
        let server = Server::start("cli-host", &["--udp", &at.to_string()]);
        let (_, port) = server.1.rsplit_once(':').expect("a port");
        ping_three_times(&format!("udp://localhost:{port}"));
    }
    exits(2, &["serve", "udp://cli-bad"]);
    let (_, err) = exits(3, &["ping", &name]);
    assert!(err.contains("no node answers"), "{err}");
    for address in ["nowhere", "127.0.0.1", "127.0.0.1:99999"] {
        let (_, err) = exits(2, &["serve", "cli-bad", "--udp", address]);
        assert!(err.contains(address), "{err}");
        exits(2, &["ping", &format!("udp://{address}")]);
    }
    let (_, err) = exits(2, &["serve", "cli-bad", "--udp", "0.0.0.0:0"]);
    assert!(err.contains("--insecure"), "{err}");
    exits(
        2,
        &["serve", "cli-bad", "--payload", "1001", "--udp", "127.0.0.1:0"],
    );
    for time in ["199", "600001", "soon"] {
        let (_, err) = exits(2, &["ping", &name, "--peer-timeout", time]);
        assert!(err.contains("--peer-timeout"), "{err}");
    }
    for window in ["32", "100", "2048"] {
        let (_, err) = exits(2, &["perf", &name, "--window", window]);
        assert!(err.contains("--window"), "{err}");
    }
    exits(2, &["relay", "127.0.0.1:0", "127.0.0.1:9", "--delay", "-1"]);
    exits(2, &["relay", "127.0.0.1:0", "127.0.0.1:9", "--longest", "0"]);
    exits(2, &["relay", "127.0.0.1:0", "nowhere"]);
    exits(2, &["relay", "127.0.0.1:0", "127.0.0.1:9", "--lost", "99"]);
}

#[test]
fn nodes_with_one_key_meet_and_others_are_told_what_to_do() {
    let folder = std::env::temp_dir().join(format!("netvm-cli-keys-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a scratch folder");
    let file = |name: &str| folder.join(name).to_str().expect("UTF-8").to_owned();
    let (one, two) = (file("one"), file("two"));
    for file in [&one, &two] {
        exits(0, &["key", "new", "--out", file]);
    }
    let (_, err) = exits(2, &["key", "new", "--out", &one]);
    assert!(err.contains("exists already"), "{err}");
    let server = Server::start("cli-key", &["--udp", "127.0.0.1:0", "--key-file", &one]);
    let ping =
        |status, more: &[&str]| exits(status, &[&["ping", &server.1, "--count", "1"], more].concat()).1;
    ping(0, &["--key-file", &one]);
    let err = ping(3, &["--key-file", &two]);
    assert!(
        err.contains("another cluster key") && err.contains("--key-file"),
        "{err}"
    );
    let err = ping(3, &[]);
    assert!(err.contains("cluster key") && err.contains("--key-file"), "{err}");
    let err = ping(2, &["--key-file", &file("absent")]);
    assert!(err.contains("absent"), "{err}");
    std::fs::remove_dir_all(&folder).expect("gone");
}

#[test]
fn nodes_of_this_user_are_listed_by_process() {
    let server = Server::start("cli-listed", &[]);
    let process = server.0.id();
    let (out, _) = exits(0, &["nodes", "--json"]);
    let found = json(&out);
    let all = found["processes"].as_array().expect("a list");
    let mine = all.iter().find(|found| found["process"] == process);
    let mine = mine.expect("the server's process");
    assert_eq!(mine["names"][0], server.1.as_str());
    assert_eq!(mine["nodes"].as_array().map(Vec::len), Some(1));
    let (out, _) = exits(0, &["nodes"]);
    assert!(out.contains(&format!("process {process} (netvm)")), "{out}");
    drop(server);
    let (out, _) = exits(0, &["nodes"]);
    assert!(!out.contains(&format!("process {process} ")), "{out}");
}

#[test]
fn shells_and_manuals_know_every_command() {
    let folder = std::env::temp_dir().join(format!("netvm-manual-{}", std::process::id()));
    exits(0, &["manual", folder.to_str().expect("a path")]);
    for shell in ["bash", "zsh", "fish"] {
        let (out, _) = exits(0, &["completions", shell]);
        for command in [
            "serve", "ping", "perf", "relay", "nodes", "top", "demo", "sim", "doctor",
        ] {
            assert!(out.contains(command), "{command} for {shell}");
            assert!(folder.join(format!("netvm-{command}.1")).is_file(), "{command}");
        }
    }
    std::fs::remove_dir_all(&folder).expect("the folder");
    exits(2, &["completions", "cmd"]);
    exits(2, &["manual", "/proc/no/such/folder"]);
}

/// Times are the machine's own, so nothing is demanded of them.
#[test]
fn bench_lease_measures_two_processes() {
    let (out, _) = exits(0, &["bench", "lease", "--quick", "--json"]);
    let all = json(&out);
    for what in ["extensions", "writes", "reads", "grants", "turns"] {
        let rates = [&all[what]["rate"], &all[what]["beside"], &all[what]["ratio"]];
        let measured = rates.iter().all(|rate| rate.as_f64() > Some(0.0));
        assert!(measured, "{what} in {out}");
    }
    let (out, _) = exits(0, &["bench", "lease", "--quick"]);
    assert!(out.contains("8 B writes under a lease"), "{out}");
}

/// The goals are the program's own: it fails when one is missed that has been reached.
#[test]
fn bench_wire_measures_a_wire_that_loses_frames() {
    let (out, _) = exits(0, &["bench", "wire", "--quick", "--json"]);
    let all = json(&out);
    assert_eq!(all["ok"], true, "{out}");
    let streams = all["streams"].as_array().expect("streams");
    assert!(
        streams.iter().all(|one| one["counted"]["links_lost"] == 0),
        "{out}"
    );
    let lossy = streams.iter().filter(|one| one["setting"]["loss"] != 0);
    assert!(lossy.clone().count() > 1);
    for one in lossy {
        assert!(one["counted"]["again"].as_u64() > Some(0), "{one}");
    }
    let (out, _) = exits(0, &["bench", "wire", "--quick"]);
    assert!(out.ends_with("bench wire: ok\n"), "{out}");
}

/// Times are the machine's, and decide nothing; what is counted does.
#[test]
fn bench_calls_measures_calls_between_two_processes() {
    let (out, _) = exits(0, &["bench", "calls", "--quick", "--json"]);
    let all = json(&out);
    assert_eq!(all["ok"], true, "{out}");
    let rows = all["rows"].as_array().expect("rows");
    assert!(rows.len() > 2, "{out}");
    for row in rows {
        for way in ["send", "write", "packed", "overflow", "raw", "raw_page", "gain"] {
            assert!(row[way].as_f64() > Some(0.0), "{way}: {row}");
        }
    }
    // 8 B and a head of 8, in batches of 4 KiB.
    assert!(rows[0]["calls_per_write"].as_f64() > Some(200.0), "{out}");
    let (out, _) = exits(0, &["bench", "calls", "--quick"]);
    assert!(out.ends_with("bench calls: ok\n"), "{out}");
}
