//! The nodes, and the two runs of a sequence side by side.

use crate::model::Model;
use crate::op::{At, Change, Name, Op, Place, REGION, Width};
use netvm::{
    Access, Error, Export, Modes, PendingAtomic, Port, PortConfig, Region, RegionSlice, RemoteSegment,
    SharedConfig, SharedReceiver, SharedSender, Timeout,
};
use netvm_emulator::{Builder, Emulator};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

const PATIENCE: Timeout = Timeout::After(Duration::from_secs(20));
/// Of a shared queue: places, and bytes of each.
const PLACES: usize = 2;
const ENTRY: u64 = 256;
/// Bytes of the asking port's own region, from which slices are taken.
const OWN: u64 = 32 * 4096;

type Played<T = ()> = Result<T, TestCaseError>;

/// Two nodes.
pub(crate) struct Cluster {
    emulator: Emulator,
    hogs: [Region; 2],
    _ports: [Port; 2],
    /// How often each thing happened: a property that is never tried holds always.
    used: RefCell<BTreeMap<&'static str, u64>>,
}

impl Cluster {
    pub(crate) fn start(builder: Builder, resident: u32) -> Self {
        let emulator = builder.nodes(2).resident_pages(resident).start().unwrap();
        let ports = [0, 1].map(|node| Port::open(&emulator.node(node), PortConfig::default()).unwrap());
        let hogs = [0, 1].map(|node: usize| ports[node].alloc(u64::from(resident) * 2 * 4096).unwrap());
        Self {
            emulator,
            hogs,
            _ports: ports,
            used: RefCell::default(),
        }
    }

    pub(crate) fn play(&self, ops: &[Op]) -> Played {
        let mut stand = Stand::new(self)?;
        for (number, &op) in ops.iter().enumerate() {
            stand.step(number, op).map_err(|error| match error {
                TestCaseError::Fail(why) => TestCaseError::fail(format!("operation {number}, {op:?}: {why}")),
                reject => reject,
            })?;
        }
        stand.settle()?;
        stand.check_memory()
    }

    fn evict(&self, node: usize) {
        for page in 0..self.hogs[node].len() / 4096 {
            self.hogs[node].write_from(page * 4096, &[1]).unwrap();
        }
    }

    fn count(&self, what: &'static str) {
        *self.used.borrow_mut().entry(what).or_default() += 1;
    }

    /// Everything has happened.
    pub(crate) fn check_used(&self) {
        let used = self.used.borrow();
        for what in [
            "written",
            "read",
            "changed",
            "refused",
            "appended",
            "full",
            "taken",
            "raced",
            "signalled",
        ] {
            let times = used.get(what).copied().unwrap_or(0);
            assert!(times > 10, "{what}: {times} times only");
        }
        println!("{used:?}");
    }
}

/// A node that exports.
struct Exporter {
    imports: Vec<RemoteSegment>,
    sender: SharedSender,
    receiver: SharedReceiver,
    _exports: Vec<Export>,
    region: Region,
    port: Port,
    _queue_port: Port,
    model: Model,
}

/// Bytes that have been read into a region, or are on their way.
struct Awaited {
    slice: RegionSlice,
    expected: Vec<u8>,
}

struct Stand<'a> {
    cluster: &'a Cluster,
    /// Of the node that asks, and of another one.
    exporters: [Exporter; 2],
    own: Region,
    /// How much of `own` is used for what is under way.
    used: u64,
    awaited: Vec<Awaited>,
    /// Atomics under way, and what they are to answer.
    answers: Vec<(PendingAtomic, u64)>,
    asking: Port,
}

fn fail<T>(why: String) -> Played<T> {
    Err(TestCaseError::fail(why))
}

fn ok<T>(result: netvm::Result<T>, what: &str) -> Played<T> {
    result.map_err(|error| TestCaseError::fail(format!("{what}: {error}")))
}

impl Exporter {
    fn new(cluster: &Cluster, node: usize, asking: &Port) -> netvm::Result<Self> {
        let port = Port::open(&cluster.emulator.node(node), PortConfig::default())?;
        let region = port.alloc(REGION)?;
        let asker = (asking.node().id(), asking.id());
        let access = |name| match name {
            Name::All => Access::everyone().notify(1..=20),
            Name::Letters => Access::everyone().notify(1024..=3000),
            Name::Read => Access::everyone().modes(Modes::READ),
            Name::Part => Access::nobody().and_node(asker.0, Modes::READ | Modes::WRITE),
            Name::Words => Access::everyone().modes(Modes::ATOMIC).notify(1..=20),
            Name::Mine => Access::nobody().and_port(asker.0, asker.1, Modes::WRITE),
        };
        let mut exports = Vec::new();
        let mut imports = Vec::new();
        for name in Name::EVERY {
            let text = format!("{name:?}");
            exports.push(port.export(&text, &region, name.range(), access(name))?);
            imports.push(asking.import(port.node().id(), port.id(), &text, PATIENCE)?);
        }
        let queue_port = Port::open(&cluster.emulator.node(node), PortConfig::default())?;
        let config = SharedConfig::default()
            .message_bytes(ENTRY)
            .capacity(PLACES as u32);
        let receiver = SharedReceiver::open(&queue_port, "queue", config)?;
        let sender = SharedSender::join(asking, port.node().id(), queue_port.id(), "queue", PATIENCE)?;
        Ok(Self {
            imports,
            sender,
            receiver,
            _exports: exports,
            region,
            port,
            _queue_port: queue_port,
            model: Model::new(),
        })
    }

    fn import(&self, name: Name) -> &RemoteSegment {
        &self.imports[name as usize]
    }

    /// Everything has landed: notifications and messages are there, and no others.
    fn check(&mut self) -> Played {
        let mut letters = Vec::new();
        let queue = self.port.notifications();
        while let Some(id) = queue.pop() {
            if id.0 >= 1024 {
                letters.push(id.0);
            }
        }
        prop_assert_eq!(
            &letters,
            &self.model.letters.drain(..).collect::<Vec<_>>(),
            "one-shot notifications"
        );
        for id in 1..=20 {
            let bell = ok(self.port.notification(id), "a notification")?;
            let expected = self.model.counts.get(&id).copied().unwrap_or(0);
            prop_assert_eq!(bell.pending(), expected, "signals of {}", id);
        }
        self.model.settle();
        Ok(())
    }

    fn check_memory(&self) -> Played {
        let mut found = vec![0; REGION as usize];
        ok(self.region.read_into(0, &mut found), "own memory")?;
        let differs = found
            .iter()
            .zip(&self.model.bytes)
            .position(|(found, model)| found != model);
        if let Some(at) = differs {
            return fail(format!(
                "byte {at} of {} is {:#x} instead of {:#x}",
                self.port.node().id(),
                found[at],
                self.model.bytes[at]
            ));
        }
        Ok(())
    }

    fn take(&mut self, cluster: &Cluster) -> Played {
        let expected = self.model.queue.pop_front();
        let found = ok(self.receiver.try_recv(), "a receive")?;
        let found = found.map(|message| message.to_vec().unwrap());
        if found.is_some() {
            cluster.count("taken");
        }
        prop_assert_eq!(found, expected, "a message");
        Ok(())
    }
}

impl<'a> Stand<'a> {
    fn new(cluster: &'a Cluster) -> Played<Self> {
        let open = || {
            let asking = Port::open(&cluster.emulator.node(0), PortConfig::default())?;
            let own = asking.alloc(OWN)?;
            let exporters = [
                Exporter::new(cluster, 1, &asking)?,
                Exporter::new(cluster, 0, &asking)?,
            ];
            Ok(Self {
                cluster,
                exporters,
                own,
                used: 0,
                awaited: Vec::new(),
                answers: Vec::new(),
                asking,
            })
        };
        ok(open(), "a stand")
    }

    fn to(&mut self, own: bool) -> &mut Exporter {
        &mut self.exporters[usize::from(own)]
    }

    fn settle(&mut self) -> Played {
        for (pending, expected) in self.answers.drain(..) {
            let answer = ok(pending.wait(), "an atomic")?;
            prop_assert_eq!(answer.value, expected, "the answer of an atomic that was posted");
        }
        for exporter in &mut self.exporters {
            ok(
                self.asking.flush_remote(exporter.port.node().id()),
                "a remote flush",
            )?;
            exporter.check()?;
        }
        self.flush_reads()?;
        ok(self.asking.flush_writes(), "a flush of writes")?;
        self.used = 0;
        Ok(())
    }

    /// Whatever is read has come.
    fn flush_reads(&mut self) -> Played {
        ok(self.asking.flush_reads(), "a flush of reads")?;
        for Awaited { slice, expected } in self.awaited.drain(..) {
            let mut found = vec![0; expected.len()];
            ok(
                slice.region().read_into(slice.offset(), &mut found),
                "what was read",
            )?;
            prop_assert!(found == expected, "other bytes were read into a region");
        }
        Ok(())
    }

    fn check_memory(&mut self) -> Played {
        self.exporters.iter().try_for_each(Exporter::check_memory)
    }

    /// A slice of the own region that nothing under way uses.
    fn slice(&mut self, offset: u64, len: u64) -> Played<RegionSlice> {
        let start = self.used.next_multiple_of(4096) + offset;
        if start + len > OWN {
            self.settle()?;
            return self.slice(offset, len);
        }
        self.used = start + len;
        ok(self.own.slice(start..start + len), "a slice")
    }

    fn refused(&self, result: &netvm::Result<()>, reasons: &[fn(&Error) -> bool]) -> Played {
        self.cluster.count("refused");
        match result {
            Err(error) if reasons.iter().any(|is| is(error)) => Ok(()),
            other => fail(format!("{other:?} instead of a refusal")),
        }
    }

    fn step(&mut self, number: usize, op: Op) -> Played {
        match op {
            Op::Write { .. } => self.write(number, op),
            Op::Read {
                at,
                len,
                into,
                ordered,
                fenced,
            } => self.read(at, len, into, ordered, fenced),
            Op::Atomic { .. } => self.atomic(number, op),
            Op::Append { own, len, posted } => self.append(number, own, len, posted),
            Op::Take { own } => {
                let cluster = self.cluster;
                self.to(own).take(cluster)
            }
            Op::FlushReads => self.flush_reads(),
            Op::FlushWrites => ok(self.asking.flush_writes(), "a flush of writes"),
            Op::FlushRemote { own } => {
                // Reads that are under way to that node have been answered, too; their memory is looked at later.
                let node = self.to(own).port.node().id();
                ok(self.asking.flush_remote(node), "a remote flush")?;
                self.to(own).check()
            }
            Op::Settle => {
                self.settle()?;
                self.check_memory()
            }
            Op::Evict { own } => {
                self.cluster.evict(usize::from(!own));
                Ok(())
            }
            Op::Touch { own, offset, change } => self.touch(number, own, offset, change),
        }
    }

    fn touch(&mut self, number: usize, own: bool, offset: u64, change: bool) -> Played {
        if !self.to(own).model.is_settled() {
            self.settle()?;
        }
        let exporter = self.to(own);
        let range = offset as usize..offset as usize + 8;
        let mut found = [0; 8];
        ok(exporter.region.read_into(offset, &mut found), "own memory")?;
        prop_assert_eq!(
            &found[..],
            &exporter.model.bytes[range.clone()],
            "own memory at {}",
            offset
        );
        if change {
            let bytes = (number as u64 + 1)
                .wrapping_mul(0x0101_0101_0101_0101)
                .to_le_bytes();
            ok(exporter.region.write_from(offset, &bytes), "own memory")?;
            exporter.model.write(range, &bytes);
            exporter.model.settle();
        }
        Ok(())
    }

    fn write(&mut self, number: usize, op: Op) -> Played {
        let Op::Write {
            at,
            len,
            from,
            ordered,
            regardless,
            fenced,
            notify,
        } = op
        else {
            return Ok(());
        };
        let bytes: Vec<u8> = (0..len)
            .map(|at| (number as u64 * 37 + at * 7 + 1) as u8)
            .collect();
        let reasons = at.refusals(len, Modes::WRITE, notify);
        let range = at.bytes(len).filter(|_| reasons.is_empty());
        if let Some(range) = &range
            && self.to(at.own).model.write_races(range)
        {
            self.cluster.count("raced");
            if !ordered {
                self.settle()?;
            }
        }
        let slice = match from {
            Place::Bytes => None,
            Place::Slice(offset) => {
                let slice = self.slice(offset, len)?;
                ok(slice.region().write_from(slice.offset(), &bytes), "a source")?;
                Some(slice)
            }
        };
        let import = self.exporters[usize::from(at.own)].import(at.name);
        let mut write = match &slice {
            Some(slice) => import.write(at.offset, slice),
            None => import.write(at.offset, &bytes),
        };
        if ordered {
            write = write.ordered();
        }
        if regardless {
            write = write.regardless();
        }
        if fenced {
            write = write.fenced();
        }
        if let Some(id) = notify {
            write = write.notify(id);
        }
        let result = write.post().map(drop);
        let Some(range) = range else {
            return self.refused(&result, &reasons);
        };
        ok(result, "a write")?;
        if let (true, Some(slice)) = (fenced, &slice) {
            // Done at this node: its source may change.
            ok(
                slice
                    .region()
                    .write_from(slice.offset(), &vec![0xEE; len as usize]),
                "a source",
            )?;
        }
        self.cluster.count("written");
        let model = &mut self.to(at.own).model;
        if len > 0 {
            model.write(range, &bytes);
        }
        if let Some(id) = notify {
            model.signal(id);
            self.cluster.count("signalled");
        }
        Ok(())
    }

    fn read(&mut self, at: At, len: u64, into: Place, ordered: bool, fenced: bool) -> Played {
        let reasons = at.refusals(len, Modes::READ, None);
        let range = at.bytes(len).filter(|_| reasons.is_empty());
        if let Some(range) = &range
            && self.to(at.own).model.read_races(range)
        {
            self.cluster.count("raced");
            if !ordered {
                self.settle()?;
            }
        }
        let mut bytes = vec![0xDD; len as usize];
        let slice = match into {
            Place::Bytes => None,
            Place::Slice(offset) => Some(self.slice(offset, len)?),
        };
        let import = self.exporters[usize::from(at.own)].import(at.name);
        let result = match &slice {
            None => {
                let read = import.read(at.offset, &mut bytes);
                if ordered { read.ordered() } else { read }.call()
            }
            Some(slice) => {
                let mut read = import.read(at.offset, slice);
                if ordered {
                    read = read.ordered();
                }
                if fenced {
                    read = read.fenced();
                }
                read.post().map(drop)
            }
        };
        let Some(range) = range else {
            return self.refused(&result, &reasons);
        };
        ok(result, "a read")?;
        self.cluster.count("read");
        let model = &mut self.to(at.own).model;
        let Some(slice) = slice else {
            prop_assert!(bytes == model.bytes[range], "other bytes were read");
            return Ok(());
        };
        if fenced {
            let mut found = vec![0; len as usize];
            ok(
                slice.region().read_into(slice.offset(), &mut found),
                "what was read",
            )?;
            prop_assert!(
                found == model.bytes[range],
                "other bytes were read behind a fence"
            );
            return Ok(());
        }
        let expected = model.read(range);
        self.awaited.push(Awaited { slice, expected });
        Ok(())
    }

    fn atomic(&mut self, number: usize, op: Op) -> Played {
        let Op::Atomic {
            at,
            width,
            change,
            ordered,
            regardless,
            posted,
        } = op
        else {
            return Ok(());
        };
        let len: usize = if width == Width::Four { 4 } else { 8 };
        let mut reasons = at.refusals(len as u64, Modes::ATOMIC, None);
        let address = self.exporters[usize::from(at.own)].import(at.name).address().0;
        if address.wrapping_add(at.offset) % len as u64 != 0 {
            reasons.push(|error| matches!(error, Error::Misaligned { .. }));
        }
        let range = at.bytes(len as u64).filter(|_| reasons.is_empty());
        if let Some(range) = &range
            && self.to(at.own).model.write_races(range)
        {
            self.cluster.count("raced");
            if !ordered {
                self.settle()?;
            }
        }
        let exporter = &self.exporters[usize::from(at.own)];
        let mut old = [0; 8];
        if let Some(range) = &range {
            old[..len].copy_from_slice(&exporter.model.bytes[range.clone()]);
        }
        let old = u64::from_le_bytes(old);
        let operand = (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mask = if width == Width::Four {
            u64::from(u32::MAX)
        } else {
            u64::MAX
        };
        let new = mask
            & match change {
                Change::Add => old.wrapping_add(operand),
                Change::Exchange | Change::ExchangeIf(true) => operand,
                Change::ExchangeIf(false) => old,
            };
        let guess = |right| if right { old } else { old ^ 1 };
        let import = exporter.import(at.name);
        macro_rules! carry_out {
            ($word:ident, $int:ty) => {
                import.$word(at.offset).and_then(|word| {
                    let operand = operand as $int;
                    let mut op = match change {
                        Change::Add => word.add(operand),
                        Change::Exchange => word.exchange(operand),
                        Change::ExchangeIf(right) => word.exchange_if(guess(right) as $int, operand),
                    };
                    if ordered {
                        op = op.ordered();
                    }
                    if regardless {
                        op = op.regardless();
                    }
                    if posted {
                        op.post().map(Answer::Later)
                    } else {
                        op.call().map(|value| Answer::Now(u64::from(value)))
                    }
                })
            };
        }
        let result = match width {
            Width::Four => carry_out!(word32, u32),
            Width::Eight => carry_out!(word64, u64),
        };
        let Some(range) = range else {
            return self.refused(&result.map(drop), &reasons);
        };
        match ok(result, "an atomic")? {
            Answer::Now(value) => prop_assert_eq!(value, old, "the answer of an atomic"),
            Answer::Later(pending) => self.answers.push((pending, old)),
        }
        self.cluster.count("changed");
        self.to(at.own).model.write(range, &new.to_le_bytes()[..len]);
        Ok(())
    }

    fn append(&mut self, number: usize, own: bool, len: usize, posted: bool) -> Played {
        let message: Vec<u8> = (0..len).map(|at| (number * 41 + at * 3 + 1) as u8).collect();
        let (cluster, node) = (self.cluster, self.to(own).port.node().id());
        let exporter = &mut self.exporters[usize::from(own)];
        let full = exporter.model.queue.len() == PLACES;
        let result = if posted && !full {
            exporter.sender.post(&message).map(drop)
        } else {
            exporter.sender.try_send(&message)
        };
        match result {
            Err(Error::Empty { .. }) => prop_assert_eq!(len, 0),
            Err(Error::MessageTooLong { .. }) => prop_assert!(len as u64 > ENTRY),
            Err(Error::QueueFull) => {
                cluster.count("full");
                prop_assert!(full, "a queue with room is full");
            }
            other => {
                ok(other, "an append")?;
                prop_assert!(
                    !full && (1..=ENTRY as usize).contains(&len),
                    "a message of {} bytes",
                    len
                );
                cluster.count("appended");
                exporter.model.queue.push_back(message);
                if posted {
                    // It has its place when everything before it has landed.
                    ok(self.asking.flush_remote(node), "a remote flush")?;
                    self.exporters[usize::from(own)].check()?;
                }
            }
        }
        Ok(())
    }
}

/// What an atomic gives at once.
enum Answer {
    Now(u64),
    Later(PendingAtomic),
}
