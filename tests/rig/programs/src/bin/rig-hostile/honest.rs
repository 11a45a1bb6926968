//! Writes, reads back, and counts: what it sent must be there, as often as it was told of, and soon.

use std::time::{Duration, Instant};

use netvm::{Node, Region};
use netvm_rig::meeting::{Side, Trouble, check, fill};

/// Slots that a page may have to wait for: the windows of both nodes.
pub(crate) const SLOTS: u32 = 128;

const PORT: u16 = 60;
const PAGE: u64 = 4096;
/// Pages that are written to, of which the last holds how often the other was told.
const PAGES: u64 = 192;
/// Of these, some at a time.
const PIECE: u64 = 4;
/// A round has landed; and what the count is.
const LANDED: u32 = 5;
const COUNTED: u32 = 6;
const AGREED: u32 = 7;
/// Pages whose first write is measured: the other card does not know them yet.
const COLD: u64 = 32;

pub(crate) struct Honest {
    side: Side,
    own: Region,
    told: std::cell::Cell<u64>,
    heard: std::cell::Cell<u64>,
    cold: std::cell::Cell<u64>,
}

/// What was seen.
pub(crate) struct Seen {
    pub(crate) rounds: u64,
    pub(crate) worst: Duration,
    /// Rounds of more than a fifth of a second.
    pub(crate) slow: u64,
    /// A write to a page that the other card does not know, until it has landed: the mean.
    pub(crate) miss: Duration,
}

impl Honest {
    pub(crate) fn meet(node: &Node) -> Result<Self, Trouble> {
        let side = Side::meet(node, PORT, PAGES * PAGE)?;
        let own = side.port.alloc(2 * PIECE * PAGE)?;
        Ok(Self {
            side,
            own,
            told: std::cell::Cell::new(0),
            heard: std::cell::Cell::new(0),
            cold: std::cell::Cell::new(0),
        })
    }

    /// Round after round.
    pub(crate) fn rounds(&self, end: Instant) -> Result<Seen, Trouble> {
        let mut seen = Seen {
            rounds: 0,
            worst: Duration::ZERO,
            slow: 0,
            miss: Duration::ZERO,
        };
        let first = self.cold.replace(self.cold.get() + COLD);
        for page in first..(first + COLD).min(PAGES - 1 - PIECE) {
            let began = Instant::now();
            self.side
                .remote
                .write(page * PAGE, &self.own.slice(..PAGE)?)
                .post()?;
            self.side.port.flush_remote(self.side.peer)?;
            seen.miss += began.elapsed();
        }
        seen.miss /= COLD as u32;
        let mut bytes = vec![0; (PIECE * PAGE) as usize];
        while Instant::now() < end {
            let round = self.told.get() + 1;
            let at = round * 97 % (PAGES - 1 - PIECE) * PAGE + round * 13 % PAGE;
            fill(round, at, &mut bytes);
            self.own.write_from(0, &bytes)?;
            let half = PIECE * PAGE;
            let began = Instant::now();
            let source = self.own.slice(..half)?;
            self.side.remote.write(at, &source).notify(LANDED).post()?;
            self.side.port.flush_remote(self.side.peer)?;
            self.side
                .remote
                .read(at, &self.own.slice(half..2 * half)?)
                .post()?;
            self.side.port.flush_reads()?;
            let took = began.elapsed();
            seen.slow += u64::from(took > Duration::from_millis(200));
            seen.worst = seen.worst.max(took);
            self.own.read_into(half, &mut bytes)?;
            check(round, at, &bytes, "an honest process")?;
            self.told.set(round);
            seen.rounds += 1;
            self.take()?;
        }
        Ok(seen)
    }

    /// Counts what has come so far.
    fn take(&self) -> Result<(), Trouble> {
        let landed = self.side.port.notification(LANDED)?;
        while landed.pending() > 0 {
            landed.ack()?;
            self.heard.set(self.heard.get() + 1);
        }
        Ok(())
    }

    /// Each side says how often it has told the other, which must have heard as often.
    pub(crate) fn agree(&self) -> Result<(), Trouble> {
        let place = (PAGES - 1) * PAGE;
        self.side
            .remote
            .write(place, &self.told.get().to_le_bytes())
            .post()?;
        self.side.tell(COUNTED)?;
        self.side.hear(COUNTED)?;
        self.take()?;
        let told = self.side.memory.word64(place)?.load()?;
        if told != self.heard.get() {
            return Err(format!("told {told} times, heard it {} times", self.heard.get()).into());
        }
        // The other one has looked, too.
        self.side.tell(AGREED)?;
        self.side.hear(AGREED)?;
        Ok(())
    }
}
