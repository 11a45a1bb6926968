//! One fault at one step of the protocol, for worlds that once failed.
//!
//! A seed draws its faults, so a change of the draws changes its world. A script names the step instead and stays true.

use netvm_abi::Nanos;
use netvm_abi::wire::Header;
use std::cell::Cell;

/// One frame, which is lost or comes late. Every other frame of its link arrives.
///
/// If it is lost, the receiver finds the gap and ends the link, as after a cut.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    /// The frames that count.
    pub frames: fn(&Header) -> bool,
    /// Which of them it is; 0 is the first.
    pub nth: u32,
}

/// What becomes of the frame of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    /// It is lost.
    Lost,
    /// It arrives so much later.
    Late(Nanos),
}

/// A script under way.
#[derive(Debug, Default)]
pub(crate) struct Play {
    script: Cell<Option<(Script, Blow)>>,
}

impl Play {
    /// Begins a script.
    pub(crate) fn begin(&self, script: Script, blow: Blow) {
        self.script.set(Some((script, blow)));
    }

    /// What the script makes of this frame. Asked once for each frame.
    pub(crate) fn strikes(&self, header: &Header) -> Option<Blow> {
        let (script, blow) = self.script.get().filter(|(script, _)| (script.frames)(header))?;
        let left = script.nth.checked_sub(1);
        self.script.set(left.map(|nth| (Script { nth, ..script }, blow)));
        left.is_none().then_some(blow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_abi::NodeId;
    use netvm_abi::wire::Kind;

    #[test]
    fn only_the_named_frame_is_struck() {
        let play = Play::default();
        let write = Header::new(Kind::Write, NodeId(0), NodeId(1));
        let flush = Header::new(Kind::Flush, NodeId(0), NodeId(1));
        assert_eq!(play.strikes(&write), None, "no script");
        let script = Script {
            frames: |header| header.kind == Kind::Write,
            nth: 1,
        };
        for blow in [Blow::Lost, Blow::Late(Nanos(5))] {
            play.begin(script, blow);
            let struck = [flush, write, flush, write, write, flush].map(|header| play.strikes(&header));
            assert_eq!(struck, [None, None, None, Some(blow), None, None]);
        }
    }
}
