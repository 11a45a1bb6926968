//! Leases: capabilities that end by the card's own clock (`docs/decisions/0042-leases.md`).
//!
//! Each entry of the capability table has a row of the lease table. The host writes the [`Terms`] there before it publishes the
//! entry, whose [end](crate::capability::Capability::expires) is 0 then: nothing is let through. From there on the end is the card's. It
//! [begins](Lease::begin) the lease, [extends](Lease::extend) it, and tells how much is [left](Lease::left).
//!
//! **One place.** All three are steps of the card, and so is each access that compares with the end. A clock does not go back, and a lease that is over is
//! not extended. So what is over stays over, and the host may rely on an answer that nothing is left.
//!
//! A slot is used again after a barrier. Each use has another generation, so what is said of an earlier one is said of none.

use crate::atomic::AtomicResult;
use crate::capability::{Capability, CapabilityEntry, capability_at};
use crate::control::Modes;
use crate::status::Status;
use crate::units::{CapabilitySlot, ExportId, Generation, Nanos, NodeId, PortId, VirtAddr, WordIndex};
use crate::words::{Part, SharedWords, join, split};

/// Words of a row.
pub const LEASE_WORDS: usize = 8;

/// Generation of the lease. Host-owned; 0: the capability is none.
const GENERATION: u32 = 0;
/// Generation of the lease that has begun. The card's.
const BEGUN: u32 = 1;
/// Host-owned.
const DURATION: u32 = 2;
/// Host-owned.
const LONGEST: u32 = 4;
/// When it is over whatever is asked for, on the card's clock. The card's.
const LAST: u32 = 6;

/// Names a lease: a slot of the capability table, and which use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseId {
    /// The slot.
    pub slot: CapabilitySlot,
    /// The use; not 0.
    pub generation: Generation,
}

/// What to lend to which port.
#[derive(Clone, Copy, Debug)]
pub struct LeaseSpec {
    /// The export that the range is a part of.
    pub export: ExportId,
    /// First byte.
    pub start: VirtAddr,
    /// Number of bytes, not 0.
    pub len: u64,
    /// What the holder may do, of what the export allows; not [`Modes::APPEND`].
    pub modes: Modes,
    /// The holder's node.
    pub node: NodeId,
    /// The holder's port.
    pub port: PortId,
    /// How long it lasts, unless it is extended; not 0.
    pub duration: Nanos,
    /// How long it lasts at most; no less than `duration`.
    pub longest: Nanos,
}

/// What the host lays down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Tells the lease from others of its slot; not 0.
    pub generation: Generation,
    /// How long it lasts from its beginning on, unless it is extended.
    pub duration: Nanos,
    /// How long it lasts at most.
    pub longest: Nanos,
}

impl Terms {
    /// Writes the row (host driver), before the capability is published.
    pub fn publish<W: SharedWords + ?Sized>(&self, bar: &W, row: WordIndex) {
        let (duration, longest) = (split(self.duration.0), split(self.longest.0));
        bar.store_slice(
            row.plus(DURATION),
            &[duration[0], duration[1], longest[0], longest[1]],
        );
        bar.store_release(row.plus(GENERATION), self.generation.0);
    }

    /// Says that the capability of this row is no lease (host driver), before it is published.
    pub fn none<W: SharedWords + ?Sized>(bar: &W, row: WordIndex) {
        bar.store_release(row.plus(GENERATION), 0);
    }
}

/// Row of a slot, given the table's place.
#[must_use]
pub const fn lease_at(table: WordIndex, slot: CapabilitySlot) -> WordIndex {
    table.plus(slot.0 * LEASE_WORDS as u32)
}

/// A lease, as the card handles it.
#[derive(Debug)]
pub struct Lease<'a, W: ?Sized> {
    bar: &'a W,
    entry: WordIndex,
    row: WordIndex,
}

impl<'a, W: SharedWords + ?Sized> Lease<'a, W> {
    /// Of a slot that there is; `capabilities` and `leases` are where the tables begin.
    #[must_use]
    pub const fn of(
        bar: &'a W,
        (capabilities, leases): (WordIndex, WordIndex),
        slot: CapabilitySlot,
    ) -> Self {
        Self {
            bar,
            entry: capability_at(capabilities, slot),
            row: lease_at(leases, slot),
        }
    }

    fn word(&self, at: u32) -> u32 {
        self.bar.load_acquire(self.row.plus(at))
    }

    fn time(&self, at: u32) -> Nanos {
        Nanos(join(self.word(at), self.word(at + 1)))
    }

    /// Its generation, if the capability is valid and a lease.
    fn generation(&self) -> Option<Generation> {
        let valid = self.bar.load_acquire(self.entry) == 1;
        let generation = self.word(GENERATION);
        (valid && generation != 0).then_some(Generation(generation))
    }

    fn has_begun(&self, generation: Generation) -> bool {
        self.word(BEGUN) == generation.0
    }

    fn end(&self) -> Nanos {
        let words = Part::new(self.bar, self.entry, crate::capability::CAPABILITY_WORDS as u32);
        CapabilityEntry::of(words).map_or(Nanos(0), |entry| entry.expires())
    }

    /// Whether its end has come.
    #[must_use]
    pub fn is_over(&self, now: Nanos) -> bool {
        now >= self.end()
    }

    /// Begins it, unless it has begun. Returns whether it has begun by this call.
    pub fn begin(&self, now: Nanos) -> bool {
        match self.generation() {
            Some(generation) if !self.has_begun(generation) => {
                let (duration, longest) = (self.time(DURATION), self.time(LONGEST));
                let [low, high] = split(now.after(longest).0);
                self.bar.store_slice(self.row.plus(BEGUN), &[generation.0]);
                self.bar.store_slice(self.row.plus(LAST), &[low, high]);
                Capability::set_end(self.bar, self.entry, now.after(duration.min(longest)));
                true
            }
            _ => false,
        }
    }

    /// The same for the lease of this generation.
    pub fn begin_generation(&self, now: Nanos, generation: Generation) -> bool {
        self.generation() == Some(generation) && self.begin(now)
    }

    /// Extends it to end `asked` from now, but not past its longest life, and not to an earlier time than it ends at. The
    /// answer has what is left, and what can be left at most.
    ///
    /// # Errors
    /// [`Status::ModeRefused`] for a capability that is no lease. [`Status::Expired`] for a lease that is over, or not of this generation.
    pub fn extend(&self, now: Nanos, generation: Generation, asked: Nanos) -> Result<AtomicResult, Status> {
        let current = self.generation().ok_or(Status::ModeRefused)?;
        let end = self.end();
        if current != generation || !self.has_begun(generation) || self.is_over(now) {
            return Err(Status::Expired);
        }
        let last = self.time(LAST);
        let extended = now.after(asked).min(last).max(end);
        if extended != end {
            Capability::set_end(self.bar, self.entry, extended);
        }
        Ok(AtomicResult {
            value: extended.0.saturating_sub(now.0),
            second: last.0.saturating_sub(now.0),
        })
    }

    /// How much of the lease of this generation is left; 0 for good, once it is over. One that has not begun begins.
    #[must_use]
    pub fn left(&self, now: Nanos, generation: Generation) -> Nanos {
        if self.generation() != Some(generation) {
            return Nanos(0);
        }
        let _ = self.begin(now);
        Nanos(self.end().0.saturating_sub(now.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;

    const ROW: WordIndex = WordIndex(16);
    const G: Generation = Generation(7);

    fn given(duration: u64, longest: u64) -> [AtomicU32; 24] {
        let bar = [const { AtomicU32::new(0) }; 24];
        let terms = Terms {
            generation: G,
            duration: Nanos(duration),
            longest: Nanos(longest),
        };
        terms.publish(&bar[..], ROW);
        let lease = Capability {
            expires: Nanos(0),
            ..Capability::NOTHING
        };
        lease.publish(&bar[..], WordIndex(0));
        bar
    }

    fn lease(bar: &[AtomicU32; 24]) -> Lease<'_, [AtomicU32]> {
        Lease::of(&bar[..], (WordIndex(0), ROW), CapabilitySlot(0))
    }

    fn ok(value: u64, second: u64) -> Result<AtomicResult, Status> {
        Ok(AtomicResult { value, second })
    }

    #[test]
    fn it_begins_once_and_ends_by_itself() {
        let bar = given(100, 1000);
        assert_eq!(
            Capability::load(&bar[..], WordIndex(0)).unwrap().expires,
            Nanos(0)
        );
        assert!(!lease(&bar).begin_generation(Nanos(50), Generation(8)));
        assert!(lease(&bar).begin(Nanos(50)));
        assert!(!lease(&bar).begin(Nanos(60)));
        assert_eq!(lease(&bar).left(Nanos(149), G), Nanos(1));
        assert_eq!(lease(&bar).left(Nanos(150), G), Nanos(0));
        assert_eq!(
            lease(&bar).extend(Nanos(150), G, Nanos(500)),
            Err(Status::Expired)
        );
        assert_eq!(lease(&bar).left(Nanos(151), G), Nanos(0));
    }

    #[test]
    fn an_extension_stays_inside_of_the_longest_life() {
        let bar = given(100, 1000);
        assert_eq!(
            lease(&bar).extend(Nanos(0), G, Nanos(1)),
            Err(Status::Expired),
            "not begun"
        );
        assert!(lease(&bar).begin(Nanos(0)));
        // An earlier end is none, and 0 asks.
        assert_eq!(lease(&bar).extend(Nanos(10), G, Nanos(0)), ok(90, 990));
        assert_eq!(lease(&bar).extend(Nanos(10), G, Nanos(200)), ok(200, 990));
        assert_eq!(lease(&bar).extend(Nanos(10), G, Nanos::MAX), ok(990, 990));
        assert_eq!(lease(&bar).extend(Nanos(999), G, Nanos::MAX), ok(1, 1));
        assert_eq!(
            lease(&bar).extend(Nanos(1000), G, Nanos::MAX),
            Err(Status::Expired)
        );
        // A duration past the longest life.
        let bar = given(100, 30);
        assert_eq!(lease(&bar).left(Nanos(5), G), Nanos(30));
        // For ever.
        let bar = given(u64::MAX, u64::MAX);
        assert_eq!(lease(&bar).left(Nanos(5), G), Nanos(u64::MAX - 5));
    }

    #[test]
    fn other_generations_and_plain_capabilities_are_told_apart() {
        let bar = given(100, 1000);
        assert!(lease(&bar).begin(Nanos(0)));
        let other = Generation(8);
        assert_eq!(
            lease(&bar).extend(Nanos(1), other, Nanos(5)),
            Err(Status::Expired)
        );
        assert_eq!(lease(&bar).left(Nanos(1), other), Nanos(0));
        // Revoked.
        Capability::retract(&bar[..], WordIndex(0));
        assert_eq!(
            lease(&bar).extend(Nanos(1), G, Nanos(5)),
            Err(Status::ModeRefused)
        );
        assert_eq!(lease(&bar).left(Nanos(1), G), Nanos(0));
        assert!(!lease(&bar).begin(Nanos(2)));
        // The slot is no lease in its next use.
        Terms::none(&bar[..], ROW);
        Capability::NOTHING.publish(&bar[..], WordIndex(0));
        assert_eq!(
            lease(&bar).extend(Nanos(1), G, Nanos(5)),
            Err(Status::ModeRefused)
        );
        assert!(!lease(&bar).begin(Nanos(2)));
        assert_eq!(
            Capability::load(&bar[..], WordIndex(0)).unwrap().expires,
            Nanos::MAX
        );
    }
}
