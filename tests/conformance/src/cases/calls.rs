//! Remote calls (`netvm-calls`): each runs once, in its sender's order, whatever the ring does meanwhile.

use crate::env::Env;
use crate::outcome::{Outcome, Trouble, due, holds, right};
use crate::pattern;
use crate::side::open_to_all;
use netvm::{Access, Modes, Timeout};
use netvm_calls::{
    Address, Aggregation, Buffer, BufferFunction, Calls, CallsConfig, Ended, Error, Function, Payload, Peer,
    Registry, Synchronizer, WhenFull,
};
use rand::Rng;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The name of all endpoints of the bodies.
pub(super) const NAME: &str = "calls";

/// Takes the number of a call of its caller, and a filling whose length and bytes follow from it.
pub(super) const NOTE: BufferFunction<u64, u64> = BufferFunction::new("note");
/// The other side needs nothing more.
pub(super) const STOP: Function<()> = Function::new("stop");
/// Adds.
pub(super) const ADD: Function<(u64, u64), u64> = Function::new("add");

/// Every way to pack.
const AGGREGATIONS: [Aggregation; 3] = [
    Aggregation::None,
    Aggregation::Packed {
        bytes: 600,
        delay: Duration::from_micros(20),
    },
    Aggregation::Overflow { bytes: 400 },
];

/// Small rings: 2 to 5 chunks of 1 KiB.
pub(super) fn small() -> CallsConfig {
    CallsConfig::default().chunk_bytes(1024).chunks(5)
}

/// What the functions of an endpoint have seen.
#[derive(Clone, Default)]
pub(super) struct Seen {
    /// Calls of [`NOTE`], and the first that was wrong.
    pub(super) notes: Arc<AtomicU64>,
    pub(super) wrong: Arc<Mutex<Option<String>>>,
    pub(super) stopped: Arc<AtomicBool>,
}

impl Seen {
    pub(super) fn check(&self) -> Outcome {
        match self.wrong.lock().map(|wrong| wrong.clone()) {
            Ok(Some(wrong)) => Err(Trouble::Wrong(wrong)),
            _ => Ok(()),
        }
    }

    pub(super) fn say(&self, text: String) {
        if let Ok(mut wrong) = self.wrong.lock() {
            wrong.get_or_insert(text);
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(super) fn notes(&self) -> u64 {
        self.notes.load(Ordering::Relaxed)
    }

    /// The functions, for callers that each count from 0, and are told apart by the highest byte.
    pub(super) fn registry(&self) -> netvm_calls::Result<Registry> {
        let mut registry = Registry::new();
        let (seen, mut next) = (self.clone(), [0u64; 16]);
        registry.add_buffered(&NOTE, move |_, number, buffer: Buffer<'_>| {
            let (caller, number) = ((number >> 56) as usize, number & u64::MAX >> 8);
            if next[caller] != number {
                seen.say(format!(
                    "call {number} of caller {caller} came as its {}th",
                    next[caller]
                ));
            }
            next[caller] = number + 1;
            match buffer.to_vec() {
                Ok(bytes) if bytes == filling(number, bytes.len()) => {}
                Ok(bytes) => seen.say(format!(
                    "call {number} has other bytes than were sent, of {}",
                    bytes.len()
                )),
                Err(error) => seen.say(format!("the buffer of call {number}: {error}")),
            }
            seen.notes.fetch_add(1, Ordering::Relaxed);
            number + 1
        })?;
        let stopped = Arc::clone(&self.stopped);
        registry.add(&STOP, move |_, ()| stopped.store(true, Ordering::Relaxed))?;
        registry.add(&ADD, |_, (one, other)| one.wrapping_add(other))?;
        Ok(registry)
    }
}

pub(super) fn filling(number: u64, len: usize) -> Vec<u8> {
    pattern::bytes(number, 0, len)
}

/// Opens the endpoint of a port of the body.
pub(super) fn open(env: &Env, node: usize, port: u16, seen: &Seen, config: CallsConfig) -> Outcome<Calls> {
    let config = config.connect_timeout(env.patience);
    Ok(Calls::open(
        env.open(node, port)?,
        NAME,
        seen.registry()?,
        config,
    )?)
}

pub(super) fn address(env: &Env, node: usize, port: u16) -> Address {
    Address {
        node: env.id(node),
        port: env.port_id(node, port),
    }
}

/// Runs what others call until they say that this was all, and leave.
pub(super) fn serve(env: &Env, calls: &mut Calls, seen: &Seen) -> Outcome {
    calls.run_until(env.patience, || seen.is_stopped())?;
    seen.check()
}

/// Waits until the other side has run all that was called, and lets it go.
pub(super) fn stop(env: &Env, calls: &mut Calls, peer: Peer) -> Outcome {
    let stopped = Synchronizer::new();
    // The other side may be behind with what was called before.
    let to = calls.to(peer).when_full(WhenFull::Wait);
    to.consumed(&stopped).call(&STOP, &())?;
    calls.wait_for(&stopped, env.patience)?;
    holds!(env, stopped.failed() == 0, "a call of nothing has failed");
    Ok(())
}

pub(super) fn no_failures(calls: &mut Calls) -> Outcome {
    match calls.take_failure() {
        None => Ok(()),
        Some(failure) => Err(Trouble::Unexpected(format!("a call has failed: {failure:?}"))),
    }
}

pub(super) fn calls_in_order(env: &Env) -> Outcome {
    let rounds = u64::from(env.scaled(60));
    env.both(
        |env| {
            let seen = Seen::default();
            let mut calls = open(env, 1, 0, &seen, small())?;
            serve(env, &mut calls, &seen)
        },
        |env| {
            for (caller, aggregation) in (0..).zip(AGGREGATIONS) {
                let config = small().aggregation(aggregation);
                let mut calls = open(env, 0, 0, &Seen::default(), config)?;
                let peer = calls.connect(address(env, 1, 0))?;
                in_order(env, &mut calls, peer, caller, rounds)?;
                if usize::try_from(caller).is_ok_and(|caller| caller + 1 == AGGREGATIONS.len()) {
                    stop(env, &mut calls, peer)?;
                } else {
                    calls.close(peer, env.patience)?;
                }
                no_failures(&mut calls)?;
            }
            Ok(())
        },
    )
}

/// Makes calls of any length as this caller.
fn in_order(env: &Env, calls: &mut Calls, peer: Peer, caller: u64, rounds: u64) -> Outcome {
    let mut random = env.random(1);
    let (sent, consumed) = (Synchronizer::new(), Synchronizer::new());
    for number in 0..rounds {
        let len = match random.random_range(0..4) {
            0 => 0,
            1 | 2 => random.random_range(0..64),
            _ => random.random_range(0..970),
        };
        let buffer = filling(number, len);
        let to = calls.to(peer).sent(&sent).consumed(&consumed);
        to.call_buffer(&NOTE, &(caller << 56 | number), Payload::Inline(&buffer))?;
        if number % 16 == 7 {
            calls.progress()?;
        }
    }
    let last = caller << 56 | rounds;
    let reply = calls
        .to(peer)
        .call_buffer_return(&NOTE, &last, Payload::Inline(&[]));
    let ran = calls.wait(&mut reply?, env.patience)?;
    right!(ran == rounds + 1, "{ran} calls ran, {} were made", rounds + 1);
    calls.wait_for(&consumed, env.patience)?;
    holds!(
        env,
        (sent.open(), sent.failed(), consumed.failed()) == (0, 0, 0),
        "all calls ran: {sent:?}, {consumed:?}"
    );
    Ok(())
}

/// Fails in a way that its caller asks for.
pub(super) const FAIL: Function<u64, u64> = Function::new("fail");
/// A result that is as long as its caller asks for.
const LONG: Function<u64, Vec<u8>> = Function::new("long");

pub(super) fn calls_return(env: &Env) -> Outcome {
    env.both(
        |env| {
            let seen = Seen::default();
            let mut registry = seen.registry()?;
            registry.add(&FAIL, |_, how| match how {
                0 => std::panic::resume_unwind(Box::new("on purpose")),
                1 => std::panic::resume_unwind(Box::new("of its own ".repeat(100))),
                2 => std::panic::resume_unwind(Box::new(2)),
                other => other,
            })?;
            registry.add(&LONG, |_, len| vec![7; len as usize])?;
            let mut calls = Calls::open(env.open(1, 0)?, NAME, registry, small())?;
            serve(env, &mut calls, &seen)
        },
        |env| {
            let mut calls = open(env, 0, 0, &Seen::default(), small())?;
            let peer = calls.connect(address(env, 1, 0))?;
            let mut replies = Vec::new();
            for number in 0..u64::from(env.scaled(20)) {
                replies.push((number, calls.to(peer).call_return(&ADD, &(number, 3))?));
            }
            for how in 0..3 {
                let failed = calls.ask(peer, &FAIL, &how, env.patience);
                let Err(Error::Failed(Ended::Panicked(text))) = failed else {
                    return unexpected("a function that panics", &failed);
                };
                let expected = ["on purpose", "of its own of its own", "(it says nothing)"][how as usize];
                right!(
                    text.starts_with(expected) && text.len() <= 256,
                    "its text is {text:?}"
                );
            }
            let well = calls.ask(peer, &FAIL, &9, env.patience)?;
            right!(well == 9, "a function that has panicked runs again: {well}");
            // No one waits for the result: so the program is told, and counters count on.
            let counter = Synchronizer::new();
            calls.call(peer, &FAIL, &0)?;
            calls.to(peer).consumed(&counter).call(&FAIL, &0)?;
            calls.to(peer).consumed(&counter).call(&FAIL, &5)?;
            calls.wait_for(&counter, env.patience)?;
            holds!(env, counter.failed() == 1, "one of two has failed: {counter:?}");
            for _ in 0..2 {
                let failure = calls.take_failure();
                let told = failure.as_ref().is_some_and(|failure| {
                    failure.peer == Some(peer)
                        && failure.function == "fail"
                        && matches!(failure.why, Ended::Panicked(_))
                });
                right!(told, "two failures are told: {failure:?}");
            }
            no_failures(&mut calls)?;
            for (number, mut reply) in replies {
                let sum = calls.wait(&mut reply, env.patience)?;
                right!(sum == number + 3, "{number} and 3 are {sum}");
            }
            for (len, fits) in [(0, true), (990, true), (2000, false)] {
                match calls.ask(peer, &LONG, &len, env.patience) {
                    Ok(bytes) if fits => right!(
                        bytes.len() as u64 == len,
                        "{} bytes instead of {len}",
                        bytes.len()
                    ),
                    Err(Error::Failed(Ended::ResultTooLong)) if !fits => {}
                    other => return unexpected("a result of some length", &other),
                }
            }
            refusals(&mut calls, peer)?;
            let sum = calls.ask(peer, &ADD, &(1, 2), env.patience)?;
            right!(sum == 3, "after all that 1 and 2 are {sum}");
            stop(env, &mut calls, peer)
        },
    )
}

/// What is refused before anything leaves.
fn refusals(calls: &mut Calls, peer: Peer) -> Outcome {
    let unknown = calls.call(peer, &Function::<u64>::new("nothing"), &1);
    let Err(Error::Unknown { name: "nothing", .. }) = unknown else {
        return unexpected("an unknown function", &unknown);
    };
    let other = calls.to(peer).call_return(&Function::<u64, u64>::new("add"), &1);
    let Err(Error::Signature { name: "add", .. }) = other else {
        return unexpected("a function of another version", &other);
    };
    let long = calls.to(peer).call_buffer(&NOTE, &0, Payload::Inline(&[0; 1000]));
    let Err(Error::TooLong {
        len: 1024,
        limit: 1008,
    }) = long
    else {
        return unexpected("a call that is too long", &long);
    };
    Ok(())
}

pub(super) fn unexpected<T: std::fmt::Debug>(what: &str, found: &netvm_calls::Result<T>) -> Outcome {
    match found {
        Err(error) => match Trouble::from(error.clone()) {
            Trouble::Unexpected(text) => Err(Trouble::Unexpected(format!("{what}: {text}"))),
            trouble => Err(trouble),
        },
        Ok(value) => Err(Trouble::Unexpected(format!(
            "{what}: it succeeded with {value:?}"
        ))),
    }
}

pub(super) fn calls_buffers(env: &Env) -> Outcome {
    let rounds = u64::from(env.scaled(6));
    env.both(
        |env| {
            let seen = Seen::default();
            let mut calls = open(env, 1, 0, &seen, small())?;
            let memory = calls.port().alloc(3 * 4096)?;
            let _place = calls.port().export("place", &memory, 100.., Access::everyone())?;
            serve(env, &mut calls, &seen)
        },
        |env| {
            let mut calls = open(env, 0, 0, &Seen::default(), small())?;
            let peer = calls.connect(address(env, 1, 0))?;
            let place = env.import(calls.port(), 1, 0, "place")?;
            let source = calls.port().alloc(2 * 4096)?;
            let readable = Access::everyone().modes(Modes::READ);
            let offered = calls.port().export("source", &source, .., readable.clone())?;
            let mut number = 0;
            for round in 0..rounds {
                let len = [1, 8, 500, 4096, 6000][round as usize % 5];
                let counter = Synchronizer::new();
                let to = calls.to(peer).consumed(&counter);
                to.call_buffer(&NOTE, &number, Payload::Inline(&filling(number, len.min(500))))?;
                number += 1;
                let offset = round % 7;
                let bytes = filling(number, len);
                let write = Payload::Write {
                    from: &bytes,
                    to: &place,
                    offset,
                };
                calls
                    .to(peer)
                    .consumed(&counter)
                    .call_buffer(&NOTE, &number, write)?;
                calls.wait_for(&counter, env.patience)?;
                number += 1;
                // From where it is, and read from there by the next.
                source.write_from(offset, &filling(number, len))?;
                let slice = source.slice(offset..offset + len as u64)?;
                let transfer = Payload::Transfer {
                    from: &slice,
                    to: &place,
                    offset: 8,
                };
                let mut ran = calls.to(peer).call_buffer_return(&NOTE, &number, transfer)?;
                right!(
                    calls.wait(&mut ran, env.patience)? == number + 1,
                    "a call ran as another"
                );
                number += 1;
                source.write_from(offset, &filling(number, len))?;
                let read = Payload::Read {
                    from: &offered,
                    range: offset..offset + len as u64,
                };
                calls
                    .to(peer)
                    .consumed(&counter)
                    .call_buffer(&NOTE, &number, read)?;
                calls.wait_for(&counter, env.patience)?;
                holds!(
                    env,
                    counter.failed() == 0,
                    "no call with a buffer has failed: {counter:?}"
                );
                number += 1;
            }
            // An export that ends, and another of its name.
            offered.unexport()?;
            let read = Payload::Read {
                from: &offered,
                range: 0..8,
            };
            let mut gone = calls.to(peer).call_buffer_return(&NOTE, &number, read)?;
            match calls.wait(&mut gone, env.patience) {
                Err(Error::Failed(Ended::NoBuffer(_))) => {}
                other => return unexpected("a buffer that cannot be read", &other),
            }
            let offered = calls.port().export("source", &source, .., readable)?;
            source.write_from(0, &filling(number, 8))?;
            let read = Payload::Read {
                from: &offered,
                range: 0..8,
            };
            let mut again = calls.to(peer).call_buffer_return(&NOTE, &number, read)?;
            right!(
                calls.wait(&mut again, env.patience)? == number + 1,
                "a call ran as another"
            );
            let outside = Payload::Write {
                from: &[0; 8],
                to: &place,
                offset: place.len(),
            };
            match calls.to(peer).call_buffer(&NOTE, &0, outside) {
                Err(Error::Library(netvm::Error::OutOfRange { .. })) => {}
                other => return unexpected("a buffer outside of its place", &other),
            }
            stop(env, &mut calls, peer)?;
            no_failures(&mut calls)
        },
    )
}

pub(super) fn calls_pushed_back(env: &Env) -> Outcome {
    const GO: u32 = 1;
    let rounds = u64::from(env.scaled(40));
    env.both(
        |env| {
            let seen = Seen::default();
            let mut calls = open(env, 1, 0, &seen, small())?;
            let bells = calls.port().alloc(4096)?;
            let _bells = calls.port().export("bells", &bells, .., open_to_all())?;
            calls.run_until(env.patience, || seen.notes() == 1)?;
            // Nothing is taken until the other side has met the end of the ring.
            let go = calls.port().notification(GO)?;
            go.wait(env.patience)?;
            right!(seen.notes() == 1, "a function runs in no call of its endpoint");
            serve(env, &mut calls, &seen)
        },
        |env| {
            let config = small().aggregation(Aggregation::None).when_full(WhenFull::Fail);
            let mut calls = open(env, 0, 0, &Seen::default(), config)?;
            let peer = calls.connect(address(env, 1, 0))?;
            let bells = env.import(calls.port(), 1, 0, "bells")?;
            let mut number = 0;
            let buffer = |number| filling(number, 300);
            let first = calls
                .to(peer)
                .call_buffer_return(&NOTE, &0, Payload::Inline(&buffer(0)));
            calls.wait(&mut first?, env.patience)?;
            loop {
                number += 1;
                match calls
                    .to(peer)
                    .call_buffer(&NOTE, &number, Payload::Inline(&buffer(number)))
                {
                    Ok(()) => due!(number < 1000, "a ring of 5 KiB took {number} calls of 300 bytes"),
                    Err(Error::Full) => break,
                    other => return unexpected("a call to a full ring", &other),
                }
            }
            right!(
                calls.stats().most_chunks == 5,
                "the ring has grown: {:?}",
                calls.stats()
            );
            // It is not lost, but was never made; others wait here, and one waits for room.
            let queued = Synchronizer::new();
            for _ in 0..rounds {
                let to = calls.to(peer).when_full(WhenFull::Queue).consumed(&queued);
                to.call_buffer(&NOTE, &number, Payload::Inline(&buffer(number)))?;
                number += 1;
            }
            right!(queued.open() == rounds, "none of them has run: {queued:?}");
            bells.notify(GO)?;
            let to = calls.to(peer).when_full(WhenFull::Wait);
            to.call_buffer(&NOTE, &number, Payload::Inline(&buffer(number)))?;
            calls.wait_for(&queued, env.patience)?;
            stop(env, &mut calls, peer)?;
            no_failures(&mut calls)
        },
    )
}

/// Calls and answers in both directions.
fn chatter(env: &Env, here: usize, there: usize, opens: bool) -> Outcome {
    let rounds = u64::from(env.scaled(60));
    let seen = Seen::default();
    let config = CallsConfig::default()
        .chunk_bytes(64)
        .chunks(2)
        .aggregation(AGGREGATIONS[here % 3]);
    let mut calls = open(env, here, 0, &seen, config)?;
    let peer = if opens {
        calls.connect(address(env, there, 0))?
    } else {
        loop {
            if let Some(peer) = calls.take_accepted() {
                break peer;
            }
            calls.serve(env.patience)?;
        }
    };
    let mut replies = Vec::new();
    for number in 0..rounds {
        replies.push((number, calls.to(peer).call_return(&ADD, &(number, here as u64))?));
        calls
            .to(peer)
            .call_buffer(&NOTE, &number, Payload::Inline(&filling(number, 5)))?;
    }
    for (number, mut reply) in replies {
        let sum = calls.wait(&mut reply, env.patience)?;
        right!(sum == number + here as u64, "{number} and {here} are {sum}");
    }
    stop(env, &mut calls, peer)?;
    serve(env, &mut calls, &seen)?;
    right!(
        seen.notes() == rounds,
        "{} of {rounds} calls have come",
        seen.notes()
    );
    no_failures(&mut calls)?;
    if opens {
        calls.close(peer, env.patience)?;
    } else {
        // The other side leaves first, so that its last answers are not cut off.
        calls.run_until(env.patience, || true)?;
        while calls.address_of(peer).is_ok() {
            calls.serve(env.patience)?;
        }
    }
    Ok(())
}

pub(super) fn calls_both_ways(env: &Env) -> Outcome {
    env.both(|env| chatter(env, 1, 0, false), |env| chatter(env, 0, 1, true))
}

pub(super) fn calls_many_to_one(env: &Env) -> Outcome {
    const CALLERS: u16 = 4;
    let rounds = u64::from(env.scaled(30));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let node = 1 + usize::from(caller) % 2;
            env.spawn(node, "caller", move |env| {
                let config = small().aggregation(AGGREGATIONS[usize::from(caller) % 3]);
                let mut calls = open(env, node, caller / 2, &Seen::default(), config)?;
                let peer = calls.connect(address(env, 0, 0))?;
                let consumed = Synchronizer::new();
                for number in 0..rounds {
                    let argument = u64::from(caller) << 56 | number;
                    let buffer = filling(number, (number % 90) as usize);
                    let to = calls.to(peer).consumed(&consumed);
                    to.call_buffer(&NOTE, &argument, Payload::Inline(&buffer))?;
                }
                calls.wait_for(&consumed, env.patience)?;
                no_failures(&mut calls)?;
                Ok(calls.close(peer, env.patience)?)
            })
        })
        .collect();
    let seen = Seen::default();
    let mut calls = open(env, 0, 0, &seen, small())?;
    let all = rounds * u64::from(CALLERS);
    let ran = calls.run_until(env.patience, || seen.notes() == all);
    let mut mine = seen.check().and(ran.map_err(Trouble::from));
    // Their last answers leave before this end does.
    for _ in 0..CALLERS {
        while mine.is_ok() && calls.take_ended().is_none() {
            mine = calls.serve(env.patience).map_err(Trouble::from);
        }
    }
    callers
        .into_iter()
        .fold(mine, |mine, caller| crate::side::worse(mine, caller.join()))
}

pub(super) fn calls_evicted(env: &Env) -> Outcome {
    let rounds = u64::from(env.scaled(40));
    env.both(
        |env| {
            let seen = Seen::default();
            let config = CallsConfig::default().chunk_bytes(8 << 10).chunks(4);
            let mut calls = open(env, 1, 0, &seen, config)?;
            let mut last = 0;
            while !seen.is_stopped() {
                calls.serve(env.patience)?;
                if seen.notes() >= last + 8 {
                    last = seen.notes();
                    env.pressure(1);
                }
            }
            seen.check()
        },
        |env| {
            let mut calls = open(env, 0, 0, &Seen::default(), CallsConfig::default())?;
            let peer = calls.connect(address(env, 1, 0))?;
            for number in 0..rounds {
                let buffer = filling(number, (number as usize * 777) % 7000);
                calls
                    .to(peer)
                    .call_buffer(&NOTE, &number, Payload::Inline(&buffer))?;
                if number % 8 == 3 {
                    env.pressure(0);
                    calls.flush()?;
                }
            }
            stop(env, &mut calls, peer)?;
            no_failures(&mut calls)
        },
    )
}

/// So long is a moment, in a body that looks for what must not come.
pub(super) const MOMENT: Timeout = Timeout::After(Duration::from_millis(2));
