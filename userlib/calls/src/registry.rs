//! The functions that an endpoint offers.

use crate::argument::Argument;
use crate::context::{Buffer, Context};
use crate::error::{Error, Result};
use crate::function::{BufferFunction, Function, Id};
use crate::record::status;
use std::fmt;

/// The most functions of a registry.
const MOST: usize = 1 << 12;

/// What runs a call: gives the status of its answer, and appends its result.
pub(crate) type Body = Box<dyn FnMut(&mut Context<'_>, &[u8], Option<Buffer<'_>>, &mut Vec<u8>) -> u8 + Send>;

struct Entry {
    name: &'static str,
    id: Id,
    body: Body,
}

/// The functions that an endpoint offers, by name. Made before the endpoint, which takes it.
///
/// A function runs on the thread that uses the endpoint, inside of one of its calls, one at a time, and to its end: it must
/// not wait for anything that this endpoint has to bring. A panic in it ends it alone, and its caller is told.
#[derive(Default)]
pub struct Registry {
    entries: Vec<Entry>,
}

impl Registry {
    /// One without functions: an endpoint that only calls.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a function.
    ///
    /// # Errors
    /// [`Error::Registered`], [`Error::TooManyFunctions`].
    pub fn add<A: Argument, R: Argument>(
        &mut self,
        function: &Function<A, R>,
        mut body: impl FnMut(&mut Context<'_>, A) -> R + Send + 'static,
    ) -> Result<()> {
        let run: Body = Box::new(move |context, argument, _, result| match A::take(argument) {
            Some(argument) => {
                body(context, argument).put(result);
                status::DONE
            }
            None => status::BAD_ARGUMENT,
        });
        self.insert(function.name(), function.id(), run)
    }

    /// Adds a function that gets a buffer.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_buffered<A: Argument, R: Argument>(
        &mut self,
        function: &BufferFunction<A, R>,
        mut body: impl FnMut(&mut Context<'_>, A, Buffer<'_>) -> R + Send + 'static,
    ) -> Result<()> {
        let run: Body = Box::new(move |context, argument, buffer, result| {
            let (Some(argument), Some(buffer)) = (A::take(argument), buffer) else {
                return status::BAD_ARGUMENT;
            };
            body(context, argument, buffer).put(result);
            status::DONE
        });
        self.insert(function.name(), function.id(), run)
    }

    fn insert(&mut self, name: &'static str, id: Id, body: Body) -> Result<()> {
        if self.entries.iter().any(|entry| entry.id.name == id.name) {
            return Err(Error::Registered { name });
        }
        if self.entries.len() >= MOST {
            return Err(Error::TooManyFunctions { limit: MOST });
        }
        self.entries.push(Entry { name, id, body });
        Ok(())
    }

    /// What identifies them, by slot.
    pub(crate) fn ids(&self) -> impl Iterator<Item = Id> {
        self.entries.iter().map(|entry| entry.id)
    }

    /// The body in a slot.
    #[inline]
    pub(crate) fn body(&mut self, slot: u16) -> Option<&mut Body> {
        self.entries
            .get_mut(usize::from(slot))
            .map(|entry| &mut entry.body)
    }

    /// The slot of a function that is offered here.
    pub(crate) fn slot(&self, id: Id) -> Option<u16> {
        let slot = self.entries.iter().position(|entry| entry.id == id)?;
        u16::try_from(slot).ok()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.entries.iter().map(|entry| entry.name))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_given_once() {
        const F: Function<u64, u64> = Function::new("f");
        const OTHER: Function<u8, ()> = Function::new("f");
        let mut registry = Registry::new();
        registry.add(&F, |_, value| value).unwrap();
        assert_eq!(
            registry.add(&OTHER, |_, _| ()),
            Err(Error::Registered { name: "f" })
        );
        assert_eq!(registry.slot(F.id()), Some(0));
        assert_eq!(registry.slot(OTHER.id()), None);
        assert!(format!("{registry:?}").contains('f'));
    }
}
