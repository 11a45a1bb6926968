//! A card: the NIC core, the one loop over it, and what this image puts around them.

mod device;

pub(crate) use device::Surroundings;

use crate::arena::Arena;
use crate::host::Shared;
use crate::wire::Wire;
use crate::{clock, interrupts};
use netvm_abi::bar::BarMap;
use netvm_abi::storage::{MakeTable, Storage};
use netvm_abi::{Nanos, WordIndex, counter_table};
use netvm_nic::platform::Platform as _;
use netvm_nic::{Config, ConfigError, Counters, Nic};
use netvm_platform::{Device as _, EventLoop, Progress};

/// How old the published counters are at most, on a card that works.
const PUBLISH: Nanos = Nanos::from_millis(20);

/// The core's tables are static memory.
impl Storage for Arena {
    type Table<T: 'static> = &'static mut [T];
}

impl MakeTable for Arena {
    fn table<T: 'static>(&mut self, len: usize, make: impl FnMut(usize) -> T) -> &'static mut [T] {
        self.slice(len, align_of::<T>(), make)
    }
}

/// A card.
pub(crate) struct Card<W: Wire> {
    /// The core.
    pub(crate) nic: Nic<Arena>,
    /// Everything around it.
    pub(crate) around: Surroundings<W>,
    event_loop: EventLoop,
    /// Where what it counts is published, and when it was last.
    counters: WordIndex,
    published: Nanos,
    /// Time asleep so far.
    pub(crate) slept: Nanos,
}

impl<W: Wire> Card<W> {
    /// A card that its host can use from now on.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub(crate) fn start(
        arena: &mut Arena,
        config: Config,
        shared: Shared,
        wire: W,
    ) -> Result<Self, ConfigError> {
        let mut nic = Nic::new(config, arena)?;
        let mut around = Surroundings::new(arena, &config.geometry, shared, wire);
        let counters = BarMap::new(&config.geometry).counters;
        counter_table::publish_names(around.bar(), counters, Counters::NAMES.iter().copied());
        nic.attach(&mut around);
        Ok(Self {
            nic,
            around,
            event_loop: EventLoop::new(),
            counters,
            published: Nanos(0),
            slept: Nanos(0),
        })
    }

    /// One pass of the loop.
    pub(crate) fn pass(&mut self) -> Progress {
        self.event_loop.poll_once(&mut self.nic, &mut self.around)
    }

    /// Publishes what it has counted and where its links' windows stand, if that is a while ago.
    pub(crate) fn publish(&mut self) {
        let now = clock::now();
        if now.0.saturating_sub(self.published.0) >= PUBLISH.0 {
            let values = self.nic.counters().iter().map(|(_, value)| value);
            counter_table::publish_values(self.around.bar(), self.counters, values);
            self.nic.publish_windows(&self.around);
            self.published = now;
        }
    }

    /// Tells the other cards that this one goes.
    pub(crate) fn farewell(&mut self) {
        self.nic.leave(&mut self.around);
    }

    /// Prepares to sleep; false: something has come in.
    pub(crate) fn try_sleep(&mut self) -> bool {
        self.event_loop.try_sleep(&self.nic, &mut self.around)
    }

    /// Sleeps until something comes in or `deadline`, if nothing has come in yet.
    pub(crate) fn sleep(&mut self, deadline: Nanos) {
        if !self.try_sleep() {
            return;
        }
        let around = &mut self.around;
        let from = clock::now();
        interrupts::sleep(Some(deadline), || {
            around.wire.arm();
            around.call.arm();
            !around.has_input()
        });
        around.wire.disarm();
        self.slept = self.slept.after(Nanos(clock::now().0 - from.0));
    }
}
