//! A world in which the last message of a node is lost, while another port of its peer goes on sending to it.
//!
//! Nothing else goes the same way: no port opens or closes, nothing is imported, and what the node sends back are
//! acknowledgements. So the peer finds no gap, and only the sender's own doubt ends the link.

use netvm::{Access, Error, Region, Result};
use netvm_abi::status::Status;
use netvm_abi::wire::{Header, Kind};
use netvm_abi::{Nanos, PortId};
use netvm_world::stand::{Actor, Gate, SOON, Stand};
use netvm_world::timing::CostModel;
use netvm_world::{Failure, Report, Script};
use std::rc::Rc;

/// The port whose message is lost, and its node.
const SENDER: u16 = 3;
const HOME: u16 = 0;
/// The port of the other node that goes on sending.
const CHATTER: u16 = 4;
const PEER: u16 = 1;
/// More often than a card looks after its peers.
const OFTEN: Nanos = Nanos::from_millis(1);
/// How long both go on: more than the time within which the sender has to be told.
const LONG: Nanos = Nanos::from_millis(400);

fn is_lost(header: &Header) -> bool {
    header.kind == Kind::Write && header.source_port == PortId(SENDER)
}

#[derive(Default)]
struct Gates {
    exported: Gate,
    joined: Gate,
    over: Gate,
}

/// Plays it. The body of the sender holds that it is told in time.
pub(crate) fn play() -> std::result::Result<Report, Box<Failure>> {
    let model = CostModel::committed().expect("the committed counts");
    let gates = Rc::new(Gates::default());
    let mut stand = Stand::new(&model, 2);
    let at = gates.clone();
    stand.process(HOME, "sender", move |actor| sender(actor, &at));
    stand.process(PEER, "chatter", move |actor| chatter(actor, &gates));
    stand.lose(Script {
        frames: is_lost,
        nth: 0,
    });
    stand.play(4)
}

fn memory(actor: &Actor, number: u16) -> Result<(netvm::Port, Region, netvm::Export)> {
    let port = actor.open(number)?;
    let memory = port.alloc(4096)?;
    memory.write_from(0, &[0; 4096])?;
    let export = port.export("memory", &memory, .., Access::everyone())?;
    Ok((port, memory, export))
}

fn sender(actor: &Actor, gates: &Gates) -> Result<()> {
    let (port, _memory, _export) = memory(actor, SENDER)?;
    gates.exported.pass(actor, 2);
    let there = port.import(PEER.into(), CHATTER.into(), "memory", SOON)?;
    gates.joined.pass(actor, 2);
    actor.rest(Nanos::from_millis(10));
    there.write(0, &[1; 8]).post()?;
    actor.rest(LONG);
    match port.flush_remote(PEER.into()) {
        Err(Error::Failed(failure)) if failure.status == Status::LinkLost => {}
        other => actor.complain(&format!(
            "a message was lost, and its sender was told {other:?} after {} ms",
            LONG.0 / 1_000_000
        )),
    }
    gates.over.pass(actor, 2);
    Ok(())
}

fn chatter(actor: &Actor, gates: &Gates) -> Result<()> {
    let (port, _memory, _export) = memory(actor, CHATTER)?;
    gates.exported.pass(actor, 2);
    let there = port.import(HOME.into(), SENDER.into(), "memory", SOON)?;
    gates.joined.pass(actor, 2);
    let until = actor.now().after(LONG);
    while actor.now() < until {
        // The link goes, and this ends with it.
        if there.write(64, &[2; 8]).post().is_err() {
            break;
        }
        actor.rest(OFTEN);
    }
    gates.over.pass(actor, 2);
    Ok(())
}
