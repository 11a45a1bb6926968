//! A port that a body drives by hand: it posts the very descriptors that it means, and reads the answers from the
//! port's own words. For what the library would not post, or would repair.

use crate::env::Env;
use crate::outcome::{Outcome, Trouble};
use netvm::abi::bar::port::{DOORBELL, ERROR_READ, READ_FENCE, WRITE_FENCE};
use netvm::abi::command_queue::Producer;
use netvm::abi::control::{Grant, Name};
use netvm::abi::descriptor::{Command, CommandFlags, Opcode};
use netvm::abi::port_area::{
    ERROR_RECORDS, ERROR_WORDS, ERROR_WRITE, ERRORS, ErrorRecord, PORT_STATE, READS_DONE, Reply, TAKEN,
    WRITES_DONE,
};
use netvm::abi::words::SharedWords;
use netvm::abi::{ByteLen, Epoch, NotificationId, OpId, ReplySlot, WordIndex};
use netvm::backend::{ImportRequest, Memory, OpenRequest, PortBackend, Refusal, Words};
use netvm::{Error, Modes, Nanos, PortId, Status, VirtAddr};
use std::sync::Arc;

/// A port without the library's bookkeeping. [`Raw::with`] closes it.
pub(crate) struct Raw {
    backend: Arc<dyn PortBackend>,
    block: Words,
    area: Words,
    queue: Producer,
    writes: u32,
    reads: u32,
    errors: u32,
    ops: u32,
    epoch: Epoch,
    end: Nanos,
}

/// What the rights to a remote range are, and how to reach it.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    grant: Grant,
    node: netvm::NodeId,
    port: PortId,
}

fn refusal(reason: Refusal, what: &'static str) -> Trouble {
    Trouble::Failed(Error::Refused { what, reason })
}

impl Raw {
    /// Opens a port of the body, runs `body` with it, and closes it.
    pub(crate) fn with(
        env: &Env,
        node: usize,
        port: u16,
        body: impl FnOnce(&mut Self) -> Outcome,
    ) -> Outcome {
        let request = OpenRequest {
            port: Some(env.port_id(node, port)),
        };
        let opened = env.node(node).backend().open(&request);
        let backend = opened.map_err(|reason| refusal(reason, "open a port by hand"))?;
        let patience = u64::try_from(env.patience.as_nanos()).unwrap_or(u64::MAX);
        let block = backend.block_words();
        let counts_from = block.load_acquire(DOORBELL);
        let mut raw = Self {
            area: backend.area_words(),
            queue: Producer::starting_at(counts_from),
            block,
            writes: counts_from,
            reads: counts_from,
            errors: 0,
            ops: 0,
            // Far from those of the number's earlier owners, as the library's are.
            epoch: Epoch((backend.generation().0 as u16).wrapping_mul(0x9E37)),
            end: Nanos(backend.now().0.saturating_add(patience)),
            backend,
        };
        let outcome = body(&mut raw);
        raw.backend.close();
        outcome
    }

    /// Memory of its own, registered.
    pub(crate) fn alloc(&self, len: u64) -> Outcome<Arc<dyn Memory>> {
        self.backend
            .alloc(len)
            .map_err(|reason| refusal(reason, "allocate by hand"))
    }

    /// Imports what another port of the body exports, now or later.
    pub(crate) fn import(
        &self,
        env: &Env,
        node: usize,
        port: u16,
        name: &str,
        modes: Modes,
    ) -> Outcome<Target> {
        let Ok(name) = Name::new(name) else {
            return Err(Trouble::Unexpected("a name that cannot be".to_owned()));
        };
        let (node, port) = (env.id(node), env.port_id(node, port));
        loop {
            let request = ImportRequest {
                node,
                port,
                name: &name,
                modes,
            };
            match self.backend.import(&request, self.end) {
                Ok(grant) => return Ok(Target { grant, node, port }),
                Err(Refusal::Status(
                    Status::NoSuchExport | Status::NoSuchPort | Status::LinkLost | Status::TimedOut,
                )) => self.pause()?,
                Err(reason) => return Err(refusal(reason, "import by hand")),
            }
        }
    }

    /// Waits a little, unless the body's patience is over or the port has been ended.
    fn pause(&self) -> Outcome {
        self.check()?;
        let token = self.backend.wait_token();
        let until = self.backend.now().after(Nanos::from_micros(200));
        self.backend.block(token, until);
        Ok(())
    }

    fn check(&self) -> Outcome {
        if self.area.load_acquire(PORT_STATE) != 0 {
            return Err(Trouble::Failed(Error::PortClosed));
        }
        if self.backend.now() > self.end {
            return Err(Trouble::Failed(Error::TimedOut));
        }
        Ok(())
    }

    /// A command to this range, in the present epoch.
    pub(crate) fn command(&mut self, to: &Target, opcode: Opcode, offset: u64) -> Command {
        self.ops += 1;
        Command {
            opcode,
            node: to.node,
            port: to.port,
            capability: to.grant.capability,
            secret: to.grant.secret,
            remote: VirtAddr(to.grant.start.0 + offset),
            op: OpId(self.ops),
            epoch: self.epoch,
            reply: if opcode == Opcode::Write {
                ReplySlot::NONE
            } else {
                ReplySlot((self.ops % 64) as u16)
            },
            ..Command::default()
        }
    }

    /// A write of these bytes, which stand in the descriptor.
    pub(crate) fn inline(&mut self, to: &Target, offset: u64, len: u32) -> Command {
        Command {
            flags: CommandFlags::INLINE,
            len: ByteLen(len),
            ..self.command(to, Opcode::Write, offset)
        }
    }

    /// Posts a command, when there is room for it.
    pub(crate) fn post(&mut self, command: &Command, value: u64) -> Outcome<OpId> {
        self.queue.update_taken(self.area.load_acquire(TAKEN));
        let words = [value as u32, (value >> 32) as u32];
        while !self.queue.post(&self.block, &command.encode(), &words) {
            self.pause()?;
            self.queue.update_taken(self.area.load_acquire(TAKEN));
        }
        self.backend.doorbell();
        if command.opcode == Opcode::Write {
            self.writes = self.writes.wrapping_add(1);
        } else {
            self.reads = self.reads.wrapping_add(1);
        }
        Ok(command.op)
    }

    /// Waits until the card has counted everything that was posted as done.
    pub(crate) fn settle(&self) -> Outcome {
        self.block.store_release(WRITE_FENCE, self.writes);
        self.block.store_release(READ_FENCE, self.reads);
        self.backend.doorbell();
        let done = |word: WordIndex, count: u32| self.area.load_acquire(word) == count;
        let mut spins = 0;
        while !done(WRITES_DONE, self.writes) || !done(READS_DONE, self.reads) {
            self.check()?;
            self.backend.relax(spins);
            spins += 1;
        }
        Ok(())
    }

    /// The answer to a round trip that has ended.
    pub(crate) fn reply(&self, op: OpId) -> Outcome<Reply> {
        Reply::load(&self.area, (op.0 % 64) as u16, op)
            .ok_or_else(|| Trouble::Wrong(format!("no answer to operation {op}")))
    }

    /// Takes the failures that the card has told of.
    pub(crate) fn failures(&mut self) -> Vec<ErrorRecord> {
        let written = self.area.load_acquire(ERROR_WRITE);
        let mut told = Vec::new();
        while self.errors != written && told.len() < ERROR_RECORDS as usize {
            let mut words = [0; ERROR_WORDS];
            let at = ERRORS.plus(self.errors % ERROR_RECORDS * ERROR_WORDS as u32);
            self.area.load_slice(at, &mut words);
            told.push(ErrorRecord::decode(words));
            self.errors = self.errors.wrapping_add(1);
        }
        self.block.store_release(ERROR_READ, self.errors);
        told
    }

    /// The program has heard of its failures: what it posts from now on is of another epoch.
    pub(crate) fn raise_epoch(&mut self) {
        self.epoch = Epoch(self.epoch.0.wrapping_add(1));
    }
}

/// The same command with more flags, and with a notification if this is not 0.
pub(crate) fn with(command: Command, flags: CommandFlags, notification: u32) -> Command {
    Command {
        flags: command.flags.union(flags),
        notification: NotificationId(notification),
        ..command
    }
}
