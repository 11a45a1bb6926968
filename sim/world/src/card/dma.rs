//! The two moments of a DMA after its start: its bytes move, its end is reported.

use super::AGAIN;
use super::paced::Source;
use crate::check::message::{Message, READ_REPLY};
use crate::faults::FaultKind;
use crate::node::Node;
use crate::seen::{Buffer, DmaNumber, Place, Seen, Stored, Way};
use crate::sim::{Event, Sim};
use crate::vm::PAGE;
use netvm_abi::wire::HEADER_BYTES;
use netvm_abi::{Nanos, NodeId, PageOffset, StagingId};
use netvm_nic::platform::{Dma, DmaId, PageRange};
use netvm_platform::DmaEnd;

/// How much of a DMA has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing.
    Begun,
    /// All but this part.
    Lacks(Part),
    /// All.
    Moved,
}

/// Bytes of a DMA: the first, and the one after the last.
type Part = (usize, usize);

/// Cuts a DMA in two, now and then, and says which part moves first: a bus promises no order among the words of a transfer, but
/// an aligned word of up to 8 bytes moves as one.
fn cut(sim: &Sim, node: &Node, dma: Dma) -> Option<[Part; 2]> {
    let (_, page) = page_of(dma)?;
    let len = page.len.0 as usize;
    let first = 8 - usize::from(page.offset.0) % 8;
    if first >= len || !sim.fires(FaultKind::DmaParts, node.id) {
        return None;
    }
    let at = first + 8 * sim.below((len - first).div_ceil(8) as u64) as usize;
    let (low, high) = ((0, at), (at, len));
    Some(if sim.below(2) == 0 {
        [low, high]
    } else {
        [high, low]
    })
}

/// Shows the checkers a part that has moved, and whether it was the last.
struct Shows<'a> {
    sim: &'a Sim,
    node: NodeId,
    dma: DmaNumber,
    part: Part,
    over: bool,
}

impl Shows<'_> {
    /// These are all the bytes of the DMA, of which the part has moved.
    fn show(&self, way: Way, page: PageRange, bytes: &[u8], stored: Option<Stored>) {
        let (node, dma, ppn, place) = (self.node, self.dma, page.ppn, place_of(page));
        let (first, end) = self.part;
        let parted = end - first < bytes.len();
        if parted {
            self.sim.see(Seen::DmaPart {
                node,
                way,
                ppn,
                of: place,
                place: Place {
                    offset: place.offset + first as u32,
                    len: (end - first) as u32,
                    ..place
                },
                bytes: bytes[first..end].into(),
            });
        }
        if self.over {
            self.sim.see(Seen::DmaMoved {
                node,
                dma,
                way,
                ppn,
                place,
                bytes: bytes.into(),
                stored,
                parted,
            });
        }
    }
}

/// The bytes of a DMA move. On the last occasion all that have not; before it perhaps a part, and the rest a little later.
pub(crate) fn dma_move(sim: &Sim, node: &Node, number: u64, is_last: bool) {
    let mut guard = node.bus.borrow_mut();
    let bus = &mut *guard;
    let Some(active) = bus.active.get_mut(&number) else {
        return;
    };
    let before = std::mem::replace(&mut active.progress, Progress::Moved);
    if before == Progress::Moved || active.fails {
        return;
    }
    let (dma, slot) = (active.dma, active.id.slot);
    let part = match before {
        Progress::Lacks(rest) => rest,
        _ => {
            let whole = (0, page_of(dma).map_or(0, |(_, page)| page.len.index()));
            let parts = if is_last { None } else { cut(sim, node, dma) };
            parts.map_or(whole, |[part, rest]| {
                active.progress = Progress::Lacks(rest);
                let event = Event::DmaMove {
                    node: node.id,
                    life: node.life.get(),
                    dma: number,
                };
                sim.after(sim.span(Nanos(50), Nanos(3_000)), event);
                part
            })
        }
    };
    let shows = Shows {
        sim,
        node: node.id,
        dma: number,
        part,
        over: active.progress == Progress::Moved,
    };
    let now = part.0..part.1;
    match dma {
        Dma::PageToStaging { page, staging } => {
            let range = range_of(page.offset, page.len.0);
            let mut vm = node.vm.borrow_mut();
            let (Some(bytes), Some(buffer)) = (
                vm.frames().read(page.ppn).and_then(|bytes| bytes.get(range)),
                bus.staging.get_mut(staging.index()),
            ) else {
                return;
            };
            buffer[now.clone()].copy_from_slice(&bytes[now]);
            shows.show(Way::FromPage, page, &buffer[..bytes.len()], None);
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
                bytes[now.clone()].copy_from_slice(&payload[now]);
            }
            let stored = match Message::read(frame).map(|message| message.kind) {
                Some(READ_REPLY) => Stored::Answer,
                _ => Stored::Message,
            };
            shows.show(Way::ToPage, page, payload, Some(stored));
        }
        Dma::PageToOperand { page } => {
            let range = range_of(page.offset, page.len.0);
            let mut vm = node.vm.borrow_mut();
            let (Some(bytes), Some(operand)) = (
                vm.frames().read(page.ppn).and_then(|bytes| bytes.get(range)),
                bus.operands.bytes(slot, page.len),
            ) else {
                return;
            };
            operand[now.clone()].copy_from_slice(&bytes[now]);
            shows.show(Way::FromPage, page, operand, None);
        }
        Dma::OperandToPage { page } => {
            let Some(operand) = bus.operands.bytes(slot, page.len) else {
                return;
            };
            let range = range_of(page.offset, page.len.0);
            let mut vm = node.vm.borrow_mut();
            if let Some(bytes) = vm.frames().write(page.ppn).and_then(|bytes| bytes.get_mut(range)) {
                bytes[now.clone()].copy_from_slice(&operand[now]);
            }
            shows.show(Way::ToPage, page, operand, Some(Stored::Operand));
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
    dma_move(sim, node, number, true);
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
