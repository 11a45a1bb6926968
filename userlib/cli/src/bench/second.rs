//! The second process of a measurement: this program again, which serves.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use netvm_process::SoftNode;
use serde::de::DeserializeOwned;

use crate::failure::Failure;

/// Starts it, and gives what it says when it is ready. It serves until its input ends.
pub(super) fn start<R: DeserializeOwned>(
    what: &str,
    node: &SoftNode,
    quick: bool,
) -> Result<(Child, R), Failure> {
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
