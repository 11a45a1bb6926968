//! How two processes find each other and make a link.
//!
//! A node listens at the abstract socket `netvm/UID/#NUMBER`, and at `netvm/UID/NAME` if it has a name. The kernel forgets both
//! with the process; there is no file. Node numbers are claimed by binding: two nodes of one user on one machine never have
//! the same, and a number means the same node to all of them, as locks and channels need it.
//!
//! The side that connects sends its [`Introduction`] with two descriptors: the memfd of the ring that it *reads*, and the
//! eventfd that wakes it. The other side answers likewise. Each checks the other's user (SO_PEERCRED), versions, the size
//! and seals of the ring. What the other says its number is decides which node the link is to, if that number is free.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_abi::{ABI_VERSION, NodeId};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags};

use super::mapping::Shared;
use super::question::{self, Asked};
use super::ring::{Consumer, FILE_BYTES, Producer};
use super::wires::{Lines, Link};
pub use crate::link_error::LinkError;

pub(super) fn system(what: &'static str) -> impl FnOnce(Errno) -> LinkError {
    move |errno| LinkError::System(what, errno)
}

/// What a process says of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Its number.
    pub node: NodeId,
    /// 0, or why there will be no link.
    refusal: u8,
}

/// Its last byte is the version of the layout of a ring: processes with different ones are refused a link.
const MAGIC: [u8; 4] = *b"NVs3";
const BYTES: usize = 16;

/// The link is there already, made by the other side at the same time or before.
const LINKED: u8 = 1;
const NOT_A_NODE: u8 = 2;
/// The kernel gives no descriptors or no memory for a link.
const NO_ROOM: u8 = 3;

/// The connection is closed, and nothing was said.
const CLOSED: LinkError = LinkError::Refused(
    "it has closed the connection: it ends, or its limits leave no room for a link (`ulimit -n`, `ulimit -v`)",
);

impl Introduction {
    /// Of a node.
    #[must_use]
    pub const fn of(node: NodeId) -> Self {
        Self { node, refusal: 0 }
    }

    fn encode(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&ABI_VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.node.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&(FILE_BYTES as u32).to_le_bytes());
        bytes[12] = self.refusal;
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, LinkError> {
        let Ok(bytes) = <&[u8; BYTES]>::try_from(bytes) else {
            return Err(LinkError::Malformed);
        };
        let [m0, m1, m2, m3, v0, v1, n0, n1, r0, r1, r2, r3, refusal, ..] = *bytes;
        let version = u16::from_le_bytes([v0, v1]);
        if [m0, m1, m2, m3] != MAGIC {
            return Err(LinkError::Malformed);
        }
        if version != ABI_VERSION {
            return Err(LinkError::Version(version));
        }
        if u32::from_le_bytes([r0, r1, r2, r3]) != FILE_BYTES as u32 {
            return Err(LinkError::Malformed);
        }
        Ok(Self {
            node: NodeId(u16::from_le_bytes([n0, n1])),
            refusal,
        })
    }
}

/// What addresses of this user's nodes begin with.
pub(super) fn prefix() -> String {
    format!("netvm/{}/", rustix::process::getuid().as_raw())
}

/// The process that listens under a name.
pub(super) fn process_of(name: &str) -> Option<Pid> {
    let socket = socket().ok()?;
    rustix::net::connect(&socket, &address(name).ok()?).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&socket).ok()?;
    Some(peer.pid)
}

/// The address of a node: a name, or `#` and a number.
pub(super) fn address(name: &str) -> Result<SocketAddrUnix, LinkError> {
    if name.is_empty() || name.len() > 64 || name.contains('\0') {
        return Err(LinkError::BadName);
    }
    let name = prefix() + name;
    SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(|_| LinkError::BadName)
}

pub(super) fn socket() -> Result<OwnedFd, LinkError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(system("a Unix socket"))
}

fn listen(name: &str) -> Result<OwnedFd, LinkError> {
    let socket = socket()?;
    match rustix::net::bind(&socket, &address(name)?) {
        Err(Errno::ADDRINUSE) => return Err(LinkError::Taken),
        other => other.map_err(system("binding a Unix socket"))?,
    }
    rustix::net::listen(&socket, 64).map_err(system("listening"))?;
    Ok(socket)
}

/// Listens under a name that a program chose.
///
/// # Errors
/// The name is taken, or cannot be one.
pub fn listen_as(name: &str) -> Result<OwnedFd, LinkError> {
    // A number, or an address.
    if name.starts_with('#') || name.contains("://") {
        return Err(LinkError::BadName);
    }
    listen(name)
}

/// Claims a node number: this one, or the lowest that is free below `nodes`.
///
/// # Errors
/// It is taken, or all are.
pub fn claim(number: Option<NodeId>, nodes: u16) -> Result<(NodeId, OwnedFd), LinkError> {
    if let Some(number) = number {
        return Ok((number, listen(&format!("#{number}"))?));
    }
    for number in (0..nodes).map(NodeId) {
        match listen(&format!("#{number}")) {
            Err(LinkError::Taken) => {}
            other => return Ok((number, other?)),
        }
    }
    Err(LinkError::NoNumber)
}

/// Whether the other end of a socket belongs to a user that is allowed.
pub(super) fn is_of_this_user(socket: &OwnedFd) -> Result<(), LinkError> {
    let peer = rustix::net::sockopt::socket_peercred(socket).map_err(system("SO_PEERCRED"))?;
    if peer.uid == rustix::process::getuid() {
        Ok(())
    } else {
        Err(LinkError::OtherUser(peer.uid.as_raw()))
    }
}

/// A process that has connected and said nothing yet. It costs a descriptor.
#[derive(Debug)]
pub struct Caller {
    socket: OwnedFd,
}

/// What a process that has connected wants.
#[derive(Debug)]
pub enum Wants {
    /// It has said nothing yet.
    Waits(Caller),
    /// A link.
    Link(Half),
    /// To know something.
    Answer(Asked),
    /// It has gone, or the kernel gives nothing.
    Nothing,
}

impl Caller {
    /// For a connection that a listening socket has taken.
    ///
    /// # Errors
    /// The other side belongs to another user.
    pub fn accepted(socket: OwnedFd) -> Result<Self, LinkError> {
        is_of_this_user(&socket)?;
        Ok(Self { socket })
    }

    /// Tells a process that has connected that the kernel gives this one nothing for a link. It may be gone.
    pub fn turn_away(socket: &OwnedFd) {
        let refusal = Introduction {
            node: NodeId(0),
            refusal: NO_ROOM,
        };
        // What it has said would make its end of the connection fail before it hears this.
        let _ = rustix::net::recv(socket, &mut [0; BYTES][..], RecvFlags::DONTWAIT);
        let _ = rustix::net::send(socket, &refusal.encode(), SendFlags::NOSIGNAL);
    }

    /// The descriptor to wait for.
    #[must_use]
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// What it has said, as far as one must know to go on.
    #[must_use]
    pub fn wants(self) -> Wants {
        let mut beginning = [0; 4];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(&self.socket, &mut beginning[..], flags) {
            Err(Errno::AGAIN | Errno::INTR) => Wants::Waits(self),
            Err(_) | Ok((0, _)) => Wants::Nothing,
            Ok((got, _)) if question::is_question(beginning.get(..got).unwrap_or_default()) => {
                Asked::take(self.socket).map_or(Wants::Nothing, Wants::Answer)
            }
            Ok(_) => match Ours::new() {
                Ok(ours) => Wants::Link(Half::new(self.socket, ours)),
                Err(_) => {
                    Self::turn_away(&self.socket);
                    Wants::Nothing
                }
            },
        }
    }
}

/// A link that is being made: this side's half of it.
#[derive(Debug)]
pub struct Half {
    socket: OwnedFd,
    ours: Ours,
}

/// What this side gives to a link.
#[derive(Debug)]
struct Ours {
    file: OwnedFd,
    ring: Shared,
    bell: OwnedFd,
}

impl Ours {
    fn new() -> Result<Self, LinkError> {
        let (file, ring) = Shared::create("netvm-ring", FILE_BYTES).map_err(system("a memfd"))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = rustix::event::eventfd(0, flags).map_err(system("an eventfd"))?;
        Ok(Self { file, ring, bell })
    }
}

impl Half {
    /// This side's half, for a socket whose other end belongs to a user that is allowed.
    const fn new(socket: OwnedFd, ours: Ours) -> Self {
        Self { socket, ours }
    }

    /// Sends an introduction with this half's descriptors.
    ///
    /// # Errors
    /// The other side is gone.
    pub fn introduce(&self, me: Introduction) -> Result<(), LinkError> {
        let descriptors = [self.ours.file.as_fd(), self.ours.bell.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if me.refusal == 0 {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let bytes = me.encode();
        let io = [std::io::IoSlice::new(&bytes)];
        rustix::net::sendmsg(&self.socket, &io, &mut control, SendFlags::NOSIGNAL)
            .map(drop)
            .map_err(system("an introduction"))
    }

    /// Takes the other side's introduction. The other side is told if it makes no sense, so that it can say which versions met.
    ///
    /// # Errors
    /// What is wrong with it; [`LinkError::TimedOut`] when there is none yet.
    pub fn finish(self, me: NodeId) -> Result<(Introduction, Met), LinkError> {
        match self.hear() {
            Ok((them, Some((theirs, call)))) => {
                let half = self;
                Ok((them, Met::Both(Box::new(Whole { half, call, theirs }))))
            }
            Ok((them, None)) => Ok((them, Met::Already)),
            Err(error) => {
                let refusal = match error {
                    LinkError::System(..) => NO_ROOM,
                    _ => NOT_A_NODE,
                };
                let _ = self.introduce(Introduction { node: me, refusal });
                Err(error)
            }
        }
    }

    /// What the other side says, and its ring and eventfd; `None`: it says that there is a link already.
    fn hear(&self) -> Result<(Introduction, Option<(Shared, OwnedFd)>), LinkError> {
        let mut bytes = [0; BYTES + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let io = &mut [std::io::IoSliceMut::new(&mut bytes)];
        let got = match rustix::net::recvmsg(&self.socket, io, &mut control, flags) {
            Err(Errno::AGAIN | Errno::INTR) => return Err(LinkError::TimedOut),
            Err(Errno::CONNRESET | Errno::PIPE) => return Err(CLOSED),
            other => other.map_err(system("an introduction"))?,
        };
        if got.bytes == 0 {
            return Err(CLOSED);
        }
        if got.flags.contains(ReturnFlags::CTRUNC) {
            return Err(LinkError::System("descriptors of a link", Errno::MFILE));
        }
        let descriptors: Vec<OwnedFd> = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(rights) => Some(rights),
                _ => None,
            })
            .flatten()
            .collect();
        let them = Introduction::decode(bytes.get(..got.bytes).unwrap_or_default())?;
        match them.refusal {
            0 => {}
            LINKED => return Ok((them, None)),
            NO_ROOM => {
                return Err(LinkError::Refused(
                    "it has no descriptors or no memory left for a link: raise its limits (`ulimit -n`, `ulimit -v`)",
                ));
            }
            _ => {
                return Err(LinkError::Refused(
                    "its node numbers end below this node's, or are taken",
                ));
            }
        }
        let Ok([file, call]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            return Err(LinkError::Malformed);
        };
        let theirs = Shared::accept(&file, FILE_BYTES).map_err(|errno| match errno {
            Errno::NOMEM | Errno::MFILE => LinkError::System("the ring of a link", errno),
            _ => LinkError::Malformed,
        })?;
        // A call must not block, whatever the peer has handed over: of an eventfd it could take that away again, so it is
        // looked at once and then written without waiting.
        let status = rustix::fs::fcntl_getfl(&call).map_err(system("an eventfd"))?;
        if !status.contains(rustix::fs::OFlags::NONBLOCK) {
            return Err(LinkError::Malformed);
        }
        Ok((them, Some((theirs, call))))
    }
}

/// What came of an introduction.
#[derive(Debug)]
pub enum Met {
    /// The other side says that there is a link already.
    Already,
    /// Both halves are there.
    Both(Box<Whole>),
}

/// Both halves of a link.
#[derive(Debug)]
pub struct Whole {
    half: Half,
    call: OwnedFd,
    theirs: Shared,
}

impl Whole {
    /// Answers the other side's introduction.
    ///
    /// # Errors
    /// The other side is gone.
    pub fn introduce(&self, me: Introduction) -> Result<(), LinkError> {
        self.half.introduce(me)
    }

    /// Tells the other side that there will be no link: because there is one already, or because the numbers do not fit.
    pub fn refuse(&self, me: NodeId, already: bool) {
        let refusal = if already { LINKED } else { NOT_A_NODE };
        let _ = self.introduce(Introduction { node: me, refusal });
    }

    /// The other side's process.
    #[must_use]
    pub fn peer(&self) -> Option<Pid> {
        peer_of(&self.half.socket)
    }

    /// The link.
    #[must_use]
    pub fn into_link(self) -> Link {
        let Half { socket, ours } = self.half;
        let Ours { ring, bell, .. } = ours;
        let peer = peer_of(&socket);
        let process = peer.and_then(|peer| rustix::process::pidfd_open(peer, PidfdFlags::empty()).ok());
        let lines = Lines {
            process,
            socket,
            bell,
            call: self.call,
        };
        Link::new(Arc::new(lines), Producer::new(self.theirs), Consumer::new(ring))
    }
}

/// Connects to a node: by its name, or by `#` and its number. Says which process it has reached, before anything is said to it.
///
/// # Errors
/// No such node, or it does not answer in time, or there is no link for another reason.
pub fn connect(
    name: &str,
    me: NodeId,
    deadline: Instant,
    reached: impl FnOnce(Option<Pid>),
) -> Result<(Introduction, Met), LinkError> {
    let socket = socket()?;
    match rustix::net::connect(&socket, &address(name)?) {
        Err(Errno::CONNREFUSED | Errno::NOENT) => return Err(LinkError::NoSuchNode),
        Err(Errno::AGAIN) => return Err(LinkError::TimedOut),
        other => other.map_err(system("connecting"))?,
    }
    is_of_this_user(&socket)?;
    reached(peer_of(&socket));
    let half = Half::new(socket, Ours::new()?);
    match half.introduce(Introduction::of(me)) {
        // It may have said why.
        Err(LinkError::System(_, Errno::PIPE | Errno::CONNRESET)) => {}
        other => other?,
    }
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LinkError::TimedOut);
        }
        if readable(&half.socket, left)? {
            return half.finish(me);
        }
    }
}

/// The process at the other end of a socket, as it was when it connected or began to listen.
pub(super) fn peer_of(socket: &OwnedFd) -> Option<Pid> {
    rustix::net::sockopt::socket_peercred(socket)
        .ok()
        .map(|peer| peer.pid)
}

pub(super) fn readable(socket: &OwnedFd, limit: Duration) -> Result<bool, LinkError> {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    let limit = Timespec::try_from(limit).unwrap_or(Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    });
    match rustix::event::poll(&mut fds, Some(&limit)) {
        Err(Errno::INTR) | Ok(0) => Ok(false),
        other => other.map(|_| true).map_err(system("poll")),
    }
}
