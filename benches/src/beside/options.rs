//! What the programs that compare are told.

use std::path::PathBuf;

/// Options of a comparison.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Print one JSON object and write no files.
    #[arg(long)]
    pub json: bool,
    /// One turn of little, some seconds, and write no files.
    #[arg(long)]
    pub quick: bool,
    /// How many turns; the median counts.
    #[arg(long)]
    pub turns: Option<u32>,
    /// Folder of the page and the plot.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/evaluation"))]
    pub out: PathBuf,
}
