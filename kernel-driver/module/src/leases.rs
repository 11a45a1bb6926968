// SPDX-License-Identifier: GPL-2.0

//! Calls about leases (docs/ABI.md, chapter 14; docs/decisions/0042-leases.md).
//!
//! The host core gives a lease, or asks the card for one, only while few events wait for the card. Until then a caller sleeps,
//! and a signal ends its sleep: before anything was given.

use crate::calls::{modes, File};
use crate::errno::{self, Failure};
use crate::event::Woken;
use crate::host_card::{Glue, HostCard};
use crate::tables::Tables;
use core::mem::size_of;
use kernel::prelude::*;
use kernel::uaccess::UserSlice;
use netvm_abi::ioctl;
use netvm_abi::{CapabilitySlot, ExportId, Generation, Nanos, NodeId, PortId, Status, VirtAddr};
use netvm_host::host::Host;
use netvm_host::leases::{LeaseId, LeaseSpec};
use netvm_host::revoke::Revoke;

/// How long a caller sleeps at most before it tries again, in nanoseconds: what it waits for is taken by the card, which says so of
/// few things alone.
const AGAIN: u64 = 100_000;

/// Calls the core until it answers.
fn until<R>(
    card: &HostCard,
    mut call: impl FnMut(&mut Host<Tables>, &mut Glue, Nanos) -> Result<Option<R>, Status>,
) -> Result<R, Failure> {
    loop {
        let seen = card.steps.count();
        if let Some(result) = card.with(&mut call)? {
            return Ok(result);
        }
        card.look_again();
        match card.steps.wait(seen, AGAIN, true) {
            Woken::News | Woken::Late => {}
            Woken::Signal => return Err(Failure::plain(errno::INTR)),
        }
    }
}

impl File {
    pub(crate) fn lend(&self, lend: &mut ioctl::Lend) -> Result<(), Failure> {
        let (card, port) = (self.card(), self.own_port()?.number());
        let spec = LeaseSpec {
            export: ExportId(lend.export),
            start: VirtAddr(lend.address),
            len: lend.len,
            modes: modes(lend.modes)?,
            node: NodeId(lend.node),
            port: PortId(lend.port),
            duration: Nanos(lend.duration),
            longest: Nanos(lend.longest),
        };
        let lent = until(card, |host, glue, now| host.lend(glue, port, &spec, now))?;
        let grant = &lent.grant;
        lend.secret = grant.secret;
        lend.capability = lent.lease.slot.0;
        lend.generation = lent.lease.generation.0;
        lend.notify_first = grant.notify_first.0;
        lend.notify_last = grant.notify_last.0;
        Ok(())
    }

    pub(crate) fn lease_left(&self, left: &mut ioctl::LeaseLeft) -> Result<(), Failure> {
        let (card, port) = (self.card(), self.own_port()?.number());
        let lease = LeaseId {
            slot: CapabilitySlot(left.capability),
            generation: Generation(left.generation),
        };
        let question = card.with(|host, _, _| host.lease_left_begin(port, lease));
        let step =
            |host: &mut Host<Tables>, glue: &mut Glue, now| host.lease_left_step(glue, port, &question, now);
        left.left = until(card, step)?.0;
        Ok(())
    }

    pub(crate) fn recall(&self, recall: &mut ioctl::Recall) -> Result<(), Failure> {
        let (card, port) = (self.card(), self.own_port()?.number());
        let count = recall.count as usize;
        let mut names = [const { None::<LeaseId> }; ioctl::RECALL_ENTRIES];
        let names = names.get_mut(..count).ok_or(Status::TableFull)?;
        read_names(recall.leases as usize, names)?;
        let mut ending = [const { None::<Revoke> }; ioctl::RECALL_ENTRIES];
        card.with(|host, glue, now| {
            for (place, lease) in ending.iter_mut().zip(names.iter().flatten()) {
                *place = host.recall_begin(glue, port, *lease, now);
            }
        });
        for revoke in ending.iter_mut().flatten() {
            card.drive(|host, glue, now| host.revoke_step(glue, revoke, now));
        }
        Ok(())
    }
}

/// Reads the names of leases.
fn read_names(at: usize, into: &mut [Option<LeaseId>]) -> Result<(), Failure> {
    let mut reader = UserSlice::new(at, into.len() * size_of::<ioctl::LeaseName>()).reader();
    for place in into {
        let mut bytes = [0; size_of::<ioctl::LeaseName>()];
        reader
            .read_slice(&mut bytes)
            .map_err(|_| Failure::plain(errno::FAULT))?;
        let [s0, s1, s2, s3, g0, g1, g2, g3] = bytes;
        *place = Some(LeaseId {
            slot: CapabilitySlot(u32::from_ne_bytes([s0, s1, s2, s3])),
            generation: Generation(u32::from_ne_bytes([g0, g1, g2, g3])),
        });
    }
    Ok(())
}
