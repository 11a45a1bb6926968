//! One fault at one step of the protocol, for worlds that once failed.
//!
//! A seed draws its faults, so a change of the draws changes its world. A script names the step instead and stays true.

use netvm_abi::wire::Header;
use std::cell::Cell;

/// Loses one frame.
///
/// Every other frame of its link arrives. The receiver finds the gap and ends the link, as after a cut.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    /// The frames that count.
    pub frames: fn(&Header) -> bool,
    /// Which of them is lost; 0 is the first.
    pub nth: u32,
}

/// A script under way.
#[derive(Debug, Default)]
pub(crate) struct Play {
    script: Cell<Option<Script>>,
}

impl Play {
    /// Begins a script.
    pub(crate) fn begin(&self, script: Script) {
        self.script.set(Some(script));
    }

    /// Whether the script takes this frame from the wire. Asked once for each frame.
    pub(crate) fn loses(&self, header: &Header) -> bool {
        let Some(script) = self.script.get().filter(|script| (script.frames)(header)) else {
            return false;
        };
        let left = script.nth.checked_sub(1);
        self.script.set(left.map(|nth| Script { nth, ..script }));
        left.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_abi::NodeId;
    use netvm_abi::wire::Kind;

    #[test]
    fn only_the_named_frame_is_lost() {
        let play = Play::default();
        let write = Header::new(Kind::Write, NodeId(0), NodeId(1));
        let flush = Header::new(Kind::Flush, NodeId(0), NodeId(1));
        assert!(!play.loses(&write), "no script");
        play.begin(Script {
            frames: |header| header.kind == Kind::Write,
            nth: 1,
        });
        let lost: Vec<bool> = [flush, write, flush, write, write, flush]
            .iter()
            .map(|header| play.loses(header))
            .collect();
        assert_eq!(lost, [false, false, false, true, false, false]);
    }
}
