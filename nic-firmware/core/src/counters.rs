//! Counters of everything that a NIC core does or refuses.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a NIC has done since its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// Names of all counters, in order.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name),)*];

            /// Names and values, in order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Commands copied out of command queues.
    commands,
    /// Commands refused before they left: malformed, wrong local address, unknown node.
    commands_refused,
    /// Commands that ended with an error instead of a message.
    commands_failed,
    /// Commands that ended without a message because they ask for order behind one that never left.
    commands_held,
    /// Doorbell words that no honest queue can show.
    broken_doorbells,
    /// Windowed messages sent.
    messages_sent,
    /// Payload bytes sent, replies included.
    bytes_sent,
    /// Writes whose payload stood in the descriptor.
    inline_sent,
    /// Writes whose payload came by DMA.
    staged_sent,
    /// Reads sent.
    reads_sent,
    /// Flushes sent.
    flushes_sent,
    /// Waits for what another card has received.
    receipts_awaited,
    /// Atomics sent.
    atomics_sent,
    /// Control messages sent.
    control_sent,
    /// Times that a command waited for a window slot.
    credit_stalls,
    /// Times that a command waited for a window to its node.
    window_stalls,
    /// Messages refused because their link had no window, and got none: they are sent again.
    windows_refused,
    /// Windows that a link at rest has lost to another.
    windows_moved,
    /// Links that were to end what they had under way, for another link to get their window.
    windows_called,
    /// Times that something waited for a staging buffer.
    staging_stalls,
    /// Times that a round trip waited for a read slot.
    read_stalls,
    /// Frames received, whatever they were.
    frames,
    /// Frames that were no message, or made no sense.
    malformed,
    /// Greetings and farewells.
    greetings,
    /// Of these, those of an earlier life of a link.
    stale_greetings,
    /// Messages of an earlier life of a link.
    stale_incarnation,
    /// Messages that had arrived before.
    duplicates,
    /// Messages outside of the sequence window: a peer that breaks the rules.
    out_of_window,
    /// Windowed messages accepted. Each ends as landed, failed or dropped.
    messages_received,
    /// Windowed messages that have done what they asked for (reads: were answered with data).
    messages_landed,
    /// Windowed messages that have not: refused, failed, or held back behind one that had failed.
    messages_failed,
    /// Payload bytes received, replies included.
    bytes_received,
    /// Control messages received.
    control_received,
    /// Payloads that have been moved straight to an application page.
    zero_copy,
    /// Messages bounced because the page was not mapped.
    bounced_not_found,
    /// Messages bounced because the page was mapped read-only.
    bounced_read_only,
    /// Messages bounced because the page belongs to another segment than the capability.
    bounced_segment,
    /// Bounced messages that the host has ended.
    bounces_ended,
    /// Answers of the host to something that is not outstanding (any more).
    late_answers,
    /// Ordered messages that had to wait for earlier ones.
    ordered_parked,
    /// Reads served.
    reads_served,
    /// Read replies received.
    read_replies,
    /// Answers to flushes received.
    flush_replies,
    /// Replies to something that is not outstanding (any more).
    late_replies,
    /// Flushes answered.
    flushes_served,
    /// Atomics carried out for other nodes, by NIC or host.
    atomics_served,
    /// Atomics that waited for another one on the same page (or for a unit).
    atomics_queued,
    /// Times that an atomic did not find its page mapped, and the host was asked.
    atomics_missed,
    /// Times that an atomic was tried again with its page mapped.
    atomic_replays,
    /// Atomics that the host carried out itself.
    atomics_by_host,
    /// Atomics that the platform's processor carried out in place.
    atomics_in_place,
    /// Pages of requests that the table lacked, and that the platform reached without it.
    reached,
    /// Answers to atomics of this node.
    atomic_replies,
    /// Leases begun.
    leases_begun,
    /// Extensions of leases granted.
    leases_extended,
    /// Pages to read from that were not mapped.
    source_misses,
    /// Source misses tried again.
    source_retries,
    /// Source misses that the host answered with a copy.
    source_copies,
    /// Source misses that the host could not serve.
    source_failures,
    /// Requests refused: port not open.
    refused_port,
    /// Requests refused: capability unknown, revoked, of another holder, or wrong secret.
    refused_capability,
    /// Requests refused: outside of the capability's range.
    refused_range,
    /// Requests refused: mode or notification number not allowed.
    refused_mode,
    /// Requests refused: lease over.
    refused_expired,
    /// Requests refused: they make no sense.
    refused_malformed,
    /// Operations that failed for another reason (the host's answer, a DMA).
    failed,
    /// Acknowledgements sent.
    acks_sent,
    /// Acknowledgements received.
    acks_received,
    /// Of these, those that no honest receiver sends.
    acks_refused,
    /// Error messages sent.
    errors_sent,
    /// Error messages received.
    errors_received,
    /// Records written into error rings.
    error_records,
    /// Errors that found their port's ring full.
    errors_lost,
    /// Event-count notifications delivered.
    notifications_delivered,
    /// Of these, those whose queue entry was still there.
    notifications_coalesced,
    /// One-shot notifications delivered.
    one_shot_delivered,
    /// One-shot notifications that found the queue full.
    one_shot_refused,
    /// Notifications suppressed because an earlier operation of the stream had failed, or because
    /// their port was closed meanwhile.
    notifications_suppressed,
    /// Streams poisoned.
    streams_poisoned,
    /// Appends that were given a place of a shared queue.
    appends,
    /// Appends that found the queue full.
    appends_refused,
    /// Appends held back because an earlier operation of the stream had failed, or an earlier append had found no
    /// place.
    appends_held,
    /// Ordered writes and atomics held back because an earlier operation of the stream had failed.
    ordered_held,
    /// Places given out in vain: their message could not be put there, or its link has failed.
    places_skipped,
    /// Interrupts raised for ports.
    port_interrupts,
    /// Interrupts raised for the driver.
    driver_interrupts,
    /// Shadow counters refreshed because a fence asked.
    fences,
    /// DMAs started.
    dma_started,
    /// DMA completions that were not outstanding.
    dma_late,
    /// DMAs that failed.
    dma_failed,
    /// Operations that waited for a DMA slot.
    dma_parked,
    /// Barriers answered.
    barriers,
    /// Ports opened.
    ports_opened,
    /// Ports closed.
    ports_closed,
    /// Greetings sent, repetitions included.
    hellos_sent,
    /// Greetings refused: other version, page size or window.
    hellos_refused,
    /// Probes sent.
    probes_sent,
    /// Probes received.
    probes_received,
    /// Links that came up.
    links_up,
    /// Links that failed.
    links_lost,
    /// Times that messages of other ports went past one that waited for its host.
    links_held_up,
    /// Times that fewer messages of a link were allowed on the wire, because its round trips took long.
    windows_cut,
    /// Peers that came back with a new incarnation.
    peer_resets,
    /// Host events of an unknown kind, or naming what does not exist.
    host_events_refused,
    /// Events that found the ring to the host full; the ring is sized so that none does.
    events_lost,
    /// Accepted messages thrown away: only when their link has failed.
    dropped,
    /// Messages and answers sent again, because the wire seemed to have lost them.
    retransmitted,
    /// Times that nothing came back for so long that the other card was asked, or a message was sent again to ask.
    tail_probes,
    /// Requests thrown away as they came, because too many answers before theirs were not known to have been received: they
    /// come again.
    put_off,
    /// Answers that left without a copy, because there was none free: if one is lost, its link is.
    answers_unkept,
}
