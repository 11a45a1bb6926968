//! Ports that may not take part cannot reach the participants.

use super::{at_home, lock};
use crate::env::Env;
use crate::outcome::{Outcome, refused, right};
use netvm::sync::Lock;
use netvm::sync::alock::AsymmetricLock;
use netvm::{Access, Modes, Port, Status, Timeout};

pub(in super::super) fn outsiders(env: &Env) -> Outcome {
    let (insider, other) = (env.id(0), env.port_id(0, 0));
    let home = move |port: &Port| {
        let list = Access::nobody().and_port(insider, other, Modes::READ | Modes::ATOMIC);
        Ok((
            Lock::create(port, "closed", list.clone())?,
            Lock::create(port, "open", Access::everyone())?,
            AsymmetricLock::create(port, "asymmetric", list)?,
        ))
    };
    at_home(env, home, || {
        let [inside, outside] = [env.open(0, 0)?, env.open(0, 1)?];
        let mut closed = lock(env, &inside, 1, "closed")?;
        let mut open = [lock(env, &inside, 1, "open")?, lock(env, &outside, 1, "open")?];
        let join =
            |port| AsymmetricLock::join(port, env.id(1), env.port_id(1, 0), "asymmetric", env.patience);
        let mut asymmetric = join(&inside)?;

        // To the objects.
        let not = &[Status::NotAllowed];
        refused(lock(env, &outside, 1, "closed"), not)?;
        refused(join(&outside), not)?;
        // To what the insider has in its own memory for participants: its first seats are for the closed lock, the next
        // for the open one.
        let seats = |block| outside.import(env.id(0), env.port_id(0, 0), block, Timeout::Now);
        refused(seats("netvm.seats.0"), not)?;
        let for_all = seats("netvm.seats.1")?;
        right!(
            for_all.modes() == Modes::READ | Modes::WRITE | Modes::NOTIFY,
            "members of an open lock may do {:?} to each other",
            for_all.modes()
        );

        // To the descriptor of an asymmetric lock, by which its owner is handed the lock. The lock's first word
        // names the member that asked last.
        let guard = asymmetric.acquire()?;
        let mut name = [0; 8];
        let first = env.import(&inside, 1, 0, "asymmetric")?;
        first.read(0, &mut name).call()?;
        let name = format!("netvm/alock/{:016x}", u64::from_le_bytes(name));
        let descriptor = |from: &Port| {
            let (node, port) = (env.id(0), env.port_id(0, 0));
            from.import_with(node, port, &name, Modes::ATOMIC, Timeout::Now)
        };
        refused(descriptor(&outside), not)?;
        right!(
            descriptor(&inside)?.modes().contains(Modes::ATOMIC),
            "the insider cannot either"
        );
        guard.release()?;

        // And all of it works for the ports that are admitted.
        for _ in 0..env.scaled(3) {
            let guard = closed.acquire()?;
            for lock in &mut open {
                lock.acquire()?.release()?;
            }
            asymmetric.acquire()?.release()?;
            guard.release()?;
        }
        Ok(())
    })
}
