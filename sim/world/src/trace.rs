//! What happened, in order: the last events in a bounded ring, all of them in a sink if one listens.

use netvm_abi::{Nanos, NodeId};
use std::collections::VecDeque;
use std::fmt;

/// Takes the full trace of a run, one line an event. Two runs of one seed give the same bytes.
pub trait TraceSink {
    /// Whether lines are wanted; formatting them costs more than the run itself.
    fn wants_lines(&self) -> bool;

    /// One event.
    fn line(&mut self, line: &str);

    /// The world has made a step, with or without lines: it does not hang.
    fn step(&mut self) {}
}

/// Keeps no trace.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTrace;

impl TraceSink for NoTrace {
    fn wants_lines(&self) -> bool {
        false
    }

    fn line(&mut self, _line: &str) {}
}

/// Collects lines, to be written out or compared.
impl TraceSink for Vec<u8> {
    fn wants_lines(&self) -> bool {
        true
    }

    fn line(&mut self, line: &str) {
        self.extend_from_slice(line.as_bytes());
        self.push(b'\n');
    }
}

/// Calls a function with each line.
#[derive(Debug)]
pub struct Lines<F>(pub F);

impl<F: FnMut(&str)> TraceSink for Lines<F> {
    fn wants_lines(&self) -> bool {
        true
    }

    fn line(&mut self, line: &str) {
        (self.0)(line);
    }
}

/// A named number of an event.
pub(crate) type Field = (&'static str, u64);

/// One event: cheap to record, formatted only when read.
#[derive(Clone, Copy, Debug)]
struct Event {
    at: Nanos,
    node: NodeId,
    what: &'static str,
    fields: [Field; MAX_FIELDS],
}

/// Most fields an event has.
const MAX_FIELDS: usize = 7;

/// Events kept for a failure report.
const RING: usize = 400;

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>13} n{:<3} {}",
            self.at.0 - 1_000_000_000,
            self.node,
            self.what
        )?;
        for (name, value) in self.fields.iter().take_while(|(name, _)| !name.is_empty()) {
            if *value >= 1 << 20 {
                write!(f, " {name}={value:#x}")?;
            } else {
                write!(f, " {name}={value}")?;
            }
        }
        Ok(())
    }
}

/// The trace of a run.
pub(crate) struct Trace {
    ring: VecDeque<Event>,
    /// Lines that the sink has not got yet, if one listens.
    lines: Option<Vec<String>>,
}

impl Trace {
    /// A trace that collects lines for a sink if it wants them.
    pub(crate) fn new(wants_lines: bool) -> Self {
        Self {
            ring: VecDeque::with_capacity(RING),
            lines: wants_lines.then(Vec::new),
        }
    }

    /// Gives the sink what was recorded since.
    pub(crate) fn flush(&mut self, sink: &mut dyn TraceSink) {
        for line in self.lines.iter_mut().flat_map(std::mem::take) {
            sink.line(&line);
        }
    }

    /// Records an event; fields beyond the seventh are cut off.
    pub(crate) fn record(&mut self, at: Nanos, node: NodeId, what: &'static str, fields: &[Field]) {
        let mut kept = [("", 0); MAX_FIELDS];
        for (place, field) in kept.iter_mut().zip(fields) {
            *place = *field;
        }
        let event = Event {
            at,
            node,
            what,
            fields: kept,
        };
        if let Some(lines) = &mut self.lines {
            lines.push(event.to_string());
        }
        if self.ring.len() == RING {
            self.ring.pop_front();
        }
        self.ring.push_back(event);
    }

    /// Bytes of the events that it keeps.
    pub(crate) fn bytes(&self) -> u64 {
        (self.ring.capacity() * size_of::<Event>()) as u64
    }

    /// The last events, oldest first.
    pub(crate) fn last(&self) -> Vec<String> {
        self.ring.iter().map(Event::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_bounded_and_the_sink_gets_all() {
        let mut bytes = Vec::new();
        let mut trace = Trace::new(true);
        for n in 0..500 {
            trace.record(
                Nanos(1_000_000_000 + n),
                NodeId(1),
                "dma start",
                &[("dma", n), ("ppn", 1 << 21)],
            );
        }
        assert_eq!(trace.last().len(), RING);
        trace.flush(&mut bytes);
        assert!(trace.last()[0].contains("dma=100 ppn=0x200000"));
        assert_eq!(bytes.iter().filter(|&&b| b == b'\n').count(), 500);
    }
}
