//! The card's DMA engine: `memcpy` through the alias mapping, at once or late and out of order.
//!
//! Every DMA to an application page is checked against the frame table when it starts and when it ends ([`crate::vm::frames`]);
//! a frame that is not the card's ends the process with a P1 report. A DMA copies at its end, so that host and application have
//! all the time in between to go wrong.
//!
//! What is due is copied in one go, up to [`BATCH`] transfers, before the card is told of the first end. For a stream of pages
//! that is worth a fifth: the processor looks up the addresses of all of them at once, fetches the beginning of one page while it
//! copies the one before, and the card's barriers (one for each page lock) stand behind all copies instead of between them.

use std::collections::VecDeque;
use std::sync::Arc;

use netvm_abi::page_table::{PageSlot, PageTable};
use netvm_abi::{Nanos, Vpn};
use netvm_nic::platform::{Dma, DmaId, PageRange};
use netvm_platform::DmaEnd;
use rand::{Rng, SeedableRng, rngs::SmallRng};

use netvm_soft::memory::WordSpace;
use netvm_soft::transfer::{Buffers, in_page, transfer};

use crate::copy;
use crate::fatal::{self, Fatal};
use crate::vm::{DmaTicket, Frame, FrameTable};

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

struct Flight {
    due: Nanos,
    id: DmaId,
    dma: Dma,
    ticket: Option<DmaTicket>,
    /// Its bytes have been copied.
    moved: bool,
}

impl Flight {
    /// Where its application page lies.
    #[inline]
    fn page_at(&self) -> Option<*mut u8> {
        self.ticket.as_ref().map(DmaTicket::alias)
    }

    /// The part of an application page that it copies from or to, and whether to.
    #[inline]
    fn place(&self) -> Option<(*const u8, usize, bool)> {
        let (page, to) = match &self.dma {
            Dma::PageToStaging { page, .. } => (page, false),
            Dma::ReceiveToPage { page, .. } => (page, true),
            _ => return None,
        };
        let (at, len) = in_page(self.page_at(), page)?;
        Some((at.cast_const(), len, to))
    }

    /// It copies soon: asks for the first line, and so for the page's address.
    #[inline]
    fn expect_page(&self) {
        match self.place() {
            Some((at, _, true)) => copy::expect_write(at),
            Some((at, _, false)) => copy::expect_read(at),
            None => {}
        }
    }

    /// It copies next: asks for the first lines.
    #[inline]
    fn expect_copy(&self) {
        match self.place() {
            Some((at, len, true)) => copy::expect_copy_to(at, len),
            Some((at, len, false)) => copy::expect_copy_from(at, len),
            None => {}
        }
    }
}

/// Transfers that are copied in one go: as many as a port has on its way at once. Their buffers stay in the caches until the card
/// has sent or released them.
const BATCH: usize = 8;
/// Bytes from which on a transfer counts as long.
const LONG: usize = 1024;
/// How many pages ahead of a long transfer the tables are asked for: what the card looks up for the next batch comes while this
/// one is copied.
const PAGES_AHEAD: u64 = BATCH as u64;

/// One card's engine.
pub(crate) struct Engine {
    frames: Arc<FrameTable>,
    /// The card's page table, and where it is.
    table: (Arc<WordSpace>, PageTable),
    late: Option<(SmallRng, Nanos)>,
    flying: Vec<Flight>,
    /// DMAs that are due, in order.
    ready: VecDeque<Flight>,
    /// How many of them, from the first on, have copied.
    copied: usize,
    /// The card was stopped: nothing touches host memory any more.
    halted: bool,
    /// Payload bytes moved to or from application pages.
    page_bytes: u64,
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
            copied: 0,
            halted: false,
            page_bytes: 0,
        }
    }

    /// Copies what is due. While one transfer copies, the beginning of the next is on its way to the processor.
    fn copy_ready(&mut self, buffers: &mut Buffers) {
        let count = self.ready.len().min(BATCH);
        if count > 1 {
            self.ready.iter().take(count).for_each(Flight::expect_page);
            self.ready.front().into_iter().for_each(Flight::expect_copy);
        }
        for index in 0..count {
            if index + 1 < count
                && let Some(next) = self.ready.get(index + 1)
            {
                next.expect_copy();
            }
            if let Some(flight) = self.ready.get_mut(index) {
                // SAFETY: the ticket's page is mapped for both in its alias, and the card has it locked.
                flight.moved =
                    !self.halted && unsafe { transfer(flight.id, &flight.dma, flight.page_at(), buffers) };
            }
        }
        self.copied = count;
    }

    /// A long transfer is often part of a stream: the card will look for a page behind this one soon, and a stream's payload
    /// pushes page table and frame table out of the processor's cache. (Its frame is a guess: pages that are touched one behind
    /// the other get frames one behind the other, where there are some.)
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
        self.frames
            .expect_dma(Frame(frame_of(page).0.wrapping_add(PAGES_AHEAD as u32)));
    }

    fn begin(&self, page: &PageRange) -> DmaTicket {
        match self.frames.begin_dma(frame_of(page)) {
            Ok(ticket) => ticket,
            Err(stale) => fatal::abort(
                Fatal::StaleDma,
                format_args!("{stale} (for virtual page {:#x})", page.vpn.raw()),
            ),
        }
    }

    fn finish(&mut self, flight: &Flight) -> DmaEnd {
        // A card that was stopped since lets go of nothing: the host has taken the frames by itself.
        let moved = flight.moved && !self.halted;
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

impl netvm_soft::Engine for Engine {
    fn start(&mut self, now: Nanos, id: DmaId, dma: Dma) {
        let ticket = match &dma {
            Dma::PageToStaging { page, .. } | Dma::ReceiveToPage { page, .. } if !self.halted => {
                self.expect_stream(page);
                Some(self.begin(page))
            }
            Dma::PageToOperand { page } | Dma::OperandToPage { page } if !self.halted => {
                Some(self.begin(page))
            }
            _ => None,
        };
        let flight = Flight {
            due: now,
            id,
            dma,
            ticket,
            moved: false,
        };
        match &mut self.late {
            None => self.ready.push_back(flight),
            Some((random, up_to)) => {
                let due = now.after(Nanos(random.random_range(0..=up_to.0)));
                self.flying.push(Flight { due, ..flight });
            }
        }
    }

    fn advance(&mut self, now: Nanos) {
        while let Some(index) = self.flying.iter().position(|flight| flight.due <= now) {
            let flight = self.flying.swap_remove(index);
            self.ready.push_back(flight);
        }
    }

    fn next_due(&self) -> Option<Nanos> {
        self.flying.iter().map(|flight| flight.due).min()
    }

    #[inline]
    fn pop_ended(&mut self, buffers: &mut Buffers) -> Option<DmaEnd> {
        if self.copied == 0 {
            self.copy_ready(buffers);
        }
        let flight = self.ready.pop_front()?;
        self.copied = self.copied.saturating_sub(1);
        Some(self.finish(&flight))
    }

    fn has_ended(&self) -> bool {
        !self.ready.is_empty()
    }

    fn halt(&mut self) {
        self.halted = true;
        self.flying.clear();
    }

    fn page_bytes(&self) -> u64 {
        self.page_bytes
    }
}

fn frame_of(page: &PageRange) -> Frame {
    Frame(u32::try_from(page.ppn.0).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::PAGE_SIZE;
    use netvm_abi::page_table::HashKey;
    use netvm_abi::{BounceId, ByteLen, ReceiveId, WordIndex};
    use netvm_nic::platform::Operands;
    use netvm_soft::Engine as _;
    use netvm_soft::memory::SharedPages;
    use netvm_soft::message::{Buffer, Message, Pools, Spare};

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
            spare: Spare::new(&Pools::default()),
            received: vec![Some(Box::new(message))],
            bounce: Arc::new(SharedPages::new(8).unwrap()),
            operands: Operands::new(),
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
    fn more_than_a_batch_ends_in_order_and_a_card_that_is_stopped_moves_nothing_more() {
        let mut engine = Engine::new(Arc::new(FrameTable::new(1)), table(), DmaMode::AtOnce, 0);
        let mut buffers = buffers();
        let count = 2 * BATCH as u8 + 1;
        for slot in 0..count {
            engine.start(Nanos(0), DmaId { slot, generation: 1 }, to_bounce(0));
        }
        let mut ends = Vec::new();
        while let Some(end) = engine.pop_ended(&mut buffers) {
            ends.push((end.id.slot, end.ok));
            if ends.len() == BATCH + 2 {
                // The next ones have copied already; that they did is not told any more.
                engine.halt();
            }
        }
        let expected = (0..count).map(|slot| (slot, usize::from(slot) < BATCH + 2));
        assert!(ends.into_iter().eq(expected));
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
