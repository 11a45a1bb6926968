//! The platform's side: what it calls the core for, step by step.

use super::{PAGE, PEER, Stand, anyone, frame_of, name};
use netvm_abi::control::{Control, Modes};
use netvm_abi::*;
use netvm_host::Progress;
use netvm_host::exports::ExportSpec;
use netvm_host::imports::ImportSpec;
use netvm_host::paging::{WorkId, WorkStep};
use netvm_host::platform::{CopyEnd, PageGone, Resident};
use netvm_host::ports::OpenPort;
use netvm_host::unmap::{Unmap, UnmapKind, UnmapStep};

impl Stand {
    /// Opens a port.
    ///
    /// # Panics
    /// None is free.
    pub fn open(&mut self) -> OpenPort {
        let port = self
            .host
            .port_open(&mut self.platform, None)
            .expect("a free port");
        self.serve();
        port
    }

    /// Closes a port, all steps.
    ///
    /// # Panics
    /// That does not end.
    pub fn close(&mut self, port: OpenPort) {
        let mut close = self
            .host
            .port_close_begin(&mut self.platform, port)
            .expect("open");
        for _ in 0..1000 {
            self.poll();
            let gone = &mut self.gone;
            let step = self
                .host
                .port_close_step(&mut self.platform, &mut close, self.now, 8, &mut |page| {
                    gone.push(page)
                });
            if step == Progress::Done {
                return;
            }
        }
        panic!("the port does not close");
    }

    /// Makes pages of a port a segment.
    ///
    /// # Panics
    /// The core refuses.
    pub fn register(&mut self, port: OpenPort, page: u64, pages: u64) -> SegmentId {
        self.host
            .register(port.port, VirtAddr(page * PAGE), pages * PAGE)
            .expect("registers")
    }

    /// Exports pages under a name, to anyone.
    ///
    /// # Panics
    /// The core refuses.
    pub fn export(&mut self, port: OpenPort, text: &str, page: u64, pages: u64, modes: Modes) -> ExportId {
        let allow = anyone(Modes::all());
        let spec = ExportSpec {
            name: name(text),
            start: VirtAddr(page * PAGE),
            len: pages * PAGE,
            modes,
            notify_first: NotificationId(1),
            notify_last: NotificationId(100),
            queue: netvm_abi::shared_queue::QueueShape::NONE,
            allow: &allow,
        };
        self.host.export(port.port, &spec).expect("exports")
    }

    /// A remote import; the grant that goes back.
    ///
    /// # Errors
    /// The host refuses it.
    ///
    /// # Panics
    /// The host does not answer.
    pub fn granted(
        &mut self,
        from: NodeId,
        importer: PortId,
        port: OpenPort,
        text: &str,
        modes: Modes,
        token: u32,
    ) -> Result<control::Grant, Status> {
        self.control(
            from,
            0,
            &Control::Import {
                token: Token(token),
                port: port.port,
                importer,
                modes,
                name: name(text),
            },
        );
        self.poll();
        match self.sent().pop() {
            Some((to, Control::Granted { token: t, grant })) => {
                assert_eq!((to, t), (from, Token(token)));
                Ok(grant)
            }
            Some((_, Control::Refused { status, .. })) => Err(status),
            other => panic!("no answer but {other:?}"),
        }
    }

    /// Begins an import of the peer's.
    ///
    /// # Panics
    /// The core refuses.
    pub fn import(&mut self, port: OpenPort, text: &str, wait: bool) -> Token {
        let spec = ImportSpec {
            node: PEER,
            port: PortId(3),
            name: name(text),
            modes: Modes::WRITE,
            deadline: self.now.after(Nanos::from_millis(100)),
            wait,
        };
        self.host
            .import(&mut self.platform, port.port, &spec, self.now)
            .expect("begins")
    }

    /// Maps a page; what went for it.
    ///
    /// # Errors
    /// The core refuses.
    pub fn map(
        &mut self,
        vpn: Vpn,
        ppn: u64,
        writable: bool,
    ) -> Result<Option<PageGone>, netvm_host::shadow::MapError> {
        let ticket = self.host.map_begin(vpn)?;
        let page = Resident {
            ppn: Ppn(ppn),
            frame: frame_of(ppn),
            writable,
        };
        self.host
            .map_commit(&mut self.platform, ticket, page)
            .map(|mapped| mapped.displaced)
    }

    /// One step of an unmap.
    pub fn step(&mut self, unmap: &mut Unmap, budget: u32) -> UnmapStep {
        let gone = &mut self.gone;
        self.host
            .unmap_step(&mut self.platform, unmap, self.now, budget, &mut |page| {
                gone.push(page)
            })
    }

    /// Steps an unmap for `millis` milliseconds while the card works.
    pub fn unmap_while_it_runs(&mut self, unmap: &mut Unmap, budget: u32, millis: u64) -> UnmapStep {
        for _ in 0..millis * 2 {
            self.now = self.now.after(Nanos::from_micros(500));
            self.beat();
            let step = self.step(unmap, budget);
            if step != UnmapStep::InUse {
                return step;
            }
        }
        UnmapStep::InUse
    }

    /// Unmaps pages, in one step.
    pub fn unmap(&mut self, first: Vpn, pages: u64, kind: UnmapKind) -> UnmapStep {
        let mut unmap = self.host.unmap_begin(first, pages, kind);
        let gone = &mut self.gone;
        let step = self
            .host
            .unmap_step(&mut self.platform, &mut unmap, self.now, u32::MAX, &mut |page| {
                gone.push(page)
            });
        self.host.unmap_end(unmap);
        step
    }

    /// The next piece of work for a port, if only to hear that it is refused.
    pub fn take(&mut self, port: OpenPort) -> Option<WorkStep> {
        self.host.work_next(&mut self.platform, port.port, self.now)
    }

    /// The next piece of work for a port that is not refused at once.
    pub fn next(&mut self, port: OpenPort) -> Option<WorkStep> {
        loop {
            match self.take(port)? {
                WorkStep::Ended { .. } => {}
                step => return Some(step),
            }
        }
    }

    /// A page is in, or cannot be had.
    pub fn paged(&mut self, id: WorkId, result: Result<u64, Status>) -> WorkStep {
        let gone = &mut self.gone;
        self.host.work_paged(
            &mut self.platform,
            id,
            result.map(|ppn| {
                Some(Resident {
                    ppn: Ppn(ppn),
                    frame: frame_of(ppn),
                    writable: true,
                })
            }),
            self.now,
            &mut |page| gone.push(page),
        )
    }

    /// The page is there, and the card cannot reach it.
    pub fn paged_out_of_reach(&mut self, id: WorkId) -> WorkStep {
        self.host
            .work_paged(&mut self.platform, id, Ok(None), self.now, &mut |_| {})
    }

    /// A copy has ended.
    pub fn copied(&mut self, id: WorkId, end: CopyEnd) -> WorkStep {
        let gone = &mut self.gone;
        self.host
            .work_copied(&mut self.platform, id, end, self.now, &mut |page| gone.push(page))
    }
}
