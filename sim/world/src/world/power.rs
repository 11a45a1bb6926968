//! Nodes come up, look around, lose their card, and go down.

use super::{Stop, World};
use crate::card::{self, Card};
use crate::dice::Dice;
use crate::driver::{self, Driver};
use crate::faults::FaultKind;
use crate::kernel;
use crate::node::Node;
use crate::points::Crash;
use crate::process;
use crate::seen::Seen;
use crate::sim::{Event, Sim};
use netvm_abi::page_table::HashKey;
use netvm_abi::{Nanos, NodeId};
use netvm_host::attach::HostConfig;
use netvm_nic::config::Timers;
use std::rc::Rc;

impl World {
    pub(super) fn boot(&mut self, id: NodeId) -> Result<(), String> {
        let sim = self.sim.clone();
        let node = sim.node(id).clone();
        self.power_card(&node)?;
        let driver = Driver::attach(&sim, &node, &self.host)?;
        *node.driver(&sim) = Some(driver);
        self.connect(&node);
        driver::nudge(&sim, &node, Nanos(1_000));
        let (life, tick) = (node.life.get(), self.tick);
        let first = sim.span(Nanos(0), tick);
        sim.after(first, Event::Tick { node: id, life });
        sim.note(id, "booted", &[("life", u64::from(life))]);
        Ok(())
    }

    fn power_card(&self, node: &Rc<Node>) -> Result<(), String> {
        let sim = &self.sim;
        let boots = node.card_boots.replace(node.card_boots.get() + 1);
        let (key, seed) = {
            let mut dice = sim.dice.borrow_mut();
            let key = HashKey([dice.word(), dice.word()]);
            if sim.model.is_none() && dice.below(4) == 0 {
                (key, seed_near_wrap(&mut dice, boots))
            } else {
                (key, dice.word() as u32 | 1)
            }
        };
        let config = netvm_nic::Config {
            node: node.id,
            geometry: node.geometry,
            hash_key: key,
            incarnation_seed: seed,
            inline_bytes: self.inline,
            timers: self.timers,
        };
        let card = Card::boot(sim, node, config, self.dma)?;
        node.held.end();
        *node.card.borrow_mut() = Some(card);
        node.card_gone.set(false);
        node.kick(sim, Nanos(500));
        Ok(())
    }

    /// Small networks, and those in which things are measured, greet one another at once; in large ones links come with
    /// their first use.
    fn connect(&self, node: &Node) {
        if self.config.nodes > 16 && self.sim.model.is_none() {
            return;
        }
        if let Some(driver) = node.driver(&self.sim).as_mut() {
            for peer in (0..self.config.nodes).map(NodeId).filter(|&peer| peer != node.id) {
                driver.host.connect(&mut driver.platform, peer);
            }
        }
    }

    pub(super) fn host_tick(&mut self, id: NodeId) {
        let sim = self.sim.clone();
        let node = sim.node(id).clone();
        sim.after(
            self.tick,
            Event::Tick {
                node: id,
                life: node.life.get(),
            },
        );
        kernel::tick(&sim, &node);
        node.words().drain(crate::words::Side::Host);
        card::look_at_sleep(&sim, &node);
        if sim.fires(FaultKind::CardPauses, id) {
            let until = sim
                .now()
                .after(sim.span(Nanos::from_micros(10), Nanos::from_millis(2)));
            node.paused_until.set(until);
            sim.see(Seen::CardPaused { node: id, until });
        }
        if !node.card_gone.get() && strikes(&sim, Crash::CardHangs, id) {
            hang(&sim, &node);
        }
        if strikes(&sim, Crash::ProcessDies, id)
            && let Some(process) = process::victim(&sim, id, sim.below(1 << 20))
        {
            process::kill(&sim, process, true);
        }
        if strikes(&sim, Crash::NodeRestarts, id) {
            restart(&sim, &node);
        }
    }

    pub(super) fn reset(&mut self, id: NodeId, tries: u32) -> Result<(), Stop> {
        let sim = self.sim.clone();
        let node = sim.node(id).clone();
        let idle = node.ports.borrow().is_empty() && node.jobs.borrow().count() == 0;
        if !idle {
            // Apps learn of it from their ports and close them; a process that does not is ended.
            if tries > 20
                && let Some(process) = process::victim(&sim, id, 0)
            {
                process::kill(&sim, process, true);
            }
            let again = Event::Reset {
                node: id,
                life: node.life.get(),
                tries: tries + 1,
            };
            sim.after(Nanos::from_micros(500), again);
            return Ok(());
        }
        node.words().clear_bar();
        node.bus.borrow_mut().reset();
        self.power_card(&node).map_err(Stop::Other)?;
        let attached = {
            let mut slot = node.driver(&sim);
            slot.as_mut()
                .map(|driver| driver.host.reattach(&mut driver.platform, sim.now(), u32::MAX))
        };
        if let Some(Err(error)) = attached {
            return Err(Stop::Other(format!(
                "node {id}: the card was reset and cannot be attached: {error:?}"
            )));
        }
        node.words().drain(crate::words::Side::Host);
        node.resetting.set(false);
        sim.note(id, "card reset", &[]);
        let now = sim.now();
        sim.see(Seen::CardPaused { node: id, until: now });
        self.connect(&node);
        driver::nudge(&sim, &node, Nanos(1_000));
        Ok(())
    }
}

/// A seed of incarnations by which one of the first links of a card numbers its messages from just before the wrap. It undoes
/// what the NIC core makes of the seed; if that changes, no sequence number wraps any more, and the table of what fired says so.
/// There are few such seeds, and a card that came up twice with the same one would be taken for its former self: each of its
/// `boots` has its own.
fn seed_near_wrap(dice: &mut Dice, boots: u32) -> u32 {
    const UNDOES_FIRST_SEQ: u32 = 0xA5CB_9243;
    const CHOICES: u32 = 40;
    let first = u32::MAX - (boots * CHOICES + dice.below(u64::from(CHOICES)) as u32);
    let incarnation = first.wrapping_mul(UNDOES_FIRST_SEQ);
    let life = dice.within(1, 4) as u32;
    incarnation ^ life.wrapping_mul(0x9E37_79B1)
}

/// Whether such a fault strikes a node now. In a part of the worlds it waits for one of the node's next accesses.
fn strikes(sim: &Sim, crash: Crash, node: NodeId) -> bool {
    let kind = crash.kind();
    let is_drawn = sim.faults.borrow().rolls(kind, &mut sim.dice.borrow_mut());
    if !is_drawn || sim.points.arm(node, crash) {
        return false;
    }
    sim.struck(kind, node);
    true
}

/// A card stops for good, in the middle of whatever it does.
pub(crate) fn hang(sim: &Sim, node: &Node) {
    node.card_gone.set(true);
    node.words().halt();
    sim.see(Seen::CardPaused {
        node: node.id,
        until: Nanos::MAX,
    });
}

/// A node goes down with everything on it, and comes up again a little later.
pub(crate) fn restart(sim: &Sim, node: &Rc<Node>) {
    process::node_down(sim, node.id);
    node.life.set(node.life.get() + 1);
    node.wipe();
    sim.see(Seen::Restarted { node: node.id });
    let pause = sim.span(Nanos::from_micros(50), Nanos::from_millis(3));
    sim.after(pause, Event::Boot { node: node.id });
}

/// Deadlines of the cards: those that are shipped, or short ones, because virtual time is dear.
pub(super) fn timers(shipped: bool) -> Timers {
    if shipped {
        return Timers::default();
    }
    Timers {
        ack_delay: Nanos::from_micros(30),
        probe_interval: Nanos::from_millis(1),
        // As in a card: where three frames of ten are lost each way, no link is lost.
        probe_limit: 31,
        gap_timeout: Nanos::from_millis(15),
        hello_interval: Nanos::from_micros(500),
        hello_limit: 200,
        queueing: Nanos::from_micros(50),
        keepalive: false,
    }
}

/// How long a driver waits until it asks for an import again: longer than a short way takes there and back.
pub(super) fn import_retry(far: bool) -> Nanos {
    if far {
        HostConfig::default().import_retry
    } else {
        Nanos::from_micros(500)
    }
}

/// What drivers of drawn worlds are told.
pub(super) fn host_config() -> HostConfig {
    HostConfig {
        geometry: None,
        segments: 128,
        exports: 128,
        imports: 256,
        reserved_ports: 0,
        counts_from: 0,
        nic_deadline: Nanos::from_millis(10),
        heartbeat_deadline: Nanos::from_millis(20),
        page_deadline: Nanos::from_millis(20),
        import_retry: import_retry(false),
    }
}
