//! Exports, imports, names, rights, look-ups.

use crate::env::{Env, pass, take_signal};
use crate::outcome::{Outcome, fails, refused, right};
use crate::pattern;
use crate::side::{open_to_all, share, worse};
use netvm::{Access, Error, Modes, Status, Timeout, VirtAddr};
use std::time::Duration;

const DONE: u32 = 800;

pub(super) fn import_waits(env: &Env) -> Outcome {
    env.pair(
        move |side| {
            let _export = side.share("early", 4096)?;
            // The other side asks for a name that is not there yet, and for a port that is not open.
            pass(&side, Duration::from_millis(2))?;
            let memory = side.alloc(4096)?;
            let _late = side.export("late", &memory, .., open_to_all())?;
            pass(&side, Duration::from_millis(2))?;
            let other = side.env.open(1, 1)?;
            let _later = share(&other, "later", 4096)?;
            side.take_signal(DONE)?;
            take_signal(&side.env, &other, 1)
        },
        move |side| {
            let late = side.import_peer("late")?;
            let later = side.env.import(&side, 1, 1, "later")?;
            later.notify(1)?;
            late.notify(DONE)?;
            side.flush_peer()
        },
    )
}

pub(super) fn import_times_out(env: &Env) -> Outcome {
    env.pair(
        move |side| {
            let _export = side.share("here", 4096)?;
            side.take_signal(DONE)
        },
        move |side| {
            let here = side.import_peer("here")?;
            let (node, peer) = (side.peer(), side.peer_port(0));
            refused(
                side.import(node, peer, "nowhere", Timeout::Now),
                &[Status::NoSuchExport],
            )?;
            refused(
                side.import(node, side.peer_port(7), "here", Timeout::Now),
                &[Status::NoSuchPort, Status::NoSuchExport],
            )?;
            let span = Duration::from_millis(5);
            let begin = side.now();
            refused(
                side.import(node, peer, "nowhere", span),
                &[Status::NoSuchExport, Status::TimedOut],
            )?;
            let waited = side.now().0.saturating_sub(begin.0);
            right!(
                u128::from(waited) >= span.as_nanos(),
                "an import that may wait {span:?} gave up after {waited} ns"
            );
            fails(side.import(node, peer, "", Timeout::Now), "an empty name", |e| {
                matches!(e, Error::Name { .. })
            })?;
            let long = "x".repeat(65);
            fails(side.import(node, peer, &long, Timeout::Now), "a long name", |e| {
                matches!(e, Error::Name { .. })
            })?;
            fails(
                side.import(u16::MAX.into(), peer, "here", Timeout::Now),
                "no such node",
                |e| matches!(e, Error::NoSuchNode { .. }),
            )?;
            here.notify(DONE)?;
            side.flush_peer()
        },
    )
}

pub(super) fn several_names(env: &Env) -> Outcome {
    env.pair(
        move |side| {
            let memory = side.share("read-write", 4 * 4096)?;
            pattern::store(&memory, 0, 3, 0, 4 * 4096)?;
            let access = Access::everyone().modes(Modes::READ);
            let _read_only = side.export("read-only", &memory, .., access)?;
            // Not page-aligned, and inside of the others.
            let _middle = side.export("middle", &memory, 1000..2000, open_to_all())?;
            fails(
                side.export("middle", &memory, .., open_to_all()),
                "a name twice",
                |e| matches!(e, Error::Export { .. }),
            )?;
            side.take_signal(1)?;
            // One name goes, the others stay.
            memory.segment.unexport()?;
            let reader = side.import_peer("reader")?;
            reader.notify(1)?;
            side.flush_peer()?;
            side.take_signal(DONE)?;
            pattern::check(&memory, 1000, 4, 0, 1000, "write through the middle name")?;
            pattern::check(&memory, 2000, 3, 2000, 4000, "memory beside the middle name")
        },
        move |side| {
            let _export = side.share("reader", 4096)?;
            let all = side.import_peer("read-write")?;
            let read_only = side.import_peer("read-only")?;
            let middle = side.import_peer("middle")?;
            right!(middle.len() == 1000, "the middle has {} bytes", middle.len());
            right!(
                read_only.modes() == Modes::READ,
                "read-only allows {:?}",
                read_only.modes()
            );
            let mut bytes = [0; 5000];
            read_only.read(100, &mut bytes).call()?;
            pattern::same(
                &bytes,
                &pattern::bytes(3, 100, 5000),
                100,
                "read through read-only",
            )?;
            let write = read_only.write(0, &bytes).post();
            fails(write, "a write through read-only", |e| {
                matches!(e, Error::ModeRefused { .. })
            })?;
            fails(read_only.notify(1), "a notification through read-only", |e| {
                matches!(e, Error::ModeRefused { .. })
            })?;
            middle.write(0, &pattern::bytes(4, 0, 1000)).post()?;
            let write = middle.write(990, &[0; 11]).post();
            fails(write, "a write past the middle", |e| {
                matches!(e, Error::OutOfRange { .. })
            })?;
            all.notify(1)?;
            side.take_signal(1)?;
            // The first name is gone: its import is worth nothing, the others live on.
            all.write(0, &[1; 300]).post()?;
            refused(
                side.flush_remote(side.peer()),
                &[Status::CapabilityRefused, Status::Revoked],
            )?;
            let mut byte = [0];
            read_only.read(1500, &mut byte).call()?;
            pattern::same(
                &byte,
                &pattern::bytes(4, 500, 1),
                1500,
                "read after another name went",
            )?;
            middle.notify(DONE)?;
            side.flush_peer()
        },
    )
}

pub(super) fn several_ports(env: &Env) -> Outcome {
    const PORTS: u16 = 3;
    let rounds = env.scaled(10);
    env.both(
        move |env| {
            let mut ports = Vec::new();
            for index in 0..PORTS {
                let port = env.open(1, index)?;
                let memory = share(&port, "same name", 2 * 4096)?;
                ports.push((memory, port));
            }
            for (index, (memory, port)) in ports.iter().enumerate() {
                take_signal(env, port, DONE)?;
                let key = index as u64 * 1000 + u64::from(rounds) - 1;
                pattern::check(memory, 0, key, 0, 6000, "one of several ports")?;
                let count = port.notification(7)?.pending();
                right!(
                    count == rounds,
                    "port {index} has {count} signals, {rounds} were sent"
                );
            }
            Ok(())
        },
        move |env| {
            let mut ports = Vec::new();
            for index in 0..PORTS {
                let port = env.open(0, index)?;
                let remote = env.import(&port, 1, index, "same name")?;
                ports.push((port, remote));
            }
            for round in 0..u64::from(rounds) {
                for (index, (_, remote)) in ports.iter().enumerate() {
                    let bytes = pattern::bytes(index as u64 * 1000 + round, 0, 6000);
                    remote.write(0, &bytes).ordered().notify(7).post()?;
                }
            }
            // A port's memory is its own.
            let foreign = ports[0].0.alloc(4096)?;
            fails(
                ports[1].1.write(0, &foreign).post(),
                "a region of another port",
                |e| matches!(e, Error::ForeignRegion),
            )?;
            for (port, remote) in &ports {
                remote.notify(DONE)?;
                port.flush_remote(env.id(1))?;
            }
            Ok(())
        },
    )
}

pub(super) fn allow_list(env: &Env) -> Outcome {
    let exporter = env.spawn(1, "exporter", move |env| {
        let port = env.open(1, 0)?;
        let memory = port.alloc(4096)?;
        let one = Access::nobody().and_port(env.id(0), env.port_id(0, 0), Modes::READ | Modes::WRITE);
        let _one = port.export("one port", &memory, .., one)?;
        let node = Access::only(env.id(0)).and_node(env.id(2), Modes::READ);
        let _node = port.export("one node", &memory, .., node)?;
        // An empty list is closed, whatever the export offers.
        let _nobody = port.export("nobody", &memory, .., Access::nobody().notify(1..=9))?;
        // Only now may the others ask.
        let _open = port.export("open", &memory, .., open_to_all())?;
        take_signal(env, &port, 1)?;
        take_signal(env, &port, 2)
    });
    let outsider = env.spawn(2, "outsider", move |env| {
        let port = env.open(2, 0)?;
        let open = env.import(&port, 1, 0, "open")?;
        let (node, peer) = (env.id(1), env.port_id(1, 0));
        for name in ["one port", "nobody"] {
            refused(port.import(node, peer, name, Timeout::Now), &[Status::NotAllowed])?;
        }
        let reader = port.import(node, peer, "one node", Timeout::Now)?;
        right!(
            reader.modes() == Modes::READ,
            "admitted with {:?}",
            reader.modes()
        );
        open.notify(2)?;
        Ok(port.flush_remote(node)?)
    });
    let insider = || -> Outcome {
        let (port, other) = (env.open(0, 0)?, env.open(0, 1)?);
        let open = env.import(&port, 1, 0, "open")?;
        let (node, peer) = (env.id(1), env.port_id(1, 0));
        port.import(node, peer, "one port", Timeout::Now)?;
        refused(
            other.import(node, peer, "one port", Timeout::Now),
            &[Status::NotAllowed],
        )?;
        other.import(node, peer, "one node", Timeout::Now)?;
        refused(
            port.import(node, peer, "nobody", Timeout::Now),
            &[Status::NotAllowed],
        )?;
        // Fewer rights than granted may be asked for.
        let shy = port.import_with(node, peer, "one node", Modes::READ, Timeout::Now)?;
        right!(
            shy.modes() == Modes::READ,
            "asked for READ, got {:?}",
            shy.modes()
        );
        open.notify(1)?;
        Ok(port.flush_remote(node)?)
    };
    let mine = insider();
    worse(worse(mine, exporter.join()), outsider.join())
}

pub(super) fn local_refusals(env: &Env) -> Outcome {
    env.pair(
        move |side| {
            let memory = side.share("target", 4096)?;
            let access = Access::everyone().notify(5..=6);
            let _few = side.export("few", &memory, 0..100, access)?;
            side.take_signal(DONE)?;
            pattern::check_bytes(&memory, 0, &[0; 4096], "after refused operations")
        },
        move |side| {
            let target = side.import_peer("target")?;
            let few = side.import_peer("few")?;
            let range = |e: &Error| matches!(e, Error::OutOfRange { .. });
            fails(target.write(4096, &[1]).post(), "a write past the end", range)?;
            fails(
                target.write(u64::MAX, &[1; 100]).post(),
                "a wrapping write",
                range,
            )?;
            fails(
                target.read(4090, &mut [0; 7]).call(),
                "a read past the end",
                range,
            )?;
            let number = |e: &Error| matches!(e, Error::NotificationRefused { .. });
            fails(few.notify(4), "a number that is not allowed", number)?;
            fails(few.notify(7), "a number that is not allowed", number)?;
            fails(few.write(0, &[1]).notify(0).post(), "notification 0", number)?;
            let kind = |e: &Error| matches!(e, Error::NotificationNumber { .. });
            fails(side.notification(0), "notification 0", kind)?;
            fails(side.notification(1024), "a one-shot number", kind)?;

            fails(side.alloc(0), "a region of nothing", |e| {
                matches!(e, Error::Empty { .. })
            })?;
            let memory = side.alloc(100)?;
            right!(memory.len() == 100, "a region of 100 bytes has {}", memory.len());
            fails(memory.read_into(99, &mut [0; 2]), "a read past a region", range)?;
            fails(memory.write_from(101, &[]), "a write past a region", range)?;
            fails(memory.slice(0..101), "a slice past a region", range)?;
            fails(memory.word64(4), "a crooked word", |e| {
                matches!(e, Error::Misaligned { .. })
            })?;
            fails(memory.word32(100), "a word past a region", range)?;
            let access = Access::everyone;
            fails(
                side.export("x", &memory, 0..0, access()),
                "an empty export",
                |e| matches!(e, Error::Empty { .. }),
            )?;
            fails(
                side.export("x", &memory, 50..200, access()),
                "a large export",
                range,
            )?;
            fails(
                side.export("", &memory, .., access()),
                "an export without name",
                |e| matches!(e, Error::Name { .. }),
            )?;
            fails(
                side.export("x", &memory, .., access().notify(0..=5)),
                "notification 0 among those allowed",
                |e| matches!(e, Error::NotificationNumber { .. }),
            )?;

            let again = few.clone();
            few.unimport()?;
            fails(again.write(0, &[1]).post(), "a write after unimport", |e| {
                matches!(e, Error::Released)
            })?;
            fails(side.env.open(0, 0), "a port twice", |e| {
                matches!(e, Error::Refused { .. })
            })?;
            target.notify(DONE)?;
            side.flush_peer()?;
            // What is left of a closed port says so.
            drop(side);
            fails(target.write(0, &[1]).post(), "a write on a closed port", |e| {
                matches!(e, Error::PortClosed)
            })?;
            let mut bytes = [1; 100];
            memory.read_into(0, &mut bytes)?;
            right!(bytes == [0; 100], "a region changed when its port was closed");
            Ok(())
        },
    )
}

pub(super) fn address_lookup(env: &Env) -> Outcome {
    env.pair(
        move |side| {
            let memory = side.share("map", 3 * 4096)?;
            let other = side.alloc(4096)?;
            let at = |offset: u64| VirtAddr(memory.address().0 + offset);
            let (found, offset) = side
                .locate(at(5000))
                .ok_or_else(|| missing("an exported address"))?;
            right!(
                found.name() == "map" && offset == 5000,
                "address 5000 of the export is {offset} of {}",
                found.name()
            );
            drop(found);
            right!(
                side.locate(at(3 * 4096)).is_none(),
                "an address past the end was found"
            );
            right!(
                side.locate(other.address()).is_none(),
                "an unexported address was found"
            );
            side.take_signal(DONE)?;
            memory.segment.unexport()?;
            right!(
                side.locate(at(0)).is_none(),
                "an address was found after its unexport"
            );
            Ok(())
        },
        move |side| {
            let map = side.import_peer("map")?;
            let (node, peer) = (side.peer(), side.peer_port(0));
            let at = VirtAddr(map.address().0 + 4097);
            let (found, offset) = side
                .locate_remote(node, peer, at)
                .ok_or_else(|| missing("an imported address"))?;
            right!(
                found.name() == "map" && offset == 4097,
                "found {offset} of {found:?}"
            );
            right!(
                side.locate_remote(side.env.id(0), peer, at).is_none(),
                "found on the wrong node"
            );
            found.write(offset, &[1]).notify(DONE).post()?;
            side.flush_remote(node)?;
            drop((map, found));
            right!(
                side.locate_remote(node, peer, at).is_none(),
                "found after the import was dropped"
            );
            Ok(())
        },
    )
}

fn missing(what: &str) -> crate::Trouble {
    crate::Trouble::Wrong(format!("{what} was not found"))
}
