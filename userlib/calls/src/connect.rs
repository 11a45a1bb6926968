//! Links come up: an inbox here, a greeting, the inbox there.

use crate::core::Core;
use crate::error::{End, Error, Result};
use crate::layout::{
    DESCRIPTION_BYTES, Description, FUNCTION_BYTES, Side, TABLE, greeting, inbox_name, page, split_greeting,
};
use crate::link::{Address, Functions, Inbox, Incoming, Link, Outgoing, Phase, Remote, Resync, Slot, Words};
use crate::ring::{Reader, Writer};
use netvm::{Access, Modes, Nanos, Region, RemoteSegment, SharedSender, Status, Timeout};

/// The highest notification that links use: the highest that a program may.
const HIGHEST: u32 = 895;
/// Each link has two.
pub(crate) const MOST_LINKS: u32 = HIGHEST / 2;

/// Times that a greeting is repeated.
const AGAIN: u32 = 8;

/// The first of the two notifications of a link.
const fn arrived(index: u32) -> u32 {
    HIGHEST - 1 - 2 * index
}

/// The link that a notification is of.
pub(crate) const fn link_of(id: u32) -> Option<u32> {
    match HIGHEST.checked_sub(id) {
        Some(before) if before / 2 < MOST_LINKS => Some(before / 2),
        _ => None,
    }
}

impl Core {
    /// Begins to make a link to the endpoint there. Waits until it is greeted, and not until it answers.
    pub(crate) fn open(&mut self, to: Address) -> Result<usize> {
        if self.in_function {
            return Err(Error::InFunction);
        }
        let timeout = Timeout::After(self.config.connect);
        let foreign = |why| Error::NotCalls {
            node: to.node,
            port: to.port,
            why,
        };
        let door = SharedSender::join(&self.port, to.node, to.port, &self.name, timeout).map_err(
            |error| match error {
                netvm::Error::NotAChannel { .. } => foreign("it is something else"),
                netvm::Error::Import { .. } | netvm::Error::TimedOut => Error::Library(error),
                error => self.of_import(error),
            },
        )?;
        // Two lives of a port are not at one time.
        let serial = self.port.now().0.max(self.last_serial + 1);
        self.last_serial = serial;
        let at = self.make(to, Side::Opener, serial)?;
        let mut greeted = door.send(&greeting(serial), timeout);
        for _ in 0..AGAIN {
            // It may have been told of the failure of something else. The second of two greetings is refused.
            match &greeted {
                Err(error) if self.heard(error) => greeted = door.send(&greeting(serial), timeout),
                _ => break,
            }
        }
        if let Err(error) = greeted {
            self.end(at, End::Closed);
            return Err(Error::Library(error));
        }
        Ok(at)
    }

    fn of_import(&mut self, error: netvm::Error) -> Error {
        self.heard(&error);
        Error::Library(error)
    }

    /// Takes greetings.
    ///
    /// # Errors
    /// Those that end the port.
    pub(crate) fn greet(&mut self) -> Result<()> {
        loop {
            let received = self.door.try_recv();
            let greeted = received.map(|message| message.map(|message| (message.sender(), message.to_vec())));
            let ((node, port), text) = match greeted {
                Ok(None) => return Ok(()),
                Ok(Some(greeted)) => greeted,
                Err(error) => return self.alive(&error),
            };
            let Ok(text) = text else { continue };
            let made =
                split_greeting(&text).map(|serial| self.make(Address { node, port }, Side::Acceptor, serial));
            match made {
                Some(Ok(at)) => {
                    let peer = self.peer(at);
                    self.accepted.push_back(peer);
                }
                Some(Err(Error::Library(error))) => {
                    self.alive(&error)?;
                    self.stats.refused += 1;
                }
                _ => self.stats.refused += 1,
            }
        }
    }

    /// Makes this side of a link.
    fn make(&mut self, to: Address, side: Side, serial: u64) -> Result<usize> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < MOST_LINKS as usize => {
                self.slots.push(Slot {
                    life: 0,
                    link: None,
                    last: End::Closed,
                });
                self.slots.len() as u32 - 1
            }
            None => return Err(Error::TooManyLinks { limit: MOST_LINKS }),
        };
        match self.link_at(index, to, side, serial) {
            Ok(link) => {
                let at = index as usize;
                if let Some(slot) = self.slots.get_mut(at) {
                    slot.link = Some(Box::new(link));
                }
                self.next_tick = Nanos(0);
                Ok(at)
            }
            Err(error) => {
                self.free.push(index);
                Err(Error::Library(error))
            }
        }
    }

    fn link_at(&self, index: u32, to: Address, side: Side, serial: u64) -> netvm::Result<Link> {
        let port = &self.port;
        let description = Description {
            shape: self.config.shape,
            arrived: arrived(index),
            functions: (self.table.len() / FUNCTION_BYTES) as u32,
            serial,
        };
        let memory = port.alloc(description.bytes())?;
        memory.write_from(page::DESCRIPTION, &description.encode())?;
        memory.write_from(TABLE, &self.table)?;
        let (arrived, told) = (
            port.notification(description.arrived)?,
            port.notification(description.arrived + 1)?,
        );
        // Of a link before this one: its export has ended, so nothing more comes.
        arrived.ack_up_to(u32::MAX)?;
        told.ack_up_to(u32::MAX)?;
        let access = Access::nobody()
            .and_port(to.node, to.port, Modes::READ | Modes::WRITE)
            .notify(description.arrived..=description.arrived + 1);
        let name = inbox_name(side, to.node, to.port, serial);
        let export = port.export(&name, &memory, .., access)?;
        let words = Words::of(&memory)?;
        let theirs = inbox_name(side.other(), port.node().id(), port.id(), serial);
        let timeout = Timeout::After(self.config.connect);
        let import = port.begin_import(to.node, to.port, &theirs, Modes::all(), timeout)?;
        let connect = self.config.connect.as_nanos() as u64;
        Ok(Link {
            to,
            phase: Phase::Importing(import),
            inbox: Inbox {
                _export: export,
                memory,
                description,
                arrived,
                told,
                words,
            },
            // Made anew when the other side's ring is known.
            out: Outgoing::new(Writer::new(description.shape)),
            inc: Incoming::new(Reader::new(description.shape)),
            look: None,
            resync: Resync::Quiet,
            doubts: false,
            deadline: Nanos(port.now().0.saturating_add(connect.saturating_mul(2))),
            patience: None,
            farewell: None,
            broken: None,
            serial,
        })
    }

    /// Goes on with a link that comes up, as far as that can be.
    ///
    /// # Errors
    /// Those that end the port.
    pub(crate) fn come_up(&mut self, at: usize, now: Nanos) -> Result<()> {
        while let Some(link) = self.link(at) {
            if link.broken.is_some() {
                return Ok(());
            }
            if !link.is_ready() && now > link.deadline {
                link.broken = Some(End::Gone(Status::TimedOut));
                self.dirty.push(at as u32);
                return Ok(());
            }
            let stepped = match &mut link.phase {
                Phase::Ready(_) => return Ok(()),
                Phase::Importing(import) => match import.end() {
                    None => return Ok(()),
                    Some(Ok(inbox)) => Ok(Phase::Found(inbox)),
                    Some(Err(error)) => Err(error),
                },
                Phase::Found(inbox) => {
                    let inbox = inbox.clone();
                    self.describe(inbox)
                }
                Phase::Described(inbox, description) => {
                    let (inbox, description) = (inbox.clone(), *description);
                    self.learn(inbox, description)
                }
                Phase::Describing(inbox, place, read) => match read.end() {
                    None => return Ok(()),
                    Some(Ok(())) => {
                        let mut bytes = [0; DESCRIPTION_BYTES];
                        let (inbox, place) = (inbox.clone(), place.clone());
                        let serial = link.serial;
                        match place.read_into(0, &mut bytes) {
                            Err(error) => Err(error),
                            Ok(()) => match Description::decode(&bytes, serial, inbox.len()) {
                                Ok(description) => Ok(Phase::Described(inbox, description)),
                                Err(why) => {
                                    link.broken = Some(End::Foreign(why));
                                    return Ok(());
                                }
                            },
                        }
                    }
                    Some(Err(error)) => Err(error),
                },
                Phase::Learning(inbox, description, place, read) => match read.end() {
                    None => return Ok(()),
                    Some(Ok(())) => {
                        let (inbox, description, place) = (inbox.clone(), *description, place.clone());
                        self.remote(inbox, description, &place).map(Phase::Ready)
                    }
                    Some(Err(error)) => Err(error),
                },
            };
            let is_asking = matches!(
                self.link(at).map(|link| &link.phase),
                Some(Phase::Found(_) | Phase::Described(..))
            );
            match stepped {
                Ok(phase) => self.enter(at, phase),
                // No room to post now.
                Err(netvm::Error::NoRoom { .. }) => return Ok(()),
                // It was told of the failure of something else, and has posted nothing: the next time.
                Err(error) if is_asking && self.heard(&error) => return Ok(()),
                Err(error) => {
                    self.heard(&error);
                    self.alive(&error)?;
                    self.broken(at, End::Gone(error.status().unwrap_or(Status::Malformed)));
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn enter(&mut self, at: usize, phase: Phase) {
        let Some(link) = self.link(at) else { return };
        if let Phase::Ready(remote) = &phase {
            link.out.writer = Writer::new(remote.description.shape);
            link.patience = None;
            // Calls may have come, and wait here to go.
            self.dirty.push(at as u32);
        }
        if let Some(link) = self.link(at) {
            link.phase = phase;
        }
    }

    /// Reads the description of an inbox.
    fn describe(&self, inbox: RemoteSegment) -> netvm::Result<Phase> {
        let place = self.port.alloc(4096)?;
        let into = place.slice(..DESCRIPTION_BYTES as u64)?;
        let read = inbox.read(page::DESCRIPTION, &into).begin()?;
        Ok(Phase::Describing(inbox, place, read))
    }

    /// Reads its table of functions.
    fn learn(&self, inbox: RemoteSegment, description: Description) -> netvm::Result<Phase> {
        let len = u64::from(description.functions) * FUNCTION_BYTES as u64;
        let place = self.port.alloc(len.max(1))?;
        let into = place.slice(..len)?;
        let read = inbox.read(TABLE, &into).begin()?;
        Ok(Phase::Learning(inbox, description, place, read))
    }

    fn remote(
        &self,
        inbox: RemoteSegment,
        description: Description,
        place: &Region,
    ) -> netvm::Result<Remote> {
        let mut table = vec![0; description.functions as usize * FUNCTION_BYTES];
        place.read_into(0, &mut table)?;
        Ok(Remote {
            mirror: self.port.alloc(description.shape.bytes())?,
            functions: Functions::decode(&table),
            inbox,
            description,
        })
    }

    /// Ends a link: all that waits for something of it is told.
    pub(crate) fn end(&mut self, at: usize, end: End) {
        let peer = self.peer(at);
        let Some(slot) = self.slots.get_mut(at) else {
            return;
        };
        let Some(mut link) = slot.link.take() else { return };
        slot.last = end;
        slot.life = slot.life.wrapping_add(1);
        for place in link.fail_all(end) {
            self.passed(place, 1);
        }
        // Its export ends, and with it what the other side may still send.
        drop(link);
        self.free.push(peer.index);
        self.ended.push_back((peer, end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_link_has_two_notifications() {
        let mut ids = std::collections::BTreeSet::new();
        for index in 0..MOST_LINKS {
            for id in [arrived(index), arrived(index) + 1] {
                assert!((1..=HIGHEST).contains(&id) && ids.insert(id));
                assert_eq!(link_of(id), Some(index));
            }
        }
        assert_eq!(link_of(0), None);
        assert_eq!(link_of(896), None);
    }
}
