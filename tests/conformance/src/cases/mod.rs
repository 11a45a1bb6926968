//! The bodies. Each is the program on node 0 of its [`Env`] and starts what else it needs.

mod alock;
mod atomics;
mod awaited;
mod behind;
mod calls;
mod calls_ends;
mod calls_spread;
mod channels;
mod control;
mod data;
mod failures;
mod handled;
mod handlers;
mod leases;
mod looped;
mod managed;
mod memory;
mod neighbours;
mod net;
mod notifications;
mod numbers;
mod order;
mod search;
mod shared;
mod structures;
mod sync;
mod threads;
mod under_way;
mod vectors;

use crate::env::Env;
use crate::outcome::{Outcome, Trouble};
use netvm::Status;
use std::fmt;

/// How the end of a channel's other side shows, or of a shared queue's receiver.
const GONE: &[Status] = &[
    Status::CapabilityRefused,
    Status::Revoked,
    Status::NoSuchPort,
    Status::NoSuchExport,
    Status::LinkLost,
    Status::StaleIncarnation,
    Status::Unmapped,
];

/// What a body needs beside nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// [`Cluster::can_kill`](crate::Cluster::can_kill).
    Kill,
    /// [`Cluster::can_restart`](crate::Cluster::can_restart).
    Restart,
    /// No two of its nodes may be the same.
    Apart,
    /// [`Cluster::has_descriptors`](crate::Cluster::has_descriptors).
    Descriptors,
}

/// A body.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name, unique.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// Nodes it needs, at least; with more some do more. ([`Env::nodes`] may name one twice.)
    pub nodes: u16,
    /// What else it needs.
    pub needs: Needs,
    module: &'static str,
    body: fn(&Env) -> Outcome,
}

impl Case {
    /// What of the library it is about.
    #[must_use]
    pub fn idiom(&self) -> &'static str {
        match (self.module, self.name) {
            ("alock", _) | ("sync", "alock_begun") => "asymmetric locks",
            ("sync", "semaphore_tokens" | "semaphore_begun" | "semaphore_messages" | "dead_in_queue") => {
                "semaphores"
            }
            ("sync", "wait_queue_order" | "queue_begun" | "queue_messages" | "dead_in_wait_queue") => {
                "wait queues"
            }
            ("sync", "bounded_buffer" | "monitor_begun" | "dead_in_monitor") => "monitors",
            ("sync", _) => "locks",
            ("channels" | "awaited", _) => "channels",
            ("calls" | "calls_ends" | "calls_spread" | "search", _) => "calls",
            ("atomics" | "numbers", _) => "atomics",
            ("notifications" | "handlers", _) => "notifications",
            ("net", _) => "connections",
            ("leases" | "managed" | "structures", _) => "leases",
            _ => "reads and writes",
        }
    }

    /// Runs it. The caller is the process on node 0 of `env`: a thread or a coroutine.
    ///
    /// # Errors
    /// What went wrong; [`Trouble::Skipped`] if the back end lacks something.
    pub fn run(&self, env: &Env) -> Outcome {
        if env.nodes.len() < usize::from(self.nodes) {
            return Err(Trouble::Skipped("there are not enough nodes"));
        }
        if self.needs == Needs::Kill && !env.cluster.can_kill() {
            return Err(Trouble::Skipped("this back end cannot kill a process"));
        }
        if self.needs == Needs::Restart && !env.cluster.can_restart() {
            return Err(Trouble::Skipped("this back end cannot restart a node"));
        }
        if self.needs == Needs::Descriptors && !env.cluster.has_descriptors() {
            return Err(Trouble::Skipped("no descriptor follows this back end's time"));
        }
        (self.body)(env)
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Case({}: {})", self.name, self.about)
    }
}

macro_rules! cases {
    ($($module:ident::$name:ident, $nodes:literal, $needs:ident, $about:literal;)*) => {
        /// Every body.
        pub const ALL: &[Case] = &[$(Case {
            name: stringify!($name),
            about: $about,
            nodes: $nodes,
            needs: Needs::$needs,
            module: stringify!($module),
            body: $module::$name,
        },)*];
    };
}

cases! {
    data::ping_pong, 2, Nothing, "a word and a notification there and back";
    data::bulk_write, 2, Nothing, "writes of any size and alignment, from regions and from bytes";
    data::bulk_read, 2, Nothing, "reads of any size and alignment, into regions and into bytes";
    data::whole_words, 2, Nothing, "an aligned word never arrives in pieces";
    data::read_and_write_back, 2, Nothing, "read, change and write back, many times over";
    data::many_to_one, 3, Nothing, "all nodes write to one, which counts and checks";
    order::scattered_then_notify, 2, Nothing, "one notification after many scattered writes";
    order::pipeline, 2, Nothing, "a stream of blocks with event counts both ways";
    order::one_shot_order, 2, Nothing, "one-shot notifications in issue order";
    order::ordered_flag, 2, Nothing, "an ordered word lands after all earlier data";
    order::flush_remote, 3, Nothing, "after a remote flush a third node reads what was written";
    order::flush_received, 2, Nothing, "what the other card has received lands";
    order::import_ends, 2, Nothing, "an import that ends takes no write with it";
    order::fenced_reuse, 2, Nothing, "a source may change after a fence";
    looped::slept, 2, Descriptors, "a program sleeps on a port's descriptor, and no call waits";
    under_way::awaited, 2, Nothing, "operations under way are awaited, and no call waits";
    under_way::retried_until_there_is_room, 2, Nothing, "what finds no room is tried again and again, and nothing else is asked for";
    vectors::scattered, 2, Nothing, "several pieces are one write, from regions and bytes to two segments";
    vectors::gathered, 2, Nothing, "several pieces are one read, into regions and bytes";
    vectors::refused, 2, Nothing, "a piece that is refused, or for which there is no room, keeps all back";
    vectors::failed, 2, Nothing, "a vector of which a piece fails has failed, once";
    notifications::event_counts, 2, Nothing, "signals are counted, none lost or doubled";
    notifications::queue, 2, Nothing, "the queue names what has pending signals, until acknowledged";
    notifications::handlers, 2, Nothing, "a handler runs once per signal, and may write";
    notifications::arm_and_disarm, 2, Nothing, "arming finds pending signals, disarming leaves them";
    notifications::futures, 2, Nothing, "notifications as futures";
    notifications::zero_length, 2, Nothing, "a notification without data";
    notifications::full_one_shot_queue, 2, Nothing, "a full queue refuses, and order survives";
    handlers::disarm_wakes, 2, Nothing, "a handler that is disarmed leaves its signals to waiters";
    handlers::busy_handler, 2, Nothing, "a busy handler keeps neither handlers nor futures waiting";
    handlers::panicking_handlers, 2, Nothing, "handlers panic, and what they hold: others go on";
    handlers::waiting_handler, 2, Nothing, "a handler waits for a future of its port";
    handlers::stale_handles, 2, Nothing, "handles of a closed port take nothing from the next of its number";
    handlers::full_backlog, 2, Nothing, "beside a full backlog a number comes out once until it is acknowledged";
    control::import_waits, 2, Nothing, "an import waits for its export";
    control::import_times_out, 2, Nothing, "an import of nothing fails, at once or in time";
    control::several_names, 2, Nothing, "one range under several names with different rights";
    control::several_ports, 2, Nothing, "ports of one node do not mix";
    control::allow_list, 3, Apart, "an export admits the nodes and ports that it names";
    control::local_refusals, 2, Nothing, "what can be refused at once is";
    control::address_lookup, 2, Nothing, "addresses to segments and back";
    failures::revoked, 2, Nothing, "writes and reads after an unexport fail, and say so";
    failures::unexported_in_traffic, 2, Nothing, "after unexport returns nothing is written any more";
    failures::suppressed_notification, 2, Nothing, "no notification passes a failed write until it is reported";
    behind::lost_source, 2, Nothing, "behind a write that never leaves nothing acts that asks for order";
    failures::closed_exporter, 2, Nothing, "writes to a closed port fail, and a new port is not hit";
    failures::dead_exporter, 2, Kill, "writes to a dead process fail, and nothing hangs";
    failures::restarted_node, 2, Restart, "a restarted node is found again";
    leases::lent_and_used, 2, Nothing, "memory that is lent is used like an import, by its token alone";
    leases::lease_refusals, 2, Nothing, "what cannot be lent is refused with a reason; a token is of use to one port";
    leases::lease_ends, 2, Nothing, "a lease ends by itself, and nothing is written under it after that";
    leases::lease_extended, 2, Nothing, "a lease goes on while it is extended, also for pages that are not there";
    leases::lease_revoked, 2, Nothing, "after a revocation has returned nothing is written any more";
    leases::lease_of_the_dead, 2, Kill, "what a dead holder had comes back when its lease is over";
    managed::lease_by_key, 2, Nothing, "a manager lends parts by their key, shared or exclusive, and refuses what conflicts";
    managed::lease_by_size, 2, Nothing, "a manager lends parts by their size, until there is no room";
    managed::lease_awaited, 2, Nothing, "a lease ends, and the client that waits has the part";
    managed::lease_taken_away, 2, Nothing, "a manager takes a part away while a client writes";
    managed::lease_strangers, 2, Nothing, "what is no request, and what is no manager";
    managed::lease_client_dies, 3, Kill, "a client dies, and the one that waits has its part";
    structures::lease_table, 3, Kill, "a hash table whose writers die: entries are there as a whole, or not at all";
    structures::lease_queue, 3, Kill, "a bounded queue whose producer dies: items in order, none lost and none doubled";
    memory::region_freed_in_flight, 2, Nothing, "forgetting memory in flight does no harm";
    memory::evicted_pages, 2, Nothing, "pages thrown out on both sides";
    memory::large_region, 2, Nothing, "sparse writes into a region larger than memory";
    channels::channel_sizes, 2, Nothing, "messages of no byte to several pages, copied and in place";
    channels::channel_borrow, 2, Nothing, "a full queue holds the sender off what is borrowed";
    channels::channel_many_to_one, 2, Nothing, "one receiver waits for many senders";
    channels::channel_bytes, 2, Nothing, "a channel as a stream of bytes";
    channels::channel_evicted, 2, Nothing, "a channel whose pages are thrown out";
    channels::channel_refusals, 2, Nothing, "a second sender, something else, a receiver that leaves";
    channels::channel_foreign_failure, 2, Nothing, "what suppresses signals ends the channel, for both";
    awaited::channel_awaited, 2, Nothing, "both ends of a channel are awaited";
    awaited::channel_streamed, 2, Nothing, "a sink of messages at one end of a channel, a stream at the other";
    awaited::bytes_streamed, 2, Nothing, "a channel as bytes that are written and read asynchronously";
    awaited::channel_awaited_death, 2, Kill, "awaited ends of a channel notice that the other has died";
    awaited::set_awaited, 2, Nothing, "the receivers of a set are awaited together";
    awaited::shared_streamed, 2, Nothing, "a shared queue as a stream of messages";
    awaited::shared_awaited, 2, Nothing, "the receiver of a shared queue is awaited";
    channels::channel_sender_dies, 2, Kill, "a receiver notices that its sender has died";
    channels::channel_receiver_dies, 2, Kill, "a sender with a full queue notices that its receiver has died";
    shared::shared_many_senders, 2, Nothing, "many senders append to one queue, which is always full";
    shared::shared_full, 2, Nothing, "a full shared queue refuses, and a borrow gives nothing back";
    shared::shared_posted, 2, Nothing, "appends posted blindly: what came is a prefix";
    shared::shared_evicted, 2, Nothing, "a shared queue whose pages are thrown out";
    shared::shared_refusals, 2, Nothing, "ports that may only append, and ports that may not";
    shared::shared_sender_dies, 3, Kill, "a sender to a shared queue dies: the others go on";
    shared::shared_receiver_dies, 2, Kill, "a shared queue's receiver dies: its senders hear, its heir begins anew";
    handled::channel_handler_all, 2, Nothing, "a handler on a channel takes all that is there";
    handled::channel_handler_one, 2, Nothing, "a handler on a channel takes one message a call";
    handled::channel_handler_none, 2, Nothing, "a handler on a channel wakes another thread";
    handled::shared_handler_all, 2, Nothing, "a handler on a shared queue takes all that is there";
    handled::shared_handler_one, 2, Nothing, "a handler on a shared queue takes one message a call";
    handled::shared_handler_none, 2, Nothing, "a handler on a shared queue wakes another thread";
    handled::set_handler_all, 2, Nothing, "handlers on a set's channels take all that is there";
    handled::set_handler_one, 2, Nothing, "handlers on a set's channels take one message a call";
    handled::set_handler_none, 2, Nothing, "handlers on a set's channels wake another thread";
    handled::handler_acknowledges, 2, Nothing, "a handler that acknowledges signals itself";
    handled::sets_apart, 2, Nothing, "two sets and a reader of the queue on one port";
    neighbours::channel_orphan, 2, Nothing, "a sender lost in a panic, and the next one of its port";
    neighbours::channel_bytes_beside_failures, 2, Nothing, "failures of other operations take no bytes of a stream";
    neighbours::channel_ends_keep_failures, 2, Nothing, "an end of a channel that goes leaves other operations' failures";
    neighbours::shared_open_again, 2, Nothing, "a shared queue after one that could not be opened";
    neighbours::shared_threads, 2, Nothing, "threads that share one sender of a full shared queue";
    neighbours::shared_beside, 2, Nothing, "a full shared queue beside signals and a channel of the same port";
    calls::calls_in_order, 2, Nothing, "calls of any length, packed, alone and in overflow: each runs once, in order";
    calls::calls_return, 2, Nothing, "results, panics and refusals come back to their caller";
    calls::calls_buffers, 2, Nothing, "buffers that go with a call, are written before it, or are read by it";
    calls::calls_pushed_back, 2, Nothing, "a slow receiver's ring grows, then refuses; what waits keeps its order";
    calls::calls_both_ways, 2, Nothing, "both ends call each other through the smallest rings, and answer";
    calls_spread::calls_passed_on, 3, Nothing, "functions call functions elsewhere";
    calls::calls_many_to_one, 3, Nothing, "many endpoints call one";
    calls_spread::calls_broadcast, 3, Nothing, "a broadcast runs once at each member";
    search::search_shared, 3, Nothing, "members search a game together: each visit is counted once";
    calls::calls_evicted, 2, Nothing, "calls into rings whose pages are thrown out";
    calls_ends::calls_beside_failures, 2, Nothing, "failures of other operations of the port lose no call";
    calls_ends::calls_answers_held_back, 2, Nothing, "failures of calls are counted though signals are held back";
    calls_ends::calls_lives, 2, Nothing, "a link that ends and another one: no call runs in both";
    calls_ends::calls_strangers, 2, Nothing, "what is no endpoint, and greetings of no endpoint";
    calls_ends::calls_callee_dies, 3, Kill, "a called endpoint dies: its calls fail, others go on";
    calls_ends::calls_caller_dies, 3, Kill, "a calling endpoint dies: what came runs, and others go on";
    alock::alock_local, 1, Nothing, "an asymmetric lock, by processor: no command to the NIC";
    alock::alock_alone, 2, Nothing, "an asymmetric lock from afar, when it is free: what that costs";
    alock::alock_remote, 2, Nothing, "an asymmetric lock, all through their NICs";
    alock::alock_mixed, 2, Nothing, "an asymmetric lock, both kinds, with small budgets";
    alock::alock_strict, 2, Nothing, "an asymmetric lock, both kinds, in turns";
    alock::alock_evicted, 2, Nothing, "an asymmetric lock whose pages are thrown out";
    alock::alock_elsewhere, 3, Nothing, "an asymmetric lock that guards memory of a third node";
    alock::alock_greedy, 2, Nothing, "greedy local members let a remote one in";
    alock::alock_dead_holder, 3, Kill, "a holder of an asymmetric lock dies: the others are told";
    alock::alock_dead_waiter, 3, Kill, "a waiter of an asymmetric lock dies: the others are told";
    alock::alock_dead_home, 2, Kill, "the home of an asymmetric lock dies: the others are told";
    atomics::atomic_words, 2, Nothing, "old values come back, new ones are there for the processor";
    atomics::atomic_refusals, 2, Nothing, "atomics that may not be are refused";
    atomics::atomic_counter, 2, Nothing, "all nodes count on one word that is thrown out, none is lost";
    atomics::queue_block, 2, Nothing, "operations of wait queues and semaphores on one block";
    atomics::ordered_atomic, 2, Nothing, "an ordered atomic follows all earlier data";
    numbers::number_operations, 2, Nothing, "every atomic on numbers of every type, also in a page that is thrown out";
    numbers::contended_numbers, 2, Nothing, "all nodes change bytes and fractions side by side, no change is lost";
    sync::contended_lock, 3, Nothing, "all nodes count under one lock, beside it and elsewhere";
    sync::lock_begun, 2, Nothing, "a lock is awaited, and handed on where its future was dropped";
    sync::lock_begun_by_many, 2, Nothing, "participants on several nodes await a lock";
    sync::semaphore_begun, 2, Nothing, "a token is awaited, and given back where its future was dropped";
    sync::queue_begun, 2, Nothing, "a wait queue is awaited, by futures of which some are dropped";
    sync::monitor_begun, 2, Nothing, "a monitor and its condition are awaited, and a signal to a dropped future is passed on";
    sync::alock_begun, 2, Nothing, "an asymmetric lock is awaited, and handed on where its future was dropped";
    sync::lock_tries, 2, Nothing, "trying for a lock, and giving up";
    sync::lock_tried_and_waited_for, 2, Nothing, "each waits for a lock, then tries for it, in turns";
    sync::lock_messages, 2, Nothing, "what a lock costs in round trips and messages";
    sync::outsiders, 2, Nothing, "ports that a lock does not admit cannot reach its participants";
    sync::semaphore_tokens, 3, Nothing, "tokens go around, none lost and none invented";
    sync::semaphore_messages, 2, Nothing, "what a semaphore costs, and the same in three phases";
    sync::wait_queue_order, 2, Nothing, "first in first out, pending wake-ups, and leaving early";
    sync::queue_messages, 2, Nothing, "what a wait queue costs in round trips and messages";
    sync::bounded_buffer, 2, Nothing, "a bounded buffer in a monitor";
    sync::failures_outlive_participants, 2, Nothing, "what a program's writes failed with survives a participant";
    sync::forgotten_guard, 2, Nothing, "a lock is dropped with its guard forgotten: the next one gets it";
    sync::panic_in_lock, 2, Nothing, "a panic under a lock: the next holder is told, as of a death";
    sync::own_numbers, 2, Nothing, "programs and the library do not get each other's notification numbers";
    sync::dead_holder, 3, Kill, "the holder of a lock dies: the others get it, and are told";
    sync::dead_waiter, 3, Kill, "a waiter of a lock dies: those behind it get it";
    sync::deaths_in_a_crowd, 3, Kill, "a holder and a waiter die while others come and go: it ends";
    sync::no_death, 3, Apart, "other failures of a waiter are not taken for a death";
    sync::lost_home, 3, Nothing, "a lock's home goes: all waiters hear of it, while the holder holds on";
    sync::dead_in_queue, 3, Kill, "a waiter for a token dies: those behind it get theirs";
    sync::dead_in_wait_queue, 3, Kill, "a process in a wait queue dies: those behind it do not stay there";
    sync::dead_in_monitor, 3, Kill, "two die, inside of a monitor and waiting there: the others get on";
    net::net_echo, 2, Nothing, "a connection carries bytes both ways, and its ends close one by one";
    net::net_many, 2, Nothing, "many connections over one queue, each with bytes of its own";
    net::net_large, 2, Nothing, "large transfers by messages, by writes and by reads, with pages thrown out";
    net::net_slow_reader, 2, Nothing, "a reader that takes nothing delays no other connection";
    net::net_refusals, 2, Nothing, "connections that are refused, and why";
    net::net_resets, 2, Nothing, "an end that closes with bytes unread, and a network that ends";
    net::net_threads, 2, Nothing, "threads share a network, each with a connection of its own";
    net::net_awaited, 2, Nothing, "both ends of a connection are awaited, and no call waits";
    net::net_peer_dies, 3, Kill, "a process dies: its connections are reset, others go on";
    threads::one_port, 2, Nothing, "several threads write, read and fence through one port";
}
