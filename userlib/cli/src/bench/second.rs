//! The second process of a measurement: this program again, which serves.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use netvm_process::SoftNode;
use serde::de::DeserializeOwned;

use crate::failure::Failure;
use crate::processes::cannot_start;

/// Measures beside it: starts a node and the second process, which says when it is ready, and lets that end afterwards.
pub(super) fn measured<R: DeserializeOwned, T>(
    what: &str,
    quick: bool,
    measure: impl FnOnce(&SoftNode, &R) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let node = SoftNode::builder().start().map_err(cannot_start)?;
    let (mut child, ready) = start(what, &node, quick)?;
    let measured = measure(&node, &ready);
    // It serves until its input ends.
    drop(child.stdin.take());
    let status = child.wait();
    let measured = measured?;
    if !status.is_ok_and(|status| status.success()) {
        return Err(Failure::Wrong("the other process has not ended well".into()));
    }
    Ok(measured)
}

/// Starts it, and gives what it says when it is ready.
fn start<R: DeserializeOwned>(what: &str, node: &SoftNode, quick: bool) -> Result<(Child, R), Failure> {
    let wrong =
        |error: std::io::Error| Failure::Wrong(format!("the second process cannot be started: {error}"));
    let mut command = Command::new(std::env::current_exe().map_err(wrong)?);
    command.args(["bench", what, "--server-for", &node.number().to_string()]);
    if quick {
        command.arg("--quick");
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(wrong)?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line).map_err(wrong)?;
    }
    let ready = serde_json::from_str(&line)
        .map_err(|_| Failure::Wrong("the second process has ended before it was ready".into()))?;
    Ok((child, ready))
}

/// The end of the program: goals that are missed are a failure, but not of a quick run.
pub(super) fn judged(missed: &[String], quick: bool) -> Result<(), Failure> {
    if missed.is_empty() || quick {
        return Ok(());
    }
    Err(Failure::Wrong(format!(
        "goals that are missed:\n  {}",
        missed.join("\n  ")
    )))
}
