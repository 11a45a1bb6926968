//! Broadcasts: a tree over processes, then a loop over the threads of each.
//!
//! A group is a list of endpoints, the same at each of them. The first caller calls the first member of other processes, each
//! of which calls that of two more; each first member calls the others of its process. Members on one node count as one
//! process: between them a call costs the least.

use crate::config::WhenFull;
use crate::core::{Call, Core};
use crate::error::{Ended, Error, Result};
use crate::function::{hash, mix};
use crate::link::Address;
use crate::notice::{Synchronizer, Waiter};
use crate::record::{Audience, Body, Head, kind, status};
use std::collections::BTreeMap;

/// A group that this endpoint has joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    pub(crate) id: u64,
}

struct Members {
    id: u64,
    members: Vec<Address>,
    own: usize,
}

/// A broadcast that was passed on, until all that it was passed to have answered.
struct Passed {
    /// Members, this one included, that have not.
    left: u32,
    /// Members that it did not run at.
    missed: u64,
    to: Whom,
}

/// Where a broadcast came from.
enum Whom {
    /// It wants no answer.
    Nothing,
    /// Another member.
    Link {
        at: usize,
        life: u32,
        number: u64,
        slot: u16,
    },
    /// This one.
    Here(Synchronizer, &'static str),
}

#[derive(Default)]
pub(crate) struct Groups {
    groups: Vec<Members>,
    passed: BTreeMap<u64, Passed>,
    next: u64,
}

impl Groups {
    fn find(&self, id: u64) -> Option<&Members> {
        self.groups.iter().find(|group| group.id == id)
    }
}

/// Whom a member calls in a broadcast of the member `root`, by rank, each with the number of members behind it, itself
/// included.
pub(crate) fn children(members: &[Address], root: usize, own: usize) -> Vec<(usize, u64)> {
    let of = |rank: usize| members.get(rank).map(|member| member.node);
    let Some(home) = of(root) else { return Vec::new() };
    // The first member of each process, the first caller's own process first.
    let mut leaders = vec![root];
    for (rank, member) in members.iter().enumerate() {
        let is_first = members.iter().position(|other| other.node == member.node) == Some(rank);
        if is_first && member.node != home {
            leaders.push(rank);
        }
    }
    let Some(place) = leaders.iter().position(|&leader| leader == own) else {
        return Vec::new();
    };
    let in_process = |leader: usize| {
        members
            .iter()
            .filter(|member| Some(member.node) == of(leader))
            .count() as u64
    };
    let mut called = Vec::new();
    for child in [2 * place + 1, 2 * place + 2] {
        let Some(&leader) = leaders.get(child) else {
            continue;
        };
        let mut behind = 0;
        let mut open = vec![child];
        while let Some(next) = open.pop() {
            if let Some(&leader) = leaders.get(next) {
                behind += in_process(leader);
                open.extend([2 * next + 1, 2 * next + 2]);
            }
        }
        called.push((leader, behind));
    }
    for (rank, member) in members.iter().enumerate() {
        if rank != own && Some(member.node) == of(own) {
            called.push((rank, 1));
        }
    }
    called
}

impl Core {
    /// Joins a group.
    pub(crate) fn join(&mut self, name: &str, members: &[Address]) -> Result<Group> {
        let here = self.here();
        let own = members
            .iter()
            .position(|member| *member == here)
            .ok_or(Error::NoGroup)?;
        let id = members.iter().fold(hash(name), |id, member| {
            mix(id, u64::from(member.node.0) << 16 | u64::from(member.port.0))
        });
        if self.groups.find(id).is_none() {
            self.groups.groups.push(Members {
                id,
                members: members.to_vec(),
                own,
            });
        }
        Ok(Group { id })
    }

    /// Passes a broadcast on that has come. Its place in the list of those; or with what status it is refused.
    pub(crate) fn pass_on(
        &mut self,
        at: usize,
        number: u64,
        head: Head,
        body: &Body<'_>,
        audience: Audience,
    ) -> std::result::Result<u64, u8> {
        let life = self.peer(at).life;
        let slot = head.slot;
        let to = if head.kind & kind::RETURNS == 0 {
            Whom::Nothing
        } else {
            Whom::Link {
                at,
                life,
                number,
                slot,
            }
        };
        let id = self.table_id(slot).ok_or(status::NO_FUNCTION)?;
        self.spread(audience, body, id, "", to).ok_or(status::NO_GROUP)
    }

    /// Begins a broadcast. Its place in the list of those that were passed on: the caller runs it, too.
    pub(crate) fn begin_broadcast(
        &mut self,
        group: Group,
        body: &Body<'_>,
        function: (crate::function::Id, &'static str),
        counter: Option<&Synchronizer>,
    ) -> Result<u64> {
        let own = self.groups.find(group.id).ok_or(Error::NoGroup)?.own;
        let audience = Audience {
            group: group.id,
            root: own as u64,
        };
        let to = counter.map_or(Whom::Nothing, |counter| {
            counter.add();
            Whom::Here(counter.clone(), function.1)
        });
        self.spread(audience, body, function.0, function.1, to)
            .ok_or(Error::NoGroup)
    }

    fn spread(
        &mut self,
        audience: Audience,
        body: &Body<'_>,
        id: crate::function::Id,
        name: &'static str,
        to: Whom,
    ) -> Option<u64> {
        let group = self.groups.find(audience.group)?;
        let root = usize::try_from(audience.root).ok()?;
        let called: Vec<_> = children(&group.members, root, group.own)
            .into_iter()
            .filter_map(|(rank, behind)| Some((*group.members.get(rank)?, behind)))
            .collect();
        group.members.get(root)?;
        let place = self.groups.next;
        self.groups.next += 1;
        let answers = !matches!(to, Whom::Nothing);
        // This one counts until it has run: so the entry is there for as long as something can come.
        let passed = Passed {
            left: 1,
            missed: 0,
            to,
        };
        self.groups.passed.insert(place, passed);
        let body = Body {
            audience: Some(audience),
            ..*body
        };
        for (member, behind) in called {
            let call = Call {
                id,
                name,
                body,
                waiter: answers.then_some(Waiter::Passed(place)),
                sent: None,
                when_full: WhenFull::Queue,
            };
            let argument = body.argument;
            let link = match self.link_to(member) {
                Some(peer) => self.find(peer),
                None => self.open(member),
            };
            let called = link.and_then(|at| self.call(at, call, |to| to.extend_from_slice(argument)));
            if let Some(passed) = self.groups.passed.get_mut(&place) {
                match called {
                    Ok(_) => passed.left += u32::from(answers),
                    Err(_) => passed.missed += behind,
                }
            }
        }
        Some(place)
    }

    /// One of those that a broadcast was passed to is done with it, and it did not run at so many members behind it.
    pub(crate) fn passed(&mut self, place: u64, missed: u64) {
        let Some(passed) = self.groups.passed.get_mut(&place) else {
            return;
        };
        passed.missed = passed.missed.saturating_add(missed);
        passed.left = passed.left.saturating_sub(1);
        if passed.left > 0 {
            return;
        }
        let Some(passed) = self.groups.passed.remove(&place) else {
            return;
        };
        match passed.to {
            Whom::Nothing => {}
            Whom::Link {
                at,
                life,
                number,
                slot,
            } => {
                if self.peer(at).life == life {
                    self.answer(at, number, slot, status::DONE, &passed.missed.to_le_bytes());
                }
            }
            Whom::Here(counter, _) if passed.missed == 0 => counter.end(true),
            Whom::Here(counter, name) => {
                let why = Ended::Missed(passed.missed);
                self.failed(usize::MAX, Some(Waiter::Consumed(counter)), name, place, why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_member_is_called_once(nodes in prop::collection::vec(0u16..6, 1..40), root in any::<prop::sample::Index>()) {
            let members: Vec<_> = nodes.iter().zip(1u16..).map(|(&node, port)| Address::new(node, port)).collect();
            let root = root.index(members.len());
            let mut called = vec![0; members.len()];
            let mut open = vec![root];
            while let Some(next) = open.pop() {
                called[next] += 1;
                prop_assert!(called[next] == 1, "{next} is called twice");
                let children = children(&members, root, next);
                let remote = children.iter().filter(|(rank, _)| members[*rank].node != members[next].node).count();
                prop_assert!(remote <= 2);
                open.extend(children.iter().map(|(rank, _)| *rank));
            }
            prop_assert!(called.iter().all(|&times| times == 1));
            let behind: u64 = children(&members, root, root).iter().map(|(_, behind)| behind).sum();
            prop_assert_eq!(behind + 1, members.len() as u64);
        }
    }
}
