//! The tokens of a semaphore, as its participants take and give them.

use super::{calls, returns};
use crate::history::{ObjectId, Semaphore as Counted, What};
use crate::workload::Env;
use netvm::Result;
use netvm::sync::Semaphore;

/// The semaphore's number among the objects of its home's life: behind the two kinds of locks.
const NUMBER: u32 = 2;

/// A participant of the semaphore.
pub(super) struct Tokens {
    life: u64,
    tokens: Semaphore,
}

impl Tokens {
    /// One that has joined the semaphore of this life of its home.
    pub(super) const fn new(life: u64, tokens: Semaphore) -> Self {
        Self { life, tokens }
    }

    fn object(&self) -> ObjectId {
        ObjectId {
            life: self.life,
            index: NUMBER,
        }
    }

    /// This process takes part no more.
    pub(super) fn leave(&self, env: &Env) {
        calls::<Counted>(env, self.object(), What::Leave);
    }

    pub(super) fn signal(&self, env: &Env) -> Result<()> {
        let call = calls::<Counted>(env, self.object(), What::Signal);
        let count = self.tokens.signal()?;
        returns(env, call, count);
        Ok(())
    }

    pub(super) fn wait(&mut self, env: &Env) -> Result<()> {
        let call = calls::<Counted>(env, self.object(), What::Wait);
        let count = self.tokens.wait()?;
        returns(env, call, count);
        Ok(())
    }

    /// Gives what was there.
    pub(super) fn try_wait(&self, env: &Env) -> Result<u32> {
        let call = calls::<Counted>(env, self.object(), What::TryWait);
        let count = self.tokens.try_wait()?;
        returns(env, call, count);
        Ok(count)
    }
}
