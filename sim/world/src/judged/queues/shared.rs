//! The ends of a shared queue.

use super::payload::{judged, payload};
use crate::history::{Histories, ObjectId, SharedAnswer, SharedOp, SharedQueue};
use crate::judged::{calls, patience, record, refused, returns};
use crate::workload::{Env, QUEUES, QUEUES_HOME};
use netvm::{Error, Port, Result, SharedConfig, SharedReceiver, SharedSender, Status, Timeout};
use netvm_abi::NodeId;

/// Size of the largest message, and number of places: few, so that they run out.
const BYTES: u64 = 64;
const PLACES: u32 = 4;

fn name(life: u64) -> String {
    format!("requests {life}")
}

const fn object(life: u64) -> ObjectId {
    ObjectId { life, index: 0 }
}

/// A number that no other message of the run has, with its sender's node.
fn numbered(env: &Env) -> u64 {
    let number = record(env, Histories::number).unwrap_or_default();
    number << 16 | u64::from(env.id.0)
}

/// The receiving end.
pub(super) struct Served {
    life: u64,
    receiver: SharedReceiver,
}

impl Served {
    /// Opens the queue of this life.
    pub(super) fn open(port: &Port, life: u64) -> Result<Self> {
        let config = SharedConfig::default().message_bytes(BYTES).capacity(PLACES);
        let receiver = SharedReceiver::open(port, &name(life), config)?;
        Ok(Self { life, receiver })
    }

    /// Takes a message if one comes in time, and does something while it is borrowed. Whether one came.
    pub(super) fn take(
        &mut self,
        env: &Env,
        timeout: impl Into<Timeout>,
        meanwhile: impl FnOnce() -> Result<()>,
    ) -> Result<bool> {
        let call = calls::<SharedQueue>(env, object(self.life), SharedOp::Receive);
        let message = match self.receiver.recv(timeout) {
            Ok(message) => message,
            Err(Error::TimedOut) => {
                refused(env, call);
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let (number, whole) = judged(self.life, &message.to_vec()?, BYTES as usize);
        let whole = whole && message.sender() == (NodeId(number as u16), QUEUES);
        returns(env, call, SharedAnswer::Message { number, whole });
        let done = meanwhile();
        let call = calls::<SharedQueue>(env, object(self.life), SharedOp::Free);
        drop(message);
        returns(env, call, SharedAnswer::Done);
        done.map(|()| true)
    }

    /// Takes all that is left. No sender is left that would send more.
    pub(super) fn drain(&mut self, env: &Env) -> Result<()> {
        while self.take(env, Timeout::Now, || Ok(()))? {}
        let call = calls::<SharedQueue>(env, object(self.life), SharedOp::Drain);
        returns(env, call, SharedAnswer::Done);
        Ok(())
    }
}

/// A sending end.
pub(super) struct Asks {
    life: u64,
    sender: SharedSender,
}

impl Asks {
    /// Joins the queue of this life.
    pub(super) fn join(env: &Env, port: &Port, home: NodeId, life: u64) -> Result<Self> {
        let sender = SharedSender::join(port, home, QUEUES_HOME, &name(life), patience(env))?;
        Ok(Self { life, sender })
    }

    /// Sends a message if there is room in time.
    pub(super) fn send(&self, env: &Env) -> Result<()> {
        let number = numbered(env);
        let op = SharedOp::Send {
            number,
            capacity: PLACES,
            rank: None,
        };
        let bytes = payload(self.life, number, BYTES as usize);
        let timeout = env.millis(if env.calm { 100 } else { 1 });
        let call = calls::<SharedQueue>(env, object(self.life), op);
        match self.sender.send(&bytes, timeout) {
            Ok(()) => returns(env, call, SharedAnswer::Done),
            Err(Error::QueueFull) if !env.calm => refused(env, call),
            Err(error) => {
                if has_no_place(&error) {
                    refused(env, call);
                }
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Whether a message that was refused so has certainly no place. With a link that was lost or a card that has gone that is
/// not known.
const fn has_no_place(error: &Error) -> bool {
    let Error::Failed(failure) = error else {
        return matches!(error, Error::QueueFull);
    };
    matches!(
        failure.status,
        Status::BusError
            | Status::NoMemory
            | Status::TimedOut
            | Status::NoSuchPort
            | Status::CapabilityRefused
            | Status::Revoked
    )
}
