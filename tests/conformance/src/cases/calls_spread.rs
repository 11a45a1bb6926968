//! Remote calls that go on from where they came: functions that call, and broadcasts.

use super::calls::{NAME, NOTE, STOP, Seen, address, filling, no_failures, serve, small, stop};
use crate::env::Env;
use crate::outcome::{Outcome, holds, right};
use crate::side::worse;
use netvm_calls::{Address, Buffer, BufferFunction, Calls, Error, Function, Payload, Synchronizer};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Passes the number on to the next endpoint, until it is 0.
const HOP: Function<u64> = Function::new("hop");

/// An endpoint of the ring that [`HOP`] goes around. Ends when it has been there often enough.
fn hopper(env: &Env, here: usize, times: u64) -> Outcome {
    let next = address(env, (here + 1) % 3, 0);
    let hops = Arc::new(AtomicU64::new(0));
    let seen = Seen::default();
    let mut registry = seen.registry()?;
    let (counted, told) = (Arc::clone(&hops), seen.clone());
    registry.add(&HOP, move |context, left| {
        counted.fetch_add(1, Ordering::Relaxed);
        if left == 0 {
            return;
        }
        let hopped = match context.link_to(next) {
            Some(next) => context.to(next).call(&HOP, &(left - 1)),
            None => Err(Error::NoGroup),
        };
        if let Err(error) = hopped {
            told.say(format!("a function cannot call: {error}"));
        }
    })?;
    let mut calls = Calls::open(
        env.open(here, 0)?,
        NAME,
        registry,
        small().connect_timeout(env.patience),
    )?;
    let peer = calls.connect(next)?;
    if here == 0 {
        calls.call(peer, &HOP, &(3 * times - 1))?;
    }
    let hopped = calls.run_until(env.patience, || hops.load(Ordering::Relaxed) == times);
    seen.check()?;
    hopped?;
    // All have been everywhere when the next one says so.
    stop(env, &mut calls, peer)?;
    serve(env, &mut calls, &seen)?;
    right!(
        hops.load(Ordering::Relaxed) == times,
        "more hops than were asked for"
    );
    Ok(())
}

pub(super) fn calls_passed_on(env: &Env) -> Outcome {
    let times = u64::from(env.scaled(10));
    let others: Vec<_> = (1..3)
        .map(|node| env.spawn(node, "hopper", move |env| hopper(env, node, times)))
        .collect();
    let mine = hopper(env, 0, times);
    others
        .into_iter()
        .fold(mine, |mine, other| worse(mine, other.join()))
}

/// What a broadcast calls.
const SPREAD: BufferFunction<u64> = BufferFunction::new("spread");

/// The members: two on each of three nodes.
fn members(env: &Env) -> Vec<Address> {
    (0..6)
        .map(|member| address(env, member % 3, (member / 3) as u16))
        .collect()
}

fn member(env: &Env, own: usize) -> Outcome {
    let seen = Seen::default();
    let spread = Arc::new(AtomicU64::new(0));
    let mut registry = seen.registry()?;
    let (counted, told) = (Arc::clone(&spread), seen.clone());
    registry.add_buffered(&SPREAD, move |_, root, buffer: Buffer<'_>| {
        counted.fetch_add(1 << (8 * root), Ordering::Relaxed);
        if buffer.bytes() != Some(&filling(root, 100)[..]) {
            told.say(format!("other bytes from member {root}"));
        }
    })?;
    let port = env.open(own % 3, (own / 3) as u16)?;
    let mut calls = Calls::open(port, NAME, registry, small().connect_timeout(env.patience))?;
    let group = calls.join("all", &members(env))?;
    let ran = Synchronizer::new();
    calls.broadcast_buffer(
        group,
        &SPREAD,
        &(own as u64),
        &filling(own as u64, 100),
        Some(&ran),
    )?;
    calls.wait_for(&ran, env.patience)?;
    let all = 0x01_01_01_01_01_01;
    let came = calls.run_until(env.patience, || spread.load(Ordering::Relaxed) == all);
    seen.check()?;
    let found = spread.load(Ordering::Relaxed);
    right!(found | all == all, "a broadcast ran twice here: {found:x}");
    came?;
    holds!(env, ran.failed() == 0, "a broadcast ran everywhere: {ran:?}");
    // All are done when the first has heard that from each.
    if own == 0 {
        calls.run_until(env.patience, || seen.notes() == 5)?;
        calls.broadcast(group, &STOP, &(), Some(&ran))?;
        calls.wait_for(&ran, env.patience)?;
        return no_failures(&mut calls);
    }
    let first = match calls.link_to(address(env, 0, 0)) {
        Some(first) => first,
        None => calls.connect(address(env, 0, 0))?,
    };
    let note = own as u64 * (1 << 56);
    calls.to(first).call_buffer(&NOTE, &note, Payload::Inline(&[]))?;
    serve(env, &mut calls, &seen)?;
    // It passes on what others answer: until the first, which waits for all, has left.
    while calls.address_of(first).is_ok() {
        calls.serve(env.patience)?;
    }
    Ok(())
}

pub(super) fn calls_broadcast(env: &Env) -> Outcome {
    let others: Vec<_> = (1..6)
        .map(|own| env.spawn(own % 3, "member", move |env| member(env, own)))
        .collect();
    let mine = member(env, 0);
    others
        .into_iter()
        .fold(mine, |mine, other| worse(mine, other.join()))
}
