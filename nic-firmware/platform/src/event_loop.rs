//! Passes over a device's inputs, and the way to sleep without losing a wake-up call.

use crate::Device;
use netvm_abi::Nanos;
use netvm_abi::shared_map::status_page;
use netvm_abi::storage::Storage;
use netvm_abi::words::SharedWords;
use netvm_nic::platform::DmaId;
use netvm_nic::{Found, Nic};

/// A DMA that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaEnd {
    /// Which.
    pub id: DmaId,
    /// False: it could not be done.
    pub ok: bool,
}

/// What a pass did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Something came in and was handled.
    pub worked: bool,
    /// More waits: call again at once.
    pub more: bool,
    /// Otherwise: call again at this time at the latest, if at all.
    pub deadline: Option<Nanos>,
}

/// Inputs of each kind that one pass takes at most.
const BUDGET: u32 = 16;

/// NIC: says that it is about to sleep; everything is looked at once more after this.
///
/// The barrier reads across the bus: [`EventLoop::try_sleep`] says why.
pub fn announce_sleep<W: SharedWords + ?Sized>(shared: &W) {
    shared.store_release(status_page::SLEEPING, 1);
    shared.bus_barrier();
}

/// The loop's own state: one for each NIC.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventLoop {
    heartbeat: u32,
    asleep: bool,
}

impl EventLoop {
    /// A loop that has not run yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            heartbeat: 0,
            asleep: false,
        }
    }

    /// One bounded pass over everything that can come in: frames, ended DMAs, sent buffers, host events,
    /// doorbells, timers. Frames stand before what their DMAs end in, so that where a DMA takes no time a
    /// message lands in the pass that finds it; doorbells stand behind what frees locks and buffers, because
    /// they go on with operations that waited for those.
    pub fn poll_once<S: Storage, D: Device>(&mut self, nic: &mut Nic<S>, device: &mut D) -> Progress {
        if self.asleep {
            self.wake(device);
        }
        self.heartbeat = self.heartbeat.wrapping_add(1);
        device
            .shared()
            .store_release(status_page::HEARTBEAT, self.heartbeat);
        let now = device.now();
        let mut worked = false;
        let mut more = false;
        let mut full = BUDGET;
        while let Some(frame) = device.poll_frame() {
            nic.handle_frame(device, now, &frame);
            worked = true;
            full -= 1;
            if full == 0 {
                more = true;
                break;
            }
        }
        full = BUDGET;
        while let Some(end) = device.poll_dma() {
            nic.handle_dma_done(device, now, end.id, end.ok);
            worked = true;
            full -= 1;
            if full == 0 {
                more = true;
                break;
            }
        }
        full = BUDGET;
        while let Some(staging) = device.poll_sent() {
            nic.handle_sent(device, now, staging);
            worked = true;
            full -= 1;
            if full == 0 {
                more = true;
                break;
            }
        }
        more |= nic.handle_host_events(device, now, BUDGET);
        more |= nic.handle_doorbells(device, now, BUDGET);
        more |= nic.handle_timers(device, now);
        worked |= more;
        Progress {
            worked,
            more,
            deadline: nic.next_deadline(),
        }
    }

    /// Prepares to sleep. On `true` the platform may sleep until its own events, a wake-up call or
    /// the deadline of the last pass; on `false` something has come in meanwhile.
    ///
    /// No wake-up is lost. An application (or the host driver) stores its doorbell, makes a full barrier, and loads
    /// `SLEEPING`. The NIC stores `SLEEPING`, makes a bus barrier, and loads the doorbells. Both stores cross the
    /// bus, so barriers among processors would not do: both could still be under way while both sides load. The
    /// NIC's barrier is a read of host memory. Its request pushes `SLEEPING` there. An application that loaded the
    /// old `SLEEPING` did so before the read was answered, and had posted its doorbell before that; so the
    /// answer pushes the doorbell to the NIC, which sees it and stays awake. An application that loads later sees
    /// `SLEEPING` and calls. The read takes a microsecond, once for each sleep; posting a command takes none.
    ///
    /// However many ports are open, an input waits for a look at a few of them only (promise P7).
    pub fn try_sleep<S: Storage, D: Device>(&mut self, nic: &Nic<S>, device: &mut D) -> bool {
        announce_sleep(device.shared());
        self.asleep = true;
        let mut after = None;
        loop {
            if device.has_input() {
                break;
            }
            match nic.find_work(device, after, BUDGET) {
                Found::Work => break,
                Found::More(port) => after = Some(port),
                Found::Nothing => return true,
            }
        }
        self.wake(device);
        false
    }

    /// Whether [`try_sleep`](Self::try_sleep) said that the platform may sleep, and no pass has come since.
    #[must_use]
    pub const fn is_asleep(&self) -> bool {
        self.asleep
    }

    /// Ends the sleep: spares the applications further wake-up calls. The next pass does it too.
    pub fn wake<D: Device>(&mut self, device: &mut D) {
        device.shared().store_release(status_page::SLEEPING, 0);
        self.asleep = false;
    }
}
