//! Apps for worlds in which anything may fail: receivers that export memory, and writers that
//! write, notify, flush and read back what they believe is there.
//!
//! A writer keeps a model of its stripe of the receiver's memory. What `flush_remote` has confirmed
//! must be read back exactly; after any error it knows nothing any more and starts over.

use crate::config::{Config, FaultLevel};
use crate::dice::Dice;
use crate::workload::{BACKGROUND, Env, PORTS, Role};
use netvm::backend::Backend;
use netvm::{Access, Error, Port, PortConfig, Region, RemoteSegment, Result, Timeout};
use netvm_abi::control::Modes;
use netvm_abi::{NodeId, PortId};
use std::time::Duration;

/// Port number of a node's receiver.
pub(crate) const RECEIVER: PortId = PortId(PORTS - 1);
/// The name of its memory, and of a part that may only be read.
pub(crate) const MEMORY: &str = "memory";
pub(crate) const READ_ONLY: &str = "read only";
/// The last notification that it lets others raise.
pub(crate) const LAST_NOTIFICATION: u32 = 2000;
/// Bytes of a writer's stripe.
const STRIPE: u64 = 3 * 4096 + 2048;
/// Most writers of a receiver.
const WRITERS: u64 = 16;
/// Notification that belongs to a stripe.
const fn signal(stripe: u64) -> u32 {
    1 + stripe as u32
}

/// The roles: a receiver on each node, one to three writers on each node.
pub(crate) fn roles(dice: &mut Dice, config: &Config) -> Vec<Role> {
    let nodes = u64::from(config.nodes);
    let mut roles = Vec::new();
    let mut stripes = vec![0; config.nodes.into()];
    for id in (0..config.nodes).map(NodeId) {
        let mut receiver = Role::new("receiver", id, |env| receive(&env));
        // The content of a scratch receiver's memory is not verified.
        receiver.scratch = dice.below(4) == 0;
        receiver.server = true;
        roles.push(receiver);
    }
    for id in (0..config.nodes).map(NodeId) {
        let writers = if nodes > 16 { 1 } else { 1 + dice.below(3) };
        for _ in 0..writers {
            // Now and then to its own node.
            let to = if dice.below(10) == 0 {
                u64::from(id.0)
            } else {
                dice.below(nodes)
            };
            let stripe = stripes[to as usize] % WRITERS;
            stripes[to as usize] += 1;
            let verify = !roles[to as usize].scratch && stripes[to as usize] <= WRITERS;
            let target = NodeId(to as u16);
            roles.push(Role::new("writer", id, move |mut env| {
                write(&mut env, target, stripe, verify)
            }));
        }
    }
    if config.faults == FaultLevel::All && nodes <= 16 {
        // Each pair of nodes in one direction: the other direction is left to what the run is about, so that a message
        // lost there may be the last for long.
        let mut quieter = vec![Vec::new(); config.nodes.into()];
        for low in 0..config.nodes {
            for high in low + 1..config.nodes {
                let (from, to) = if dice.below(2) == 0 {
                    (low, high)
                } else {
                    (high, low)
                };
                quieter[usize::from(from)].push(NodeId(to));
            }
        }
        for id in (0..config.nodes).map(NodeId) {
            let to = quieter[usize::from(id.0)].clone();
            let mut background = Role::new("background", id, move |env| chatter(&env, &to));
            // So that it goes on until everything else has finished.
            background.server = true;
            roles.push(background);
        }
    }
    roles
}

fn receive(env: &Env) {
    // An error ends this life of the receiver; the role starts over.
    env.ends("a receiver", try_receive(env));
}

fn try_receive(env: &Env) -> Result<()> {
    let port = Port::open(&env.node, PortConfig::number(RECEIVER.0))?;
    let region = port.alloc((STRIPE * WRITERS).next_multiple_of(4096) + 4096)?;
    let all = Modes::READ | Modes::WRITE | Modes::NOTIFY;
    let access = || Access::everyone().modes(all).notify(1..=LAST_NOTIFICATION);
    let mut segment = port.export(MEMORY, &region, .., access())?;
    let second = port.export(READ_ONLY, &region, ..4096, Access::everyone().modes(Modes::READ))?;
    let mut bytes = [0; 64];
    while !env.stage.closing() {
        for stripe in 0..WRITERS {
            let notification = port.notification(signal(stripe))?;
            let mut pending = notification.pending();
            while pending > 0 {
                notification.ack()?;
                pending -= 1;
            }
        }
        while let Some(_id) = port.notifications().pop() {}
        let fires = env
            .sim
            .upgrade()
            .is_some_and(|sim| sim.fires(crate::faults::FaultKind::Revoke, env.id));
        if fires {
            segment.unexport()?;
            segment = port.export(MEMORY, &region, .., access())?;
        }
        region.read_into(0, &mut bytes)?;
        match port.notification(signal(0))?.wait(Duration::from_micros(150)) {
            Ok(_) | Err(Error::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
    drop((segment, second));
    Ok(())
}

/// Traffic to some nodes for as long as anything else runs: a word to each more often than cards look after their
/// peers. What the wire has lost of the other direction must be noticed beside it.
fn chatter(env: &Env, to: &[NodeId]) {
    // An error ends this life of it; the role starts over.
    let end = try_chatter(env, to);
    // The receivers close when it does.
    if !env.stage.closing() {
        env.ends("the background", end);
    }
}

fn try_chatter(env: &Env, to: &[NodeId]) -> Result<()> {
    let port = Port::open(&env.node, PortConfig::number(BACKGROUND.0))?;
    let mut remotes = Vec::new();
    for &to in to {
        let patience = patience(env);
        match port.import_with(to, RECEIVER, MEMORY, Modes::WRITE, patience) {
            Ok(remote) => remotes.push(remote),
            Err(Error::Import { .. } | Error::TimedOut) if !env.calm => {}
            Err(error) => return Err(error),
        }
    }
    // Those that could not be reached are tried again in another life.
    for _ in 0..40 {
        for remote in &remotes {
            remote
                .write(STRIPE * WRITERS + u64::from(env.id.0) * 8, &[7u8; 8][..])
                .post()?;
        }
        if env.stage.closing() {
            break;
        }
        match port.notification(1)?.wait(Duration::from_millis(1)) {
            Ok(_) | Err(Error::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

struct Writer<'e> {
    env: &'e mut Env,
    port: Port,
    remote: RemoteSegment,
    source: Region,
    target: Region,
    /// Where its stripe begins in the receiver's region.
    base: u64,
    /// What it believes is there, where it knows.
    model: Vec<u8>,
    /// False: written in this burst, or never looked at.
    known: Vec<bool>,
    /// The model holds for the whole stripe.
    whole: bool,
    id: u32,
}

fn write(env: &mut Env, to: NodeId, stripe: u64, verify: bool) {
    // An error ends this life of the writer; the role starts over.
    match try_write(env, to, stripe, verify) {
        Ok(Ok(())) => {}
        Ok(Err(text)) => env.complain(text),
        Err(error) => env.ends("a writer", Err(error)),
    }
}

/// How long an import may take. In the calm that is until a page comes that is slow to come.
fn patience(env: &Env) -> Timeout {
    Timeout::After(env.millis(if env.calm { 20 } else { 2 }))
}

/// A port number of a writer.
fn number_of(env: &mut Env) -> u16 {
    // Low numbers belong to the conformance bodies.
    let number = PORTS - 14 + env.dice.below(12) as u16;
    let ports = env.backend.geometry().ports;
    if ports > PORTS && !env.calm && env.dice.below(3) == 0 {
        // Nodes with smaller tables refuse what it sends, and hold that against no other port.
        return PORTS + env.dice.below(u64::from(ports - PORTS)) as u16;
    }
    number
}

/// The outer result: an operation failed, as it may. The inner one: what was read is wrong.
fn try_write(
    env: &mut Env,
    to: NodeId,
    stripe: u64,
    verify: bool,
) -> Result<std::result::Result<(), String>> {
    let handle = env.node.clone();
    let port = loop {
        match Port::open(&handle, PortConfig::number(number_of(env))) {
            // Another writer has it.
            Err(Error::Refused { .. }) if env.calm => env.rest(),
            opened => break opened?,
        }
    };
    let remote = loop {
        if env.stage.stopped() && !env.calm {
            return Ok(Ok(()));
        }
        match port.import_with(
            to,
            RECEIVER,
            MEMORY,
            Modes::READ | Modes::WRITE | Modes::NOTIFY,
            patience(env),
        ) {
            Ok(remote) => break remote,
            Err(Error::Import { .. } | Error::TimedOut) if !env.calm => {}
            Err(error) => return Err(error),
        }
    };
    let source = port.alloc(STRIPE.next_multiple_of(4096))?;
    let target = port.alloc(STRIPE.next_multiple_of(4096))?;
    let mut writer = Writer {
        env,
        port,
        remote,
        source,
        target,
        base: stripe * STRIPE,
        model: vec![0; STRIPE as usize],
        known: vec![true; STRIPE as usize],
        whole: false,
        id: signal(stripe),
    };
    // In the calm, one round that goes well is asked for.
    let mut calm = writer.env.calm;
    while std::mem::take(&mut calm) || !writer.env.stage.stopped() {
        writer.burst()?;
        if let Err(text) = writer.settle(to, verify)? {
            return Ok(Err(text));
        }
    }
    Ok(Ok(()))
}

impl Writer<'_> {
    /// Some writes, nothing waited for.
    fn burst(&mut self) -> Result<()> {
        let count = 1 + self.env.dice.below(24);
        for _ in 0..count {
            let dice = &mut self.env.dice;
            let len = [1, 4, 8, 8, 40, 200, 1000, 4096, 9000][dice.index(9)].min(STRIPE);
            let mut offset = dice.below(STRIPE - len + 1);
            if len == 8 || len == 4 {
                offset -= offset % len;
            }
            let mut bytes = vec![0; len as usize];
            dice.fill(&mut bytes);
            let (staged, ordered) = (dice.below(3) == 0, dice.below(12) == 0);
            let notify = match dice.below(10) {
                0..4 => Some(self.id),
                4 => Some(1024 + dice.below(100) as u32),
                _ => None,
            };
            // Data may land in any order, so a place is not written twice in one burst.
            let range = offset as usize..(offset + len) as usize;
            if self.known[range.clone()].iter().any(|known| !known) {
                continue;
            }
            let at = self.base + offset;
            // The source must not change under a write that is under way: its own place for each.
            let mut write = if staged {
                self.remote.write(at, &bytes[..])
            } else {
                self.source.write_from(offset, &bytes)?;
                self.remote.write(at, self.source.slice(offset..offset + len)?)
            };
            if let Some(id) = notify {
                write = write.notify(id);
            }
            if ordered {
                write = write.ordered();
            }
            write.post()?;
            self.model[range.clone()].copy_from_slice(&bytes);
            // Not to be written again before it is confirmed.
            self.known[range].fill(false);
        }
        Ok(())
    }

    /// Waits, and reads back what must be there.
    fn settle(&mut self, to: NodeId, verify: bool) -> Result<std::result::Result<(), String>> {
        match self.env.dice.below(4) {
            0 => self.port.flush_writes()?,
            1 => self.port.flush()?,
            2 => self.port.flush_received(to)?,
            _ => {}
        }
        self.port.flush_remote(to)?;
        // The whole stripe is read, what was never written included, so that all of it is known
        // from here on and one pattern of access is checked against the other.
        let mut got = vec![0; STRIPE as usize];
        self.remote.read(self.base, self.target.slice(..STRIPE)?).post()?;
        self.port.flush_reads()?;
        self.target.read_into(0, &mut got)?;
        if verify && self.whole {
            let wrong = (0..STRIPE as usize).find(|&at| got[at] != self.model[at]);
            if let Some(at) = wrong {
                let wrong = got.iter().zip(&self.model).filter(|(got, model)| got != model);
                return Ok(Err(format!(
                    "port {} reads {:#04x} at offset {:#x} of the memory of node {to} (byte {at} of its stripe), where \
                     {:#04x} was written and confirmed; {} bytes of {STRIPE} differ",
                    self.port.id(),
                    got[at],
                    self.base + at as u64,
                    self.model[at],
                    wrong.count(),
                )));
            }
        }
        self.model = got;
        self.known.fill(true);
        self.whole = true;
        Ok(Ok(()))
    }
}
