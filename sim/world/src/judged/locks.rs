//! Programs that take turns by locks of both kinds and by a semaphore. What a lock protects is a word at its home and one
//! on another node; each holder reads and writes some of them.

use super::tokens::Tokens;
use super::{Life, calls, patience, reach, record, refused, returns};
use crate::history::{Call, Histories, LOCKED_WORDS, Lock as Locked, LockAnswer, LockOp, ObjectId};
use crate::kernel;
use crate::process;
use crate::vm::Change;
use crate::workload::{Env, JUDGED_HOME, LOCKS, LOCKS_HOME, Role};
use netvm::sync::alock::{AsymmetricHandle, AsymmetricLock};
use netvm::sync::{Lock, Semaphore};
use netvm::{Access, Error, Port, PortConfig, Region, RemoteSegment, Result, Timeout};
use netvm_abi::NodeId;
use netvm_abi::control::Modes;
use std::time::Duration;

/// Programs beside the home.
const PROGRAMS: u16 = 3;
/// Lives of locks until a place in memory is used again: a write of a dead holder may come late.
const PLACES: u64 = 480;

/// Where the lock of a life has its word: at its home, and in the other node's memory, whose first word says which life
/// of its owner it is.
const fn place(life: u64) -> u64 {
    64 + 8 * (life % PLACES)
}

/// More tokens than these are taken away.
const FEW: u32 = 2;

/// The two kinds of locks.
const QUEUED: u32 = 0;
const ASYMMETRIC: u32 = 1;

/// The lives of what the home offers.
#[derive(Clone, Default)]
struct Lives {
    /// The latest of either kind.
    latest: Life,
    /// Of the lock and the semaphore.
    home: Life,
    /// A lock of this kind ends with the first process that dies in it, and another one comes.
    asymmetric: Life,
}

/// The home of the locks, and programs on some nodes. The words that are not at the home are on node `words`.
pub(super) fn roles(home: NodeId, words: NodeId, nodes: u16) -> Vec<Role> {
    let lives = Lives::default();
    let owned = lives.clone();
    let mut owner = Role::new("home of locks", home, move |mut env| {
        let end = own(&mut env, &owned);
        env.ends("the home of locks", end);
    });
    owner.server = true;
    let others = (0..nodes.min(PROGRAMS)).map(|at| NodeId((home.0 + at) % nodes));
    let share = |id| {
        let lives = lives.clone();
        Role::new("user of locks", id, move |mut env| {
            let end = share(&mut env, &lives, home, words);
            env.ends("a user of locks", end);
        })
    };
    std::iter::once(owner).chain(others.map(share)).collect()
}

/// One taking of a lock.
struct Turn<'e> {
    env: &'e Env,
    object: ObjectId,
    turn: u64,
    acquire: Option<Call<Locked>>,
    /// Writes that have to be there once the lock is given back.
    writes: Vec<Option<Call<Locked>>>,
}

impl<'e> Turn<'e> {
    /// Asks for it.
    fn begin(env: &'e Env, life: u64, kind: u32) -> Self {
        let object = ObjectId { life, index: kind };
        let turn = record(env, Histories::number).unwrap_or_default();
        env.note("asks for a lock", &[("turn", turn), ("kind", kind.into())]);
        let recovered = kind == QUEUED;
        Self {
            env,
            object,
            turn,
            acquire: calls(env, object, LockOp::Acquire { turn, recovered }),
            writes: Vec::new(),
        }
    }

    fn holds(&mut self, told: bool) {
        self.env.note("holds the lock", &[("turn", self.turn)]);
        returns(self.env, self.acquire.take(), LockAnswer::Held { told });
    }

    /// It was not to be had.
    fn is_taken(&mut self) {
        refused(self.env, self.acquire.take());
    }

    /// Reads a word. `read` gives the life of its memory, and the value.
    fn read(&self, word: usize, read: impl FnOnce() -> Result<(u64, u64)>) -> Result<(u64, u64)> {
        let turn = self.turn;
        let call = calls::<Locked>(self.env, self.object, LockOp::Read { turn, word });
        let (life, value) = read()?;
        returns(self.env, call, LockAnswer::Value { life, value });
        Ok((life, value))
    }

    /// Writes a word; has landed when the lock is given back, if all goes well.
    fn write(
        &mut self,
        word: usize,
        life: u64,
        value: u64,
        write: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let turn = self.turn;
        let op = LockOp::Write {
            turn,
            word,
            life,
            value,
        };
        self.writes.push(calls(self.env, self.object, op));
        write()
    }

    /// Gives it back. What was done meanwhile went well or not. A release does not wait for what goes to the node that it
    /// goes to itself, and that may be any participant's: `landed` asks.
    fn end(
        self,
        done: Result<()>,
        release: impl FnOnce() -> Result<()>,
        landed: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let turn = self.turn;
        self.env.note("gives the lock back", &[("turn", turn)]);
        let call = calls::<Locked>(self.env, self.object, LockOp::Release { turn });
        let released = release();
        if released.is_ok() {
            returns(self.env, call, LockAnswer::Done);
        }
        done.and(released)?;
        if !self.writes.is_empty() {
            landed()?;
        }
        for write in self.writes {
            returns(self.env, write, LockAnswer::Done);
        }
        Ok(())
    }
}

fn own(env: &mut Env, lives: &Lives) -> Result<()> {
    let port = Port::open(&env.node, PortConfig::number(LOCKS_HOME.0))?;
    let life = lives.latest.next();
    let region = port.alloc(4096)?;
    let access = Access::everyone().modes(Modes::READ | Modes::WRITE);
    let _words = port.export(&format!("locked {life}"), &region, .., access)?;
    let _lock = Lock::create(&port, &format!("lock {life}"), Access::everyone())?;
    let name = format!("semaphore {life}");
    let _tokens = Semaphore::create(&port, &name, 1, Access::everyone())?;
    let tokens = Semaphore::join(&port, env.id, LOCKS_HOME, &name, patience(env))?;
    let tokens = Tokens::new(life, tokens);
    let mut asymmetric = Asymmetric::create(&port, lives)?;
    lives.home.0.set(life);
    while !env.stage.closing() {
        // A write that finds no page is slow: what comes behind it overtakes it, where that may be.
        if env.dice.below(4) == 0 && !env.stage.stopped() {
            evict(env, &region);
        }
        let visited = if env.dice.below(4) == 0 {
            asymmetric.visit(env, &region)
        } else {
            Ok(())
        };
        match visited {
            Err(Error::LockLost { .. }) => {
                drop(asymmetric);
                asymmetric = Asymmetric::create(&port, lives)?;
            }
            ended => ended?,
        }
        // So that no program waits for ever for those that have ended, and that tokens stay few.
        if env.stage.stopped() || (env.dice.below(4) == 0 && tokens.try_wait(env)? <= FEW) {
            tokens.signal(env)?;
        }
        let pause = if env.stage.stopped() { 2_000 } else { 200 };
        match port.notification(1)?.wait(Duration::from_micros(pause)) {
            Ok(_) | Err(Error::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Takes a page of this program out of memory.
fn evict(env: &Env, region: &Region) {
    let Some(sim) = env.sim.upgrade() else { return };
    if let Some((_, process)) = process::running(&sim) {
        let page = region.address().0 / 4096;
        let node = sim.node(env.id).clone();
        kernel::change(&sim, &node, process, Change::Evict { page }, None);
    }
}

/// An asymmetric lock at its home.
struct Asymmetric {
    life: u64,
    handle: AsymmetricHandle,
    _lock: AsymmetricLock,
}

impl Asymmetric {
    fn create(port: &Port, lives: &Lives) -> Result<Self> {
        let life = lives.latest.next();
        let lock = AsymmetricLock::create(port, &format!("asymmetric {life}"), Access::everyone())?;
        lives.asymmetric.0.set(life);
        Ok(Self {
            life,
            handle: lock.handle()?,
            _lock: lock,
        })
    }

    /// Takes the lock by the processor, and reads and changes the word that lies there.
    fn visit(&mut self, env: &mut Env, region: &Region) -> Result<()> {
        let (value, writes) = (env.dice.word(), env.dice.below(2) == 0);
        let word = region.word64(place(self.life))?;
        let mut turn = Turn::begin(env, self.life, ASYMMETRIC);
        let guard = self.handle.acquire()?;
        turn.holds(false);
        let mut change = || {
            let (life, _) = turn.read(0, || Ok((0, word.load()?)))?;
            if writes {
                turn.write(0, life, value, || word.store(value))?;
            }
            Ok(())
        };
        let done = change();
        turn.end(done, || guard.release(), || Ok(()))
    }
}

/// A program that uses them.
struct User<'e> {
    env: &'e mut Env,
    port: &'e Port,
    life: u64,
    lock: Lock,
    tokens: Tokens,
    words: Words,
    home: NodeId,
    asymmetric: Option<(u64, AsymmetricHandle)>,
}

fn share(env: &mut Env, lives: &Lives, home: NodeId, words: NodeId) -> Result<()> {
    let port = Port::open(&env.node, PortConfig::number(LOCKS.0))?;
    let modes = Modes::READ | Modes::WRITE;
    let far = || port.import_with(words, JUDGED_HOME, "words", modes, patience(env));
    let Some(far) = reach(env, far)? else {
        return Ok(());
    };
    let mut far_life = [0; 8];
    far.read(0, &mut far_life[..]).call()?;
    let join_all = || {
        let life = lives.home.0.get();
        let patience = patience(env);
        let near = port.import_with(home, LOCKS_HOME, &format!("locked {life}"), modes, patience)?;
        let lock = join_lock(&port, home, life, patience)?;
        let tokens = Semaphore::join(&port, home, LOCKS_HOME, &format!("semaphore {life}"), patience)?;
        Ok((life, near, lock, tokens))
    };
    let Some((life, near, lock, tokens)) = reach(env, join_all)? else {
        return Ok(());
    };
    let calm = env.calm;
    let mut user = User {
        env,
        port: &port,
        life,
        lock,
        tokens: Tokens::new(life, tokens),
        words: Words {
            memory: [near, far],
            lives: [0, u64::from_le_bytes(far_life)],
        },
        home,
        asymmetric: None,
    };
    let end = user.live(calm, lives);
    user.tokens.leave(user.env);
    end
}

/// Takes part in the lock of a life of its home.
fn join_lock(port: &Port, home: NodeId, life: u64, patience: Timeout) -> Result<Lock> {
    Lock::join(port, home, LOCKS_HOME, &format!("lock {life}"), patience)
}

impl User<'_> {
    fn live(&mut self, calm: bool, lives: &Lives) -> Result<()> {
        // In the calm, one turn of each that goes well is asked for.
        if calm {
            self.queued()?;
            self.tokens.wait(self.env)?;
            return self.tokens.signal(self.env);
        }
        while !self.env.stage.stopped() {
            match self.env.dice.below(16) {
                0..8 => self.queued()?,
                8..10 => self.asymmetric(lives)?,
                10..14 => self.count()?,
                _ => drop(self.tokens.try_wait(self.env)?),
            }
        }
        Ok(())
    }

    fn count(&mut self) -> Result<()> {
        if self.env.dice.below(2) == 0 {
            self.tokens.signal(self.env)
        } else {
            self.tokens.wait(self.env)
        }
    }

    /// A turn of the lock. Now and then the participant is gone before the turn ends, as if its process had died, and another
    /// comes.
    fn queued(&mut self) -> Result<()> {
        let uses = drawn(self.env);
        let tries = self.env.dice.below(4) == 0;
        let forgets = !self.env.calm && self.env.dice.below(64) == 0;
        let mut turn = Turn::begin(self.env, self.life, QUEUED);
        let guard = if tries {
            match self.lock.try_acquire()? {
                Some(guard) => guard,
                None => {
                    turn.is_taken();
                    return Ok(());
                }
            }
        } else {
            self.lock.acquire()?
        };
        turn.holds(guard.owner_died());
        let done = self.words.change(&mut turn, &uses);
        if forgets {
            std::mem::forget(guard);
            self.lock = join_lock(self.port, self.home, self.life, patience(self.env))?;
            return done;
        }
        turn.end(done, || guard.release(), || self.words.landed(self.port))
    }

    /// A turn of the asymmetric lock, if there is one.
    fn asymmetric(&mut self, lives: &Lives) -> Result<()> {
        let present = lives.asymmetric.0.get();
        let (life, mut handle) = match self.asymmetric.take().filter(|(life, _)| *life == present) {
            Some(joined) => joined,
            None => {
                let name = format!("asymmetric {present}");
                match AsymmetricLock::join(self.port, self.home, LOCKS_HOME, &name, patience(self.env)) {
                    Ok(handle) => (present, handle),
                    Err(Error::Import { .. } | Error::TimedOut) => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
        };
        let uses = drawn(self.env);
        let mut turn = Turn::begin(self.env, life, ASYMMETRIC);
        let mut guard = match handle.acquire() {
            Err(Error::LockLost { .. }) => {
                turn.is_taken();
                return Ok(());
            }
            acquired => acquired?,
        };
        turn.holds(false);
        guard.covers(self.words.memory[1].node());
        let done = self.words.change(&mut turn, &uses);
        match turn.end(done, || guard.release(), || self.words.landed(self.port)) {
            Err(Error::LockLost { .. }) => return Ok(()),
            ended => ended?,
        }
        self.asymmetric = Some((life, handle));
        Ok(())
    }
}

/// What a holder does with a word.
struct Use {
    reads: bool,
    writes: Option<u64>,
}

fn drawn(env: &mut Env) -> [Use; LOCKED_WORDS] {
    std::array::from_fn(|_| Use {
        reads: env.dice.below(3) > 0,
        writes: (env.dice.below(3) > 0).then(|| env.dice.word()),
    })
}

/// The words that locks protect.
struct Words {
    /// At the home, and on the other node.
    memory: [RemoteSegment; LOCKED_WORDS],
    /// Which life of its owner each is of.
    lives: [u64; LOCKED_WORDS],
}

impl Words {
    /// Waits until all writes to them have landed.
    fn landed(&self, port: &Port) -> Result<()> {
        self.memory
            .iter()
            .try_for_each(|memory| port.flush_remote(memory.node()))
    }

    /// What a holder does: it reads some words, then writes some.
    fn change(&self, turn: &mut Turn<'_>, uses: &[Use; LOCKED_WORDS]) -> Result<()> {
        let at = place(turn.object.life);
        let words = || self.memory.iter().zip(self.lives).enumerate().zip(uses);
        for ((word, (memory, life)), _) in words().filter(|(_, of)| of.reads) {
            let mut bytes = [0; 8];
            turn.read(word, || {
                memory.read(at, &mut bytes[..]).call()?;
                Ok((life, u64::from_le_bytes(bytes)))
            })?;
        }
        for ((word, (memory, life)), of) in words() {
            if let Some(value) = of.writes {
                let bytes = value.to_le_bytes();
                turn.write(word, life, value, || {
                    memory.write(at, &bytes[..]).post().map(drop)
                })?;
            }
        }
        Ok(())
    }
}
