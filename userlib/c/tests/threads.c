/* Many threads on the same handles, which are closed under them. */
#include "check.h"

#include <pthread.h>

enum { THREADS = 4, ROUNDS = 50 };

static netvm_node *node;
static netvm_port *port;
static netvm_remote *remote;
static pthread_barrier_t barrier;

/* Writes until the import is closed; says how many writes there were. */
static void *writes(void *argument)
{
    uint64_t count = 0, offset = 8 * (uint64_t)(intptr_t)argument;
    int answer;
    pthread_barrier_wait(&barrier);
    for (;;) {
        answer = netvm_write(remote, offset, &count, sizeof count, 0, 0, NULL);
        if (answer != 0)
            break;
        count++;
    }
    CHECK(answer == -EBADF);
    return NULL;
}

static void *closes(void *argument)
{
    (void)argument;
    pthread_barrier_wait(&barrier);
    return (void *)(intptr_t)netvm_region_close((netvm_region *)argument);
}

/* Each thread makes and closes objects, and all see those of others as none. */
static void *makes(void *argument)
{
    netvm_region **shared = (netvm_region **)argument;
    unsigned i;
    pthread_barrier_wait(&barrier);
    for (i = 0; i < ROUNDS; i++) {
        netvm_region *own, *other = __atomic_load_n(shared, __ATOMIC_ACQUIRE);
        uint64_t len;
        int answer;
        OK(netvm_region_alloc(port, 64, &own));
        __atomic_store_n(shared, own, __ATOMIC_RELEASE);
        answer = other ? netvm_region_len(other, &len) : 0;
        CHECK(answer == 0 || answer == -EBADF);
        OK(netvm_region_len(own, &len));
        CHECK(len == 64);
        OK(netvm_region_close(own));
    }
    return NULL;
}

static void run(void *(*body)(void *), void *argument, int numbered, void **answers)
{
    pthread_t threads[THREADS];
    int i;
    CHECK(pthread_barrier_init(&barrier, NULL, THREADS + 1) == 0);
    for (i = 0; i < THREADS; i++) {
        void *own = numbered ? (void *)(intptr_t)i : argument;
        CHECK(pthread_create(&threads[i], NULL, body, own) == 0);
    }
    pthread_barrier_wait(&barrier);
    if (numbered)
        OK(netvm_remote_close(remote));
    for (i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], &answers[i]) == 0);
    CHECK(pthread_barrier_destroy(&barrier) == 0);
}

int main(void)
{
    netvm_region *region, *shared = NULL;
    netvm_export *exported;
    void *answers[THREADS];
    uint16_t self, own;
    int i, round, closed;

    OK(netvm_node_start(NULL, &node));
    OK(netvm_node_id(node, &self));
    OK(netvm_port_open(node, NULL, &port));
    OK(netvm_port_id(port, &own));
    OK(netvm_region_alloc(port, 4096, &region));
    OK(netvm_export_open(port, "memory", region, 0, 0, NULL, &exported));
    for (round = 0; round < 10; round++) {
        OK(netvm_import(port, self, own, "memory", 0, LONG_TIME, &remote));
        run(writes, NULL, 1, answers);
    }
    OK(netvm_export_close(exported));

    /* Of many that close the same handle, one does. */
    for (round = 0; round < 20; round++) {
        netvm_region *victim;
        OK(netvm_region_alloc(port, 64, &victim));
        run(closes, victim, 0, answers);
        for (i = 0, closed = 0; i < THREADS; i++) {
            CHECK((intptr_t)answers[i] == 0 || (intptr_t)answers[i] == -EBADF);
            closed += (intptr_t)answers[i] == 0;
        }
        CHECK(closed == 1);
    }
    run(makes, &shared, 0, answers);
    OK(netvm_region_close(region));
    OK(netvm_port_close(port));
    OK(netvm_node_close(node));
    return 0;
}
