//! A device that takes no messages for a while: sending never waits for it, nothing is lost, the order stays, and the
//! card is woken when the device goes on. The test's other side keeps its end of the wire full until it is asked.

use crate::arena::Arena;
use crate::wire::Wire;
use crate::wire::virtio::{Network, Trouble};
use crate::{board, clock, interrupts, log, mmu, pci};
use netvm_abi::wire::{Header, Kind, OwnHeader};
use netvm_abi::{Nanos, NodeId, OpId, StagingId};
use netvm_fw_common::host::Complaint;

/// Messages: more than the device's queue and the wire hold, and no more than may wait.
const MESSAGES: u32 = 477;
/// Every fourth is one from a staging buffer.
const STAGED: u32 = 4;
// So is the last one: when its buffer has come back, the device has sent everything, and the machine may go.
const _: () = assert!(MESSAGES % STAGED == 1);
/// Staging buffers that come back.
const BUFFERS: u32 = MESSAGES.div_ceil(STAGED);
/// Payload of those, in bytes: too long to be copied.
const LEN: usize = 1024;
/// All of them together take no longer to send: a single wait for the device would.
const QUICKLY: Nanos = Nanos::from_millis(1000);
/// So long for the device to go on.
const PATIENCE: Nanos = Nanos::from_millis(20_000);

/// Runs the test as node 0.
#[inline(never)]
pub(crate) fn run(arena: &mut Arena, map: &mut mmu::Map) -> Result<(), Complaint> {
    let node = NodeId(board::node());
    let mut wire =
        Network::start(arena, map, &mut pci::Bus::new(), node).map_err(|trouble| match trouble {
            Trouble::NoDevice => "there is no network device",
            Trouble::NoPlace => "the network device's registers found no place",
            Trouble::Device => "the network device cannot be used",
        })?;
    let buffer: &'static [u8] = arena.slice(LEN, 64, |at| at as u8);
    let began = clock::now();
    for number in 0..MESSAGES {
        interrupts::passed();
        let staged = number % STAGED == 0;
        let payload = if staged { buffer } else { &[] };
        let header = Header {
            len: payload.len() as u16,
            op: OpId(number),
            ..Header::new(Kind::Write, node, NodeId(1 - node.0))
        };
        let staging = staged.then_some(StagingId(number as u16));
        // SAFETY: the buffer stays for ever, and nothing writes to it.
        unsafe { wire.send(&OwnHeader::new(&header), payload, staging) };
    }
    let took = Nanos(clock::now().0 - began.0);
    let waiting = wire.waiting();
    log::info!(
        "{MESSAGES} messages in {} us; {waiting} of them wait for the device",
        took.0 / 1000
    );
    if took > QUICKLY {
        return Err("sending waited for the device");
    }
    if wire.lost() != 0 || waiting == 0 {
        return Err("messages were lost, or the device never stood still");
    }
    log::info!("READING WANTED");

    let limit = clock::now().after(PATIENCE);
    let mut given_back = 0;
    while wire.waiting() > 0 || given_back < BUFFERS {
        interrupts::passed();
        while let Some(StagingId(number)) = wire.poll_sent() {
            if u32::from(number) != given_back * STAGED {
                return Err("a staging buffer came back out of turn");
            }
            given_back += 1;
        }
        if clock::now() > limit {
            return Err("the device went on, and the card did not");
        }
        if wire.waiting() > 0 {
            // Only the device can end this before the test has failed.
            interrupts::sleep(Some(limit.after(Nanos(1))), || {
                wire.arm();
                !wire.has_input()
            });
            wire.disarm();
        }
    }
    if wire.lost() != 0 {
        return Err("messages were lost");
    }
    Ok(())
}
