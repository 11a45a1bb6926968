//! What the demo shows: the object that `--json` prints, the table, and whether all of it holds.

use std::fmt::Write as _;

use netvm::PortStats;
use netvm_emulator::NodeStats;
use serde::Serialize;

use super::source::MIB;
use crate::output::grouped;

/// The result of a demo. The names are part of the program's interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Report {
    /// Everything below holds.
    pub(crate) ok: bool,
    /// Bytes sent.
    pub(crate) bytes: u64,
    /// The digest at the receiver and the one read back both equal the sender's.
    pub(crate) digest_match: bool,
    /// Payloads that went straight to a page of the receiver.
    pub(crate) zero_copy_pages: u64,
    /// Payloads whose page was not in memory: one bounce and one copy each.
    pub(crate) bounced_pages: u64,
    /// Bytes that passed through a staging copy of the library.
    pub(crate) staged_bytes: u64,
    /// Pages that the receiver's pager took away while data arrived.
    pub(crate) evictions: u64,
    /// Messages thrown away by either card.
    pub(crate) dropped: u64,
    /// Messages sent again by either card.
    pub(crate) retransmitted: u64,
    /// `VmLck` + `VmPin` of this process, the most that was seen.
    pub(crate) pinned_bytes: u64,
    /// Memory of the receiver's driver that stays in place: its bounce buffer.
    pub(crate) bounce_bytes: u64,
    /// Notifications that the receiver took, one for each MiB.
    pub(crate) notifications: u64,
    /// MiB that arrived per second, digest at the receiver included.
    pub(crate) mib_per_s: f64,
    /// MiB that one thread copies per second here, measured in the same run.
    pub(crate) memcpy_mib_per_s: f64,
    /// Time of the whole demo.
    pub(crate) seconds: f64,
    /// The file that was sent.
    pub(crate) file: String,
    /// BLAKE3 of what was sent.
    pub(crate) digest: String,
    /// Memory that the receiver might keep.
    pub(crate) resident_bytes: u64,
    /// Of the demo between two processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) processes: Option<Processes>,
    /// What does not hold.
    pub(crate) problems: Vec<String>,
}

/// What two processes add.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Processes {
    /// The process that is node 0.
    pub(crate) sender: u32,
    /// The process that is node 1.
    pub(crate) receiver: u32,
    /// Ordinary memory of the receiver; the rest is a file that is mapped.
    pub(crate) ordinary_bytes: u64,
    /// Messages that bounced when each page of the ordinary memory was used for the first time, before anything was sent.
    pub(crate) first_use_bounced: u64,
    /// The most of the file that was seen in the receiver's memory, before pages of it were taken away.
    pub(crate) file_resident_most_bytes: u64,
}

impl Report {
    /// What sender and receiver, in this order, have counted at their nodes and their ports.
    pub(crate) fn counted(nodes: &[NodeStats; 2], ports: &[PortStats; 2]) -> Self {
        let [_, receiver] = nodes;
        Self {
            zero_copy_pages: receiver.zero_copy,
            bounced_pages: receiver.bounced,
            bounce_bytes: receiver.bounce_bytes,
            dropped: nodes.iter().map(|node| node.dropped).sum(),
            retransmitted: nodes.iter().map(|node| node.retransmitted).sum(),
            staged_bytes: ports.iter().map(|port| port.staged_bytes).sum(),
            ..Self::default()
        }
    }

    /// Decides whether all holds, and says what does not.
    pub(crate) fn judge(mut self) -> Self {
        let mut problems = Vec::new();
        let mut expect = |holds: bool, problem: String| {
            if !holds {
                problems.push(problem);
            }
        };
        expect(self.digest_match, "what arrived is not what was sent".to_owned());
        expect(
            self.dropped == 0,
            format!("{} messages were dropped", self.dropped),
        );
        expect(
            self.retransmitted == 0,
            format!("{} messages were sent again", self.retransmitted),
        );
        expect(
            self.pinned_bytes == 0,
            format!("{} bytes were pinned", self.pinned_bytes),
        );
        expect(
            self.zero_copy_pages > 0,
            "no page was written in place: nothing was resident".to_owned(),
        );
        expect(
            self.bounced_pages > 0,
            "no page was bounced: everything was resident".to_owned(),
        );
        let asked = self.bytes / MIB;
        expect(
            self.notifications == asked,
            format!("{} of {asked} notifications came", self.notifications),
        );
        self.ok = problems.is_empty();
        self.problems = problems;
        self
    }

    /// As a person reads it.
    pub(crate) fn table(&self) -> String {
        let payloads = (self.zero_copy_pages + self.bounced_pages).max(1) as f64;
        let share = |part: u64| format!("{:.0} %", 100.0 * part as f64 / payloads);
        let mut text = String::new();
        let mut row = |name: &str, value: String, meaning: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {name:<22} {value:>15}  {meaning}");
        };
        let (arrived, digest) = match self.digest_match {
            true => (
                "every byte, twice",
                "digests at the receiver and of the data read back are equal",
            ),
            false => ("WRONG", "a digest differs"),
        };
        row("data", arrived.to_owned(), digest);
        row(
            "written in place",
            grouped(self.zero_copy_pages),
            &format!("pages, {}: zero copies", share(self.zero_copy_pages)),
        );
        row(
            "bounced",
            grouped(self.bounced_pages),
            &match self.processes {
                None => format!(
                    "pages not in memory, {}: one copy each",
                    share(self.bounced_pages)
                ),
                // The card is never given pages of a file: they may go at any time.
                Some(_) => format!("pages of the file, {}: one copy each", share(self.bounced_pages)),
            },
        );
        row(
            "evicted meanwhile",
            grouped(self.evictions),
            "pages that the receiver's pager took away",
        );
        row(
            "notifications",
            grouped(self.notifications),
            "one for each MiB, in order",
        );
        row("dropped", grouped(self.dropped), "messages");
        row("sent again", grouped(self.retransmitted), "messages");
        row(
            "pinned",
            grouped(self.pinned_bytes),
            "bytes of application memory (VmLck + VmPin)",
        );
        row(
            "bounce buffer",
            grouped(self.bounce_bytes),
            "bytes of the receiver's driver",
        );
        row(
            "staged",
            grouped(self.staged_bytes),
            "bytes that the library had to copy first",
        );
        row(
            "speed",
            format!("{:.0} MiB/s", self.mib_per_s),
            &format!("beside memcpy's {:.0} MiB/s", self.memcpy_mib_per_s),
        );
        row("time", format!("{:.1} s", self.seconds), "in all");
        let _ = writeln!(text);
        if self.ok {
            let _ = writeln!(text, "ok: nothing pinned, nothing dropped, nothing sent twice");
        }
        for problem in &self.problems {
            let _ = writeln!(text, "WRONG: {problem}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Report {
        Report {
            bytes: 2 * MIB,
            digest_match: true,
            zero_copy_pages: 100,
            bounced_pages: 412,
            notifications: 2,
            ..Report::default()
        }
    }

    /// Every number of the JSON that is counted (the others are sizes and times that the test of the
    /// program drives above zero) comes from a counter, of whichever side it may go up at.
    #[test]
    fn every_counter_shows() {
        let moved = NodeStats {
            zero_copy: 1,
            bounced: 2,
            bounce_bytes: 3,
            dropped: 4,
            retransmitted: 5,
            ..NodeStats::default()
        };
        let mut port = PortStats::default();
        port.staged_bytes = 6;
        let at_receiver = Report::counted(
            &[NodeStats::default(), moved.clone()],
            &[PortStats::default(), port],
        );
        let at_sender = Report::counted(&[moved, NodeStats::default()], &[port, PortStats::default()]);
        let number = |report: &Report, name: &str| serde_json::to_value(report).ok()?.get(name)?.as_u64();
        for (name, everywhere) in [
            ("zero_copy_pages", false),
            ("bounced_pages", false),
            ("bounce_bytes", false),
            ("dropped", true),
            ("retransmitted", true),
            ("staged_bytes", true),
        ] {
            assert!(number(&at_receiver, name) > Some(0), "{name} at the receiver");
            assert_eq!(
                number(&at_sender, name) > Some(0),
                everywhere,
                "{name} at the sender"
            );
        }
        let measured = [
            "bytes",
            "evictions",
            "pinned_bytes",
            "notifications",
            "mib_per_s",
            "memcpy_mib_per_s",
            "seconds",
            "resident_bytes",
        ];
        let all = serde_json::to_value(&at_receiver).expect("JSON");
        for (name, value) in all.as_object().expect("an object") {
            let zero = value.as_f64() == Some(0.0);
            assert_eq!(zero, measured.contains(&name.as_str()), "{name}: {value}");
        }
    }

    #[test]
    fn a_good_run_is_ok() {
        let report = good().judge();
        assert!(report.ok && report.problems.is_empty(), "{:?}", report.problems);
        assert!(report.table().contains("80 %") && report.table().contains("\nok: "));
    }

    #[test]
    fn each_broken_promise_is_named() {
        let broken: [(Report, &str); 7] = [
            (
                Report {
                    digest_match: false,
                    ..good()
                },
                "not what was sent",
            ),
            (Report { dropped: 3, ..good() }, "3 messages were dropped"),
            (
                Report {
                    retransmitted: 1,
                    ..good()
                },
                "sent again",
            ),
            (
                Report {
                    pinned_bytes: 4096,
                    ..good()
                },
                "pinned",
            ),
            (
                Report {
                    zero_copy_pages: 0,
                    ..good()
                },
                "in place",
            ),
            (
                Report {
                    bounced_pages: 0,
                    ..good()
                },
                "bounced",
            ),
            (
                Report {
                    notifications: 1,
                    ..good()
                },
                "1 of 2",
            ),
        ];
        for (report, says) in broken {
            let report = report.judge();
            assert!(!report.ok);
            assert!(
                report.problems.len() == 1 && report.problems[0].contains(says),
                "{:?}",
                report.problems
            );
            assert!(report.table().contains("WRONG: "));
        }
    }
}
