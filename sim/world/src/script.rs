//! One fault at one step of the protocol, for worlds that once failed.
//!
//! A seed draws its faults, so a change of the draws changes its world. A script names the step instead and stays true.

use netvm_abi::Nanos;
use netvm_abi::wire::Header;
use std::cell::Cell;

/// One message, which is lost or comes late, once or each time that it is sent. Every other frame of its link arrives.
///
/// If it is lost each time, its sender gives up the link in the end, as after a cut.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    /// The frames that count.
    pub frames: fn(&Header) -> bool,
    /// Which of them it is; 0 is the first.
    pub nth: u32,
}

/// What becomes of the message of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    /// It is lost, each time.
    Lost,
    /// It is lost once, and arrives when it is sent again.
    LostOnce,
    /// It arrives so much later.
    Late(Nanos),
}

/// A script under way.
#[derive(Debug, Default)]
pub(crate) struct Play {
    script: Cell<Option<(Script, Blow)>>,
    struck: Cell<Option<(Header, Blow)>>,
}

impl Play {
    /// Begins a script.
    pub(crate) fn begin(&self, script: Script, blow: Blow) {
        self.script.set(Some((script, blow)));
        self.struck.set(None);
    }

    /// What the script makes of this frame. Asked once for each frame.
    pub(crate) fn strikes(&self, header: &Header) -> Option<Blow> {
        if let Some((struck, blow)) = self.struck.get()
            && is_same(&struck, header)
        {
            return Some(blow);
        }
        let (script, blow) = self.script.get().filter(|(script, _)| (script.frames)(header))?;
        let left = script.nth.checked_sub(1);
        self.script.set(left.map(|nth| (Script { nth, ..script }, blow)));
        if left.is_some() {
            return None;
        }
        if blow != Blow::LostOnce {
            self.struck.set(Some((*header, blow)));
        }
        Some(blow)
    }
}

/// Whether a message is this one, sent again.
fn is_same(struck: &Header, header: &Header) -> bool {
    let link = |header: &Header| {
        (
            header.source,
            header.destination,
            header.source_incarnation,
            header.destination_incarnation,
        )
    };
    // A message that is not kept is another one each time, but for its number.
    (link(struck), struck.kind, struck.seq) == (link(header), header.kind, header.seq)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_abi::wire::Kind;
    use netvm_abi::{NodeId, Seq};

    #[test]
    fn only_the_named_message_is_struck_and_each_time() {
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
            let sent = [
                (flush, 1),
                (write, 1),
                (flush, 2),
                (write, 2),
                (write, 3),
                (write, 2),
                (flush, 2),
            ];
            let struck = sent.map(|(header, seq)| {
                let seq = Seq(seq);
                play.strikes(&Header { seq, ..header })
            });
            assert_eq!(struck, [None, None, None, Some(blow), None, Some(blow), None]);
        }
    }

    #[test]
    fn what_is_lost_once_arrives_when_it_comes_again() {
        let play = Play::default();
        let script = Script {
            frames: |header| header.kind == Kind::Write,
            nth: 0,
        };
        play.begin(script, Blow::LostOnce);
        let write = Header::new(Kind::Write, NodeId(0), NodeId(1));
        assert_eq!(play.strikes(&write), Some(Blow::LostOnce));
        assert_eq!(play.strikes(&write), None);
    }
}
