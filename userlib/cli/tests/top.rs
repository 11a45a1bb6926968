//! `netvm top` beside real nodes: on a terminal of its own, and without one.

mod support;

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Instant;

use rustix::process::{Pid, Signal};
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, Termios, Winsize};
use serde_json::Value;

use support::{PATIENCE, Running, json, name, netvm, says, serve, text};

/// A terminal, and what a program has written to it.
struct Screen {
    /// The side of the person.
    person: OwnedFd,
    /// The side of the program: kept open, so that what it was left as can be looked at.
    program: OwnedFd,
    heard: Receiver<Vec<u8>>,
    shown: vt100::Parser,
}

const ROWS: u16 = 24;
const COLUMNS: u16 = 100;

impl Screen {
    fn open() -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let person = rustix::pty::openpt(flags).expect("a terminal");
        rustix::pty::grantpt(&person).expect("granted");
        rustix::pty::unlockpt(&person).expect("unlocked");
        let path = rustix::pty::ptsname(&person, Vec::new()).expect("its name");
        let program = File::options()
            .read(true)
            .write(true)
            .open(path.to_str().expect("UTF-8"))
            .expect("its other side");
        let size = Winsize {
            ws_row: ROWS,
            ws_col: COLUMNS,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        rustix::termios::tcsetwinsize(&person, size).expect("a size");
        let (send, heard) = mpsc::channel();
        let mut reader = File::from(person.try_clone().expect("a descriptor"));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(got) = reader.read(&mut bytes) {
                if got == 0 || send.send(bytes[..got].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            person,
            program: program.into(),
            heard,
            shown: vt100::Parser::new(ROWS, COLUMNS, 0),
        }
    }

    fn run(&self, args: &[&str]) -> Running {
        let end = || Stdio::from(self.program.try_clone().expect("a descriptor"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_netvm"));
        let command = command.args(args).stdin(end()).stdout(end()).stderr(end());
        Running::beside(command.env("TERM", "xterm").spawn().expect("netvm starts"))
    }

    /// Waits until these words stand there.
    fn shows(&mut self, words: &str) {
        self.until(words, |screen| screen.contents().contains(words));
    }

    /// Waits until the program has given the screen back, with its cursor.
    fn is_given_back(&mut self) {
        self.until("given back", |screen| {
            !screen.alternate_screen() && !screen.hide_cursor()
        });
    }

    fn until(&mut self, what: &str, is: impl Fn(&vt100::Screen) -> bool) {
        let begin = Instant::now();
        while !is(self.shown.screen()) {
            let left = PATIENCE.saturating_sub(begin.elapsed());
            match self.heard.recv_timeout(left) {
                Ok(bytes) => self.shown.process(&bytes),
                Err(_) => panic!("never {what:?}: {}", self.shown.screen().contents()),
            }
        }
    }

    /// Waits until a node of this name stands in the table, or does not. The last line tells of the past.
    fn has_node(&mut self, name: &str, wanted: bool) {
        self.until(&format!("{name}: {wanted}"), |screen| {
            let all = screen.contents();
            let lines: Vec<&str> = all.lines().take(usize::from(ROWS) - 1).collect();
            // Lines without a node under the table's title would say that all have gone, or none been looked at.
            lines.join("\n").contains(name) == wanted && all.contains("received/s")
        });
    }

    fn types(&self, keys: &[u8]) {
        let sent = rustix::io::write(&self.person, keys).expect("typed");
        assert_eq!(sent, keys.len());
    }

    fn modes(&self) -> Termios {
        rustix::termios::tcgetattr(&self.program).expect("modes")
    }
}

#[test]
fn a_terminal_shows_a_node_that_comes_and_goes_and_is_left_as_it_was() {
    let (_first, ..) = serve(&name("top-first"));
    let mut screen = Screen::open();
    let before = screen.modes().local_modes;
    assert!(before.contains(LocalModes::ICANON | LocalModes::ECHO));
    let mut top = screen.run(&["top", "--interval", "0.2"]);
    screen.shows("netvm top: ");
    assert!(screen.shown.screen().alternate_screen());
    screen.shows("top-first");
    assert!(
        !screen.modes().local_modes.contains(LocalModes::ICANON),
        "keys come at once"
    );
    // Short enough to be shown whole.
    let name = format!("top-{}", std::process::id());
    let (second, ..) = serve(&name);
    screen.has_node(&name, true);
    drop(second);
    screen.has_node(&name, false);
    // Its ports, and the end.
    screen.types(b"\t");
    screen.shows("commands/s");
    screen.types(b"q");
    let status = top.0.wait().expect("it ends");
    assert!(status.success(), "{status}");
    screen.is_given_back();
    assert_eq!(screen.modes().local_modes, before);
}

/// Also without any node, when the terminal's reader or another process ends it.
/// Whether this process, and so each program that it starts, ignores `SIGHUP`.
fn ignores_hang_ups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    ignored.is_some_and(|bits| bits & 1 != 0)
}

#[test]
fn signals_and_control_c_leave_the_terminal_as_it_was() {
    for how in ["SIGTERM", "SIGHUP", "SIGINT", "Ctrl-C", "Esc"] {
        // Under `nohup` this test's programs are to stay, too.
        if how == "SIGHUP" && ignores_hang_ups() {
            println!("skipped: this test was started so that a hang-up is ignored");
            continue;
        }
        let mut screen = Screen::open();
        let before = screen.modes().local_modes;
        let mut top = screen.run(&["top"]);
        screen.shows("netvm top: ");
        let process = Pid::from_raw(top.0.id() as i32).expect("its number");
        match how {
            "SIGTERM" => rustix::process::kill_process(process, Signal::TERM).expect("sent"),
            "SIGHUP" => rustix::process::kill_process(process, Signal::HUP).expect("sent"),
            "SIGINT" => rustix::process::kill_process(process, Signal::INT).expect("sent"),
            "Ctrl-C" => screen.types(b"\x03"),
            _ => screen.types(b"\x1b"),
        }
        let status = top.0.wait().expect("it ends");
        assert!(status.success(), "{how}: {status}");
        screen.is_given_back();
        assert_eq!(screen.modes().local_modes, before, "{how}");
    }
}

#[test]
fn once_and_json_need_no_terminal() {
    let name = name("top-once");
    let (_server, number, _) = serve(&name);
    let _near = Running::in_background(&["ping", &name, "--count", "1000000", "--interval", "1"]);
    let args = ["top", "--node", &number, "--interval", "0.2", "--once", "--json"];
    let begin = Instant::now();
    let seen = loop {
        let seen = json(&args);
        let linked = seen["links"].as_array().is_some_and(|links| {
            let moves = |link: &Value| link["per_second"]["received"].as_f64() > Some(0.0);
            links.iter().any(moves)
        });
        if linked {
            break seen;
        }
        assert!(begin.elapsed() < PATIENCE, "never pinged: {seen}");
    };
    assert!(seen["seconds"].as_f64() >= Some(0.2), "{seen}");
    assert!(seen["per_second"]["received"].as_f64() > Some(0.0), "{seen}");
    assert_eq!(seen["ports"][0]["port"], 1, "{seen}");
    let out = says(&["top", "--interval", "0.2", "--once"]);
    for words in [
        name.as_str(),
        "received/s",
        "in place",
        "round trip",
        "shared memory",
        " segments\n",
    ] {
        assert!(out.contains(words), "{words} in {out}");
    }
    assert!(!out.contains('\x1b'), "{out}");
    // Again and again, each a line.
    let mut lines = Running::start(&["top", "--interval", "0.1", "--json"]);
    for _ in 0..3 {
        let line: Value = serde_json::from_str(&lines.line()).expect("JSON");
        assert!(line["cards"].is_array(), "{line}");
    }
}

#[test]
fn without_a_terminal_or_a_node_it_says_what_to_do() {
    let output = netvm(&["top"]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(
        err.contains("--once") && err.contains("netvm stat") && output.stdout.is_empty(),
        "{err}"
    );
    for args in [
        &["top", "--once", "--node", "60123"][..],
        &["top", "--json", "--node", "60123"],
    ] {
        let output = netvm(args);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{err}");
        assert!(err.contains("netvm serve NAME"), "{err}");
    }
    for interval in ["0", "0.05", "-1", "4000", "x", "inf", "NaN"] {
        let output = netvm(&["top", "--once", "--interval", interval]);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{interval}: {err}");
    }
}
