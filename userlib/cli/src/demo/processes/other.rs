//! The other process, as the one that starts it sees it. It never outlives its value.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use netvm::NodeId;

use super::{PATIENCE, Said};
use crate::args::Demo;
use crate::failure::Failure;
use crate::logs;

/// A process that runs [`super::receiver`].
pub(super) struct Other {
    child: Child,
    /// Its end tells the process to end.
    orders: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Why it is of no use any more.
    cause: Option<String>,
}

impl Other {
    /// Starts it: node 1 for this node 0.
    pub(super) fn start(options: &Demo, sender: NodeId) -> Result<Self, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::Wrong(format!("cannot find the running program: {error}")))?;
        let mut command = Command::new(program);
        command.args(["demo", "--processes", "--receiver-for", &sender.to_string()]);
        command.args(["--mib", &options.mib.to_string()]);
        if let Some(mib) = options.resident_mib {
            command.args(["--resident-mib", &mib.to_string()]);
        }
        command.args(logs::flags());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| Failure::Wrong(format!("the second process cannot be started: {error}")))?;
        let orders = child.stdin.take();
        let output = child.stdout.take();
        let (send, lines) = mpsc::channel();
        // From here on the process ends with this value.
        let other = Self {
            child,
            orders,
            lines,
            cause: None,
        };
        let listen = move || {
            let lines = output
                .into_iter()
                .flat_map(|output| BufReader::new(output).lines());
            for line in lines.map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        };
        let spawned = std::thread::Builder::new()
            .name("netvm-demo".into())
            .spawn(listen);
        spawned.map_err(|error| Failure::Wrong(format!("a thread: {error}")))?;
        Ok(other)
    }

    /// Its process.
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Tells it a line.
    pub(super) fn tell(&mut self, line: &str) -> Result<(), Failure> {
        let told = self.orders.as_mut().map(|orders| writeln!(orders, "{line}"));
        match told {
            Some(Ok(())) => Ok(()),
            // It has ended: `explain` finds out how.
            _ => Err(Failure::Wrong("node 1 takes no orders any more".into())),
        }
    }

    /// The next that it says, if it says something in that time.
    ///
    /// # Errors
    /// It has ended, or says that it cannot go on.
    pub(super) fn next(&mut self, patience: Duration) -> Result<Option<Said>, Failure> {
        let line = match self.lines.recv_timeout(patience) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                let how = match self.child.wait() {
                    Ok(status) => how(status),
                    Err(error) => error.to_string(),
                };
                return Err(self.fails(format!("{how} in the middle of the demo")));
            }
        };
        match serde_json::from_str(&line) {
            Ok(Said::Failed(why)) => Err(self.fails(format!("says: {why}"))),
            Ok(said) => Ok(Some(said)),
            Err(_) => Err(self.fails(format!("says what makes no sense: {line:?}"))),
        }
    }

    /// The next that it says.
    ///
    /// # Errors
    /// As [`next`](Self::next), or it says nothing.
    pub(super) fn hear(&mut self, patience: Duration) -> Result<Said, Failure> {
        match self.next(patience)? {
            Some(said) => Ok(said),
            None => Err(self.silent()),
        }
    }

    /// It has said nothing for too long.
    pub(super) fn silent(&mut self) -> Failure {
        self.fails(format!("has done nothing for {} s", PATIENCE.as_secs()))
    }

    /// It has said something at the wrong moment.
    pub(super) fn unexpected(&mut self, said: &Said) -> Failure {
        self.fails(format!("said {said:?} at the wrong moment"))
    }

    /// The first cause stays.
    fn fails(&mut self, what: String) -> Failure {
        let process = self.child.id();
        let cause = self
            .cause
            .get_or_insert_with(|| format!("node 1 (process {process}) {what}"));
        Failure::Wrong(cause.clone())
    }

    /// Ends it at once.
    pub(super) fn kill(&mut self) {
        // One that has ended needs nothing.
        let _ = self.child.kill();
    }

    /// Waits for its normal end.
    ///
    /// # Errors
    /// It does not end, or badly.
    pub(super) fn end(mut self) -> Result<(), Failure> {
        self.orders = None;
        match self.lines.recv_timeout(PATIENCE) {
            Err(RecvTimeoutError::Disconnected) => {}
            Err(RecvTimeoutError::Timeout) => return Err(self.silent()),
            Ok(line) => return Err(self.fails(format!("says more than it was asked: {line:?}"))),
        }
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(self.fails(format!("{} at its end", how(status)))),
            Err(error) => Err(self.fails(error.to_string())),
        }
    }

    /// Why something has failed: because of the other process, if that has ended or says that it cannot go on.
    pub(super) fn explain(mut self, failure: Failure) -> Failure {
        while self.cause.is_none() {
            // A process that ends hangs up with everything at once.
            match self.next(Duration::from_millis(500)) {
                Ok(Some(_)) => {}
                Ok(None) => return failure,
                Err(cause) => return cause,
            }
        }
        self.cause.take().map_or(failure, Failure::Wrong)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.kill();
        // Nothing is left of it, not even its number.
        let _ = self.child.wait();
    }
}

fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was ended by signal {signal}"),
        (None, Some(code)) => format!("ended with exit status {code}"),
        (None, None) => "ended".into(),
    }
}
