//! Commands to a host: one at a time and lane, over a serial line of the machine. `tests/rig/init` is the other end: it
//! reads a number and a command a line, and after the command's output says `rig-end NUMBER STATUS`.
//!
//! A thread reads each lane all the time. The buffers between a program of the guest and this one hold a few KiB, and a
//! program whose output is not read stands still. Two hosts work together, so one that stands still stops the other.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};

/// A host that stands still takes no bytes, once the line's buffers are full; for so long it is waited for.
const STILL: Duration = Duration::from_secs(20);

/// How often an interruption is looked for.
const PACE: Duration = Duration::from_millis(100);

/// How a command ended.
#[derive(Debug)]
pub(super) struct Reply {
    /// As the shell says it.
    pub(super) status: i32,
    /// Both its outputs.
    pub(super) text: String,
}

/// A line to a host.
pub(super) struct Lane {
    stream: UnixStream,
    /// What was said, both ways.
    transcript: File,
    interrupted: Arc<AtomicBool>,
    /// What the host says, as it comes. The host is gone where this ends.
    heard: Receiver<io::Result<Vec<u8>>>,
    /// Heard, and not yet of a finished command.
    pending: Vec<u8>,
    number: u64,
    command: String,
}

impl Lane {
    /// Connects to the machine's socket.
    pub(super) fn connect(
        socket: &Path,
        transcript: &Path,
        interrupted: &Arc<AtomicBool>,
        limit: Instant,
    ) -> Result<Self> {
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > limit => {
                    return Err(error).with_context(|| format!("connecting to {}", socket.display()));
                }
                // It has just been started.
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let transcript =
            File::create(transcript).with_context(|| format!("writing {}", transcript.display()))?;
        Self::over(stream, transcript, interrupted)
    }

    fn over(stream: UnixStream, transcript: File, interrupted: &Arc<AtomicBool>) -> Result<Self> {
        stream.set_write_timeout(Some(PACE))?;
        let (says, heard) = channel();
        let (from, copy) = (stream.try_clone()?, transcript.try_clone()?);
        // It ends with the stream: when the machine ends, or when the lane is dropped.
        std::thread::Builder::new()
            .name("lane".to_owned())
            .spawn(move || listen(from, copy, &says))?;
        Ok(Self {
            stream,
            transcript,
            interrupted: Arc::clone(interrupted),
            heard,
            pending: Vec::new(),
            number: 0,
            command: String::new(),
        })
    }

    /// Waits until the host takes commands.
    pub(super) fn greet(&mut self, limit: Instant) -> Result<()> {
        loop {
            // What is sent before the host listens is lost.
            self.begin("true")?;
            if self
                .end_before(limit.min(Instant::now() + Duration::from_millis(500)))?
                .is_some()
            {
                return Ok(());
            }
            if Instant::now() > limit {
                bail!("the host has not come up");
            }
        }
    }

    /// Starts a command. It must [`end`](Self::end) before the next one begins.
    pub(super) fn begin(&mut self, command: &str) -> Result<()> {
        if command.contains(['\n', '\r']) {
            bail!("a command is one line: {command:?}");
        }
        self.number += 1;
        self.command = command.to_owned();
        writeln!(self.transcript, "$ {command}")?;
        let line = format!("{} {command}\n", self.number);
        self.send(line.as_bytes(), Instant::now() + STILL)
            .context("sending a command to a host")
    }

    fn send(&mut self, mut bytes: &[u8], limit: Instant) -> Result<()> {
        while !bytes.is_empty() {
            if self.interrupted.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            match self.stream.write(bytes) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error.into()),
            }
            if !bytes.is_empty() && Instant::now() > limit {
                bail!("it stands still");
            }
        }
        Ok(())
    }

    /// How the command ended.
    pub(super) fn end(&mut self, limit: Duration) -> Result<Reply> {
        let reply = self.end_before(Instant::now() + limit)?;
        reply.ok_or_else(|| {
            let so_far = String::from_utf8_lossy(&self.pending);
            anyhow!(
                "`{}` did not end within {} s; the last it said: {}",
                self.command,
                limit.as_secs(),
                so_far.trim().lines().last().unwrap_or("nothing")
            )
        })
    }

    /// Runs a command, whatever its status.
    pub(super) fn try_run(&mut self, command: &str, limit: Duration) -> Result<Reply> {
        self.begin(command)?;
        self.end(limit)
    }

    /// Runs a command that must succeed, and gives its output.
    pub(super) fn run(&mut self, command: &str, limit: Duration) -> Result<String> {
        let reply = self.try_run(command, limit)?;
        if reply.status != 0 {
            bail!("`{command}` ended with {}: {}", reply.status, reply.text.trim());
        }
        Ok(reply.text)
    }

    fn end_before(&mut self, limit: Instant) -> Result<Option<Reply>> {
        loop {
            // Also where no time is left: two hosts have one limit, and the second may have ended long before it.
            while let Ok(said) = self.heard.try_recv() {
                self.pending.extend(said.context("reading from a host")?);
            }
            if let Some(reply) = ended(&mut self.pending, self.number) {
                return Ok(Some(reply));
            }
            if self.interrupted.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            if Instant::now() > limit {
                return Ok(None);
            }
            match self.heard.recv_timeout(PACE) {
                Ok(said) => self.pending.extend(said.context("reading from a host")?),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the host is gone while it runs `{}`", self.command)
                }
            }
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Passes on what a host says until it says no more.
fn listen(mut from: UnixStream, mut transcript: File, says: &Sender<io::Result<Vec<u8>>>) {
    let mut bytes = [0; 4096];
    loop {
        let said = match from.read(&mut bytes) {
            Ok(0) => return,
            Ok(count) => {
                let bytes = bytes.get(..count).unwrap_or_default();
                // At once: of a command that does not end, this is all there is.
                transcript.write_all(bytes).map(|()| bytes.to_vec())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let last = said.is_err();
        // The other end goes with the lane.
        if says.send(said).is_err() || last {
            return;
        }
    }
}

/// Takes the reply of command `number` out of what was read, with what is left of earlier ones.
fn ended(pending: &mut Vec<u8>, number: u64) -> Option<Reply> {
    let mark = format!("\nrig-end {number} ");
    let at = pending
        .windows(mark.len())
        .position(|bytes| bytes == mark.as_bytes())?;
    let after = pending.get(at + mark.len()..)?;
    let line = after.iter().position(|&byte| byte == b'\n')?;
    let status = std::str::from_utf8(after.get(..line)?)
        .ok()?
        .trim()
        .parse()
        .ok()?;
    let text = String::from_utf8_lossy(pending.get(..at)?).replace('\r', "");
    pending.drain(..at + mark.len() + line + 1);
    Some(Reply { status, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(stream: UnixStream) -> Lane {
        let nowhere = File::options().write(true).open("/dev/null").expect("/dev/null");
        Lane::over(stream, nowhere, &Arc::new(AtomicBool::new(false))).expect("a lane")
    }

    /// Of two hosts, one may be waited for to the limit: the reason is what the other one has said by then.
    #[test]
    fn what_a_host_has_said_is_read_when_no_time_is_left() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        let mut lane = lane(ours);
        lane.begin("fails").expect("room for a line");
        theirs.write_all(b"why\nrig-end 1 1\n").expect("the lane reads");
        let limit = Instant::now() + Duration::from_secs(10);
        let reply = loop {
            match lane.end(Duration::ZERO) {
                Ok(reply) => break reply,
                Err(error) => assert!(Instant::now() < limit, "{error}"),
            }
        };
        assert_eq!((reply.status, reply.text.trim()), (1, "why"));
    }

    /// Two programs of a scenario wait for each other, and one of them has much to say before its turn comes.
    #[test]
    fn a_host_that_says_much_does_not_stand_still() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        theirs
            .set_write_timeout(Some(Duration::from_secs(10)))
            .expect("a timeout");
        let mut lane = lane(ours);
        lane.begin("much").expect("room for a line");
        let much = vec![b'x'; 1 << 20];
        theirs.write_all(&much).expect("the lane reads");
        theirs.write_all(b"\nrig-end 1 0\n").expect("the lane reads");
        let reply = lane.end(Duration::from_secs(10)).expect("it has ended");
        assert_eq!((reply.status, reply.text.len()), (0, much.len()));
    }

    #[test]
    fn a_reply_ends_at_its_own_mark() {
        let mut pending = b"one\r\ntwo\nrig-end 7 0\nthree\n\nrig-end 8 1".to_vec();
        let reply = ended(&mut pending, 7).expect("it is all there");
        assert_eq!((reply.status, reply.text.as_str()), (0, "one\ntwo"));
        assert!(ended(&mut pending, 8).is_none(), "its line goes on");
        pending.extend(b"27\r\nfour");
        let reply = ended(&mut pending, 8).expect("it is all there");
        assert_eq!((reply.status, reply.text.as_str()), (127, "three\n"));
        assert_eq!(pending, b"four");
    }

    /// A host whose processor stands still must end a scenario, not the patience of its user.
    #[test]
    fn a_host_that_takes_nothing_is_told_of() {
        let (ours, _theirs) = UnixStream::pair().expect("a pair of sockets");
        let mut lane = lane(ours);
        let much = vec![b'x'; 16 << 20];
        let error = lane.send(&much, Instant::now()).expect_err("no reader");
        assert_eq!(error.to_string(), "it stands still");
    }
}
