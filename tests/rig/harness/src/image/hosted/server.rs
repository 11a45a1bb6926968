//! The other end of QEMU's `ivshmem-doorbell`: gives it the shared file, and bells for both sides (QEMU,
//! docs/specs/ivshmem-spec.txt, "Client-server protocol").

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Version of the protocol.
const VERSION: i64 = 0;
/// Numbers of the host and of the card.
pub(crate) const HOST: i64 = 0;
pub(crate) const CARD: i64 = 1;
/// Says that the shared file comes with it.
const MEMORY: i64 = -1;

/// The bells of a host and its card, each heard by the one whose number it has.
pub(crate) struct Bells([OwnedFd; 2]);

impl Bells {
    /// Silent ones.
    pub(crate) fn new() -> Result<Self> {
        let bell = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        Ok(Self([bell()?, bell()?]))
    }

    /// Gives a machine its number ([`HOST`] or [`CARD`]), the shared file and both bells, its own last.
    pub(crate) fn introduce(&self, machine: &UnixStream, own: i64, nic: &File) -> Result<()> {
        let say = |number: i64, with: Option<BorrowedFd<'_>>| send(machine, number, with);
        say(VERSION, None)?;
        say(own, None)?;
        say(MEMORY, Some(nic.as_fd()))?;
        let [host, card] = &self.0;
        let mut peers = [(HOST, host), (CARD, card)];
        peers.sort_by_key(|(number, _)| *number == own);
        for (number, bell) in peers {
            say(number, Some(bell.as_fd()))?;
        }
        Ok(())
    }
}

/// A server for one machine.
pub(super) struct Server {
    listener: UnixListener,
    bells: Bells,
    /// The machine, which takes the end of its connection for the end of its peers.
    _machine: Option<UnixStream>,
}

impl Server {
    /// Listens on `path`.
    pub(super) fn new(path: &Path) -> Result<Self> {
        let listener =
            UnixListener::bind(path).with_context(|| format!("listening on {}", path.display()))?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            bells: Bells::new()?,
            _machine: None,
        })
    }

    /// Serves the machine that connects before `limit`.
    pub(super) fn serve(&mut self, nic: &File, limit: Instant) -> Result<()> {
        let machine = loop {
            match self.listener.accept() {
                Ok((machine, _)) => break machine,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            if Instant::now() > limit {
                bail!("the machine does not ask for its shared memory");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        machine.set_nonblocking(false)?;
        self.bells.introduce(&machine, CARD, nic)?;
        self._machine = Some(machine);
        Ok(())
    }

    /// Rings the card.
    pub(super) fn ring(&self) -> Result<()> {
        let [_, card] = &self.bells.0;
        rustix::io::write(card, &1_u64.to_ne_bytes()).context("ringing the card")?;
        Ok(())
    }

    /// How often the card has rung since the last question.
    pub(super) fn rung(&self) -> u64 {
        let mut count = [0; 8];
        let [host, _] = &self.bells.0;
        match rustix::io::read(host, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            // Not at all: the bell does not block.
            _ => 0,
        }
    }
}

fn send(machine: &UnixStream, number: i64, with: Option<BorrowedFd<'_>>) -> Result<()> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files: Vec<BorrowedFd<'_>> = with.into_iter().collect();
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&files));
    }
    let bytes = number.to_le_bytes();
    sendmsg(machine, &[IoSlice::new(&bytes)], &mut control, SendFlags::empty())
        .context("serving a machine")?;
    Ok(())
}
