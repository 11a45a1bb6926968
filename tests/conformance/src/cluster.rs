//! What a back end gives the bodies to run on.

use crate::outcome::Outcome;
use netvm::Node;

/// A network of nodes on one back end.
///
/// Bodies wait only through `netvm` and [`Running::join`]; they use no thread, clock or IO of their
/// own, so a back end may run them as coroutines in virtual time.
pub trait Cluster: Send + Sync {
    /// How many nodes there are.
    fn nodes(&self) -> u16;

    /// One of them.
    fn node(&self, node: u16) -> Node;

    /// Starts `body` as a process of its own on a node: what it opens shares nothing with other
    /// processes and ends with it.
    fn spawn(&self, node: u16, name: &str, body: Body) -> Box<dyn Running>;

    /// Starts `body` beside the caller, in the caller's process: the two may share ports. Called from
    /// inside of a body on that node.
    fn spawn_thread(&self, node: u16, name: &str, body: Body) -> Box<dyn Running>;

    /// A hint: throw out as many pages of the node's applications as possible, now.
    fn pressure(&self, node: u16);

    /// Whether [`Running::kill`] works.
    fn can_kill(&self) -> bool {
        false
    }

    /// Whether [`restart`](Self::restart) works.
    fn can_restart(&self) -> bool {
        false
    }

    /// Whether a port has a descriptor to sleep on: a machine's own time passes.
    fn has_descriptors(&self) -> bool {
        true
    }

    /// Stops a node (all its processes die) and starts it again with a new incarnation. Returns when
    /// its driver is up. Only where [`can_restart`](Self::can_restart).
    fn restart(&self, node: u16) {
        let _ = node;
    }
}

/// What a process runs.
pub type Body = Box<dyn FnOnce() -> Outcome + Send>;

/// A process or thread of a body.
pub trait Running: Send {
    /// Waits until it has ended. A panic in it goes on in the caller.
    ///
    /// # Errors
    /// What the body returned; [`Trouble::Killed`](crate::Trouble::Killed).
    fn join(self: Box<Self>) -> Outcome;

    /// Whether it has ended: [`join`](Self::join) would not wait.
    fn is_over(&self) -> bool;

    /// Kills the process where it stands: no destructor runs, the driver cleans up. Only where
    /// [`Cluster::can_kill`]; never called for threads. Returns when the driver has noticed.
    fn kill(&self);
}
