//! Orders between the machines of a [cluster](crate::spread): which part of a body is to be killed, and how
//! far that and the parts themselves are.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netvm::{Access, Error, Export, Nanos, Node, NodeId, Port, PortConfig, PortId, Region, RemoteSegment};

use crate::meeting::PATIENCE;

/// No body's port.
const NUMBER: u16 = 62;
const NAME: &str = "orders";
/// Where bodies run.
const BODY: NodeId = NodeId(0);
/// One-shot notifications: each comes out once, in the order in which they were sent. `KILL + n` kills part n, `KILLED + n`
/// says that this was done, `ENDED + n` that it has ended.
const KILL: u32 = 2000;
const KILLED: u32 = 3000;
const ENDED: u32 = 4000;
const PARTS: u32 = 1000;

/// This machine's end.
pub(crate) struct Orders {
    port: Port,
    others: Mutex<BTreeMap<u16, RemoteSegment>>,
    /// How often each message was heard that no part has asked for yet: another machine may be a case ahead.
    heard: Mutex<BTreeMap<u32, u32>>,
    _export: Export,
    _memory: Region,
}

fn of<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Orders {
    pub(crate) fn open(here: &Node) -> netvm::Result<Self> {
        let port = Port::open(here, PortConfig::number(NUMBER))?;
        let memory = port.alloc(4096)?;
        let access = Access::everyone().notify(KILL..=ENDED + PARTS);
        let segment = port.export(NAME, &memory, .., access)?;
        Ok(Self {
            port,
            others: Mutex::default(),
            heard: Mutex::default(),
            _export: segment,
            _memory: memory,
        })
    }

    fn tell(&self, node: NodeId, notification: u32) -> netvm::Result<()> {
        let mut others = of(&self.others);
        let other = match others.entry(node.0) {
            Entry::Occupied(other) => other.into_mut(),
            Entry::Vacant(place) => place.insert(self.port.import(node, PortId(NUMBER), NAME, PATIENCE)?),
        };
        other.notify(notification)?;
        self.port.flush_remote(node)
    }

    /// Listens for `span`, or until something has been heard.
    pub(crate) fn listen(&self, span: Duration) -> netvm::Result<()> {
        match self.port.notifications().wait(span) {
            Ok(heard) => {
                *of(&self.heard).entry(heard.0).or_default() += 1;
                Ok(())
            }
            Err(Error::TimedOut) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn take(&self, number: u32) -> bool {
        let mut heard = of(&self.heard);
        let Some(count) = heard.get_mut(&number) else {
            return false;
        };
        *count -= 1;
        if *count == 0 {
            heard.remove(&number);
        }
        true
    }

    /// Has a part killed that runs on `node`; waits until it has been.
    pub(crate) fn kill(&self, node: NodeId, part: usize) -> netvm::Result<()> {
        self.tell(node, KILL + part as u32)?;
        let began = self.port.now();
        while !self.take(KILLED + part as u32) {
            self.listen(PATIENCE)?;
            if self.port.now() > began.after(Nanos(PATIENCE.as_nanos() as u64)) {
                return Err(Error::TimedOut);
            }
        }
        Ok(())
    }

    /// The next part that is to be killed here, if that was heard.
    pub(crate) fn victim(&self) -> Option<usize> {
        let next = of(&self.heard)
            .range(KILL..KILLED)
            .next()
            .map(|(&order, _)| order)?;
        self.take(next);
        Some((next - KILL) as usize)
    }

    /// Says that it has been. Bodies run on node 0, so node 0 has ordered it.
    pub(crate) fn killed(&self, part: usize) -> netvm::Result<()> {
        self.tell(BODY, KILLED + part as u32)
    }

    /// Says that a part has ended.
    pub(crate) fn ended(&self, part: usize) -> netvm::Result<()> {
        self.tell(BODY, ENDED + part as u32)
    }

    /// Whether a part has ended elsewhere; to be asked once more only if not.
    pub(crate) fn has_ended(&self, part: usize) -> bool {
        self.take(ENDED + part as u32)
    }
}
