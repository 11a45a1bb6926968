//! How two endpoints that know each other's addresses come to have rings.
//!
//! Each endpoint has a mailbox with a place for each port of each node. The helper thread writes a record to the own place in the
//! other's mailbox and signals a one-shot notification, whose number names the place. An endpoint that hears of another one for the
//! first time answers with a record of its own.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use netvm::{
    Access, Error, Export, Modes, Notification, NotificationId, Port, Refusal, Region, RemoteSegment, Status,
    Timeout,
};
use zerocopy::IntoBytes;

use super::conn::Conn;
use super::ring::{Inbound, MEMORY, Outbound};
use super::{Endpoint, State};
use crate::address::Address;
use crate::domain::Domain;
use crate::fi::{Answer, Errno};
use crate::log;
use crate::wire::{RECORD_ROOM, Record};

/// The mailbox's name.
const MAILBOX: &str = "hello";
/// Signalled after each record.
const KNOCK: u32 = 1;
/// Number of the first place's signal.
const FIRST_PLACE: u32 = 1024;
/// How long another node may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The first number of the connections' signals: two for each.
const FIRST_SIGNAL: u32 = 2;
/// Connections for which there are numbers.
const MOST: usize = 440;

/// Makes the mailbox of a port.
pub(super) fn mailbox(port: &Port) -> netvm::Result<(Region, Export, Notification)> {
    let geometry = port.node().geometry();
    let places = u64::from(geometry.nodes) * u64::from(geometry.ports);
    // Places that no endpoint uses are pages that are never touched.
    let region = port.alloc(places * RECORD_ROOM)?;
    let last = FIRST_PLACE + u32::try_from(places).unwrap_or(u32::MAX / 2);
    let rights = Access::everyone().modes(Modes::WRITE).notify(KNOCK..=last);
    let export = port.export(MAILBOX, &region, .., rights)?;
    let knocks = port.notification(KNOCK)?;
    Ok((region, export, knocks))
}

/// The place of a port in a mailbox.
fn place_of(endpoint: &Endpoint, address: &Address) -> u64 {
    let ports = u64::from(endpoint.port.node().geometry().ports);
    u64::from(address.node().0) * ports + u64::from(address.messages().0)
}

/// What a process shows for its memory to be read. Its address goes with it.
pub(super) fn proof() -> (u64, u64) {
    static PROOF: std::sync::OnceLock<Box<u64>> = std::sync::OnceLock::new();
    let proof: &u64 = PROOF.get_or_init(|| Box::new(crate::address::random()));
    (core::ptr::from_ref(proof).expose_provenance() as u64, *proof)
}

impl State {
    /// The connection to an address; made, if there is none.
    pub(super) fn conn_to(&mut self, endpoint: &Arc<Endpoint>, address: Address) -> Answer<usize> {
        if let Some(&at) = self.by_address.get(&address) {
            return Ok(at);
        }
        let at = self.conns.len();
        if at >= MOST {
            return Err(Errno::NOMEM);
        }
        let conn = self.new_conn(endpoint, at, address).map_err(|error| {
            log::warn(&format!("a connection: {error}"));
            Errno::NOMEM
        })?;
        self.conns.push(conn);
        self.by_address.insert(address, at);
        introduce(endpoint, at);
        Ok(at)
    }

    fn new_conn(&self, endpoint: &Endpoint, at: usize, address: Address) -> netvm::Result<Conn> {
        let port = &endpoint.port;
        let memory = port.alloc(MEMORY)?;
        let signal = FIRST_SIGNAL + 2 * at as u32;
        let ring = crate::address::random();
        // The other node's number may be another one where it is reached by UDP; the name is a secret.
        let rights = Access::everyone().modes(Modes::WRITE).notify(signal..=signal + 1);
        let export = port.export(&ring_name(ring), &memory, .., rights)?;
        let credit = memory.word64(0)?;
        let inbound = Inbound::new(memory, export, port.notification(signal)?);
        let from = self.av.as_ref().and_then(|av| av.index(&address));
        Ok(Conn::new(address, from, inbound, credit, (ring, signal)))
    }

    /// Takes the records of endpoints that introduce themselves.
    pub(super) fn answer_knocks(&mut self, endpoint: &Arc<Endpoint>) {
        let _ = self.knocks.ack_up_to(u32::MAX);
        let queue = endpoint.port.notifications();
        while let Some(id) = queue.pop() {
            self.hear(endpoint, id);
        }
    }

    /// A number of the notification queue: a place of the mailbox, or something that is looked at anyway.
    pub(super) fn hear(&mut self, endpoint: &Arc<Endpoint>, id: NotificationId) {
        let Some(place) = id.0.checked_sub(FIRST_PLACE) else {
            return;
        };
        let mut bytes = [0; size_of::<Record>()];
        let at = u64::from(place) * RECORD_ROOM;
        let read = self.mailbox.read_into(at, &mut bytes);
        let record = read.ok().and_then(|()| Record::read(&bytes));
        let Some(record) = record.filter(|record| {
            record.to == endpoint.address.life() && place_of(endpoint, &record.from) == u64::from(place)
        }) else {
            return;
        };
        let Ok(at) = self.conn_to(endpoint, record.from) else {
            return;
        };
        let Some(conn) = self.conns.get_mut(at).filter(|conn| conn.peer.is_none()) else {
            return;
        };
        log::trace(|| format!("{} introduces itself", record.from.text()));
        conn.peer = Some(record);
        join(endpoint, at);
    }
}

fn ring_name(ring: u64) -> String {
    format!("ring{ring:016x}")
}

/// Lets the helper introduce this endpoint to that of a connection.
fn introduce(endpoint: &Arc<Endpoint>, at: usize) {
    let weak = Arc::downgrade(endpoint);
    endpoint.domain().helper.give(move || {
        let Some(endpoint) = weak.upgrade() else { return };
        let Some((address, ring)) = endpoint
            .state()
            .conns
            .get(at)
            .map(|conn| (conn.address, conn.ring))
        else {
            return;
        };
        let record = Record::new(endpoint.address, address.life(), ring.0, ring.1, proof());
        if let Err(errno) = write_record(&endpoint, &address, &record) {
            log::trace(|| format!("{} is not reached", address.text()));
            endpoint.state().conn_failed(at, errno);
        }
    });
}

fn write_record(endpoint: &Arc<Endpoint>, address: &Address, record: &Record) -> Answer {
    let domain = endpoint.domain();
    let node = connect(domain, address)?;
    let failed = |error: Error| {
        log::trace(|| format!("introduction: {error}"));
        Errno::HOSTUNREACH
    };
    let port = &domain.errands;
    let mailbox = at_once(PATIENCE, |time| {
        port.import_with(node, address.messages(), MAILBOX, Modes::all(), time)
    })
    .map_err(failed)?;
    let place = place_of(endpoint, &endpoint.address);
    let end = Instant::now() + PATIENCE;
    loop {
        let signal = FIRST_PLACE + place as u32;
        let write = mailbox
            .write(place * RECORD_ROOM, record.as_bytes())
            .notify(signal);
        write.post().map_err(failed)?;
        mailbox.notify(KNOCK).map_err(failed)?;
        match port.flush_remote_for(node, PATIENCE) {
            Ok(()) => return Ok(()),
            // Its queue of notifications is full.
            Err(Error::Failed(failure))
                if failure.status == netvm::Status::QueueFull && Instant::now() < end =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Imports what is there, or is there no more, since the other side has said its name. Only a slow answer is waited for: the helper has other
/// things to do.
pub(crate) fn at_once(
    patience: Duration,
    import: impl Fn(Timeout) -> netvm::Result<RemoteSegment>,
) -> netvm::Result<RemoteSegment> {
    match import(Timeout::Now) {
        Err(Error::Import {
            reason: Refusal::Status(Status::TimedOut | Status::LinkLost | Status::StaleIncarnation),
            ..
        }) => import(Timeout::After(patience)),
        found => found,
    }
}

/// A link to the node of an address.
///
/// # Errors
/// There is none.
pub(crate) fn connect(domain: &Domain, address: &Address) -> Answer<netvm::NodeId> {
    if address.is_near() && address.node() == domain.node.number() {
        return Ok(address.node());
    }
    let target = address.target().ok_or(Errno::HOSTUNREACH)?;
    domain.node.connect(&target, PATIENCE).map_err(|error| {
        // A program sees no more than that there is no way, and MPI programs not even that.
        log::warn(&format!("{target}: {error}"));
        Errno::HOSTUNREACH
    })
}

/// Lets the helper import the ring that the other side has named.
fn join(endpoint: &Arc<Endpoint>, at: usize) {
    let weak: Weak<Endpoint> = Arc::downgrade(endpoint);
    endpoint.domain().helper.give(move || {
        let Some(endpoint) = weak.upgrade() else { return };
        let found = {
            let state = endpoint.state();
            let conn = state.conns.get(at);
            conn.and_then(|conn| Some((conn.address, conn.peer?, conn.credit.clone())))
        };
        let Some((address, peer, credit)) = found else {
            return;
        };
        let joined = connect(endpoint.domain(), &address).and_then(|node| {
            let port = &endpoint.port;
            let ring = at_once(PATIENCE, |time| {
                port.import(node, address.messages(), &ring_name(peer.ring), time)
            });
            let ring = ring.and_then(|ring| Ok((ring, port.alloc(MEMORY)?)));
            ring.map_err(|error| {
                log::trace(|| format!("ring: {error}"));
                Errno::HOSTUNREACH
            })
        });
        let mut state = endpoint.state();
        match joined {
            Ok((ring, _)) if ring.len() != MEMORY => state.conn_failed(at, Errno::HOSTUNREACH),
            Ok((ring, copy)) => {
                if let Some(conn) = state.conns.get_mut(at) {
                    conn.outbound = Some(Outbound::new(ring, copy, credit, peer.notification));
                    log::trace(|| format!("connected to {}", address.text()));
                }
            }
            Err(errno) => state.conn_failed(at, errno),
        }
        drop(state);
        endpoint.rest();
    });
}
