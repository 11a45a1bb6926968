//! Options of the commands that look at cards: `show`, `stat`, `top`, `info`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{number, seconds};

/// Which cards are looked at.
#[derive(Clone, Debug, Args)]
pub struct Which {
    /// Only this node of this user; by default all of them, and the kernel's card if there is one.
    #[arg(long, value_name = "NUMBER", conflicts_with = "device", value_parser = |text: &str| number::<u16>(text, 0, u16::MAX.into()))]
    pub node: Option<u16>,
    /// Only the card of this device of the kernel module, such as /dev/netvm0.
    #[arg(long, value_name = "PATH")]
    pub device: Option<PathBuf>,
}

/// What `netvm show` lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shown {
    /// The nodes themselves.
    Nodes,
    /// Links to other nodes: what carries them, windows, retransmissions, round trips.
    Links,
    /// Open ports: what they have done, and what their paging has cost.
    Ports,
    /// Registered memory.
    Segments,
    /// Names that memory is exported under.
    Exports,
}

/// Options of `netvm show`.
#[derive(Debug, Args)]
pub struct Show {
    /// What to list.
    pub what: Shown,
    /// Which cards.
    #[command(flatten)]
    pub which: Which,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Options of `netvm info`.
#[derive(Debug, Args)]
pub struct Info {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Options of `netvm stat`.
#[derive(Debug, Args)]
pub struct Stat {
    /// Which cards.
    #[command(flatten)]
    pub which: Which,
    /// Show counters that are zero, too.
    #[arg(long, conflicts_with_all = ["json", "prometheus", "watch"])]
    pub all: bool,
    /// Print again each so many seconds (1 without a number): what has changed since the last time. With --json, one object a
    /// line with all counters.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", conflicts_with = "prometheus",
          value_parser = |text: &str| number::<u64>(text, 1, 86_400))]
    pub watch: Option<u64>,
    /// End after so many times (needs --watch); without it, Ctrl-C ends it.
    #[arg(long, value_name = "COUNT", requires = "watch", value_parser = |text: &str| number::<u64>(text, 1, u64::MAX))]
    pub count: Option<u64>,
    /// Print all counters in the text format of Prometheus.
    #[arg(long, conflicts_with = "json")]
    pub prometheus: bool,
    /// Print all counters as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// What keys do in `netvm top`.
pub(super) const TOP_KEYS: &str = "Keys:
  q, Esc, Ctrl-C         end
  up, down               choose a node
  Tab, left, right       choose its links, ports or segments
  page up, page down     go through a long list
  p                      hold the view, and go on";

/// Options of `netvm top`.
#[derive(Debug, Args)]
pub struct Top {
    /// Which cards.
    #[command(flatten)]
    pub which: Which,
    /// Seconds between two looks: 0.1 to 3600.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = |text: &str| seconds(text, 0.1, 3600.0))]
    pub interval: Duration,
    /// Look for one interval, print everything as plain text, and end: needs no terminal.
    #[arg(long)]
    pub once: bool,
    /// Print one JSON object a line each interval, with all counters and what they do a second: needs no terminal.
    #[arg(long)]
    pub json: bool,
}
