//! The card's DMA engine: `memcpy` through the alias mapping, at once or late and out of order.
//!
//! Every DMA to an application page is checked against the frame table when it starts and when it ends ([`crate::vm::frames`]);
//! a frame that is not the card's ends the process with a P1 report. A DMA copies at its end, so that host and application have
//! all the time in between to go wrong.

use std::collections::VecDeque;
use std::sync::Arc;

use netvm_abi::page_table::{PageSlot, PageTable};
use netvm_abi::{BounceId, Nanos, StagingId, Vpn};
use netvm_nic::platform::{Dma, DmaId, PageRange};
use netvm_platform::DmaEnd;
use rand::{Rng, SeedableRng, rngs::SmallRng};

use crate::copy;
use crate::fatal::{self, Fatal};
use crate::memory::{Buffer, SharedPages, Stock, WordSpace};
use crate::vm::{DmaTicket, Frame, FrameTable, PAGE_SIZE};
use crate::wire::Message;

/// When DMAs complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaMode {
    /// With the card's next pass: the fast mode.
    AtOnce,
    /// Each after a random time of its own, so that they overlap and end out of order.
    Late {
        /// Decides the times; node numbers are mixed in.
        seed: u64,
        /// The longest time.
        up_to: Nanos,
    },
}

/// The buffers that DMAs move payload to and from.
pub(crate) struct Buffers {
    /// By `StagingId`; the card has one while it has something in it.
    pub(crate) staging: Vec<Option<Box<Buffer>>>,
    /// Buffers that nobody uses.
    pub(crate) pages: Stock<Box<Buffer>>,
    /// Received messages by `ReceiveId`.
    pub(crate) received: Vec<Option<Box<Message>>>,
    pub(crate) bounce: Arc<SharedPages>,
}

struct Flight {
    due: Nanos,
    id: DmaId,
    dma: Dma,
    ticket: Option<DmaTicket>,
}

/// Bytes from which on a transfer counts as long.
const LONG: usize = 1024;
/// How many pages ahead of a long transfer the page table is asked for.
const PAGES_AHEAD: u64 = 2;

/// One card's engine.
pub(crate) struct Engine {
    frames: Arc<FrameTable>,
    /// The card's page table, and where it is.
    table: (Arc<WordSpace>, PageTable),
    late: Option<(SmallRng, Nanos)>,
    flying: Vec<Flight>,
    /// DMAs that are due, in order; each copies when the card takes its end.
    ready: VecDeque<Flight>,
    /// The card was stopped: nothing touches host memory any more.
    halted: bool,
    /// Payload bytes moved to or from application pages.
    pub(crate) page_bytes: u64,
}

impl Engine {
    pub(crate) fn new(
        frames: Arc<FrameTable>,
        table: (Arc<WordSpace>, PageTable),
        mode: DmaMode,
        node: u16,
    ) -> Self {
        let late = match mode {
            DmaMode::AtOnce => None,
            DmaMode::Late { seed, up_to } => {
                let seed = seed ^ u64::from(node).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                Some((SmallRng::seed_from_u64(seed), up_to))
            }
        };
        Self {
            frames,
            table,
            late,
            flying: Vec::new(),
            ready: VecDeque::new(),
            halted: false,
            page_bytes: 0,
        }
    }

    /// Starts a DMA.
    pub(crate) fn start(&mut self, now: Nanos, id: DmaId, dma: Dma) {
        let ticket = match &dma {
            Dma::PageToStaging { page, .. } if !self.halted => Some(self.begin(page)),
            Dma::ReceiveToPage { page, .. } if !self.halted => {
                let ticket = self.begin(page);
                if let Some((ticket, offset, len)) = in_page(Some(&ticket), page) {
                    copy::expect_copy_to(ticket.alias().wrapping_add(offset), len);
                }
                Some(ticket)
            }
            _ => None,
        };
        if let Dma::PageToStaging { page, .. } | Dma::ReceiveToPage { page, .. } = &dma {
            self.expect_stream(page);
        }
        let flight = Flight {
            due: now,
            id,
            dma,
            ticket,
        };
        match &mut self.late {
            None => self.ready.push_back(flight),
            Some((random, up_to)) => {
                let due = now.after(Nanos(random.random_range(0..=up_to.0)));
                self.flying.push(Flight { due, ..flight });
            }
        }
    }

    /// Late DMAs that are due get ready to end.
    pub(crate) fn advance(&mut self, now: Nanos) {
        while let Some(index) = self.flying.iter().position(|flight| flight.due <= now) {
            let flight = self.flying.swap_remove(index);
            self.ready.push_back(flight);
        }
    }

    /// When the next late DMA is due.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        self.flying.iter().map(|flight| flight.due).min()
    }

    /// Ends the next DMA that is ready: its bytes are copied when this returns.
    #[inline]
    pub(crate) fn pop_ended(&mut self, buffers: &mut Buffers) -> Option<DmaEnd> {
        let flight = self.ready.pop_front()?;
        Some(self.finish(&flight, buffers))
    }

    /// Whether [`Self::pop_ended`] has something.
    pub(crate) fn has_ended(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Stops bus mastering: what flies is dropped, nothing new touches the host.
    pub(crate) fn halt(&mut self) {
        self.halted = true;
        self.flying.clear();
    }

    /// A long transfer is often part of a stream: the card will look for a page behind this one soon, and a stream's payload
    /// pushes the page table out of the processor's cache.
    #[inline]
    fn expect_stream(&self, page: &PageRange) {
        if page.len.index() < LONG {
            return;
        }
        let (bar, table) = &self.table;
        let row = table.row_of(Vpn::from_raw(page.vpn.raw().wrapping_add(PAGES_AHEAD)));
        if let Some(word) = bar.part(table.slot_at(PageSlot::new(row, 0)), 1).first() {
            copy::expect_write(word);
        }
    }

    fn begin(&self, page: &PageRange) -> DmaTicket {
        let frame = Frame(u32::try_from(page.ppn.0).unwrap_or(u32::MAX));
        match self.frames.begin_dma(frame) {
            Ok(ticket) => ticket,
            Err(stale) => fatal::abort(
                Fatal::StaleDma,
                format_args!("{stale} (for virtual page {:#x})", page.vpn.raw()),
            ),
        }
    }

    fn finish(&mut self, flight: &Flight, buffers: &mut Buffers) -> DmaEnd {
        let moved = !self.halted && transfer(&flight.dma, flight.ticket.as_ref(), buffers);
        if let Some(ticket) = flight.ticket.as_ref().filter(|_| moved) {
            if let Err(stale) = self.frames.end_dma(ticket) {
                fatal::abort(Fatal::StaleDma, format_args!("{stale}"));
            }
            self.page_bytes += match flight.dma {
                Dma::PageToStaging { page, .. } | Dma::ReceiveToPage { page, .. } => u64::from(page.len.0),
                _ => 0,
            };
        }
        DmaEnd {
            id: flight.id,
            ok: moved,
        }
    }
}

/// Copies; false where the core asked for bytes that do not exist.
fn transfer(dma: &Dma, ticket: Option<&DmaTicket>, buffers: &mut Buffers) -> bool {
    match *dma {
        Dma::PageToStaging { page, staging } => {
            let Some((ticket, offset, len)) = in_page(ticket, &page) else {
                return false;
            };
            let Some(target) = staging_slice(buffers, staging, len) else {
                return false;
            };
            // SAFETY: the ticket's page holds `offset + len` bytes and the card has it locked; `target` is the card's own.
            unsafe { copy::copy_out(ticket.alias().add(offset), target) };
        }
        Dma::ReceiveToPage { receive, page } => {
            let Some((ticket, offset, len)) = in_page(ticket, &page) else {
                return false;
            };
            let Some(source) = payload(buffers, receive.index(), len) else {
                return false;
            };
            // SAFETY: as above; the source is the card's own.
            unsafe { copy::copy_in(source, ticket.alias().add(offset)) };
        }
        Dma::ReceiveToBounce { receive, bounce, len } => {
            let Some(target) = buffers.bounce.page(bounce.0) else {
                return false;
            };
            let Some(source) = payload(buffers, receive.index(), len.index()) else {
                return false;
            };
            // SAFETY: a bounce page is a page long, and `payload` never gives more than one.
            unsafe { copy::copy_in(source, target) };
        }
        Dma::BounceToStaging { bounce, staging, len } => {
            let Some(source) = bounce_page(buffers, bounce) else {
                return false;
            };
            let Some(target) = staging_slice(buffers, staging, len.index()) else {
                return false;
            };
            // SAFETY: a bounce page and a staging buffer are a page long each, and `target` is not longer.
            unsafe { copy::copy_out(source, target) };
        }
    }
    true
}

fn in_page<'a>(ticket: Option<&'a DmaTicket>, page: &PageRange) -> Option<(&'a DmaTicket, usize, usize)> {
    let (offset, len) = (page.offset.index(), page.len.index());
    let inside = offset.checked_add(len).is_some_and(|end| end <= PAGE_SIZE);
    ticket.filter(|_| inside).map(|ticket| (ticket, offset, len))
}

fn staging_slice(buffers: &mut Buffers, staging: StagingId, len: usize) -> Option<&mut [u8]> {
    let slot = buffers.staging.get_mut(staging.index())?;
    let buffer = slot.get_or_insert_with(|| buffers.pages.take());
    buffer.0.get_mut(..len)
}

fn payload(buffers: &Buffers, receive: usize, len: usize) -> Option<&[u8]> {
    buffers.received.get(receive)?.as_ref()?.payload().get(..len)
}

fn bounce_page(buffers: &Buffers, bounce: BounceId) -> Option<*const u8> {
    Some(buffers.bounce.page(bounce.0)?.cast_const())
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_abi::page_table::HashKey;
    use netvm_abi::{ByteLen, ReceiveId, WordIndex};

    fn table() -> (Arc<WordSpace>, PageTable) {
        let table = PageTable::new(WordIndex(0), 1, HashKey([1, 3]));
        (Arc::new(WordSpace::new(16).unwrap()), table)
    }

    fn buffers() -> Buffers {
        let message = Message {
            header: [0; 80],
            len: 8,
            small: [7; 128],
            buffer: None,
        };
        Buffers {
            staging: Vec::new(),
            pages: Stock::new(&Arc::default(), 1),
            received: vec![Some(Box::new(message))],
            bounce: Arc::new(SharedPages::new(8).unwrap()),
        }
    }

    fn to_bounce(bounce: u32) -> Dma {
        Dma::ReceiveToBounce {
            receive: ReceiveId(0),
            bounce: BounceId(bounce),
            len: ByteLen(8),
        }
    }

    #[test]
    fn late_dmas_overlap_and_end_out_of_order_but_all_end() {
        let mode = DmaMode::Late {
            seed: 5,
            up_to: Nanos(1000),
        };
        let mut engine = Engine::new(Arc::new(FrameTable::new(1)), table(), mode, 0);
        let mut buffers = buffers();
        for slot in 0..8u8 {
            engine.start(
                Nanos(0),
                DmaId { slot, generation: 1 },
                to_bounce(u32::from(slot)),
            );
        }
        assert!(!engine.has_ended() && engine.next_due().is_some());
        let mut order = Vec::new();
        for now in 0..=1000 {
            engine.advance(Nanos(now));
            while let Some(end) = engine.pop_ended(&mut buffers) {
                assert!(end.ok);
                order.push(end.id.slot);
            }
        }
        assert_eq!(order.len(), 8);
        assert!(!order.is_sorted(), "{order:?}");
        assert_eq!(engine.next_due(), None);
    }

    #[test]
    fn bytes_that_do_not_exist_are_refused() {
        let mut engine = Engine::new(Arc::new(FrameTable::new(1)), table(), DmaMode::AtOnce, 0);
        let mut buffers = buffers();
        engine.start(
            Nanos(0),
            DmaId {
                slot: 0,
                generation: 0,
            },
            to_bounce(8),
        );
        assert_eq!(engine.pop_ended(&mut buffers).map(|end| end.ok), Some(false));
        let dma = Dma::ReceiveToBounce {
            receive: ReceiveId(0),
            bounce: BounceId(0),
            len: ByteLen(9),
        };
        engine.start(
            Nanos(0),
            DmaId {
                slot: 0,
                generation: 0,
            },
            dma,
        );
        assert_eq!(engine.pop_ended(&mut buffers).map(|end| end.ok), Some(false));
    }

    /// Starts this binary again to play `scene`, and returns how it died and what it said.
    fn play(scene: &str) -> (Option<i32>, String) {
        use std::os::unix::process::ExitStatusExt;
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "dma::tests::scene", "--nocapture"])
            .env("NETVM_DMA_SCENE", scene);
        let output = command.output().unwrap();
        (
            output.status.signal(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    }

    #[test]
    fn a_dma_to_a_frame_that_is_not_the_cards_aborts_with_a_p1_report() {
        for (scene, says) in [
            ("free", "frame 0, which is free"),
            ("unmapped", "page 9 of region 3 and is not mapped for the card"),
            ("reassigned", "given to page 5 of region 3 while a DMA ran"),
        ] {
            let (signal, text) = play(scene);
            assert_eq!(signal, Some(6), "{scene}: {text}");
            assert!(
                text.contains("promise P1 broken") && text.contains(says),
                "{scene}: {text}"
            );
        }
    }

    /// Not a test: what the child processes do.
    #[test]
    fn scene() {
        use crate::vm::{PageIndex, PageKey, RegionId};
        use netvm_abi::{PageOffset, Ppn, Vpn};
        let Ok(scene) = std::env::var("NETVM_DMA_SCENE") else {
            return;
        };
        let frames = Arc::new(FrameTable::new(1));
        let mut page = Buffer([0; PAGE_SIZE]);
        let alias = page.0.as_mut_ptr().expose_provenance();
        let key = |page| PageKey {
            region: RegionId(3),
            page: PageIndex(page),
        };
        let mode = DmaMode::Late {
            seed: 1,
            up_to: Nanos(10),
        };
        let mut engine = Engine::new(Arc::clone(&frames), table(), mode, 0);
        let mut buffers = buffers();
        if scene != "free" {
            frames.assign(Frame(0), key(9), alias);
        }
        if scene == "reassigned" {
            frames.set_mapped(Frame(0));
        }
        let range = PageRange {
            ppn: Ppn(0),
            vpn: Vpn::from_raw(0),
            offset: PageOffset(0),
            len: ByteLen(8),
        };
        let dma = Dma::ReceiveToPage {
            receive: ReceiveId(0),
            page: range,
        };
        engine.start(
            Nanos(0),
            DmaId {
                slot: 0,
                generation: 0,
            },
            dma,
        );
        // The host takes the page away, and does not wait.
        frames.release(Frame(0));
        frames.assign(Frame(0), key(5), alias);
        frames.set_mapped(Frame(0));
        engine.advance(Nanos(100));
        let _ = engine.pop_ended(&mut buffers);
        unreachable!("the DMA went through");
    }
}
