//! Commands that look at cards: those of this user's nodes, which are asked ([`netvm_process::soft::report`]), and the kernel's,
//! of which the module tells.

pub mod info;
pub(crate) mod keys;
pub mod prometheus;
pub mod show;
pub mod stat;
mod table;
pub mod top;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netvm::device;
use netvm_process::soft::report::{self, Entry, ReportError, Section};
use netvm_process::soft::{self, LinkError};
use serde_json::{Map, Value, json};

use crate::args::Which;
use crate::failure::Failure;

/// How long a node may take to answer. One that is stopped does not.
const PATIENCE: Duration = Duration::from_secs(1);

/// A card that can be looked at.
#[derive(Clone, Debug)]
pub(crate) enum Card {
    /// Of a node of this user.
    Node(Node),
    /// Of the kernel.
    Device(PathBuf),
}

/// A node of this user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) number: u16,
    pub(crate) process: i32,
    pub(crate) program: String,
    /// Names of its process' nodes.
    pub(crate) names: Vec<String>,
}

/// What a card said of one section.
pub(crate) type Said = Result<Vec<Entry>, String>;

/// What it said of several.
pub(crate) type Sections = Vec<(Section, Said)>;

/// Said of a node that was there a moment ago.
const ENDED: &str = "the node has ended";

impl Card {
    /// A line that says which it is.
    pub(crate) fn title(&self) -> String {
        match self {
            Self::Node(node) => {
                let names: Vec<String> = node
                    .names
                    .iter()
                    .map(|name| format!("'{}'", plain(name)))
                    .collect();
                let names = match names.as_slice() {
                    [] => String::new(),
                    names => format!(", found as {}", names.join(", ")),
                };
                format!(
                    "node {} (process {}, {}{names})",
                    node.number,
                    node.process,
                    plain(&node.program)
                )
            }
            Self::Device(path) => path.display().to_string(),
        }
    }

    /// What it is, for a program.
    pub(crate) fn json(&self) -> Map<String, Value> {
        let value = match self {
            Self::Node(node) => json!({
                "node": node.number,
                "process": node.process,
                "program": node.program,
                "names": node.names,
            }),
            Self::Device(path) => json!({ "device": path }),
        };
        match value {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }

    /// Whether both are one card of one life: a node may get more names meanwhile.
    pub(crate) fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Node(one), Self::Node(other)) => {
                (one.number, one.process) == (other.number, other.process)
            }
            (Self::Device(one), Self::Device(other)) => one == other,
            (Self::Node(_), Self::Device(_)) | (Self::Device(_), Self::Node(_)) => false,
        }
    }

    /// What it says of some sections, in their order.
    pub(crate) fn ask(&self, sections: &[Section]) -> Vec<Said> {
        match self {
            Self::Node(node) => {
                let name = format!("#{}", node.number);
                let deadline = Instant::now() + PATIENCE;
                let one = |section: &Section| {
                    report::all(&name, *section, deadline).map_err(|error| match error {
                        ReportError::Link(LinkError::NoSuchNode) => ENDED.to_owned(),
                        ReportError::Link(LinkError::Malformed) => {
                            "the node answers no questions: its program is of another release".to_owned()
                        }
                        other => other.to_string(),
                    })
                };
                sections.iter().map(one).collect()
            }
            Self::Device(path) => {
                let told = device_counters(path).map_err(|failure| failure.to_string());
                let one = |section: &Section| told.clone().and_then(|told| of_device(told, *section));
                sections.iter().map(one).collect()
            }
        }
    }
}

/// What the module says of a section.
fn of_device(told: device::Counters, section: Section) -> Said {
    let alone = |counted| Entry {
        counted,
        ..Entry::default()
    };
    let each = |all: Vec<(u32, device::Counted)>| {
        let one = |(number, counted)| Entry {
            number,
            ..alone(counted)
        };
        all.into_iter().map(one).collect()
    };
    match section {
        Section::Node => Ok(vec![Entry::default()]),
        Section::Card => Ok(vec![alone(told.card)]),
        Section::Driver => Ok(vec![alone(told.driver)]),
        Section::Ports => Ok(each(told.ports)),
        Section::Segments => Ok(each(told.segments)),
        Section::Links => Ok(each(told.peers)),
        Section::Exports => Err(
            "the kernel module lists no exports; `netvm show segments` says how many names each segment has"
                .into(),
        ),
    }
}

fn device_counters(path: &Path) -> Result<device::Counters, Failure> {
    device::counters(path).map_err(|refusal| Failure::Unavailable {
        what: format!("the counters of {} cannot be read: {refusal:?}", path.display()),
        fix: if path.exists() {
            "use the netvm.ko and the netvm of one release"
        } else {
            "load the kernel module (insmod netvm.ko) on a machine with a card, and give it the card (docs/decisions/0020-permissions.md)"
        }
        .to_owned(),
    })
}

/// Nodes of this user, by number.
pub(crate) fn nodes() -> Result<Vec<Node>, Failure> {
    let running = soft::running().map_err(|error| Failure::Unavailable {
        what: format!("/proc/net/unix: {error}"),
        fix: "mount /proc".into(),
    })?;
    let mut nodes: Vec<Node> = Vec::new();
    for (process, running) in running {
        let program = program(process);
        nodes.extend(running.numbers.iter().map(|number| Node {
            number: number.0,
            process,
            program: program.clone(),
            names: running.names.clone(),
        }));
    }
    nodes.sort_by_key(|node| node.number);
    Ok(nodes)
}

/// The program that a process runs.
pub(crate) fn program(process: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
    name.map_or_else(|_| "?".into(), |name| name.trim().to_owned())
}

/// The cards that an option names, or all, as far as they are there.
pub(crate) fn found(which: &Which) -> Result<Vec<Card>, Failure> {
    if let Some(path) = &which.device {
        // Whether it answers is known before anything is printed.
        device_counters(path)?;
        return Ok(vec![Card::Device(path.clone())]);
    }
    let nodes = nodes()?.into_iter();
    if let Some(number) = which.node {
        let mut nodes = nodes.filter(|node| node.number == number);
        return Ok(nodes.next().map(Card::Node).into_iter().collect());
    }
    let device = device::present().then(|| Card::Device(device::FIRST.into()));
    Ok(device.into_iter().chain(nodes.map(Card::Node)).collect())
}

/// The same, where one at least has to be there.
pub(crate) fn cards(which: &Which) -> Result<Vec<Card>, Failure> {
    let cards = found(which)?;
    if !cards.is_empty() {
        return Ok(cards);
    }
    Err(Failure::Unavailable {
        what: match which.node {
            Some(number) => format!("no node {number} of this user runs"),
            None => format!(
                "no node of this user runs, and there is no card of the kernel ({})",
                device::FIRST
            ),
        },
        fix: "netvm serve NAME".into(),
    })
}

/// Asks cards of some sections, all at the same time: one that does not answer holds up no other.
pub(crate) fn look(cards: Vec<Card>, sections: &[Section]) -> Vec<(Card, Sections)> {
    let one = |card: &Card| -> Sections { sections.iter().copied().zip(card.ask(sections)).collect() };
    std::thread::scope(|scope| {
        let spawn = |card: &Card| {
            let card = card.clone();
            let said = std::thread::Builder::new().spawn_scoped(scope, move || one(&card));
            said.map_err(|error| format!("a thread: {error}"))
        };
        let asked: Vec<_> = cards.iter().map(spawn).collect();
        let heard = |(card, asked): (Card, Result<std::thread::ScopedJoinHandle<'_, Sections>, String>)| {
            let said = match asked {
                Ok(thread) => thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(error) => sections
                    .iter()
                    .map(|section| (*section, Err(error.clone())))
                    .collect(),
            };
            (card, said)
        };
        cards.into_iter().zip(asked).map(heard).collect()
    })
}

/// An entry of what a card said.
pub(crate) fn find(sections: &Sections, section: Section, number: u32) -> Option<&Entry> {
    entries(sections, section)
        .iter()
        .find(|entry| entry.number == number)
}

/// The entries of a section; none, where the card did not tell.
pub(crate) fn entries(sections: &Sections, section: Section) -> &[Entry] {
    let said = sections.iter().find(|(known, _)| *known == section);
    said.and_then(|(_, said)| said.as_deref().ok())
        .unwrap_or_default()
}

/// What is said of cards: of one that was asked for by itself, or of all that there are.
pub(crate) fn all_or_one(which: &Which, mut cards: Vec<Value>) -> Value {
    if (which.node.is_some() || which.device.is_some()) && cards.len() == 1 {
        cards.pop().unwrap_or_default()
    } else {
        json!({ "cards": cards })
    }
}

/// An error, where none of the cards has said anything.
pub(crate) fn any_answer<'a>(said: impl Iterator<Item = &'a Said>) -> Result<(), Failure> {
    let mut first = None;
    for said in said {
        match said {
            Ok(_) => return Ok(()),
            Err(error) => first = first.or(Some(error)),
        }
    }
    match first {
        Some(error) => Err(Failure::Wrong(error.clone())),
        None => Ok(()),
    }
}

/// Text of others, as a terminal can show it: without what would move its cursor.
pub(crate) fn plain(text: &str) -> String {
    let shown = |letter: char| if letter.is_control() { '\u{FFFD}' } else { letter };
    text.chars().map(shown).collect()
}

/// An entry as fields of a JSON object.
pub(crate) fn object(entry: &Entry) -> Map<String, Value> {
    let labels = entry
        .labels
        .iter()
        .map(|(name, value)| (name.clone(), Value::from(value.clone())));
    let counted = entry
        .counted
        .iter()
        .map(|(name, value)| (name.clone(), Value::from(*value)));
    labels.chain(counted).collect()
}

/// The same for a list, each with its number under `key`.
pub(crate) fn objects(key: &str, entries: &[Entry]) -> Value {
    let each = entries.iter().map(|entry| {
        let mut fields = object(entry);
        fields.insert(key.to_owned(), Value::from(entry.number));
        Value::Object(fields)
    });
    Value::Array(each.collect())
}

/// What the number of an entry of a section is called.
pub(crate) const fn key(section: Section) -> &'static str {
    match section {
        Section::Node | Section::Card | Section::Driver => "number",
        Section::Ports => "port",
        Section::Links => "peer",
        Section::Segments | Section::Exports => "place",
    }
}
