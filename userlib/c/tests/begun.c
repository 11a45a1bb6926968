/* Two processes: locks, tokens, wake-ups and monitors that are begun; what is given up; a home that goes meanwhile. */
#include "check.h"

#include <poll.h>

struct objects {
    netvm_lock *lock;
    netvm_alock *alock;
    netvm_semaphore *semaphore;
    netvm_wait_queue *queue;
    netvm_monitor *monitor;
    netvm_condition *condition;
    netvm_lock *doomed;
};

static void take_part(struct objects *o, netvm_port *port, uint16_t node)
{
    OK(netvm_lock_join(port, node, 7, "lock", LONG_TIME, &o->lock));
    OK(netvm_semaphore_join(port, node, 7, "semaphore", LONG_TIME, &o->semaphore));
    OK(netvm_wait_queue_join(port, node, 7, "queue", LONG_TIME, &o->queue));
    OK(netvm_monitor_join(port, node, 7, "monitor", LONG_TIME, &o->monitor));
    OK(netvm_condition_join(port, node, 7, "condition", LONG_TIME, &o->condition));
    OK(netvm_lock_join(port, node, 7, "doomed", LONG_TIME, &o->doomed));
}

static void leave(struct objects *o)
{
    OK(netvm_lock_close(o->lock));
    OK(netvm_alock_close(o->alock));
    OK(netvm_semaphore_close(o->semaphore));
    OK(netvm_wait_queue_close(o->queue));
    OK(netvm_monitor_close(o->monitor));
    OK(netvm_condition_close(o->condition));
    OK(netvm_lock_close(o->doomed));
}

/* Holds the lock until the client waits for it: what is begun asks for it on a thread of its own. */
static void hold(netvm_lock *lock, struct line line)
{
    bool asked;
    OK(netvm_lock_acquire(lock, NETVM_FOREVER, NULL));
    say(line);
    hear(line);
    for (asked = false; !asked;)
        OK(netvm_lock_is_asked_for(lock, &asked));
    OK(netvm_lock_release(lock));
}

static void server(struct line line)
{
    netvm_node *node;
    netvm_port *port = serve(&node);
    netvm_home *homes[6];
    netvm_alock_home *alock_home;
    struct objects o;
    uint16_t self;
    bool woken, died;
    unsigned i;

    OK(netvm_node_id(node, &self));
    OK(netvm_lock_create(port, "lock", NULL, &homes[0]));
    OK(netvm_semaphore_create(port, "semaphore", 0, NULL, &homes[1]));
    OK(netvm_wait_queue_create(port, "queue", NULL, &homes[2]));
    OK(netvm_monitor_create(port, "monitor", NULL, &homes[3]));
    OK(netvm_condition_create(port, "condition", NULL, &homes[4]));
    OK(netvm_lock_create(port, "doomed", NULL, &homes[5]));
    OK(netvm_alock_create(port, "alock", NULL, 0, 0, &alock_home));
    OK(netvm_alock_local(alock_home, &o.alock));
    take_part(&o, port, self);
    say(line);

    /* Handed on, given up, and closed while it is away. */
    for (i = 0; i < 3; i++) {
        hold(o.lock, line);
        /* What is given up is handed on: no participant is taken for dead. */
        OK(netvm_lock_acquire(o.lock, NETVM_FOREVER, &died));
        CHECK(!died);
        OK(netvm_lock_release(o.lock));
    }

    OK(netvm_alock_acquire(o.alock));
    say(line);
    hear(line);
    OK(netvm_alock_release(o.alock));

    hear(line);
    OK(netvm_semaphore_signal(o.semaphore, NULL));
    hear(line);
    OK(netvm_semaphore_signal(o.semaphore, NULL));
    say(line);

    for (woken = false; !woken;)
        OK(netvm_wait_queue_signal(o.queue, &woken));
    hear(line);

    for (woken = false; !woken;) {
        OK(netvm_monitor_enter(o.monitor, &died));
        CHECK(!died);
        OK(netvm_condition_signal(o.condition, &woken));
        OK(netvm_monitor_leave(o.monitor));
    }

    OK(netvm_lock_acquire(o.doomed, NETVM_FOREVER, NULL));
    say(line);
    hear(line);
    OK(netvm_home_close(homes[5]));
    hear(line);

    leave(&o);
    OK(netvm_alock_home_close(alock_home));
    for (i = 0; i < 5; i++)
        OK(netvm_home_close(homes[i]));
    OK(netvm_port_close(port));
    OK(netvm_node_close(node));
}

/* It ends well, again and again, with an answer of at most so much. */
static void ends(netvm_pending *pending, uint64_t most)
{
    netvm_remote *remote = NULL;
    uint64_t value = 77, again = 78;
    OK(netvm_pending_wait(pending, LONG_TIME));
    OK(netvm_pending_wait(pending, 0));
    OK(netvm_pending_value(pending, &value));
    OK(netvm_pending_value(pending, &again));
    CHECK(value <= most && value == again);
    ANSWERS(-ENODATA, netvm_pending_remote(pending, &remote));
    OK(netvm_pending_close(pending));
}

/* The lock is held by the server, and asked for here. */
static void locks(struct objects *o, netvm_port *port, uint16_t peer, struct line line)
{
    netvm_pending *pending, *other = NULL;
    netvm_cq *queue;
    uint64_t value;
    uint32_t op = 1;
    void *context;
    bool asked;
    int tag;

    hear(line);
    OK(netvm_lock_begin_acquire(o->lock, &tag, &pending));
    ANSWERS(-EAGAIN, netvm_pending_wait(pending, 0));
    ANSWERS(-ETIMEDOUT, netvm_pending_wait(pending, 1000000));
    ANSWERS(-EAGAIN, netvm_pending_value(pending, &value));
    ANSWERS(-EBUSY, netvm_lock_acquire(o->lock, 0, NULL));
    ANSWERS(-EBUSY, netvm_lock_release(o->lock));
    ANSWERS(-EBUSY, netvm_lock_begin_acquire(o->lock, NULL, &other));
    CHECK(other == NULL);
    OK(netvm_pending_context(pending, &context));
    CHECK(context == &tag);
    OK(netvm_pending_op(pending, &op));
    CHECK(op == 0);
    OK(netvm_cq_open(port, &queue));
    ANSWERS(-EINVAL, netvm_cq_add(queue, pending));
    OK(netvm_cq_close(queue));
    say(line);
    ends(pending, 0);
    ANSWERS(-EDEADLK, netvm_lock_begin_acquire(o->lock, NULL, &other));
    OK(netvm_lock_is_asked_for(o->lock, &asked));
    OK(netvm_lock_release(o->lock));
    ANSWERS(-EPERM, netvm_lock_release(o->lock));

    /* Given up: the participant is gone, and another one may join. */
    hear(line);
    OK(netvm_lock_begin_acquire(o->lock, NULL, &pending));
    OK(netvm_pending_close(pending));
    ANSWERS(-EIO, netvm_lock_acquire(o->lock, 0, NULL));
    ANSWERS(-EIO, netvm_lock_release(o->lock));
    OK(netvm_lock_close(o->lock));
    OK(netvm_lock_join(port, peer, 7, "lock", LONG_TIME, &o->lock));
    say(line);

    /* Closed while it is away: let go of as soon as it comes back. */
    hear(line);
    OK(netvm_lock_begin_acquire(o->lock, NULL, &pending));
    OK(netvm_lock_close(o->lock));
    say(line);
    ends(pending, 0);
    OK(netvm_lock_join(port, peer, 7, "lock", LONG_TIME, &o->lock));

    hear(line);
    OK(netvm_alock_begin_acquire(o->alock, NULL, &pending));
    ANSWERS(-EBUSY, netvm_alock_acquire(o->alock));
    ANSWERS(-EBUSY, netvm_alock_covers(o->alock, peer));
    ANSWERS(-EAGAIN, netvm_pending_wait(pending, 0));
    say(line);
    ends(pending, 0);
    OK(netvm_alock_covers(o->alock, peer));
    OK(netvm_alock_release(o->alock));
    ANSWERS(-EPERM, netvm_alock_release(o->alock));
}

/* The end of what was begun makes the port's descriptor readable. */
static void polled(netvm_port *port, netvm_pending *pending)
{
    netvm_events *events;
    struct pollfd fd = {0, POLLIN, 0};
    int answer;
    OK(netvm_events_open(port, &events));
    OK(netvm_events_fd(events, &fd.fd));
    for (;;) {
        OK(netvm_events_arm(events));
        answer = netvm_pending_wait(pending, 0);
        if (answer == 0)
            break;
        CHECK(answer == -EAGAIN);
        CHECK(poll(&fd, 1, 60000) == 1);
    }
    OK(netvm_events_close(events));
}

static void client(struct line line)
{
    netvm_node *node;
    netvm_port *port;
    netvm_pending *pending;
    struct objects o;
    uint64_t value;
    uint16_t peer;
    int answer;

    hear(line);
    port = join(&node, &peer);
    take_part(&o, port, peer);
    OK(netvm_alock_join(port, peer, 7, "alock", LONG_TIME, &o.alock));
    locks(&o, port, peer, line);

    OK(netvm_semaphore_begin_wait(o.semaphore, NULL, &pending));
    ANSWERS(-EAGAIN, netvm_pending_wait(pending, 0));
    ANSWERS(-EBUSY, netvm_semaphore_wait(o.semaphore, 0));
    ANSWERS(-EBUSY, netvm_semaphore_signal(o.semaphore, NULL));
    say(line);
    polled(port, pending);
    /* 0 if it has asked before the token was there. */
    ends(pending, 1);
    say(line);
    hear(line);
    OK(netvm_semaphore_begin_wait(o.semaphore, NULL, &pending));
    OK(netvm_pending_wait(pending, LONG_TIME));
    OK(netvm_pending_value(pending, &value));
    CHECK(value == 1);
    ends(pending, 1);
    ANSWERS(-EAGAIN, netvm_semaphore_wait(o.semaphore, 0));

    OK(netvm_wait_queue_begin_wait(o.queue, NULL, &pending));
    ANSWERS(-EBUSY, netvm_wait_queue_insert(o.queue));
    ends(pending, 0);
    OK(netvm_wait_queue_insert(o.queue));
    ANSWERS(-EDEADLK, netvm_wait_queue_begin_wait(o.queue, NULL, &pending));
    OK(netvm_wait_queue_close(o.queue));
    OK(netvm_wait_queue_join(port, peer, 7, "queue", LONG_TIME, &o.queue));

    ANSWERS(-EPERM, netvm_monitor_begin_wait(o.monitor, o.condition, NULL, &pending));
    OK(netvm_monitor_begin_enter(o.monitor, NULL, &pending));
    ends(pending, 0);
    ANSWERS(-EDEADLK, netvm_monitor_begin_enter(o.monitor, NULL, &pending));
    OK(netvm_monitor_begin_wait(o.monitor, o.condition, NULL, &pending));
    ANSWERS(-EBUSY, netvm_monitor_leave(o.monitor));
    ANSWERS(-EBUSY, netvm_condition_signal(o.condition, NULL));
    say(line);
    ends(pending, 0);
    OK(netvm_monitor_leave(o.monitor));
    OK(netvm_condition_signal(o.condition, NULL));

    /* A wait that is given up takes both with it. With a condition that is gone the process stays inside. */
    OK(netvm_monitor_enter(o.monitor, NULL));
    OK(netvm_monitor_begin_wait(o.monitor, o.condition, NULL, &pending));
    OK(netvm_pending_close(pending));
    ANSWERS(-EIO, netvm_monitor_leave(o.monitor));
    OK(netvm_monitor_close(o.monitor));
    OK(netvm_monitor_join(port, peer, 7, "monitor", LONG_TIME, &o.monitor));
    OK(netvm_monitor_enter(o.monitor, NULL));
    ANSWERS(-EIO, netvm_monitor_begin_wait(o.monitor, o.condition, NULL, &pending));
    OK(netvm_condition_close(o.condition));
    OK(netvm_condition_join(port, peer, 7, "condition", LONG_TIME, &o.condition));
    OK(netvm_condition_signal(o.condition, NULL));
    OK(netvm_monitor_leave(o.monitor));

    /* The home goes while it is waited for: the call fails, and the participant is gone. */
    hear(line);
    OK(netvm_lock_begin_acquire(o.doomed, NULL, &pending));
    ANSWERS(-EAGAIN, netvm_pending_wait(pending, 0));
    say(line);
    answer = netvm_pending_wait(pending, LONG_TIME);
    CHECK(answer < 0 && answer != -ETIMEDOUT && answer != -EAGAIN);
    ANSWERS(answer, netvm_pending_wait(pending, 0));
    ANSWERS(answer, netvm_pending_value(pending, &value));
    OK(netvm_pending_close(pending));
    ANSWERS(-EIO, netvm_lock_acquire(o.doomed, 0, NULL));

    leave(&o);
    OK(netvm_port_close(port));
    OK(netvm_node_close(node));
    say(line);
}

int main(void)
{
    return two_processes(server, client);
}
