//! Keys of other domains, imported at their first use.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use netvm::{Error, RemoteSegment, Status, Timeout};

use crate::address::Address;
use crate::domain::Domain;
use crate::ep::meet_node;
use crate::fi::{Answer, Errno};
use crate::{log, mr};

/// Memory of another domain, as a program names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) address: Address,
    pub(crate) key: u64,
    /// An offset in it, or, with `FI_MR_BASIC`, an address.
    pub(crate) at: u64,
}

enum Key {
    /// The helper imports it.
    Asked,
    Ready(RemoteSegment),
    /// It could not be imported; the next operation fails for it.
    Refused(Errno),
}

/// Keys by the endpoint through which they are named.
#[derive(Default)]
pub(super) struct Keys(HashMap<(Address, u64), Key>);

/// How long a key is asked for: one that is not there is no key.
const PATIENCE: Duration = Duration::from_secs(2);

impl Keys {
    /// The memory of a target, and the offset in it.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: it is being imported.
    pub(super) fn find(
        &mut self,
        domain: &Arc<Domain>,
        target: &Target,
    ) -> Answer<std::result::Result<(RemoteSegment, u64), Errno>> {
        let name = (target.address, target.key);
        match self.0.get(&name) {
            Some(Key::Ready(segment)) => {
                let start = if domain.basic { segment.address().get() } else { 0 };
                let at = target.at.checked_sub(start);
                return Ok(at.map(|at| (segment.clone(), at)).ok_or(Errno::ACCES));
            }
            Some(Key::Refused(errno)) => {
                let errno = *errno;
                // The one after it asks anew.
                self.0.remove(&name);
                return Ok(Err(errno));
            }
            Some(Key::Asked) => {}
            None => {
                self.0.insert(name, Key::Asked);
                ask(domain, *target);
            }
        }
        Err(Errno::AGAIN)
    }

    pub(super) fn imported(&mut self, target: &Target, found: Answer<RemoteSegment>) {
        let key = found.map_or_else(Key::Refused, Key::Ready);
        self.0.insert((target.address, target.key), key);
    }

    /// Memory that is not exported any more.
    pub(super) fn forget(&mut self, segment: Option<&RemoteSegment>) {
        let Some(gone) = segment else { return };
        let is_it = |key: &Key| {
            matches!(key, Key::Ready(segment)
                if segment.node() == gone.node() && segment.port() == gone.port() && segment.name() == gone.name())
        };
        self.0.retain(|_, key| !is_it(key));
    }
}

/// Lets the helper import a key.
fn ask(domain: &Arc<Domain>, target: Target) {
    let weak = Arc::downgrade(domain);
    domain.helper.give(move || {
        let Some(domain) = weak.upgrade() else { return };
        let found = meet_node(&domain, &target.address).and_then(|node| import(&domain, node, &target));
        domain.rma.imported(&target, found);
    });
}

fn import(domain: &Domain, node: netvm::NodeId, target: &Target) -> Answer<RemoteSegment> {
    let (port, name) = (target.address.memory(), mr::name(target.key));
    let first = domain.memory.import(node, port, &name, Timeout::Now);
    // A key that is not there does not come: the program has learnt it from the other side. A slow answer does.
    let found = match first {
        Err(Error::Import {
            reason: netvm::Refusal::Status(Status::TimedOut | Status::LinkLost),
            ..
        }) => domain.memory.import(node, port, &name, PATIENCE),
        other => other,
    };
    found.map_err(|error| {
        log::trace(|| error.to_string());
        match error.status() {
            Some(Status::NoSuchExport | Status::NoSuchPort | Status::NotAllowed) => Errno::KEYREJECTED,
            Some(Status::TableFull | Status::NoMemory) => Errno::NOMEM,
            _ => Errno::HOSTUNREACH,
        }
    })
}
