//! Channels beside plain writes with a notification, over message sizes.

use netvm::{Access, ChannelConfig, Receiver, Result, Sender};
use netvm_abi::Nanos;
use netvm_world::stand::{Actor, Findings, Gate, SOON, Stand, Trouble};
use netvm_world::timing::CostModel;
use serde::Serialize;
use std::cell::Cell;
use std::rc::Rc;

/// What messages of one size came to.
#[derive(Clone, Debug, Serialize)]
pub struct Stream {
    /// Bytes of a message.
    pub bytes: u64,
    /// From the call of a send to the return of a receive that spins, one message at a time, in nanoseconds.
    pub channel_nanos: u64,
    /// From the call of a write with a notification to the end of a wait that spins for it.
    pub write_nanos: u64,
    /// Messages in a second through a channel, in thousands, one after the other as fast as they go.
    pub channel_kilo: f64,
    /// The same of plain writes, each with a notification.
    pub write_kilo: f64,
    /// Megabytes in a second through a channel.
    pub channel_megabytes: f64,
    /// The same of plain writes.
    pub write_megabytes: f64,
}

const PORT: u16 = 1;
/// Messages one at a time.
const SINGLE: u32 = 9;
/// Entries of a channel, and slots of the plain writes.
const SLOTS: u64 = 64;
const SIGNAL: u32 = 5;
/// Between two messages that stand alone.
const PAUSE: Nanos = Nanos::from_micros(50);

#[derive(Default)]
struct Shared {
    bytes: u64,
    many: u32,
    ready: Gate,
    over: Gate,
    plain: Gate,
    streams: [Gate; 2],
    sent: Cell<Nanos>,
    /// Messages one at a time, and from the first to the last of many: of a channel, and of plain writes.
    single: [Findings<u64>; 2],
    whole: [Cell<u64>; 2],
}

/// Measures messages of one size: `many` in a stream.
///
/// # Errors
/// [`Trouble`] when an operation failed.
pub fn measure(model: &CostModel, bytes: u64, many: u32) -> std::result::Result<Stream, Trouble> {
    let shared = Rc::new(Shared {
        bytes,
        many,
        ..Shared::default()
    });
    let mut stand = Stand::new(model, 2);
    let at = shared.clone();
    stand.process(0, "receives", move |actor| receives(actor, &at));
    let at = shared.clone();
    stand.process(1, "sends", move |actor| sends(actor, &at));
    stand.run(4)?;
    let median = |which: usize| {
        let mut all = shared.single[which].take();
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or_default()
    };
    let kilo = |which: usize| f64::from(many) * 1e6 / shared.whole[which].get().max(1) as f64;
    Ok(Stream {
        bytes,
        channel_nanos: median(0),
        write_nanos: median(1),
        channel_kilo: kilo(0),
        write_kilo: kilo(1),
        channel_megabytes: kilo(0) * bytes as f64 / 1e3,
        write_megabytes: kilo(1) * bytes as f64 / 1e3,
    })
}

impl Shared {
    /// From one slot of the plain writes to the next: none crosses a page more than it must.
    const fn stride(&self) -> u64 {
        self.bytes.next_power_of_two()
    }

    fn had(&self, which: usize, actor: &Actor) {
        let took = actor.now().0 - self.sent.get().0;
        self.single[which].borrow_mut().push(took);
    }
}

fn receives(actor: &Actor, shared: &Shared) -> Result<()> {
    let port = actor.open(PORT)?;
    let config = ChannelConfig::default()
        .message_bytes(shared.bytes)
        .capacity(SLOTS as u32);
    let mut receiver = Receiver::open(&port, "channel", config)?;
    let slots = port.alloc(SLOTS * shared.stride())?;
    slots.write_from(0, &vec![0; (SLOTS * shared.stride()) as usize])?;
    let _slots = port.export("slots", &slots, .., Access::everyone().notify(SIGNAL..=SIGNAL))?;
    shared.ready.pass(actor, 2);
    // The pages come with the first round, here and below.
    for _ in 0..SLOTS {
        drop(receiver.recv(SOON)?);
    }
    for _ in 0..SINGLE {
        drop(receiver.recv(SOON)?);
        shared.had(0, actor);
    }
    shared.streams[0].pass(actor, 2);
    for _ in 0..shared.many {
        drop(receiver.recv(SOON)?);
    }
    shared.whole[0].set(actor.now().0 - shared.sent.get().0);
    shared.plain.pass(actor, 2);
    let signal = port.notification(SIGNAL)?;
    for _ in 0..SLOTS {
        signal.wait(SOON)?;
        signal.ack()?;
    }
    for _ in 0..SINGLE {
        signal.wait(SOON)?;
        signal.ack()?;
        shared.had(1, actor);
    }
    shared.streams[1].pass(actor, 2);
    for _ in 0..shared.many {
        signal.wait(SOON)?;
        signal.ack()?;
    }
    shared.whole[1].set(actor.now().0 - shared.sent.get().0);
    shared.over.pass(actor, 2);
    Ok(())
}

fn sends(actor: &Actor, shared: &Shared) -> Result<()> {
    let port = actor.open(PORT)?;
    let memory = port.alloc(shared.bytes.max(64))?;
    memory.write_from(0, &vec![7; shared.bytes as usize])?;
    let message = memory.slice(..shared.bytes)?;
    // What fits a descriptor travels in it, as programs send it.
    let small: Vec<u8> = vec![7; shared.bytes.min(64) as usize];
    let is_small = shared.bytes <= 64;
    shared.ready.pass(actor, 2);
    let mut sender = Sender::join(&port, 0.into(), PORT.into(), "channel", SOON)?;
    let send = |sender: &mut Sender| {
        if is_small {
            sender.send(&small[..], SOON)
        } else {
            sender.send(&message, SOON)
        }
    };
    for _ in 0..SLOTS {
        send(&mut sender)?;
    }
    for _ in 0..SINGLE {
        actor.rest(PAUSE);
        shared.sent.set(actor.now());
        send(&mut sender)?;
    }
    shared.streams[0].pass(actor, 2);
    shared.sent.set(actor.now());
    for _ in 0..shared.many {
        send(&mut sender)?;
    }
    shared.plain.pass(actor, 2);
    let slots = port.import(0.into(), PORT.into(), "slots", SOON)?;
    let write = |at: u64| {
        let offset = at % SLOTS * shared.stride();
        if is_small {
            slots.write(offset, &small[..]).notify(SIGNAL).post()
        } else {
            slots.write(offset, &message).notify(SIGNAL).post()
        }
    };
    for at in 0..SLOTS {
        write(at)?;
    }
    port.flush_remote(0.into())?;
    for at in 0..SINGLE {
        actor.rest(PAUSE);
        shared.sent.set(actor.now());
        write(at.into())?;
    }
    shared.streams[1].pass(actor, 2);
    shared.sent.set(actor.now());
    for at in 0..shared.many {
        write(at.into())?;
    }
    port.flush_remote(0.into())?;
    shared.over.pass(actor, 2);
    sender.close()
}
