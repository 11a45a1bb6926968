//! Keys of other domains, imported at their first use.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use netvm::{RemoteSegment, Status};

use crate::address::Address;
use crate::domain::Domain;
use crate::ep::{at_once, meet_node};
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

/// Where in the memory that a key names an operation begins.
#[derive(Clone, Debug)]
pub(super) struct Aim {
    pub(super) segment: RemoteSegment,
    pub(super) at: u64,
    /// Another number for each import.
    pub(super) import: u64,
}

enum Key {
    /// The helper imports it.
    Asked,
    Ready {
        segment: RemoteSegment,
        import: u64,
    },
    /// It could not be imported; the next operation fails for it.
    Refused(Errno),
}

/// Keys by the endpoint through which they are named.
#[derive(Default)]
pub(super) struct Keys {
    keys: HashMap<(Address, u64), Key>,
    imports: u64,
    /// Imports that name nothing any more, as long as an operation may use them.
    gone: HashSet<u64>,
}

/// How long a key is asked for where the first answer did not come. One that is not there is no key, and is answered at once.
const PATIENCE: Duration = Duration::from_secs(10);

impl Keys {
    /// The memory of a target, and the offset in it.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: it is being imported.
    pub(super) fn find(
        &mut self,
        domain: &Arc<Domain>,
        target: &Target,
    ) -> Answer<std::result::Result<Aim, Errno>> {
        let name = (target.address, target.key);
        match self.keys.get(&name) {
            Some(Key::Ready { segment, import }) => {
                let start = if domain.basic { segment.address().get() } else { 0 };
                let aim = |at| Aim {
                    segment: segment.clone(),
                    at,
                    import: *import,
                };
                return Ok(target.at.checked_sub(start).map(aim).ok_or(Errno::ACCES));
            }
            Some(Key::Refused(errno)) => {
                let errno = *errno;
                // The one after it asks anew.
                self.keys.remove(&name);
                return Ok(Err(errno));
            }
            Some(Key::Asked) => {}
            None => {
                self.keys.insert(name, Key::Asked);
                ask(domain, *target);
            }
        }
        Err(Errno::AGAIN)
    }

    pub(super) fn imported(&mut self, target: &Target, found: Answer<RemoteSegment>) {
        self.imports += 1;
        let import = self.imports;
        let key = found.map_or_else(Key::Refused, |segment| Key::Ready { segment, import });
        self.keys.insert((target.address, target.key), key);
    }

    /// What was imported names nothing any more.
    pub(super) fn forget(&mut self, gone: u64) {
        let is_it = |key: &Key| matches!(key, Key::Ready { import, .. } if *import == gone);
        self.keys.retain(|_, key| !is_it(key));
        self.gone.insert(gone);
    }

    /// Whether an import names nothing any more.
    pub(super) fn is_gone(&self, import: Option<u64>) -> bool {
        !self.gone.is_empty() && import.is_some_and(|import| self.gone.contains(&import))
    }

    /// No operation is under way that may use an old import.
    pub(super) fn forget_all_gone(&mut self) {
        self.gone.clear();
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
    // A key that is not there does not come: the program has learnt it from the other side.
    let found = at_once(PATIENCE, |time| domain.memory.import(node, port, &name, time));
    found.map_err(|error| {
        log::trace(|| error.to_string());
        match error.status() {
            Some(Status::NoSuchExport | Status::NoSuchPort | Status::NotAllowed) => Errno::KEYREJECTED,
            Some(Status::TableFull | Status::NoMemory) => Errno::NOMEM,
            _ => {
                log::warn(&error.to_string());
                Errno::HOSTUNREACH
            }
        }
    })
}
