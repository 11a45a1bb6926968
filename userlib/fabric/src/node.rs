//! The node of this process: started with the first domain, gone with the last.

use std::sync::{Arc, Weak};

use netvm_process::SoftNode;
use parking_lot::Mutex;

use crate::fi::Answer;
use crate::settings;

/// The node of a process, and which process that is: a child of `fork` starts its own.
static NODE: Mutex<(u32, Weak<SoftNode>)> = Mutex::new((0, Weak::new()));

/// The node of this process.
///
/// # Errors
/// It cannot be started.
pub(crate) fn share() -> Answer<Arc<SoftNode>> {
    let mut shared = NODE.lock();
    let (of, node) = &*shared;
    if let Some(node) = node.upgrade().filter(|_| *of == std::process::id()) {
        return Ok(node);
    }
    let node = Arc::new(settings::start()?);
    *shared = (std::process::id(), Arc::downgrade(&node));
    Ok(node)
}
