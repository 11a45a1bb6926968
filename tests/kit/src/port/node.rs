//! The node and the port that the library finds on a card made of words.

use super::{Body, Card, GAP, run};
use netvm::backend::{
    Backend, ExportSpec, ImportRequest, Memory, OpenRequest, PortBackend, Refusal, View, Width, Words,
};
use netvm::{Nanos, NodeId, PortId, Status, VirtAddr};
use netvm_abi::control::Grant;
use netvm_abi::lease::{LeaseId, LeaseSpec};
use netvm_abi::{ExportId, Generation, Geometry, SegmentId};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A node with one port.
pub(super) struct OneCard(pub(super) Arc<Card>);

impl Backend for OneCard {
    fn name(&self) -> &'static str {
        "test card"
    }

    fn node(&self) -> NodeId {
        NodeId(0)
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            nodes: 4,
            ..Geometry::default()
        }
    }

    fn inline_limit(&self) -> usize {
        64
    }

    fn open(&self, _request: &OpenRequest) -> Result<Arc<dyn PortBackend>, Refusal> {
        Ok(Arc::new(OnePort(Arc::clone(&self.0))))
    }
}

struct OnePort(Arc<Card>);

/// How often the library may look in vain at a card with which a test does nothing more, until that does its work.
const LEFT_ALONE: u32 = 1_000;

/// What passes of a clock that was taken over where the library relaxes.
const RELAXED: Nanos = Nanos(1_000);

impl PortBackend for OnePort {
    fn port(&self) -> PortId {
        PortId(3)
    }

    fn generation(&self) -> Generation {
        Generation(0)
    }

    fn block_words(&self) -> Words {
        self.0.block.words()
    }

    fn area_words(&self) -> Words {
        self.0.area.words()
    }

    fn status_words(&self) -> Words {
        self.0.status.words()
    }

    fn close(&self) {
        if let Some(hook) = &mut *self.0.on_close.lock().unwrap() {
            hook(&self.0);
        }
    }

    fn alloc(&self, len: u64) -> Result<Arc<dyn Memory>, Refusal> {
        let address = self.0.next_address.fetch_add(len + GAP, Ordering::Relaxed);
        let words: Arc<Vec<_>> = Arc::new((0..len / 8).map(|_| AtomicU64::new(0)).collect());
        self.0.memories.lock().unwrap().push(Arc::clone(&words));
        Ok(Arc::new(Heap {
            address: VirtAddr(address),
            words,
            freed: Arc::clone(&self.0.freed),
        }))
    }

    unsafe fn adopt(&self, _start: NonNull<u8>, _len: u64) -> Result<Arc<dyn Memory>, Refusal> {
        Err(Refusal::Unsupported("a test card adopts nothing"))
    }

    fn export(&self, _spec: &ExportSpec<'_>) -> Result<ExportId, Refusal> {
        Ok(ExportId(1))
    }

    fn unexport(&self, _export: ExportId) -> Result<(), Refusal> {
        Ok(())
    }

    fn import(&self, _request: &ImportRequest<'_>, _deadline: Nanos) -> Result<Grant, Refusal> {
        if let Some(hook) = &mut *self.0.on_import.lock().unwrap() {
            hook(&self.0);
        }
        *self.0.grant.lock().unwrap()
    }

    fn release(&self, _exporter: NodeId, _grant: &Grant) {}

    fn lend(&self, _spec: &LeaseSpec) -> Result<(LeaseId, Grant), Refusal> {
        Err(Refusal::Unsupported("one port lends nothing to another"))
    }

    fn lease_left(&self, _lease: LeaseId) -> Result<Nanos, Refusal> {
        Ok(Nanos(0))
    }

    fn recall(&self, _leases: &[LeaseId]) -> Result<(), Refusal> {
        Ok(())
    }

    fn now(&self) -> Nanos {
        self.0.now()
    }

    fn doorbell(&self) {
        self.0.doorbells.fetch_add(1, Ordering::Relaxed);
    }

    fn wait_token(&self) -> u32 {
        *self.0.token.lock().unwrap()
    }

    fn block(&self, token: u32, deadline: Nanos) {
        if self.0.has_clock() {
            if deadline == Nanos::MAX {
                assert!(self.0.do_beside(), "the library waits for what never comes");
                return;
            }
            self.0.clock.fetch_max(deadline.0, Ordering::Relaxed);
            run(&self.0.on_block, &self.0);
            return;
        }
        let span = Duration::from_nanos(deadline.0.saturating_sub(self.now().0).min(10_000_000_000));
        let guard = self.0.token.lock().unwrap();
        let unchanged = |now: &mut u32| *now == token;
        drop(self.0.woken.wait_timeout_while(guard, span, unchanged).unwrap());
    }

    fn wake(&self) {
        self.0.interrupt();
    }

    fn descriptor(&self) -> Result<Arc<OwnedFd>, Refusal> {
        Ok(Arc::clone(&self.0.descriptor))
    }

    fn relax(&self, spins: u32) {
        if !run(&self.0.on_relax, &self.0) && spins > LEFT_ALONE {
            // An import that ends waits until what was posted has landed.
            self.0.carry_out(Status::Ok);
        }
        assert!(
            spins < 1_000_000,
            "the library waits for a card that will never answer"
        );
        if self.0.has_clock() {
            self.0.pass(RELAXED);
        } else {
            std::thread::yield_now();
        }
    }

    fn spawn(&self, _name: &str, body: Body) -> Result<(), Refusal> {
        if !self.0.has_clock() {
            std::thread::spawn(body);
            return Ok(());
        }
        if let Some(beside) = &mut *self.0.beside.lock().unwrap() {
            beside.push_back(body);
            return Ok(());
        }
        body();
        Ok(())
    }
}

struct Heap {
    address: VirtAddr,
    words: Arc<Vec<AtomicU64>>,
    freed: Arc<AtomicU32>,
}

impl Memory for Heap {
    fn segment(&self) -> SegmentId {
        SegmentId(1)
    }

    fn address(&self) -> VirtAddr {
        self.address
    }

    fn size(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    fn view(&self) -> View {
        View::Mapped {
            start: NonNull::from(&self.words[0]).cast(),
            owner: Arc::clone(&self.words) as _,
        }
    }

    fn read(&self, _offset: u64, _into: &mut [u8]) -> Result<(), Status> {
        Err(Status::Unsupported)
    }

    fn write(&self, _offset: u64, _from: &[u8]) -> Result<(), Status> {
        Err(Status::Unsupported)
    }

    fn load(&self, _offset: u64, _width: Width) -> Result<u64, Status> {
        Err(Status::Unsupported)
    }

    fn store(&self, _offset: u64, _width: Width, _value: u64) -> Result<(), Status> {
        Err(Status::Unsupported)
    }

    fn compare_swap(&self, _offset: u64, _width: Width, _expected: u64, _new: u64) -> Result<u64, Status> {
        Err(Status::Unsupported)
    }

    fn free(&self) {
        self.freed.fetch_add(1, Ordering::Relaxed);
    }
}
