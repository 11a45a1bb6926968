//! `netvm key`: the key that nodes of a cluster share.

use netvm_process::soft::{ClusterKey, KeyFileError};

use crate::args::{Key, KeyCommand};
use crate::failure::Failure;
use crate::output;

/// Runs it.
///
/// # Errors
/// The file is there already, or cannot be written.
pub fn run(options: &Key) -> Result<(), Failure> {
    let KeyCommand::New { out } = &options.command;
    let key = ClusterKey::generate()
        .map_err(|error| Failure::Wrong(format!("the kernel gives no random numbers: {error}")))?;
    key.write_file(out).map_err(unusable)?;
    output::print(&format!(
        "{}: a new key; copy it to each node and start them with --key-file\n",
        out.display()
    ))
}

/// A file that is no key's.
pub(super) fn unusable(error: KeyFileError) -> Failure {
    Failure::Usage(error.to_string())
}
