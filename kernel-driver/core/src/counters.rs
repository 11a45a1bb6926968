//! Counters of everything that the host core does or refuses.

use netvm_abi::Nanos;

macro_rules! counters {
    ($(#[$about:meta])* pub struct $kind:ident { $($(#[$doc:meta])* $name:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $kind {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl $kind {
            /// Names, in the order of [`Self::values`].
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name),)*];

            /// Values, in the order of [`Self::NAMES`].
            pub fn values(&self) -> impl Iterator<Item = u64> + use<> {
                [$(self.$name,)*].into_iter()
            }

            /// Names and values.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                Self::NAMES.iter().copied().zip(self.values())
            }
        }
    };
}

pub(crate) use counters;

counters! {
    /// Counters of one host core; all wrap at 2^64, all start at 0.
    pub struct Counters {
        /// Cards attached again after a reset.
        reattached,
        /// Cards found dead.
        cards_dead,
        /// Events from the NIC.
        nic_events,
        /// Events from the NIC that make no sense: of unknown kind, or naming what does not exist.
        nic_events_bad,
        /// Events to the NIC.
        host_events,
        /// Times a sleeping NIC was woken.
        nic_wakes,
        /// Ports opened.
        ports_opened,
        /// Ports closed and cleaned up.
        ports_closed,
        /// Segments registered.
        segments_registered,
        /// Segments ended.
        segments_ended,
        /// Exports made.
        exports,
        /// Exports ended.
        unexports,
        /// Capabilities derived for importers.
        grants,
        /// Import requests that asked again and got the same capability.
        grants_repeated,
        /// Grants that importers were told of again because capabilities were short; what is not known there is released.
        grants_told_again,
        /// Grants revoked by the exporter (unexport, exit and lost peers included).
        grants_revoked,
        /// Grants released by their holder.
        grants_released,
        /// Leases given.
        leases,
        /// Questions to the NIC of how much of a lease is left.
        leases_asked,
        /// Leases taken back by the port that gave them.
        leases_recalled,
        /// Barriers that the NIC has answered.
        barriers,
        /// Import requests from the network.
        import_requests,
        /// Import requests refused.
        imports_refused,
        /// Import requests dropped because no answer could be sent; the importer asks again.
        import_requests_dropped,
        /// Imports granted to this node's ports.
        imports_granted,
        /// Imports of this node's ports that failed.
        imports_failed,
        /// Import requests sent again.
        imports_retried,
        /// Imports of this node's ports that were revoked.
        imports_revoked,
        /// Imports let go of when no message could be sent to their exporter: it hears later.
        releases_queued,
        /// Grants that came for an import that is no longer awaited; released at once.
        stray_grants,
        /// Control messages sent.
        control_sent,
        /// Control messages that could not be sent.
        control_failed,
        /// Control messages received that make no sense, or come from a peer that may not send them.
        control_bad,
        /// Pages mapped.
        pages_mapped,
        /// Maps that found the page mapped already.
        pages_already_mapped,
        /// Pages moved to their other row to make room.
        pages_moved,
        /// Pages displaced by another page of their rows.
        pages_displaced,
        /// Pages whose entry was replaced: another frame, or another permission.
        pages_replaced,
        /// Maps given up because the NIC used every page that might be displaced.
        map_rows_busy,
        /// Maps given up because of a page event since the ticket.
        map_races,
        /// Pages unmapped.
        pages_unmapped,
        /// Pages whose write permission was taken.
        pages_protected,
        /// Unmapped pages that the NIC had written.
        pages_dirty,
        /// Steps of an unmap that found a page in use.
        unmap_waits,
        /// Pages that an unmap found locked by the NIC (thesis figure 13, second and third outcome).
        unmap_found_locked,
        /// Of these, pages from which the NIC backed off: neither had them (third outcome).
        unmap_neither,
        /// Unmaps that waited for the NIC for less than 2 us.
        unmap_waited_1us,
        /// Unmaps that waited for 2 us or more, and less than 4.
        unmap_waited_2us,
        /// Unmaps that waited for 4 us or more, and less than 8.
        unmap_waited_4us,
        /// Unmaps that waited for 8 us or more, and less than 16.
        unmap_waited_8us,
        /// Unmaps that waited for 16 us or more, and less than 32.
        unmap_waited_16us,
        /// Unmaps that waited for 32 us or more, and less than 64.
        unmap_waited_32us,
        /// Unmaps that waited for 64 us or more, and less than 128.
        unmap_waited_64us,
        /// Unmaps that waited for 128 us or more, and less than 256.
        unmap_waited_128us,
        /// Unmaps that waited for 256 us or more, and less than 512.
        unmap_waited_256us,
        /// Unmaps that waited for 512 us or more, and less than 1024.
        unmap_waited_512us,
        /// Unmaps that waited for 1024 us or more, and less than 2048.
        unmap_waited_1024us,
        /// Unmaps that waited for 2048 us or more, and less than 4096.
        unmap_waited_2048us,
        /// Unmaps that waited for 4096 us or more, and less than 8192.
        unmap_waited_4096us,
        /// Unmaps that waited for 8192 us or more, and less than 16384.
        unmap_waited_8192us,
        /// Unmaps that waited for the NIC for 16.384 ms or more.
        unmap_waited_16384us,
        /// Pages that stayed mapped because the NIC used them.
        pages_restored,
        /// Pages of a dead card that may still be in use: never to be freed.
        pages_leaked,
        /// Pages brought in that the card cannot reach: copied, not mapped.
        pages_unreachable,
        /// Messages that waited in a bounce page.
        bounced,
        /// Read replies that waited in a bounce page.
        bounced_replies,
        /// Bounce records or events that make no sense.
        bounce_bad,
        /// Bounced messages that were copied.
        bounce_copied,
        /// Bytes copied out of bounce pages.
        bounce_bytes,
        /// Bounced messages refused when their slot was emptied: capability, mapping or port gone.
        bounce_refused,
        /// Bounced messages whose page could not be had.
        bounce_failed,
        /// Messages and sources whose page did not come in time.
        pages_overdue,
        /// Bounced messages of a peer's earlier life, dropped.
        bounce_dropped,
        /// Bounced messages copied without mapping the page, after lost races.
        bounce_unmapped,
        /// Copies that found the page evicted again.
        copies_evicted,
        /// Source pages that the NIC missed.
        source_misses,
        /// Source pages mapped for another try of the NIC.
        source_mapped,
        /// Source pages copied to the source bounce page.
        source_copied,
        /// Atomics whose operand was not mapped.
        atomics_missed,
        /// Of these, pages mapped so that the NIC tries again.
        atomics_mapped,
        /// Atomics carried out by the host.
        atomics_done,
        /// Source misses that failed.
        source_failed,
        /// Times a page in was repeated because the page was taken away before it was mapped.
        paging_retries,
        /// Links that came up.
        peers_up,
        /// New incarnations of peers.
        peers_reset,
        /// Links lost.
        peers_lost,
        /// Old incarnations of peers released.
        peers_released,
    }
}

impl Counters {
    /// An unmap had to wait for the NIC for this time.
    pub(crate) const fn unmap_waited(&mut self, wait: Nanos) {
        let micros = wait.0 / 1000;
        let counter = match (micros | 1).ilog2() {
            0 => &mut self.unmap_waited_1us,
            1 => &mut self.unmap_waited_2us,
            2 => &mut self.unmap_waited_4us,
            3 => &mut self.unmap_waited_8us,
            4 => &mut self.unmap_waited_16us,
            5 => &mut self.unmap_waited_32us,
            6 => &mut self.unmap_waited_64us,
            7 => &mut self.unmap_waited_128us,
            8 => &mut self.unmap_waited_256us,
            9 => &mut self.unmap_waited_512us,
            10 => &mut self.unmap_waited_1024us,
            11 => &mut self.unmap_waited_2048us,
            12 => &mut self.unmap_waited_4096us,
            13 => &mut self.unmap_waited_8192us,
            _ => &mut self.unmap_waited_16384us,
        };
        *counter += 1;
    }
}
