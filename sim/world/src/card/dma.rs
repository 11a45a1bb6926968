//! The two moments of a DMA after its start: its bytes move, its end is reported.

use super::AGAIN;
use super::paced::Source;
use crate::check::message::{Message, READ_REPLY};
use crate::node::Node;
use crate::seen::{Buffer, DmaNumber, Place, Seen, Stored, Way};
use crate::sim::Sim;
use crate::vm::PAGE;
use netvm_abi::wire::HEADER_BYTES;
use netvm_abi::{Nanos, NodeId, PageOffset, StagingId};
use netvm_nic::platform::{Dma, DmaId, PageRange};
use netvm_platform::DmaEnd;

/// The bytes of a DMA move.
pub(crate) fn dma_move(sim: &Sim, node: &Node, number: u64) {
    let mut guard = node.bus.borrow_mut();
    let bus = &mut *guard;
    let Some(active) = bus.active.get_mut(&number) else {
        return;
    };
    if std::mem::replace(&mut active.moved, true) || active.fails {
        return;
    }
    let (dma, slot) = (active.dma, active.id.slot);
    match dma {
        Dma::PageToStaging { page, staging } => {
            let range = range_of(page.offset, page.len.0);
            let mut vm = node.vm.borrow_mut();
            let Some(bytes) = vm.frames().read(page.ppn).and_then(|bytes| bytes.get(range)) else {
                return;
            };
            if let Some(buffer) = bus.staging.get_mut(staging.index()) {
                buffer[..bytes.len()].copy_from_slice(bytes);
            }
            sim.see(moved(node.id, number, Way::FromPage, page, bytes, None));
        }
        Dma::ReceiveToPage { receive, page } => {
            let Some(frame) = bus.receive.get(&receive.0) else {
                return;
            };
            let range = range_of(page.offset, page.len.0);
            let Some(payload) = frame.get(HEADER_BYTES..HEADER_BYTES + range.len()) else {
                return;
            };
            let mut vm = node.vm.borrow_mut();
            if let Some(bytes) = vm.frames().write(page.ppn).and_then(|bytes| bytes.get_mut(range)) {
                bytes.copy_from_slice(payload);
            }
            let stored = match Message::read(frame).map(|message| message.kind) {
                Some(READ_REPLY) => Stored::Answer,
                _ => Stored::Message,
            };
            sim.see(moved(node.id, number, Way::ToPage, page, payload, Some(stored)));
        }
        Dma::PageToOperand { page } => {
            let range = range_of(page.offset, page.len.0);
            let mut vm = node.vm.borrow_mut();
            let Some(bytes) = vm.frames().read(page.ppn).and_then(|bytes| bytes.get(range)) else {
                return;
            };
            if let Some(operand) = bus.operands.bytes(slot, page.len) {
                operand.copy_from_slice(bytes);
            }
            sim.see(moved(node.id, number, Way::FromPage, page, bytes, None));
        }
        Dma::OperandToPage { page } => {
            let Some(operand) = bus.operands.bytes(slot, page.len) else {
                return;
            };
            let range = range_of(page.offset, page.len.0);
            let mut vm = node.vm.borrow_mut();
            if let Some(bytes) = vm.frames().write(page.ppn).and_then(|bytes| bytes.get_mut(range)) {
                bytes.copy_from_slice(operand);
            }
            let stored = Some(Stored::Operand);
            sim.see(moved(node.id, number, Way::ToPage, page, operand, stored));
        }
        Dma::ReceiveToBounce { receive, bounce, len } => {
            let Some(frame) = bus.receive.get(&receive.0).cloned() else {
                return;
            };
            let Some(payload) = frame.get(HEADER_BYTES..HEADER_BYTES + len.0 as usize) else {
                return;
            };
            let page = bus.bounce.entry(bounce).or_insert_with(|| Box::new([0; PAGE]));
            page[..payload.len()].copy_from_slice(payload);
            sim.see(Seen::BounceFilled {
                node: node.id,
                bounce,
                from: None,
                bytes: payload.into(),
            });
        }
        Dma::BounceToStaging { bounce, staging, len } => {
            if let (Some(page), Some(buffer)) =
                (bus.bounce.get(&bounce), bus.staging.get_mut(staging.index()))
            {
                let len = (len.0 as usize).min(PAGE);
                buffer[..len].copy_from_slice(&page[..len]);
            }
        }
    }
}

/// A DMA is reported done, perhaps for the second time.
pub(crate) fn dma_done(sim: &Sim, node: &Node, number: u64) {
    if number & AGAIN != 0 {
        let id = DmaId {
            slot: (number >> 32) as u8,
            generation: ((number >> 40) & 0xFF_FFFF) as u32,
        };
        sim.note(node.id, "dma reported again", &[("slot", u64::from(id.slot))]);
        node.bus.borrow_mut().done.push_back(DmaEnd { id, ok: true });
        node.kick(sim, Nanos(20));
        return;
    }
    dma_move(sim, node, number);
    let Some(active) = node.bus.borrow_mut().active.remove(&number) else {
        return;
    };
    if let Some((way, _)) = page_of(active.dma) {
        let activity = if way == Way::ToPage {
            &node.activity.landing
        } else {
            &node.activity.staging
        };
        activity.set(activity.get().saturating_sub(1));
    }
    sim.see(Seen::DmaDone {
        node: node.id,
        dma: number,
    });
    {
        let mut bus = node.bus.borrow_mut();
        bus.done.push_back(DmaEnd {
            id: active.id,
            ok: !active.fails,
        });
        if sim.model.is_some() {
            bus.line.push(Source::Dma, active.instructions);
        }
    }
    if let Some((Way::ToPage, page)) = page_of(active.dma) {
        crate::process::stir(sim, node, page.vpn.port());
    }
    node.kick(sim, sim.lag(20));
}

/// A staging buffer has left.
pub(crate) fn sent(sim: &Sim, node: &Node, staging: StagingId) {
    sim.see(Seen::StagingLeft {
        node: node.id,
        staging,
    });
    {
        let mut bus = node.bus.borrow_mut();
        bus.sent.push_back(staging);
        if let Some(model) = &sim.model {
            bus.line.push(Source::Sent, model.steps.sent);
        }
    }
    node.kick(sim, sim.lag(20));
}

/// The buffers that a DMA takes bytes out of, and puts them into.
pub(super) const fn buffers_of(slot: u8, dma: Dma) -> (Option<Buffer>, Option<Buffer>) {
    match dma {
        Dma::PageToStaging { staging, .. } => (None, Some(Buffer::Staging(staging))),
        Dma::ReceiveToPage { receive, .. } => (Some(Buffer::Receive(receive)), None),
        Dma::ReceiveToBounce { receive, bounce, .. } => {
            (Some(Buffer::Receive(receive)), Some(Buffer::Bounce(bounce)))
        }
        Dma::BounceToStaging { bounce, staging, .. } => {
            (Some(Buffer::Bounce(bounce)), Some(Buffer::Staging(staging)))
        }
        Dma::PageToOperand { .. } => (None, Some(Buffer::Operand(slot))),
        Dma::OperandToPage { .. } => (Some(Buffer::Operand(slot)), None),
    }
}

pub(super) fn page_of(dma: Dma) -> Option<(Way, PageRange)> {
    match dma {
        Dma::PageToStaging { page, .. } | Dma::PageToOperand { page } => Some((Way::FromPage, page)),
        Dma::ReceiveToPage { page, .. } | Dma::OperandToPage { page } => Some((Way::ToPage, page)),
        _ => None,
    }
}

pub(super) fn place_of(page: PageRange) -> Place {
    Place {
        port: page.vpn.port(),
        page: page.vpn.page_number(),
        offset: u32::from(page.offset.0),
        len: page.len.0,
    }
}

pub(super) fn fields_of(number: u64, dma: Dma, len: u32) -> [(&'static str, u64); 6] {
    let (first, second) = match dma {
        Dma::PageToStaging { page, staging } => (("ppn", page.ppn.0), ("staging", u64::from(staging.0))),
        Dma::PageToOperand { page } | Dma::OperandToPage { page } => {
            (("ppn", page.ppn.0), ("offset", u64::from(page.offset.0)))
        }
        Dma::ReceiveToPage { page, receive } => (("ppn", page.ppn.0), ("receive", u64::from(receive.0))),
        Dma::ReceiveToBounce { bounce, receive, .. } => {
            (("bounce", u64::from(bounce.0)), ("receive", u64::from(receive.0)))
        }
        Dma::BounceToStaging { bounce, staging, .. } => {
            (("bounce", u64::from(bounce.0)), ("staging", u64::from(staging.0)))
        }
    };
    let (port, page) = page_of(dma).map_or((0, 0), |(_, p)| (u64::from(p.vpn.port().0), p.vpn.page_number()));
    [
        ("dma", number),
        first,
        second,
        ("len", u64::from(len)),
        ("port", port),
        ("page", page),
    ]
}

fn range_of(offset: PageOffset, len: u32) -> std::ops::Range<usize> {
    let start = usize::from(offset.0);
    start..start + len as usize
}

fn moved(
    node: NodeId,
    dma: DmaNumber,
    way: Way,
    page: PageRange,
    bytes: &[u8],
    stored: Option<Stored>,
) -> Seen {
    Seen::DmaMoved {
        node,
        dma,
        way,
        ppn: page.ppn,
        place: place_of(page),
        bytes: bytes.into(),
        stored,
    }
}
