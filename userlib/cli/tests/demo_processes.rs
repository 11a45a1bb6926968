//! `netvm demo --processes`: both processes end, whatever happens to one of them, and leave nothing.

mod support;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use support::{PATIENCE, Running, netvm, text};

/// A folder for temporary files, which must be empty in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(of: &str) -> Self {
        let path = std::env::temp_dir().join(format!("netvm-demo-test-{of}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn is_empty(&self) -> bool {
        std::fs::read_dir(&self.0).expect("the folder").next().is_none()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A demo in the background that has come to a line with these words.
struct Demo {
    process: Running,
    output: BufReader<ChildStdout>,
    /// The second process.
    other: Pid,
}

impl Demo {
    fn until(words: &str, folder: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netvm"));
        command.args(["demo", "--processes", "--mib", "256"]);
        command.env("TMPDIR", folder).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Running::beside(command.spawn().expect("netvm starts"));
        let mut output = BufReader::new(process.0.stdout.take().expect("its output"));
        let mut other = None;
        loop {
            let mut line = String::new();
            let got = output.read_line(&mut line).expect("a line");
            assert!(got > 0, "it has ended before {words:?}");
            if let Some((_, rest)) = line.split_once("is node 0, process ") {
                let number = rest.split_whitespace().next().expect("a number");
                other = Pid::from_raw(number.parse().expect("a number"));
            }
            if line.contains(words) {
                let other = other.expect("the second process is named first");
                return Self {
                    process,
                    output,
                    other,
                };
            }
        }
    }

    fn first(&self) -> Pid {
        Pid::from_raw(self.process.0.id() as i32).expect("a process")
    }

    /// Its exit status, and what it has said on the way.
    fn ends(mut self) -> (ExitStatus, String) {
        let mut out = String::new();
        self.output.read_to_string(&mut out).expect("text");
        let mut err = self.process.0.stderr.take().expect("its errors");
        err.read_to_string(&mut out).expect("text");
        (self.process.0.wait().expect("it ends"), out)
    }
}

fn is_gone(process: Pid) -> bool {
    test_kill_process(process).is_err()
}

/// Waits until a process that is no child of this one has gone.
fn goes(process: Pid) {
    let begin = Instant::now();
    while !is_gone(process) {
        assert!(begin.elapsed() < PATIENCE, "{process:?} still runs");
        std::thread::yield_now();
    }
}

#[test]
fn a_file_goes_from_one_process_to_another() {
    let folder = Folder::new("whole");
    let mut command = Command::new(env!("CARGO_BIN_EXE_netvm"));
    let command = command.args(["demo", "--processes", "--json", "--mib", "4"]);
    let output = command.env("TMPDIR", &folder.0).output().expect("it runs");
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_str(&out).expect("one JSON object");
    assert_eq!(report["ok"], true, "{out}");
    assert_eq!(report["digest_match"], true, "{out}");
    assert_eq!(report["notifications"], 4, "{out}");
    // A MiB may stay: half of that is ordinary memory, whose pages the card has. All others are of the file.
    assert_eq!(report["processes"]["ordinary_bytes"], 512 << 10, "{out}");
    assert_eq!(report["zero_copy_pages"], 128, "{out}");
    assert_eq!(report["bounced_pages"], 1024 - 128, "{out}");
    for counter in ["dropped", "retransmitted", "pinned_bytes", "staged_bytes"] {
        assert_eq!(report[counter], 0, "{counter}: {out}");
    }
    assert!(report["evictions"].as_u64() > Some(0), "{out}");
    let added = &report["processes"];
    // Each message of a window bounces once at most while its pages are new.
    let first = added["first_use_bounced"].as_u64();
    assert!(first > Some(0) && first <= Some(128), "{out}");
    let most = added["file_resident_most_bytes"].as_u64();
    assert!(most > Some(0) && most <= Some((4 << 20) - (512 << 10)), "{out}");
    assert_ne!(report["processes"]["sender"], report["processes"]["receiver"]);
    let other = report["processes"]["receiver"].as_i64().expect("a process");
    assert!(is_gone(Pid::from_raw(other as i32).expect("a process")));
    assert!(folder.is_empty());
}

#[test]
fn the_second_process_is_killed_in_the_middle() {
    for words in ["exports", "sends 256 MiB", "reads them back"] {
        let folder = Folder::new("second");
        let demo = Demo::until(words, &folder.0);
        let other = demo.other;
        kill_process(other, Signal::KILL).expect("killed");
        let (status, out) = demo.ends();
        assert_eq!(status.code(), Some(1), "{words}: {out}");
        let says = format!(
            "node 1 (process {}) was ended by signal 9 in the middle of the demo",
            other.as_raw_nonzero()
        );
        assert!(out.contains(&says), "{words}: {out}");
        assert!(is_gone(other), "{words}");
        assert!(folder.is_empty(), "{words}");
    }
}

#[test]
fn the_first_process_is_ended_in_the_middle() {
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let folder = Folder::new("first");
        let demo = Demo::until("sends 256 MiB", &folder.0);
        let other = demo.other;
        kill_process(demo.first(), signal).expect("sent");
        let (status, out) = demo.ends();
        assert!(!status.success(), "{signal:?}: {out}");
        goes(other);
        assert!(folder.is_empty(), "{signal:?}");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    for args in [
        &["demo", "--processes", "--pcap", "x.pcap"][..],
        &["demo", "--processes", "--mib", "4", "--resident-mib", "4"],
        &["demo", "--receiver-for", "0"],
        &[
            "demo",
            "--processes",
            "--receiver-for",
            "0",
            "--mib",
            "4",
            "--resident-mib",
            "4",
        ],
    ] {
        let output = netvm(args);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {err}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_netvm"));
    let command = command.args(["demo", "--processes", "--mib", "1"]);
    let output = command.env("TMPDIR", "/nowhere").output().expect("it runs");
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(err.contains("/nowhere") && err.contains("set TMPDIR"), "{err}");
    let mut shell = Command::new("sh");
    let script = "ulimit -f 1000; exec \"$0\" demo --processes --mib 64";
    let output = shell.args(["-c", script, env!("CARGO_BIN_EXE_netvm")]).output();
    let output = output.expect("sh starts");
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(err.contains("ulimit -f unlimited"), "{err}");
    // There is no such node, and no order ever comes: it ends with its standard input.
    let output = netvm(&["demo", "--processes", "--receiver-for", "63", "--mib", "1"]);
    assert_eq!(output.status.code(), Some(1));
}
