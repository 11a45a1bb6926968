// SPDX-License-Identifier: GPL-2.0

//! What has been counted, for a process that asks (`STAT`, docs/ABI.md, chapter 14).

use crate::errno::{self, Failure};
use crate::host_card::HostCard;
use crate::shim;
use kernel::prelude::*;
use kernel::uaccess::UserSlice;
use netvm_abi::bar::BarMap;
use netvm_abi::counter_table::{self, NAME_BYTES};
use netvm_abi::ioctl::{self, StatScope, NOBODY};
use netvm_abi::{NodeId, PortId, Status};

/// A process's array of [`ioctl::Counter`], wherever it says that it is.
struct Array {
    at: u64,
    room: u32,
}

impl Array {
    /// Writes entry `index`, if there is room for it.
    fn write(&self, index: u32, name: &[u8; NAME_BYTES], value: u64) -> Result<(), Failure> {
        if index >= self.room {
            return Ok(());
        }
        let fault = || Failure::plain(errno::FAULT);
        let offset = u64::from(index) * size_of::<ioctl::Counter>() as u64;
        let at = self.at.checked_add(offset).ok_or_else(fault)?;
        let mut writer = UserSlice::new(at as usize, size_of::<ioctl::Counter>()).writer();
        let written = writer
            .write_slice(name)
            .and_then(|()| writer.write_slice(&value.to_ne_bytes()));
        written.map_err(|_| fault())
    }

    /// Writes as many as there is room for, and tells how many there are.
    fn fill(&self, counters: impl Iterator<Item = (&'static str, u64)>) -> Result<u32, Failure> {
        let mut count = 0;
        for (name, value) in counters {
            let mut bytes = [0; NAME_BYTES];
            for (to, from) in bytes.iter_mut().zip(name.bytes()) {
                *to = from;
            }
            self.write(count, &bytes, value)?;
            count += 1;
        }
        Ok(count)
    }

    /// The same for one of many, if there is one left; tells which, too.
    fn one(
        &self,
        found: Option<(impl Into<u32>, impl Iterator<Item = (&'static str, u64)>)>,
    ) -> Result<(u32, u32), Failure> {
        match found {
            Some((which, counters)) => Ok((which.into(), self.fill(counters)?)),
            None => Ok((NOBODY, 0)),
        }
    }
}

/// Answers a `STAT`. Each answer is of one moment; a process's memory is written to when the lock is free again.
pub(crate) fn stat(card: &HostCard, stat: &mut ioctl::Stat) -> Result<(), Failure> {
    let array = Array {
        at: stat.counters,
        room: stat.count,
    };
    let from = stat.which;
    // A number that does not fit 16 bits names no port and no peer.
    let small = u16::try_from(from).ok();
    let (which, count) = match stat.scope {
        scope if scope == StatScope::Driver as u32 => {
            let counters = card.with(|host, _, _| *host.counters());
            (0, array.fill(counters.iter())?)
        }
        scope if scope == StatScope::Card as u32 => (0, of_card(card, &array)?),
        scope if scope == StatScope::Port as u32 => {
            let found = card.with(|host, glue, _| host.port_tally(glue, PortId(small?)));
            array
                .one(found.map(|(port, tally, work)| (port.0, Iterator::chain(tally.iter(), work.iter()))))?
        }
        scope if scope == StatScope::Segment as u32 => {
            let mut found = card.with(|host, _, _| host.segment_tally(from));
            if let Some((_, tally, _)) = found.as_mut().filter(|_| !shim::nv_may_see_addresses()) {
                tally.start = 0;
            }
            array
                .one(found.map(|(place, tally, work)| (place, Iterator::chain(tally.iter(), work.iter()))))?
        }
        scope if scope == StatScope::Peer as u32 => {
            let found = card.with(|host, glue, _| host.peer_tally(glue, NodeId(small?)));
            array
                .one(found.map(|(node, tally, work)| (node.0, Iterator::chain(tally.iter(), work.iter()))))?
        }
        _ => return Err(Status::Unsupported.into()),
    };
    (stat.which, stat.count) = (which, count);
    Ok(())
}

/// What the card has published.
fn of_card(card: &HostCard, array: &Array) -> Result<u32, Failure> {
    // The BAR is read under the lock (the card may be pulled out), an entry at a time.
    let table = card.with(|host, _, _| BarMap::new(host.geometry()).counters);
    let entries = card.with(|_, glue, _| counter_table::entries(&glue.bar, table));
    for index in 0..entries.min(array.room) {
        let (name, value) = card.with(|_, glue, _| counter_table::read(&glue.bar, table, index));
        array.write(index, &name, value)?;
    }
    Ok(entries)
}
