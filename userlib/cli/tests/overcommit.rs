//! `netvm perf --overcommit`: a file mapping that is larger than the memory that the server may use.

mod support;

use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;
use support::{PATIENCE, Running, json, name, netvm, serve_with, text};

const MIB: u64 = 1 << 20;

fn count(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_else(|| panic!("{name} in {of}"))
}

/// The exit status is this one, and the error says that.
fn fails(status: i32, args: &[&str], says: &str) {
    let output = netvm(args);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "netvm {args:?}: {error}");
    assert!(error.contains(says), "netvm {args:?}: {error}");
}

/// Files without a name that a process has mapped.
fn mapped_files(server: &Running) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.0.id())).expect("a process");
    let folder = std::env::temp_dir().display().to_string();
    let of_folder = |line: &&str| line.contains(&folder) && line.ends_with("(deleted)");
    maps.lines().filter(of_folder).count()
}

/// Waits until the server has let go of all its files.
fn until_unmapped(server: &Running) {
    let begin = Instant::now();
    while mapped_files(server) > 0 {
        assert!(begin.elapsed() < PATIENCE, "the mapping stays");
        std::thread::yield_now();
    }
}

#[test]
fn a_file_larger_than_the_memory_is_measured_at_random_pages() {
    let (server, number, udp) = serve_with(&name("overcommit"), &["--overcommit", "1.25x"]);
    let udp = format!("udp://{udp}");
    for way in [format!("#{number}"), udp] {
        let args = [
            "perf",
            &way,
            "--overcommit",
            "--touch",
            "8",
            "--time",
            "30",
            "--json",
        ];
        let report = json(&[&args[..], &["--sizes", "8,65536"]].concat());
        let lines = report["lines"].as_array().expect("lines");
        let measured: Vec<&str> = lines
            .iter()
            .filter_map(|line| line["operation"].as_str())
            .collect();
        assert_eq!(measured, ["write", "write", "read", "read", "atomic"]);
        for line in lines {
            assert!(line["per_second"].as_f64() > Some(0.0), "{line}");
            assert!(line["microseconds"]["p99"].as_f64() > Some(0.0), "{line}");
            assert!(count(line, "in_place") + count(line, "bounced") > 0, "{line}");
        }
        let said = &report["overcommit"];
        assert!(count(said, "bytes") > count(said, "memory_bytes"), "{said}");
        assert_eq!(count(said, "touch_bytes"), 8 * MIB, "{said}");
        // At least the first place of each line, and no more than what was allowed.
        let resident = count(said, "resident_bytes");
        assert!((5 * 4096..=8 * MIB).contains(&resident), "{said}");
        let file = count(said, "file_bytes");
        assert!((3 * 4096..10 * MIB).contains(&file), "{said}");
        assert!(
            count(said, "minor_faults") + count(said, "major_faults") >= 5,
            "{said}"
        );
        assert_eq!(count(said, "pinned_bytes"), 0);
        until_unmapped(&server);
    }
}

#[test]
fn a_client_that_is_killed_leaves_no_file() {
    let (server, number, _) = serve_with(&name("overcommit-killed"), &["--overcommit", "1.25x"]);
    let way = format!("#{number}");
    let client = Running::in_background(&["perf", &way, "--overcommit", "--touch", "16", "--time", "100000"]);
    let begin = Instant::now();
    while mapped_files(&server) == 0 {
        assert!(begin.elapsed() < PATIENCE, "no mapping comes");
        std::thread::yield_now();
    }
    drop(client);
    until_unmapped(&server);
}

#[test]
fn what_cannot_be_is_told() {
    let (_server, number, _) = serve_with(&name("overcommit-none"), &[]);
    let way = format!("#{number}");
    fails(
        3,
        &["perf", &way, "--overcommit"],
        "netvm serve NAME --overcommit",
    );
    fails(2, &["perf", &way, "--overcommit", "--both"], "--both");
    fails(2, &["perf", &way, "--touch", "8"], "--overcommit");
    fails(
        2,
        &["perf", &way, "--overcommit", "--what", "notify"],
        "leave `notify`",
    );
    fails(2, &["perf", &way, "--overcommit", "--touch", "1"], "--touch 9");
    for size in ["1M", "17T", "48", "-1x", "much"] {
        let option = format!("--overcommit={size}");
        fails(2, &["serve", "never", &option], "from 2M to 16T");
    }
    fails(
        2,
        &["serve", "never", "--overcommit", "1000000x"],
        "from 2M to 16T",
    );
}

#[test]
fn a_server_that_cannot_have_the_file_says_what_to_change() {
    let refused = |limits: &str, folder: &str, says: &str| {
        let script = format!("{limits} exec \"$0\" serve never --seconds 1 --overcommit 2G");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_netvm")]);
        let output = shell.env("TMPDIR", folder).stdin(Stdio::null()).output();
        let output = output.expect("sh starts");
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{limits}: {error}");
        assert!(error.contains(says), "{limits}: {error}");
    };
    let folder = std::env::temp_dir().display().to_string();
    refused("ulimit -f 1000;", &folder, "ulimit -f unlimited");
    refused("ulimit -v 1000000;", &folder, "ulimit -v unlimited");
    refused("", "/nowhere", "TMPDIR");
}
