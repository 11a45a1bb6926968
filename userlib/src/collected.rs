//! A completion queue: many operations under way, collected in the order in which they end.

use crate::atomic::PendingAtomic;
use crate::error::{Error, Result};
use crate::fence::Mark;
use crate::notify::{Want, Watch};
use crate::pending::Pending;
use crate::port::{Port, PortInner};
use crate::timeout::{Timeout, is_over};
use netvm_abi::OpId;
use netvm_abi::atomic::AtomicResult;
use netvm_abi::port_area::{PORT_STATE, READS_DONE, WRITES_DONE};
use netvm_abi::words::SharedWords;
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

/// An operation under way that a [`CompletionQueue`] takes.
#[derive(Debug)]
pub enum Operation {
    /// A write, a read or a flush.
    Transfer(Pending),
    /// An atomic operation.
    Atomic(PendingAtomic),
}

impl From<Pending> for Operation {
    fn from(pending: Pending) -> Self {
        Self::Transfer(pending)
    }
}

impl From<PendingAtomic> for Operation {
    fn from(pending: PendingAtomic) -> Self {
        Self::Atomic(pending)
    }
}

impl Operation {
    const fn op(&self) -> OpId {
        match self {
            Self::Transfer(pending) => pending.op(),
            Self::Atomic(pending) => pending.op(),
        }
    }

    const fn port(&self) -> &Arc<PortInner> {
        match self {
            Self::Transfer(pending) => pending.port(),
            Self::Atomic(pending) => pending.port(),
        }
    }

    /// How it has ended, if it has.
    fn end(&mut self) -> Option<Result<Option<AtomicResult>>> {
        match self {
            Self::Transfer(pending) => pending.end().map(|end| end.map(|()| None)),
            Self::Atomic(pending) => pending.end().map(|end| end.map(Some)),
        }
    }

    /// The count before which it has not ended.
    fn mark(&self) -> Mark {
        match self {
            Self::Transfer(pending) => pending.mark(),
            Self::Atomic(pending) => pending.port().next_end(None),
        }
    }
}

/// An operation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion<C> {
    /// Its number, as [`Error::Failed`] names it.
    pub op: OpId,
    /// What the program gave with it.
    pub context: C,
    /// How it has ended; with what it found, if it was an atomic operation.
    pub result: Result<Option<AtomicResult>>,
}

/// Operations of one port under way, each with a word of the program's, in the order in which they end.
///
/// What ends between two looks comes in the order in which it was added. Nothing is lost and nothing limits how many
/// operations it holds, but for the port's own room ([`Error::NoRoom`]). Dropping it takes nothing back: see [`Pending`].
///
/// ```no_run
/// use netvm::{CompletionQueue, Port, Region, RemoteSegment, Timeout};
///
/// /// Reads every page, and handles each as it comes.
/// fn each_page(port: &Port, remote: &RemoteSegment, local: &Region, mut handle: impl FnMut(u64)) -> netvm::Result<()> {
///     let mut queue = CompletionQueue::new(port);
///     for page in 0..16 {
///         let at = page * 4096;
///         queue.add(remote.read(at, local.slice(at..at + 4096)?).begin()?, page)?;
///     }
///     while let Some(ended) = queue.next_for(Timeout::Never)? {
///         ended.result?;
///         handle(ended.context);
///     }
///     Ok(())
/// }
/// ```
pub struct CompletionQueue<C> {
    port: Arc<PortInner>,
    under_way: Vec<(Operation, C)>,
    ended: VecDeque<Completion<C>>,
    /// What the card had told at the last look, if nothing was added since.
    seen: Option<[u32; 4]>,
    /// For the counts of writes and of everything else.
    watches: [Watch; 2],
}

impl<C> CompletionQueue<C> {
    /// A queue for operations of this port.
    #[must_use]
    pub fn new(port: &Port) -> Self {
        Self {
            port: Arc::clone(&port.inner),
            under_way: Vec::new(),
            ended: VecDeque::new(),
            seen: None,
            watches: [Watch::new(), Watch::new()],
        }
    }

    /// Adds an operation.
    ///
    /// # Errors
    /// [`Error::ForeignOperation`] for one of another port, which goes on by itself.
    pub fn add(&mut self, operation: impl Into<Operation>, context: C) -> Result<()> {
        let operation = operation.into();
        if !Arc::ptr_eq(operation.port(), &self.port) {
            return Err(Error::ForeignOperation);
        }
        self.under_way.push((operation, context));
        self.seen = None;
        Ok(())
    }

    /// How many operations it holds, those included that have ended and were not taken out.
    #[must_use]
    pub fn len(&self) -> usize {
        self.under_way.len() + self.ended.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next that has ended. Never waits.
    pub fn pop(&mut self) -> Option<Completion<C>> {
        if self.ended.is_empty() {
            self.look();
        }
        self.ended.pop_front()
    }

    /// The next that ends: waits for it. `None` if there is none to wait for.
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    pub fn next_for(&mut self, timeout: impl Into<Timeout>) -> Result<Option<Completion<C>>> {
        let port = Arc::clone(&self.port);
        let deadline = timeout.into().deadline(port.backend.now());
        let mut spins = 0;
        loop {
            if let Some(ended) = self.pop() {
                return Ok(Some(ended));
            }
            if self.under_way.is_empty() {
                return Ok(None);
            }
            if is_over(deadline, spins, &*port.backend) {
                return Err(Error::TimedOut);
            }
            for mark in self.marks().into_iter().flatten() {
                port.ask(mark);
            }
            port.backend.relax(spins);
            spins = spins.saturating_add(1);
        }
    }

    /// A future that ends with the next that ends, or with `None` if there is none to wait for. It runs under any executor.
    pub const fn next(&mut self) -> NextCompletion<'_, C> {
        NextCompletion { queue: self }
    }

    /// Looks which operations have ended.
    fn look(&mut self) {
        // Before the look: what it does not find changes one of these. The card stores an operation's record before its count.
        let told = self.told();
        if self.under_way.is_empty() || self.seen == Some(told) {
            return;
        }
        for (mut operation, context) in std::mem::take(&mut self.under_way) {
            match operation.end() {
                Some(result) => self.ended.push_back(Completion {
                    op: operation.op(),
                    context,
                    result,
                }),
                None => self.under_way.push((operation, context)),
            }
        }
        self.seen = Some(told);
    }

    /// What an end of an operation changes.
    fn told(&self) -> [u32; 4] {
        let words = [WRITES_DONE, READS_DONE, PORT_STATE].map(|at| self.port.area.load_acquire(at));
        let [writes, reads, state] = words;
        let closed = self.port.closed.load(Ordering::Acquire);
        [writes, reads, state, u32::from(closed)]
    }

    /// The next counts at which it is worth looking again: of writes, and of everything else.
    fn marks(&self) -> [Option<Mark>; 2] {
        let mut marks = [None::<Mark>; 2];
        for (operation, _) in &self.under_way {
            let mark = operation.mark();
            let [writes, others] = &mut marks;
            let place = if mark.is_of_writes() { writes } else { others };
            match place {
                Some(before) if !mark.is_before(*before) => {}
                _ => *place = Some(mark),
            }
        }
        marks
    }
}

impl<C> fmt::Debug for CompletionQueue<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("under_way", &self.under_way.len())
            .field("ended", &self.ended.len())
            .finish_non_exhaustive()
    }
}

/// Ends with the next operation that ends. From [`CompletionQueue::next`].
#[must_use = "futures do nothing unless they are polled"]
pub struct NextCompletion<'a, C> {
    queue: &'a mut CompletionQueue<C>,
}

impl<C> Future for NextCompletion<'_, C> {
    type Output = Option<Completion<C>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let queue = &mut *self.queue;
        let port = Arc::clone(&queue.port);
        let mut watches = std::mem::take(&mut queue.watches);
        let mut polled = Poll::Pending;
        // Of each kind, because there is a count for each.
        for (kind, watch) in watches.iter_mut().enumerate() {
            let looked = watch.poll(&port, context, || match queue.pop() {
                Some(ended) => Ok(Some(Some(ended))),
                None if queue.under_way.is_empty() => Ok(Some(None)),
                None => match queue.marks().get(kind).copied().flatten() {
                    Some(mark) => Err(Want::Mark(mark)),
                    None => Ok(None),
                },
            });
            match looked {
                Poll::Ready(Ok(Some(found))) => polled = Poll::Ready(found),
                // A port that has ended has ended its operations: the next look finds them.
                Poll::Ready(Err(_)) => context.waker().wake_by_ref(),
                Poll::Ready(Ok(None)) | Poll::Pending => {}
            }
            if polled.is_ready() {
                break;
            }
        }
        if polled.is_ready() {
            watches.iter_mut().for_each(Watch::leave);
        }
        queue.watches = watches;
        polled
    }
}

impl<C> fmt::Debug for NextCompletion<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NextCompletion({:?})", self.queue)
    }
}
