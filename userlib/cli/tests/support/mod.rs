//! What tests of the program need: it run to its end, or in the background, and a server.

#![allow(dead_code, reason = "each test program uses a part")]

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn netvm(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netvm"));
    command
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("netvm starts")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs it, wants success, gives standard output.
pub(crate) fn says(args: &[&str]) -> String {
    let output = netvm(args);
    let out = text(&output.stdout);
    assert!(
        output.status.success(),
        "netvm {args:?}\n{out}\n{}",
        text(&output.stderr)
    );
    out
}

pub(crate) fn json(args: &[&str]) -> Value {
    let out = says(args);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

/// A process in the background, gone when dropped.
pub(crate) struct Running(pub(crate) Child, Option<BufReader<ChildStdout>>);

impl Running {
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netvm"));
        let command = command.args(args).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("netvm starts");
        let out = child.stdout.take().map(BufReader::new);
        Self(child, out)
    }

    /// One whose output goes elsewhere.
    pub(crate) const fn beside(child: Child) -> Self {
        Self(child, None)
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.1
            .as_mut()
            .expect("its output")
            .read_line(&mut line)
            .expect("a line");
        line
    }

    /// One that says nothing more: its output is not kept.
    pub(crate) fn in_background(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netvm"));
        let command = command.args(args).stdin(Stdio::null()).stdout(Stdio::null());
        Self::beside(command.spawn().expect("netvm starts"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server with this name and UDP: its number and address.
pub(crate) fn serve(name: &str) -> (Running, String, String) {
    serve_with(name, &[])
}

pub(crate) fn serve_with(name: &str, options: &[&str]) -> (Running, String, String) {
    let mut server = Running::start(&[&["serve", name, "--udp", "127.0.0.1:0", "--json"], options].concat());
    let served: Value = serde_json::from_str(&server.line()).expect("JSON");
    let number = served["node"].to_string();
    let udp = served["udp"].as_str().expect("an address").to_owned();
    (server, number, udp)
}

/// A name of this test's own.
pub(crate) fn name(of: &str) -> String {
    format!("observe-{of}-{}", std::process::id())
}
