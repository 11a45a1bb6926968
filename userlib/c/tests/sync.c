/* Two processes: both kinds of lock, a semaphore, a wait queue, a monitor; and a holder that dies. */
#include "check.h"

#include <pthread.h>

enum { ROUNDS = 200 };

/* Every object that the processes share. */
struct objects {
    netvm_home *homes[6];
    netvm_lock *lock;
    netvm_alock_home *alock_home;
    netvm_alock *alock;
    netvm_semaphore *semaphore;
    netvm_wait_queue *queue;
    netvm_monitor *monitor;
    netvm_condition *condition;
};

static void take_part(struct objects *o, netvm_port *port, uint16_t node)
{
    OK(netvm_lock_join(port, node, 7, "lock", LONG_TIME, &o->lock));
    OK(netvm_semaphore_join(port, node, 7, "semaphore", LONG_TIME, &o->semaphore));
    OK(netvm_wait_queue_join(port, node, 7, "queue", LONG_TIME, &o->queue));
    OK(netvm_monitor_join(port, node, 7, "monitor", LONG_TIME, &o->monitor));
    OK(netvm_condition_join(port, node, 7, "condition", LONG_TIME, &o->condition));
}

static void leave(struct objects *o)
{
    OK(netvm_lock_close(o->lock));
    OK(netvm_alock_close(o->alock));
    OK(netvm_semaphore_close(o->semaphore));
    OK(netvm_wait_queue_close(o->queue));
    OK(netvm_monitor_close(o->monitor));
    OK(netvm_condition_close(o->condition));
}

/* Reads and writes a word under a lock, in two steps: an increment is lost unless the lock protects it. */
static void count(netvm_remote *words, uint64_t offset)
{
    uint64_t value;
    OK(netvm_read(words, offset, &value, sizeof value, 0));
    value++;
    OK(netvm_write(words, offset, &value, sizeof value, 0, 0, NULL));
}

static void locks(struct objects *o, netvm_remote *words, uint16_t node)
{
    unsigned i;
    bool died, asked;
    for (i = 0; i < ROUNDS; i++) {
        OK(netvm_lock_acquire(o->lock, NETVM_FOREVER, &died));
        CHECK(!died);
        ANSWERS(-EDEADLK, netvm_lock_acquire(o->lock, 0, NULL));
        OK(netvm_lock_is_asked_for(o->lock, &asked));
        count(words, 0);
        OK(netvm_lock_release(o->lock));
    }
    ANSWERS(-EPERM, netvm_lock_release(o->lock));
    ANSWERS(-EPERM, netvm_lock_is_asked_for(o->lock, &asked));
    for (i = 0; i < ROUNDS; i++) {
        OK(netvm_alock_acquire(o->alock));
        ANSWERS(-EDEADLK, netvm_alock_acquire(o->alock));
        OK(netvm_alock_is_asked_for(o->alock, &asked));
        OK(netvm_alock_covers(o->alock, node));
        count(words, 8);
        OK(netvm_alock_release(o->alock));
    }
    ANSWERS(-EPERM, netvm_alock_release(o->alock));
}

/* The client tries while the lock is held here, and once more. */
static void tries(struct objects *o, struct line line)
{
    OK(netvm_lock_acquire(o->lock, LONG_TIME, NULL));
    say(line);
    hear(line);
    OK(netvm_lock_release(o->lock));
    say(line);
    hear(line);
}

static void *second_thread(void *argument)
{
    int answer;
    do {
        answer = netvm_semaphore_wait((netvm_semaphore *)argument, LONG_TIME);
    } while (answer == -EBUSY);
    return (void *)(intptr_t)answer;
}

static void server_semaphore(struct objects *o, struct line line)
{
    pthread_t thread;
    void *answer;
    uint32_t value;
    int busy;
    /* One token is there. */
    OK(netvm_semaphore_wait(o->semaphore, 0));
    ANSWERS(-EAGAIN, netvm_semaphore_wait(o->semaphore, 0));
    ANSWERS(-ETIMEDOUT, netvm_semaphore_wait(o->semaphore, 1000000));
    /* A second thread on the same handle is told, and disturbs nothing. */
    CHECK(pthread_create(&thread, NULL, second_thread, o->semaphore) == 0);
    do {
        busy = netvm_semaphore_wait(o->semaphore, 0);
        CHECK(busy == -EAGAIN || busy == -EBUSY);
    } while (busy == -EAGAIN);
    ANSWERS(-EBUSY, netvm_semaphore_signal(o->semaphore, &value));
    say(line);
    CHECK(pthread_join(thread, &answer) == 0);
    CHECK((intptr_t)answer == 0);
}

static void server(struct line line)
{
    netvm_node *node;
    netvm_port *port = serve(&node);
    netvm_region *region;
    netvm_export *words_export;
    netvm_remote *words;
    struct objects o;
    uint64_t value;
    uint16_t self;
    bool woken, died;
    unsigned i;

    OK(netvm_node_id(node, &self));
    OK(netvm_region_alloc(port, 4096, &region));
    OK(netvm_export_open(port, "words", region, 0, 0, NULL, &words_export));
    OK(netvm_lock_create(port, "lock", NULL, &o.homes[0]));
    OK(netvm_semaphore_create(port, "semaphore", 1, NULL, &o.homes[1]));
    OK(netvm_wait_queue_create(port, "queue", NULL, &o.homes[2]));
    OK(netvm_monitor_create(port, "monitor", NULL, &o.homes[3]));
    OK(netvm_condition_create(port, "condition", NULL, &o.homes[4]));
    OK(netvm_lock_create(port, "mortal", NULL, &o.homes[5]));
    OK(netvm_alock_create(port, "alock", NULL, 0, 0, &o.alock_home));
    OK(netvm_alock_local(o.alock_home, &o.alock));
    OK(netvm_import(port, self, 7, "words", 0, LONG_TIME, &words));
    take_part(&o, port, self);
    say(line);
    locks(&o, words, self);
    hear(line);
    OK(netvm_region_load64(region, 0, &value));
    CHECK(value == 2 * ROUNDS);
    OK(netvm_region_load64(region, 8, &value));
    CHECK(value == 2 * ROUNDS);
    tries(&o, line);

    server_semaphore(&o, line);

    /* The client stands in the queue when it says so. */
    hear(line);
    OK(netvm_wait_queue_signal(o.queue, &woken));
    CHECK(woken);
    hear(line);
    OK(netvm_wait_queue_signal(o.queue, &woken));
    CHECK(!woken);

    /* A monitor: the client waits until a word is 1. */
    for (woken = false; !woken;) {
        OK(netvm_monitor_enter(o.monitor, &died));
        CHECK(!died);
        OK(netvm_condition_signal(o.condition, &woken));
        if (woken)
            OK(netvm_region_store64(region, 16, 1));
        OK(netvm_monitor_leave(o.monitor));
    }
    ANSWERS(-EPERM, netvm_monitor_leave(o.monitor));
    ANSWERS(-EPERM, netvm_monitor_wait(o.monitor, o.condition, NULL));
    hear(line);

    /* The client dies with the lock in its hand. */
    {
        netvm_lock *mortal;
        OK(netvm_lock_join(port, self, 7, "mortal", LONG_TIME, &mortal));
        say(line);
        hear(line);
        OK(netvm_lock_acquire(mortal, NETVM_FOREVER, &died));
        CHECK(died);
        OK(netvm_lock_release(mortal));
        OK(netvm_lock_close(mortal));
    }
    leave(&o);
    OK(netvm_alock_home_close(o.alock_home));
    for (i = 0; i < 6; i++)
        OK(netvm_home_close(o.homes[i]));
    OK(netvm_remote_close(words));
    OK(netvm_export_close(words_export));
    OK(netvm_region_close(region));
    OK(netvm_port_close(port));
    OK(netvm_node_close(node));
}

static void client(struct line line)
{
    netvm_node *node;
    netvm_port *port;
    netvm_remote *words;
    netvm_lock *mortal, *wrong = NULL;
    struct objects o;
    uint64_t value = 0;
    uint16_t peer;
    bool reset;

    hear(line);
    port = join(&node, &peer);
    OK(netvm_import(port, peer, 7, "words", 0, LONG_TIME, &words));
    take_part(&o, port, peer);
    OK(netvm_alock_join(port, peer, 7, "alock", LONG_TIME, &o.alock));
    CHECK(netvm_lock_join(port, peer, 7, "semaphore", LONG_TIME, &wrong) < 0 && wrong == NULL);
    locks(&o, words, peer);
    OK(netvm_flush(port, peer, NETVM_LANDED, LONG_TIME));
    say(line);

    /* The server holds the lock. */
    hear(line);
    ANSWERS(-EAGAIN, netvm_lock_acquire(o.lock, 0, NULL));
    ANSWERS(-ETIMEDOUT, netvm_lock_acquire(o.lock, 1000000, NULL));
    say(line);
    hear(line);
    OK(netvm_lock_acquire(o.lock, 0, &reset));
    CHECK(!reset);
    OK(netvm_lock_release(o.lock));
    say(line);

    hear(line);
    OK(netvm_semaphore_signal(o.semaphore, NULL));

    ANSWERS(-EPERM, netvm_wait_queue_wait(o.queue, 0, NULL));
    OK(netvm_wait_queue_insert(o.queue));
    ANSWERS(-EDEADLK, netvm_wait_queue_insert(o.queue));
    ANSWERS(-EDEADLK, netvm_wait_queue_signal(o.queue, NULL));
    ANSWERS(-EAGAIN, netvm_wait_queue_wait(o.queue, 0, NULL));
    say(line);
    OK(netvm_wait_queue_wait(o.queue, LONG_TIME, &reset));
    CHECK(!reset);
    say(line);

    OK(netvm_monitor_enter(o.monitor, NULL));
    ANSWERS(-EDEADLK, netvm_monitor_enter(o.monitor, NULL));
    for (;;) {
        OK(netvm_read(words, 16, &value, sizeof value, 0));
        if (value != 0)
            break;
        OK(netvm_monitor_wait(o.monitor, o.condition, &reset));
    }
    OK(netvm_monitor_leave(o.monitor));
    say(line);

    hear(line);
    OK(netvm_lock_join(port, peer, 7, "mortal", LONG_TIME, &mortal));
    OK(netvm_lock_acquire(mortal, NETVM_FOREVER, NULL));
    leave(&o);
    say(line);
    /* No handle is closed, and no destructor runs. */
    _exit(0);
}

int main(void)
{
    return two_processes(server, client);
}
