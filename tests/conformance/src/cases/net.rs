//! Connections over one queue: bytes in order, each once, on each of them; and their ends, as sockets have them.

use crate::env::{Env, pass};
use crate::outcome::{Outcome, Trouble, due, holds, right};
use crate::pattern;
use crate::side::{Side, worse};
use netvm::{Error, NodeId, PortId};
use netvm_net::{Address, Net, NetConfig, Stream, Way};
use rand::Rng;
use std::future::poll_fn;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

/// The number of a body's listener.
const SERVICE: u16 = 80;
/// The port of a body's networks: port 0 is its side's.
const NET: u16 = 1;

/// An error of a stream. Of those that faults may bring the library's own are told as such.
fn trouble(error: &io::Error) -> Trouble {
    let inner = error
        .get_ref()
        .map(|inner| inner as &(dyn std::error::Error + 'static));
    let library = inner.and_then(|inner| inner.downcast_ref().or_else(|| inner.source()?.downcast_ref()));
    match library {
        Some(error) => Trouble::Failed(*error),
        None if error.kind() == ErrorKind::TimedOut => Trouble::Failed(Error::TimedOut),
        None => Trouble::Unexpected(format!("{:?}: {error}", error.kind())),
    }
}

/// A result of a stream.
trait Io<T> {
    fn told(self) -> Outcome<T>;
}

impl<T> Io<T> for io::Result<T> {
    fn told(self) -> Outcome<T> {
        self.map_err(|error| trouble(&error))
    }
}

fn config(env: &Env, node: usize) -> NetConfig {
    // Small writes leave at once at one end, or are gathered.
    let gather = env.random(u64::from(NET) << 32 | node as u64).random();
    NetConfig::at(env.port_id(node, NET))
        .spin(Duration::from_micros(10))
        .gather(gather)
}

fn open(env: &Env, node: usize) -> Outcome<Net> {
    Net::open(&env.node(node), config(env, node)).told()
}

/// Waits as long as everything of a body does.
fn patient(env: &Env, mut stream: Stream) -> Stream {
    stream.set_read_timeout(Some(env.patience));
    stream.set_write_timeout(Some(env.patience));
    stream
}

/// Connects, now or when the listener is there.
fn connect(side: &Side, net: &Net, node: usize) -> Outcome<Stream> {
    let env = &side.env;
    let address = Address::new(env.id(node), env.port_id(node, NET), SERVICE);
    let deadline = env.deadline(side);
    loop {
        match net.connect_timeout(address, env.patience) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            connected => return Ok(patient(env, connected.told()?)),
        }
        deadline.check()?;
        pass(side, Duration::from_millis(1))?;
    }
}

fn accept(env: &Env, listener: &mut netvm_net::Listener) -> Outcome<Stream> {
    listener.set_timeout(Some(env.patience));
    Ok(patient(env, listener.accept().told()?))
}

/// The end of what the other one sends.
fn expect_end(stream: &mut Stream) -> Outcome {
    let more = stream.read(&mut [0]).told()?;
    right!(more == 0, "bytes come after the last");
    Ok(())
}

/// Reads so many bytes, which must be these.
fn expect(stream: &mut Stream, key: u64, from: u64, len: usize) -> Outcome {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).told()?;
    pattern::same(
        &bytes,
        &pattern::bytes(key, from, len),
        from,
        "bytes of a connection",
    )
}

/// Lengths around the inline limit and a message.
const LENGTHS: [usize; 8] = [1, 64, 96, 128, 700, 4064, 4065, 9000];

pub(super) fn net_echo(env: &Env) -> Outcome {
    let rounds = env.scaled(12) as usize;
    env.pair(
        |side| {
            let net = open(&side.env, 1)?;
            let mut listener = net.listen(SERVICE).told()?;
            let mut stream = accept(&side.env, &mut listener)?;
            let mut buffer = vec![0; 3000];
            loop {
                let len = stream.read(&mut buffer).told()?;
                if len == 0 {
                    break;
                }
                stream.write_all(&buffer[..len]).told()?;
            }
            // The other end has closed one direction alone.
            stream.write_all(b"that was all").told()
        },
        move |side| {
            let net = open(&side.env, 0)?;
            let mut stream = connect(&side, &net, 1)?;
            let mut at = 0;
            for round in 0..rounds {
                let len = LENGTHS[round % LENGTHS.len()];
                stream.write_all(&pattern::bytes(1, at, len)).told()?;
                expect(&mut stream, 1, at, len)?;
                at += len as u64;
            }
            stream.shutdown(Shutdown::Write);
            let broken = stream.write(b"more");
            right!(
                broken.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe),
                "bytes after a shutdown"
            );
            let mut last = String::new();
            stream.read_to_string(&mut last).told()?;
            due!(last == "that was all", "the last words are others: {last:?}");
            Ok(())
        },
    )
}

pub(super) fn net_many(env: &Env) -> Outcome {
    let count = env.scaled(24) as usize;
    const ROUNDS: u64 = 5;
    const LEN: usize = 150;
    env.pair(
        move |side| {
            let net = open(&side.env, 1)?;
            let mut listener = net.listen(SERVICE).told()?;
            let mut streams = Vec::new();
            for _ in 0..count {
                let mut stream = accept(&side.env, &mut listener)?;
                // Which of the other side's it is.
                let mut name = [0; 8];
                stream.read_exact(&mut name).told()?;
                streams.push((u64::from_le_bytes(name), stream));
            }
            for round in 0..ROUNDS {
                for (name, stream) in &mut streams {
                    expect(stream, *name, round * LEN as u64, LEN)?;
                }
                for (name, stream) in streams.iter_mut().rev() {
                    stream.write_all(&(*name + round).to_le_bytes()).told()?;
                }
            }
            for (_, stream) in &mut streams {
                expect_end(stream)?;
            }
            Ok(())
        },
        move |side| {
            let net = open(&side.env, 0)?;
            let mut streams = Vec::new();
            for name in 0..count as u64 {
                let mut stream = connect(&side, &net, 1)?;
                stream.write_all(&name.to_le_bytes()).told()?;
                streams.push((name, stream));
            }
            let stats = net.stats().told()?;
            holds!(
                side.env,
                stats.connections == count as u64 && stats.peers == 1,
                "{count} connections to one peer are {stats:?}"
            );
            for round in 0..ROUNDS {
                for (name, stream) in &mut streams {
                    let bytes = pattern::bytes(*name, round * LEN as u64, LEN);
                    stream.write_all(&bytes).told()?;
                }
                for (name, stream) in &mut streams {
                    let mut answer = [0; 8];
                    stream.read_exact(&mut answer).told()?;
                    right!(
                        u64::from_le_bytes(answer) == *name + round,
                        "connection {name} has another's answer"
                    );
                }
            }
            streams.clear();
            // Both ends have closed: nothing stays of them.
            let deadline = side.env.deadline(&side);
            while net.stats().told()?.connections > 0 {
                deadline.check()?;
                pass(&side, Duration::from_millis(1))?;
            }
            Ok(())
        },
    )
}

pub(super) fn net_large(env: &Env) -> Outcome {
    const WAYS: [Way; 4] = [Way::Write, Way::Read, Way::Message, Way::Auto];
    let len = 60_000 + env.random(1).random_range(0..9000) + 10_000 * env.scale.min(8) as usize;
    let config = |env: &Env, node| {
        config(env, node)
            .large(8 << 10)
            .large_memory(4, 12 << 10)
            .window(40 << 10)
    };
    env.pair(
        move |side| {
            let env = &side.env;
            let net = Net::open(&env.node(1), config(env, 1)).told()?;
            let mut listener = net.listen(SERVICE).told()?;
            for way in 0..WAYS.len() as u64 {
                let mut stream = accept(env, &mut listener)?;
                env.pressure(1);
                let mut at = 0;
                while let Some(piece) = stream.recv_zero_copy().told()? {
                    let bytes = piece.to_vec().told()?;
                    pattern::same(
                        &bytes,
                        &pattern::bytes(way, at, bytes.len()),
                        at,
                        "bytes of a piece",
                    )?;
                    at += bytes.len() as u64;
                }
                due!(at == len as u64, "{at} of {len} bytes have come");
                stream.write_all(b"!").told()?;
            }
            Ok(())
        },
        move |side| {
            let env = &side.env;
            let net = Net::open(&env.node(0), config(env, 0)).told()?;
            for (key, way) in (0..).zip(WAYS) {
                let mut stream = connect(&side, &net, 1)?;
                stream.set_way(way);
                let bytes = pattern::bytes(key, 0, len);
                let before = net.stats().told()?;
                env.pressure(0);
                // A small one first, and one behind.
                for part in [&bytes[..100], &bytes[100..len - 50], &bytes[len - 50..]] {
                    stream.write_all(part).told()?;
                }
                stream.shutdown(Shutdown::Write);
                let mut answer = [0];
                stream.read_exact(&mut answer).told()?;
                let stats = net.stats().told()?;
                let by_write = stats.by_write - before.by_write;
                let by_read = stats.by_read - before.by_read;
                let fits = match way {
                    Way::Write => by_read == 0,
                    Way::Read => by_write == 0 && by_read > 0,
                    Way::Message => by_read + by_write == 0,
                    _ => true,
                };
                right!(fits, "{way:?} went by {by_write} writes and {by_read} reads");
            }
            Ok(())
        },
    )
}

pub(super) fn net_slow_reader(env: &Env) -> Outcome {
    const SLOW: u64 = 6;
    const WINDOW: usize = 8 << 10;
    let rounds = u64::from(env.scaled(20));
    let config = |env: &Env, node| config(env, node).window(WINDOW as u32);
    env.pair(
        move |side| {
            let env = &side.env;
            let net = Net::open(&env.node(1), config(env, 1)).told()?;
            let mut listener = net.listen(SERVICE).told()?;
            let mut slow = Vec::new();
            for _ in 0..SLOW {
                slow.push(accept(env, &mut listener)?);
            }
            let mut fast = accept(env, &mut listener)?;
            for round in 0..rounds {
                expect(&mut fast, 100, round * 500, 500)?;
                fast.write_all(&[round as u8]).told()?;
            }
            for (name, stream) in (0..).zip(&mut slow) {
                expect(stream, name, 0, WINDOW)?;
                expect_end(stream)?;
            }
            Ok(())
        },
        move |side| {
            let env = &side.env;
            let net = Net::open(&env.node(0), config(env, 0)).told()?;
            let mut slow = Vec::new();
            for name in 0..SLOW {
                let mut stream = connect(&side, &net, 1)?;
                stream.write_all(&pattern::bytes(name, 0, WINDOW)).told()?;
                slow.push(stream);
            }
            // Their windows are full.
            for stream in &mut slow {
                stream.set_nonblocking(true);
                let full = stream.write(&[0]);
                match full {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Ok(_) => return Err(Trouble::Wrong("a full window takes more".into())),
                    Err(error) => return Err(trouble(&error)),
                }
            }
            let mut fast = connect(&side, &net, 1)?;
            for round in 0..rounds {
                fast.write_all(&pattern::bytes(100, round * 500, 500)).told()?;
                let mut answer = [0];
                fast.read_exact(&mut answer).told()?;
                right!(answer == [round as u8], "another round's answer");
            }
            for stream in &mut slow {
                stream.shutdown(Shutdown::Write);
                stream.set_nonblocking(false);
            }
            // The other end closes when it has read all.
            slow.iter_mut().try_for_each(expect_end)
        },
    )
}

/// The call must fail with this kind of error. Under faults another may come.
fn fails<T>(env: &Env, result: io::Result<T>, kind: ErrorKind, what: &str) -> Outcome {
    match result {
        Ok(_) if env.may_fail => Err(Trouble::Unexpected(format!("{what}: it succeeded"))),
        Ok(_) => Err(Trouble::Wrong(format!("{what}: it succeeded"))),
        Err(error) if error.kind() == kind => Ok(()),
        Err(error) if env.may_fail => Err(trouble(&error)),
        Err(error) => Err(Trouble::Wrong(format!("{what}: {:?}: {error}", error.kind()))),
    }
}

pub(super) fn net_refusals(env: &Env) -> Outcome {
    env.pair(
        |side| {
            let env = &side.env;
            // Something else has the name of a network's queue.
            let other = env.open(1, 2)?;
            let memory = other.alloc(4096)?;
            let _export = other.export("netvm-net", &memory, .., netvm::Access::everyone())?;
            let net = open(env, 1)?;
            fails(
                env,
                Net::open(&env.node(1), config(env, 1)).map(drop),
                ErrorKind::AddrInUse,
                "two networks at one port",
            )?;
            let mut listener = net.listen_with(SERVICE, 1).told()?;
            fails(
                env,
                net.listen(SERVICE),
                ErrorKind::AddrInUse,
                "two listeners of one number",
            )?;
            let any = net.listen(0).told()?;
            right!(
                any.local_address().service >= 49152,
                "a number that others may have"
            );
            let mut stream = accept(env, &mut listener)?;
            // The other side has one waiting, and one that was refused.
            stream.read_exact(&mut [0]).told()?;
            drop(listener);
            stream.write_all(&[1]).told()?;
            expect_end(&mut stream)
        },
        |side| {
            let env = &side.env;
            let net = open(env, 0)?;
            let at = |port: PortId, service| Address::new(env.id(1), port, service);
            let there = env.port_id(1, NET);
            let mut stream = connect(&side, &net, 1)?;
            let refused = ErrorKind::ConnectionRefused;
            let connect = |address| net.connect_timeout(address, env.patience);
            fails(
                env,
                connect(at(there, SERVICE + 1)),
                refused,
                "no listener has the number",
            )?;
            fails(
                env,
                connect(at(env.port_id(1, 3), SERVICE)),
                refused,
                "no port has the number",
            )?;
            fails(
                env,
                connect(at(env.port_id(1, 2), SERVICE)),
                refused,
                "it is something else",
            )?;
            let nowhere = Address::new(NodeId(60_000), there, SERVICE);
            fails(
                env,
                connect(nowhere),
                ErrorKind::InvalidInput,
                "there is no such node",
            )?;
            // One waits in the backlog, if the first has been accepted by now; then one more is refused.
            let mut waiting = Vec::new();
            let full = loop {
                match connect(at(there, SERVICE)) {
                    Ok(stream) if waiting.len() < 2 => waiting.push(stream),
                    end => break end,
                }
            };
            fails(env, full, refused, "the backlog is full")?;
            stream.set_nonblocking(true);
            fails(
                env,
                stream.read(&mut [0]),
                ErrorKind::WouldBlock,
                "nothing has come",
            )?;
            stream.set_nonblocking(false);
            stream.set_read_timeout(Some(Duration::from_millis(2)));
            fails(env, stream.read(&mut [0]), ErrorKind::TimedOut, "nothing comes")?;
            stream.set_read_timeout(Some(env.patience));
            stream.write_all(&[1]).told()?;
            stream.read_exact(&mut [0]).told()?;
            // The listener is gone, with what was not accepted.
            for mut stream in waiting {
                let stream = &mut patient_of(env, &mut stream);
                fails(
                    env,
                    stream.read(&mut [0]),
                    ErrorKind::ConnectionReset,
                    "it was never accepted",
                )?;
            }
            fails(env, connect(at(there, SERVICE)), refused, "the listener is gone")
        },
    )
}

fn patient_of<'a>(env: &Env, stream: &'a mut Stream) -> &'a mut Stream {
    stream.set_read_timeout(Some(env.patience));
    stream
}

pub(super) fn net_resets(env: &Env) -> Outcome {
    env.pair(
        |side| {
            let env = &side.env;
            let net = open(env, 1)?;
            let mut listener = net.listen(SERVICE).told()?;
            let mut first = accept(env, &mut listener)?;
            first.read_exact(&mut [0]).told()?;
            // More has been sent, and is not read.
            drop(first);
            let mut second = accept(env, &mut listener)?;
            second.read_exact(&mut [0]).told()?;
            // Everything ends, with this one open and one that is only accepted.
            let third = accept(env, &mut listener)?;
            drop((third, second, listener, net));
            Ok(())
        },
        |side| {
            let env = &side.env;
            let net = open(env, 0)?;
            let mut first = connect(&side, &net, 1)?;
            first.write_all(&[7; 100]).told()?;
            let reset = ErrorKind::ConnectionReset;
            fails(env, first.read(&mut [0]), reset, "an end that left bytes unread")?;
            fails(env, first.write(&[0]), reset, "a connection that was reset")?;
            let mut second = connect(&side, &net, 1)?;
            let mut third = connect(&side, &net, 1)?;
            second.write_all(&[1]).told()?;
            // They were closed well, and the network after them.
            expect_end(&mut second)?;
            expect_end(&mut third)?;
            let deadline = env.deadline(&side);
            let end = loop {
                match second.write_all(&[0]) {
                    Ok(()) => pass(&side, Duration::from_millis(1))?,
                    end => break end,
                }
                deadline.check()?;
            };
            fails(env, end, reset, "the other network has ended")
        },
    )
}

pub(super) fn net_threads(env: &Env) -> Outcome {
    const THREADS: u64 = 3;
    let rounds = env.scaled(15) as usize;
    fn run(
        env: &Env,
        node: usize,
        streams: Vec<Stream>,
        body: impl Fn(Stream) -> Outcome + Send + Copy + 'static,
    ) -> Outcome {
        let running: Vec<_> = streams
            .into_iter()
            .map(|stream| env.spawn_thread(node, "one of several", move |_| body(stream)))
            .collect();
        let ends: Vec<_> = running.into_iter().map(|running| running.join()).collect();
        ends.into_iter().reduce(worse).unwrap_or(Ok(()))
    }
    env.pair(
        move |side| {
            let net = open(&side.env, 1)?;
            let mut listener = net.listen(SERVICE).told()?;
            let streams: Outcome<Vec<_>> = (0..THREADS).map(|_| accept(&side.env, &mut listener)).collect();
            run(&side.env, 1, streams?, |mut stream| {
                let mut buffer = vec![0; 5000];
                loop {
                    match stream.read(&mut buffer).told()? {
                        0 => return Ok(()),
                        len => stream.write_all(&buffer[..len]).told()?,
                    }
                }
            })
        },
        move |side| {
            let net = open(&side.env, 0)?;
            let streams: Outcome<Vec<_>> = (0..THREADS).map(|_| connect(&side, &net, 1)).collect();
            run(&side.env, 0, streams?, move |mut stream| {
                let mut at = 0;
                for round in 0..rounds {
                    let len = LENGTHS[round % LENGTHS.len()];
                    stream.write_all(&pattern::bytes(3, at, len)).told()?;
                    expect(&mut stream, 3, at, len)?;
                    at += len as u64;
                }
                Ok(())
            })
        },
    )
}

pub(super) fn net_awaited(env: &Env) -> Outcome {
    const LEN: usize = 30_000;
    /// Drives a future, as long as everything of a body may take.
    fn drive<T>(side: &Side, future: impl Future<Output = io::Result<T>>) -> Outcome<T> {
        side.block_on_for(future, side.env.patience)?.told()
    }
    env.pair(
        |side| {
            let net = open(&side.env, 1)?;
            let mut listener = net.listen(SERVICE).told()?;
            // The other side has looked whether this is here.
            drop(accept(&side.env, &mut listener)?);
            drive(&side, async {
                let mut stream = listener.accept_async().await?;
                let mut buffer = vec![0; 1000];
                loop {
                    let len = poll_fn(|context| stream.poll_read(context, &mut buffer)).await?;
                    let mut at = 0;
                    while at < len {
                        at += poll_fn(|context| stream.poll_write(context, &buffer[at..len])).await?;
                    }
                    if len == 0 {
                        return Ok(());
                    }
                }
            })
        },
        |side| {
            let net = open(&side.env, 0)?;
            drop(connect(&side, &net, 1)?);
            let address = Address::new(side.env.id(1), side.env.port_id(1, NET), SERVICE);
            let mut stream = drive(&side, net.connect_async(address))?;
            let bytes = pattern::bytes(9, 0, LEN);
            let mut echo = Vec::new();
            let mut at = 0;
            drive(
                &side,
                poll_fn(|context| {
                    // Both at once: what is sent fills the windows.
                    loop {
                        let mut moved = false;
                        if at < LEN
                            && let std::task::Poll::Ready(sent) = stream.poll_write(context, &bytes[at..])
                        {
                            at += sent?;
                            moved = true;
                        }
                        let mut buffer = [0; 700];
                        if let std::task::Poll::Ready(read) = stream.poll_read(context, &mut buffer) {
                            echo.extend_from_slice(&buffer[..read?]);
                            moved = true;
                        }
                        if echo.len() >= LEN {
                            return std::task::Poll::Ready(Ok(()));
                        }
                        if !moved {
                            return std::task::Poll::Pending;
                        }
                    }
                }),
            )?;
            pattern::same(&echo, &bytes, 0, "an echo that was awaited")
        },
    )
}

pub(super) fn net_peer_dies(env: &Env) -> Outcome {
    let other = env.spawn(2, "survivor", |env| {
        let side = env.side(2, 0)?;
        let net = open(env, 2)?;
        let mut stream = connect(&side, &net, 0)?;
        stream.write_all(b"s").told()?;
        let mut byte = [0];
        loop {
            match stream.read(&mut byte).told()? {
                0 => return Ok(()),
                _ => stream.write_all(&byte).told()?,
            }
        }
    });
    let victim = env.spawn(1, "victim", |env| {
        let side = env.side(1, 0)?;
        let net = open(env, 1)?;
        let mut streams = Vec::new();
        for _ in 0..3 {
            let mut stream = connect(&side, &net, 0)?;
            stream.write_all(b"v").told()?;
            streams.push(stream);
        }
        // It never comes.
        streams[0].read_exact(&mut [0]).told()
    });
    let mine = || -> Outcome {
        let net = Net::open(&env.node(0), config(env, 0).keepalive(Duration::from_millis(100))).told()?;
        let mut listener = net.listen(SERVICE).told()?;
        let (mut lost, mut kept) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            let mut stream = accept(env, &mut listener)?;
            let mut name = [0];
            stream.read_exact(&mut name).told()?;
            if name == *b"v" {
                lost.push(stream)
            } else {
                kept.push(stream)
            }
        }
        due!((lost.len(), kept.len()) == (3, 1), "names of others");
        victim.kill();
        for stream in &mut lost {
            // A call that waits, with nothing of its own under way.
            fails(
                env,
                stream.read(&mut [0]),
                ErrorKind::ConnectionReset,
                "the other process has died",
            )?;
        }
        let stream = &mut kept[0];
        for round in 0..20_u8 {
            stream.write_all(&[round]).told()?;
            let mut answer = [0];
            stream.read_exact(&mut answer).told()?;
            right!(answer == [round], "another answer");
        }
        Ok(())
    };
    let mine = mine();
    let died = match victim.join() {
        Err(Trouble::Killed) => Ok(()),
        // With other faults it may have ended before.
        other => other,
    };
    worse(worse(mine, died), other.join())
}
