//! Order for each port, past a message that waits for its host (promise P4).
//!
//! What asks for order waits for what its own port has sent before, and for nothing else. Nearly always the lowest number
//! missing (LSN) tells when that has ended, and no stream has state of its own. But one message whose page is not there
//! stays for as long as the page takes to come, and the LSN with it. Then the link is *held up*: from there on each message
//! joins the line of its stream, in the order of its numbers, and its turn has come when the stream has passed all before it.
//!
//! ```text
//! number    10        11      12        13        (the LSN is 10)
//! of port    1         2       1         2
//! state   bounced   landed  ordered   landed
//! turn      come      come   waits      come once 11 is passed, which it is
//! ```
//!
//! A number is only taken in when all before it have arrived: of one that is missing it is not known whose it is. So what
//! the wire loses still holds up all ports, until it comes again.
//!
//! A slot that its stream has passed stays taken until the LSN gets there: its number is its credit. When the LSN has
//! passed all that has been taken in, the link is held up no more, and all lines are empty.

use super::slot::Standing;
use super::{Inbound, POISONED, SlotState};
use crate::config::Config;
use netvm_abi::BounceId;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::storage::Storage;

/// The messages of a stream that it has not passed, while its link is held up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    /// How many there are.
    waiting: u16,
    /// The slot of the last one.
    last: u16,
}

impl<S: Storage> Inbound<S> {
    /// Whether any link is held up.
    #[inline]
    pub(crate) const fn any_held_up(&self) -> bool {
        self.wary & !POISONED != 0
    }

    /// A link is held up.
    pub(crate) const fn holds_up(&mut self) {
        self.wary += 1;
    }

    /// A link is held up no more.
    pub(crate) fn goes_on(&mut self) {
        self.wary -= u16::from(self.any_held_up());
    }

    /// The line of a message's stream. A port whose number is past the last stream has none.
    fn line_of(&mut self, config: &Config, at: BounceId) -> Option<&mut Line> {
        let header = self.slots.get(at.index())?.header();
        let port = header.source_port();
        if port.0 >= config.geometry.ports {
            return None;
        }
        let stream = self
            .streams
            .get_mut(config.stream_index(config.window_of(at), port))?;
        Some(&mut stream.line)
    }

    /// A message joins the line of its stream.
    pub(crate) fn joins(&mut self, config: &Config, at: BounceId) {
        let window = u32::from(config.geometry.window);
        let (first, index) = (at.0 - at.0 % window, (at.0 % window) as u16);
        let mut before = None;
        if let Some(line) = self.line_of(config, at) {
            before = (line.waiting > 0).then_some(line.last);
            (line.waiting, line.last) = (line.waiting + 1, index);
        }
        if let Some(before) = before
            && let Some(slot) = self.slots.get_mut((first + u32::from(before)) as usize)
        {
            slot.standing.precedes(index);
        }
        if let Some(slot) = self.slots.get_mut(at.index()) {
            slot.standing = match before {
                Some(_) if !mutant::is(Mutant::TurnNotWaitedFor) => Standing::WAITS,
                _ => Standing::COME,
            };
        }
    }

    /// Whether the turn of a message has come, and it has ended or waited for just that.
    pub(crate) fn is_due(&self, at: BounceId) -> bool {
        self.get(at).is_some_and(|slot| {
            let ends = matches!(
                slot.state(),
                SlotState::Landed | SlotState::Failed | SlotState::Ordered
            );
            slot.standing.has_come() && ends
        })
    }

    /// A stream passes a message. Gives the next one, whose turn has come.
    pub(crate) fn passes(&mut self, config: &Config, at: BounceId) -> Option<BounceId> {
        if let Some(line) = self.line_of(config, at) {
            line.waiting = line.waiting.saturating_sub(1);
        }
        let slot = self.get_mut(at)?;
        slot.set(SlotState::Passed);
        let next = core::mem::replace(&mut slot.standing, Standing::NONE).next()?;
        let window = u32::from(config.geometry.window);
        let next = BounceId(at.0 - at.0 % window + u32::from(next));
        self.get_mut(next)?.standing.comes();
        Some(next)
    }

    /// The life of a message's link is over: it stands in no line any more, and neither does any other one of its stream.
    pub(crate) fn leaves_line(&mut self, config: &Config, at: BounceId) {
        let Some(slot) = self.get_mut(at).filter(|slot| slot.standing.is_in_line()) else {
            return;
        };
        slot.standing = Standing::NONE;
        if let Some(line) = self.line_of(config, at) {
            *line = Line::default();
        }
    }
}
