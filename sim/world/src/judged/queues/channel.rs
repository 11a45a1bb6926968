//! The two ends of a channel.

use super::payload::{judged, payload};
use crate::history::{Channel, ChannelAnswer, ChannelOp, ObjectId};
use crate::judged::{calls, patience, refused, returns};
use crate::workload::{Env, QUEUES_HOME};
use netvm::{ChannelConfig, Error, Port, Receiver, Region, Result, Sender, Timeout};
use netvm_abi::{NodeId, PAGE_SIZE};

/// Sizes of the channels' messages, and numbers of their entries.
const SIZES: [u64; 3] = [24, 200, 1500];
const ENTRIES: [u32; 3] = [1, 3, 8];

/// What the channel of a life is like.
const fn shape(life: u64) -> (u64, u32) {
    (SIZES[(life % 3) as usize], ENTRIES[(life / 3 % 3) as usize])
}

/// The name of the channel of a life, and the object of the histories.
fn name(life: u64) -> String {
    format!("channel {life}")
}

const fn object(life: u64) -> ObjectId {
    ObjectId { life, index: 0 }
}

/// The receiving end. When it goes, the histories know.
pub(super) struct Incoming<'e> {
    env: &'e Env,
    life: u64,
    receiver: Option<Receiver>,
}

/// What came of a receive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    Message,
    Nothing,
    /// The channel has ended.
    End,
}

impl<'e> Incoming<'e> {
    /// Opens the channel of this life.
    pub(super) fn open(env: &'e Env, port: &Port, life: u64) -> Result<Self> {
        let (bytes, entries) = shape(life);
        let config = ChannelConfig::default().message_bytes(bytes).capacity(entries);
        Ok(Self {
            env,
            life,
            receiver: Some(Receiver::open(port, &name(life), config)?),
        })
    }

    /// Whether a sender has joined.
    pub(super) fn has_sender(&self) -> bool {
        let sender = self.receiver.as_ref().map(Receiver::sender);
        matches!(sender, Some(Ok(Some(_))))
    }

    /// Takes a message if one comes in time, and does something while it is borrowed.
    pub(super) fn take(
        &mut self,
        timeout: impl Into<Timeout>,
        meanwhile: impl FnOnce() -> Result<()>,
    ) -> Result<Came> {
        let Some(receiver) = &mut self.receiver else {
            return Ok(Came::End);
        };
        let (env, life) = (self.env, self.life);
        let call = calls::<Channel>(env, object(life), ChannelOp::Receive);
        let message = match receiver.recv(timeout) {
            Ok(message) => message,
            // Both have taken nothing.
            Err(Error::TimedOut | Error::Memory { .. }) => {
                refused(env, call);
                return Ok(Came::Nothing);
            }
            Err(Error::ChannelClosed) => {
                returns(env, call, ChannelAnswer::Closed);
                return Ok(Came::End);
            }
            Err(Error::ChannelBroken { .. } | Error::MessagesLost) => {
                returns(env, call, ChannelAnswer::Broken { excused: false });
                return Ok(Came::End);
            }
            Err(error) => return Err(error),
        };
        let (number, whole) = judged(life, &message.to_vec()?, shape(life).0 as usize);
        returns(env, call, ChannelAnswer::Message { number, whole });
        let done = meanwhile();
        let call = calls::<Channel>(env, object(life), ChannelOp::Free);
        drop(message);
        returns(env, call, ChannelAnswer::Done);
        done.map(|()| Came::Message)
    }
}

impl Drop for Incoming<'_> {
    fn drop(&mut self) {
        calls::<Channel>(self.env, object(self.life), ChannelOp::Leave);
        drop(self.receiver.take());
    }
}

/// The sending end. When it goes, the histories know.
pub(super) struct Outgoing<'e> {
    env: &'e Env,
    pub(super) life: u64,
    sent: u64,
    sender: Option<Sender>,
    /// What is sent from where it lies.
    page: Region,
}

impl<'e> Outgoing<'e> {
    /// Joins the channel of this life.
    pub(super) fn join(env: &'e Env, port: &Port, home: NodeId, life: u64) -> Result<Self> {
        let sender = Sender::join(port, home, QUEUES_HOME, &name(life), patience(env))?;
        Ok(Self {
            env,
            life,
            sent: 0,
            sender: Some(sender),
            page: port.alloc(PAGE_SIZE.into())?,
        })
    }

    /// Sends a message if there is room in time; `slice`: from where it lies. Whether the channel has not ended.
    pub(super) fn send(&mut self, port: &Port, slice: bool) -> Result<bool> {
        let Some(sender) = &mut self.sender else {
            return Ok(false);
        };
        let (env, life, number) = (self.env, self.life, self.sent);
        let (most, capacity) = shape(life);
        let bytes = payload(life, number, most as usize);
        if slice {
            self.page.write_from(0, &bytes)?;
        }
        let timeout = env.millis(if env.calm { 100 } else { 1 });
        let call = calls::<Channel>(env, object(life), ChannelOp::Send { number, capacity });
        let sent = if slice {
            sender.send(self.page.slice(..bytes.len() as u64)?, timeout)
        } else {
            sender.send(&bytes[..], timeout)
        };
        match sent {
            Ok(()) => {
                returns(env, call, ChannelAnswer::Done);
                self.sent += 1;
            }
            Err(Error::TimedOut) if !env.calm => refused(env, call),
            Err(Error::ChannelClosed) => {
                returns(env, call, ChannelAnswer::Closed);
                return Ok(false);
            }
            Err(Error::ChannelBroken { .. } | Error::MessagesLost) => {
                returns(env, call, ChannelAnswer::Broken { excused: false });
                return Ok(false);
            }
            // Of another operation of the port: the message was not sent.
            Err(error @ (Error::Failed(_) | Error::FailuresLost { .. } | Error::StreamFailed { .. })) => {
                refused(env, call);
                return Err(error);
            }
            Err(error) => return Err(error),
        }
        if slice {
            port.flush_writes()?;
        }
        Ok(true)
    }

    /// Ends the channel, and hears whether everything has landed.
    pub(super) fn close(mut self) -> Result<()> {
        let Some(sender) = self.sender.take() else {
            return Ok(());
        };
        let call = calls::<Channel>(self.env, object(self.life), ChannelOp::Close);
        let end = sender.close();
        match end {
            Ok(()) => returns(self.env, call, ChannelAnswer::Done),
            Err(Error::ChannelClosed) => returns(self.env, call, ChannelAnswer::Closed),
            Err(Error::ChannelBroken { .. } | Error::MessagesLost) => {
                returns(self.env, call, ChannelAnswer::Broken { excused: false });
            }
            Err(_) => {}
        }
        end
    }
}

impl Drop for Outgoing<'_> {
    fn drop(&mut self) {
        if let Some(sender) = self.sender.take() {
            calls::<Channel>(self.env, object(self.life), ChannelOp::Close);
            drop(sender);
        }
    }
}
