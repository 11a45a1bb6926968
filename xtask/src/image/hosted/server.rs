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
/// Numbers of this process and of the machine.
const HOST: i64 = 0;
const CARD: i64 = 1;
/// Says that the shared file comes with it.
const MEMORY: i64 = -1;

/// A server for one machine.
pub(super) struct Server {
    listener: UnixListener,
    /// Rung by the host.
    card_bell: OwnedFd,
    /// Rung by the card.
    host_bell: OwnedFd,
    /// The machine, which takes the end of its connection for the end of its peers.
    _machine: Option<UnixStream>,
}

impl Server {
    /// Listens on `path`.
    pub(super) fn new(path: &Path) -> Result<Self> {
        let listener =
            UnixListener::bind(path).with_context(|| format!("listening on {}", path.display()))?;
        listener.set_nonblocking(true)?;
        let bell = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        Ok(Self {
            listener,
            card_bell: bell()?,
            host_bell: bell()?,
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
        let say = |number: i64, with: Option<BorrowedFd<'_>>| send(&machine, number, with);
        say(VERSION, None)?;
        say(CARD, None)?;
        say(MEMORY, Some(nic.as_fd()))?;
        say(HOST, Some(self.host_bell.as_fd()))?;
        say(CARD, Some(self.card_bell.as_fd()))?;
        self._machine = Some(machine);
        Ok(())
    }

    /// Rings the card.
    pub(super) fn ring(&self) -> Result<()> {
        rustix::io::write(&self.card_bell, &1_u64.to_ne_bytes()).context("ringing the card")?;
        Ok(())
    }

    /// How often the card has rung since the last question.
    pub(super) fn rung(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.host_bell, &mut count) {
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
