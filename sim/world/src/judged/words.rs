//! Programs that change the same words from all sides: some by atomics, some by plain writes; all are read, and loaded by
//! their owner.

use super::{calls, patience, reach, record, refused, returns, was_refused};
use crate::history::{Call, Histories, ObjectId, Word, WordOp};
use crate::workload::{Env, JUDGED, JUDGED_HOME, Role};
use netvm::{Access, Error, OpId, PendingAtomic, Port, PortConfig, RemoteSegment, Result};
use netvm_abi::NodeId;
use netvm_abi::control::Modes;
use std::time::Duration;

/// Words that are shared, each in a page of its own, the last one at the end of its page.
const WORDS: u32 = 4;
/// Their memory: a page before them says which life of its owner it is, and has words that [locks](super::locks) protect.
const BYTES: u64 = 4096 * (WORDS as u64 + 1);

/// Where a word lies.
const fn place(word: u32) -> u64 {
    let page = 4096 * (word as u64 + 1);
    if word + 1 == WORDS {
        page + 4088
    } else {
        page + 8 * word as u64
    }
}

/// Whether a word is for plain writes. An atomic is not atomic with those (decision 10), so others are for atomics; all are
/// read.
const fn is_plain(word: u32) -> bool {
    word % 2 == 1
}

/// The owner of the words on one node, and a program on each of up to four nodes.
pub(super) fn roles(home: NodeId, nodes: u16) -> Vec<Role> {
    // An error ends this life of either role; it starts over, the owner with other words.
    let mut owner = Role::new("owner of words", home, |env| {
        env.ends("the owner of words", own(&env));
    });
    owner.server = true;
    let others = (0..nodes.min(4)).map(|at| NodeId((home.0 + at) % nodes));
    let change = |id| {
        Role::new("changer of words", id, move |mut env| {
            let end = change(&mut env, home);
            env.ends("a changer of words", end);
        })
    };
    std::iter::once(owner).chain(others.map(change)).collect()
}

fn own(env: &Env) -> Result<()> {
    let port = Port::open(&env.node, PortConfig::number(JUDGED_HOME.0))?;
    let region = port.alloc(BYTES)?;
    let Some(life) = record(env, Histories::number) else {
        return Ok(());
    };
    region.word64(0)?.store(life)?;
    let modes = Modes::READ | Modes::WRITE | Modes::ATOMIC;
    let _export = port.export("words", &region, .., Access::everyone().modes(modes))?;
    while !env.stage.closing() {
        for index in 0..WORDS {
            let word = region.word64(place(index))?;
            let object = ObjectId { life, index };
            let call = calls::<Word>(env, object, WordOp::Load);
            let value = word.load()?;
            returns(env, call, Some(value));
        }
        match port.notification(1)?.wait(Duration::from_micros(200)) {
            Ok(_) | Err(Error::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A program that changes words.
struct Changer<'e> {
    env: &'e mut Env,
    port: Port,
    words: RemoteSegment,
    home: NodeId,
    life: u64,
    /// What it last saw of each word.
    seen: [u64; WORDS as usize],
}

fn change(env: &mut Env, home: NodeId) -> Result<()> {
    let port = Port::open(&env.node, PortConfig::number(JUDGED.0))?;
    let modes = Modes::READ | Modes::WRITE | Modes::ATOMIC;
    let import = || port.import_with(home, JUDGED_HOME, "words", modes, patience(env));
    let Some(words) = reach(env, import)? else {
        return Ok(());
    };
    let mut life = [0; 8];
    words.read(0, &mut life[..]).call()?;
    let mut changer = Changer {
        env,
        port,
        words,
        home,
        life: u64::from_le_bytes(life),
        seen: [0; WORDS as usize],
    };
    // In the calm, one step that goes well is asked for.
    let mut calm = changer.env.calm;
    while std::mem::take(&mut calm) || !changer.env.stage.stopped() {
        changer.step()?;
    }
    Ok(())
}

impl Changer<'_> {
    fn call(&self, index: u32, op: WordOp) -> Option<Call<Word>> {
        let object = ObjectId {
            life: self.life,
            index,
        };
        calls(self.env, object, op)
    }

    /// Writes down how a call has ended: that of operation `own`, if it came to have a number. Gives the old value.
    fn end(
        &self,
        call: Option<Call<Word>>,
        own: Option<OpId>,
        answer: Result<Option<u64>>,
    ) -> Result<Option<u64>> {
        match &answer {
            Ok(old) => returns(self.env, call, *old),
            Err(error) if was_refused(error, own) => refused(self.env, call),
            Err(_) => {}
        }
        answer
    }

    /// A number that no other program stores.
    fn fresh(&mut self) -> u64 {
        self.env.dice.word()
    }

    /// One operation, or two that are under way together.
    fn step(&mut self) -> Result<()> {
        let index = self.env.dice.below(u64::from(WORDS)) as u32;
        let choice = self.env.dice.below(8);
        let old = match (choice, is_plain(index)) {
            (0, _) | (1..4, true) => self.load(index)?,
            (_, true) => self.store(index)?,
            (1, false) => {
                let new = self.fresh();
                self.atomics(index, &[WordOp::Swap(new)])?
            }
            (2 | 3, false) => {
                let (seen, new) = (self.seen[index as usize], self.fresh());
                self.atomics(index, &[WordOp::CompareSwap(seen, new)])?
            }
            (4, false) => self.atomics(index, &[WordOp::Add(3), WordOp::Add(5)])?,
            _ => self.atomics(index, &[WordOp::Add(1)])?,
        };
        if let Some(old) = old {
            self.seen[index as usize] = old;
        }
        Ok(())
    }

    fn load(&self, index: u32) -> Result<Option<u64>> {
        let call = self.call(index, WordOp::Load);
        let mut bytes = [0; 8];
        let read = self.words.read(place(index), &mut bytes[..]).call();
        self.end(call, None, read.map(|()| Some(u64::from_le_bytes(bytes))))
    }

    /// A plain write, which has returned when it is known to have landed.
    fn store(&mut self, index: u32) -> Result<Option<u64>> {
        let new = self.fresh();
        let call = self.call(index, WordOp::Store(new));
        let write = self.words.write(place(index), &new.to_le_bytes()[..]).post();
        let own = write.as_ref().ok().copied();
        let landed = write.and_then(|_| self.port.flush_remote(self.home));
        self.end(call, own, landed.map(|()| None))
    }

    /// Atomics, each posted before the one before it is answered. Gives the last old value.
    fn atomics(&self, index: u32, ops: &[WordOp]) -> Result<Option<u64>> {
        let word = self.words.word64(place(index))?;
        let mut posted = Vec::new();
        for &op in ops {
            let operation = match op {
                WordOp::Swap(new) => word.exchange(new),
                WordOp::CompareSwap(expected, new) => word.exchange_if(expected, new),
                WordOp::Add(count) => word.add(count),
                WordOp::Load | WordOp::Store(_) => continue,
            };
            posted.push((self.call(index, op), operation.post()));
        }
        let mut last = Ok(None);
        for (call, pending) in posted {
            let own = pending.as_ref().ok().map(PendingAtomic::op);
            let answer = pending.and_then(PendingAtomic::wait);
            let ended = self.end(call, own, answer.map(|answer| Some(answer.value)));
            last = last.and(ended);
        }
        last
    }
}
