//! Remote calls whose links, peers and neighbours fail.

use super::calls::{
    ADD, FAIL, MOMENT, NAME, NOTE, Seen, address, filling, no_failures, open, serve, small, stop, unexpected,
};
use crate::env::{Env, pass};
use crate::outcome::{Outcome, Trouble, holds, right};
use crate::side::{open_to_all, worse};
use netvm::{Access, Export, Port, Region, RemoteSegment, SharedSender};
use netvm_calls::{Aggregation, Calls, Ended, Error, Payload, Registry, Synchronizer};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The other side has the export that is to end.
const GO: u32 = 1;

/// Exports something until the other side has it, then ends that, and tells so by what this gives.
fn end_export(env: &Env, port: &Port) -> Outcome<(Export, Region)> {
    let memory = port.alloc(4096)?;
    let doomed = port.export("doomed", &memory, .., open_to_all())?;
    port.notification(GO)?.wait(env.patience)?;
    doomed.unexport()?;
    let bells = port.alloc(4096)?;
    Ok((port.export("bells", &bells, .., open_to_all())?, bells))
}

/// Imports from port 0 of a node what [`end_export`] exports there, and waits until that has ended: a write to it fails.
fn import_ended(env: &Env, port: &Port, node: usize) -> Outcome<RemoteSegment> {
    let doomed = env.import(port, node, 0, "doomed")?;
    doomed.notify(GO)?;
    env.import(port, node, 0, "bells")?;
    Ok(doomed)
}

pub(super) fn calls_beside_failures(env: &Env) -> Outcome {
    let rounds = u64::from(env.scaled(20));
    env.both(
        |env| {
            let seen = Seen::default();
            let mut calls = open(env, 1, 0, &seen, small())?;
            let _told = end_export(env, calls.port())?;
            serve(env, &mut calls, &seen)
        },
        |env| {
            let mut calls = open(env, 0, 0, &Seen::default(), small())?;
            let doomed = import_ended(env, calls.port(), 1)?;
            let peer = calls.connect(address(env, 1, 0))?;
            let consumed = Synchronizer::new();
            for number in 0..rounds {
                let to = calls.to(peer).consumed(&consumed);
                to.call_buffer(&NOTE, &number, Payload::Inline(&filling(number, 40)))?;
                calls.flush()?;
                // It fails there, and holds back the signals of what is sent behind it.
                match doomed.write(0, &[1; 8]).post() {
                    Ok(_) | Err(netvm::Error::Failed(_)) => {}
                    Err(error) => return Err(error.into()),
                }
                if number % 4 == 1 {
                    // The program hears of it instead of the endpoint.
                    let _ = calls.port().flush_remote(env.id(1));
                }
            }
            let waited = calls.wait_for(&consumed, env.patience);
            holds!(
                env,
                waited.is_ok(),
                "calls that are held back run: {waited:?}, {consumed:?}"
            );
            holds!(env, consumed.failed() == 0, "no call has failed: {consumed:?}");
            stop(env, &mut calls, peer)?;
            no_failures(&mut calls)
        },
    )
}

/// What has run is told by a word that nothing holds back; the answers of what has failed come by signals.
pub(super) fn calls_answers_held_back(env: &Env) -> Outcome {
    let rounds = u64::from(env.scaled(20));
    env.both(
        |env| {
            let seen = Seen::default();
            let mut registry = seen.registry()?;
            let ran = Arc::new(AtomicU64::new(0));
            let count = Arc::clone(&ran);
            registry.add(&FAIL, move |_, how| {
                count.fetch_add(1, Ordering::Relaxed);
                match how {
                    0 => std::panic::resume_unwind(Box::new("on purpose")),
                    other => other,
                }
            })?;
            let config = small().aggregation(Aggregation::None);
            let mut calls = Calls::open(env.open(1, 0)?, NAME, registry, config)?;
            let doomed = import_ended(env, calls.port(), 0)?;
            let mut before = None;
            calls.run_until(env.patience, || {
                // One for each step: it fails there, and what is answered next is held back until this is heard of.
                let now = ran.load(Ordering::Relaxed);
                if before.replace(now) != Some(now) {
                    let _ = doomed.write(0, &[1; 8]).post();
                }
                seen.is_stopped()
            })?;
            seen.check()
        },
        |env| {
            let mut calls = open(env, 0, 0, &Seen::default(), small())?;
            let _told = end_export(env, calls.port())?;
            let peer = calls.connect(address(env, 1, 0))?;
            let counter = Synchronizer::new();
            for round in 1..=rounds {
                // At last more failures, each in a batch, than are taken at once.
                let many = if round == rounds { 160 } else { 2 };
                for how in 0..many {
                    calls.to(peer).consumed(&counter).call(&FAIL, &(how % 2))?;
                }
                calls.flush()?;
                if round == rounds {
                    pass(calls.port(), Duration::from_millis(2))?;
                }
                let waited = calls.wait_for(&counter, env.patience);
                let failed = round - 1 + many / 2;
                holds!(
                    env,
                    waited.is_ok() && counter.failed() == failed,
                    "{failed} have failed: {waited:?}, {counter:?}"
                );
            }
            while calls.take_failure().is_some() {}
            stop(env, &mut calls, peer)?;
            no_failures(&mut calls)
        },
    )
}

pub(super) fn calls_lives(env: &Env) -> Outcome {
    let lives = u64::from(env.scaled(2)).min(6) + 2;
    env.both(
        move |env| {
            let seen = Seen::default();
            let mut calls = open(env, 1, 0, &seen, small())?;
            // Each life of the other side counts from 0 under a number of its own.
            let mut ended = 0;
            while ended < lives {
                while calls.take_ended().is_some() {
                    ended += 1;
                }
                if ended < lives {
                    calls.serve(env.patience)?;
                }
            }
            seen.check()?;
            holds!(
                env,
                seen.notes() == lives * 11,
                "{} calls of {lives} lives have run",
                seen.notes()
            );
            Ok(())
        },
        move |env| {
            let mut calls = open(env, 0, 0, &Seen::default(), small())?;
            let mut last = None;
            for life in 0..lives {
                let peer = calls.connect(address(env, 1, 0))?;
                right!(Some(peer) != last, "a link of another life is another link");
                for number in 0..10 {
                    let argument = life << 56 | number;
                    calls
                        .to(peer)
                        .call_buffer(&NOTE, &argument, Payload::Inline(&filling(number, 30)))?;
                }
                if let Some(last) = last {
                    match calls.call(last, &ADD, &(1, 1)) {
                        Err(Error::Ended(_)) => {}
                        other => return unexpected("a call over a link that has ended", &other),
                    }
                }
                // Its answer finds no one.
                let argument = life << 56 | 10;
                let _ =
                    calls
                        .to(peer)
                        .call_buffer_return(&NOTE, &argument, Payload::Inline(&filling(10, 30)))?;
                // What was called leaves before it does.
                calls.close(peer, env.patience)?;
                last = Some(peer);
            }
            Ok(())
        },
    )
}

pub(super) fn calls_strangers(env: &Env) -> Outcome {
    env.both(
        |env| {
            let seen = Seen::default();
            // Memory that is no queue.
            let other = env.open(1, 2)?;
            let memory = other.alloc(4096)?;
            let _memory = other.export(NAME, &memory, .., Access::everyone())?;
            let mut calls = open(env, 1, 0, &seen, small())?;
            serve(env, &mut calls, &seen)?;
            right!(
                calls.stats().refused == 3,
                "three greetings are refused: {:?}",
                calls.stats()
            );
            Ok(())
        },
        |env| {
            let patience = small().connect_timeout(env.patience);
            let mut calls = Calls::open(env.open(0, 0)?, NAME, Registry::new(), patience)?;
            let peer = calls.connect(address(env, 1, 0))?;
            match calls.connect(address(env, 1, 2)) {
                Err(Error::NotCalls { .. }) => {}
                other => return unexpected("memory that is no queue", &other),
            }
            let port = env.open(0, 1)?;
            let stranger = SharedSender::join(&port, env.id(1), env.port_id(1, 0), NAME, env.patience)?;
            for text in [&b"hello"[..], &[0; 16], &[0xff; 17]] {
                stranger.send(text, env.patience)?;
            }
            let sum = calls.ask(peer, &ADD, &(20, 22), env.patience)?;
            right!(sum == 42, "beside strangers 20 and 22 are {sum}");
            stop(env, &mut calls, peer)
        },
    )
}

/// An endpoint that runs what others call, until it is told to stop or killed.
fn callee(env: &Env, node: usize) -> Outcome {
    let seen = Seen::default();
    let mut calls = open(env, node, 0, &seen, small())?;
    serve(env, &mut calls, &seen)
}

pub(super) fn calls_callee_dies(env: &Env) -> Outcome {
    let doomed = env.spawn(1, "doomed", |env| callee(env, 1));
    let other = env.spawn(2, "other", |env| callee(env, 2));
    let mine = (|| {
        let mut calls = open(env, 0, 0, &Seen::default(), small())?;
        let lost = calls.connect(address(env, 1, 0))?;
        let kept = calls.connect(address(env, 2, 0))?;
        right!(
            calls.ask(lost, &ADD, &(1, 2), env.patience)? == 3,
            "1 and 2 are 3"
        );
        let mut reply = calls.to(lost).call_return(&ADD, &(5, 6))?;
        let counter = Synchronizer::new();
        calls.to(lost).consumed(&counter).call(&ADD, &(7, 8))?;
        doomed.kill();
        // Packed before and after, and with nothing else to do.
        let mut after = calls.to(lost).call_return(&ADD, &(9, 10));
        for number in 0..20 {
            let sum = calls.ask(kept, &ADD, &(number, 1), env.patience)?;
            right!(sum == number + 1, "beside a death {number} and 1 are {sum}");
        }
        for reply in std::iter::once(&mut reply).chain(after.as_mut().ok()) {
            match calls.wait(reply, env.patience) {
                Ok(11) | Err(Error::Failed(Ended::Link(_))) => {}
                other => return unexpected("a call whose endpoint died", &other),
            }
        }
        calls.wait_for(&counter, env.patience)?;
        while calls.take_ended().is_none_or(|(peer, _)| peer != lost) {
            calls.serve(env.patience)?;
        }
        match calls.call(lost, &ADD, &(1, 1)) {
            Err(Error::Ended(_)) => {}
            other => return unexpected("a call to the dead", &other),
        }
        // Where anything may fail the other endpoint has perhaps waited too long for a call while the dead one's node was silent.
        holds!(env, calls.address_of(kept).is_ok(), "another link ended, too");
        stop(env, &mut calls, kept)
    })();
    match doomed.join() {
        Err(Trouble::Killed) | Ok(()) => {}
        Err(trouble) => return worse(worse(mine, Err(trouble)), other.join()),
    }
    worse(mine, other.join())
}

pub(super) fn calls_caller_dies(env: &Env) -> Outcome {
    let doomed = env.spawn(1, "doomed", |env| {
        let mut calls = open(env, 1, 0, &Seen::default(), small())?;
        let peer = calls.connect(address(env, 0, 0))?;
        // For as long as it lives, or the one that it calls is there.
        for number in 0.. {
            calls
                .to(peer)
                .call_buffer(&NOTE, &number, Payload::Inline(&filling(number, 50)))?;
        }
        Ok(())
    });
    let honest = env.spawn(2, "honest", |env| {
        let told = Seen::default();
        let mut calls = open(env, 2, 0, &told, small())?;
        // The other one is dead by then.
        serve(env, &mut calls, &told)?;
        let peer = match calls.link_to(address(env, 0, 0)) {
            Some(peer) => peer,
            None => calls.connect(address(env, 0, 0))?,
        };
        for number in 0..20 {
            let argument = 1 << 56 | number;
            calls
                .to(peer)
                .call_buffer(&NOTE, &argument, Payload::Inline(&filling(number, 50)))?;
        }
        stop(env, &mut calls, peer)
    });
    let mine = (|| {
        let seen = Seen::default();
        let mut calls = open(env, 0, 0, &seen, small())?;
        calls.run_until(env.patience, || seen.notes() >= 20)?;
        let doomed_link = calls.take_accepted();
        doomed.kill();
        let honest = calls.connect(address(env, 2, 0))?;
        stop(env, &mut calls, honest)?;
        serve(env, &mut calls, &seen)?;
        // What waits for nothing from the dead hears of the death all the same.
        while doomed_link.is_some_and(|link| calls.address_of(link).is_ok()) {
            match calls.serve(MOMENT) {
                Ok(()) | Err(Error::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    })();
    let died = match doomed.join() {
        Err(Trouble::Killed) => Ok(()),
        other => other,
    };
    worse(worse(mine, died), honest.join())
}
