/* Two processes: operations under way with the program's word, atomics, room. */
#include "check.h"

enum { OPERATIONS = 40 };

static void server(struct line line)
{
    netvm_node *node;
    netvm_port *port = serve(&node);
    netvm_region *region;
    netvm_export *words;
    uint64_t value;
    uint32_t small, old32;
    uint64_t old64;

    OK(netvm_region_alloc(port, 1 << 20, &region));
    OK(netvm_region_store64(region, 0, 40));
    OK(netvm_region_store32(region, 8, 7));
    OK(netvm_region_compare_swap32(region, 8, 7, 8, &old32));
    CHECK(old32 == 7);
    OK(netvm_region_compare_swap64(region, 0, 1, 2, &old64));
    CHECK(old64 == 40);
    OK(netvm_export_open(port, "words", region, 0, 1 << 20, NULL, &words));
    say(line);
    hear(line);
    OK(netvm_region_load64(region, 0, &value));
    CHECK(value == 99);
    OK(netvm_region_load32(region, 8, &small));
    CHECK(small == 5);
    OK(netvm_export_close(words));
    OK(netvm_region_close(region));
    OK(netvm_port_close(port));
    OK(netvm_node_close(node));
}

static void atomics(netvm_remote *words)
{
    uint64_t old = 0, value = 0;
    uint32_t old32 = 0;
    netvm_pending *pending;
    int tag;
    void *context;

    OK(netvm_atomic64(words, 0, NETVM_FETCH_ADD, 3, 0, 0, &old));
    CHECK(old == 40);
    OK(netvm_atomic64(words, 0, NETVM_FETCH_SUB, 1, 0, 0, &old));
    CHECK(old == 43);
    OK(netvm_atomic64(words, 0, NETVM_COMPARE_SWAP, 50, 42, NETVM_ORDERED, &old));
    CHECK(old == 42);
    OK(netvm_atomic64(words, 0, NETVM_SWAP, 60, 0, 0, NULL));
    OK(netvm_begin_atomic64(words, 0, NETVM_SWAP, 99, 0, 0, &tag, &pending));
    OK(netvm_pending_wait(pending, LONG_TIME));
    OK(netvm_pending_wait(pending, 0));
    OK(netvm_pending_value(pending, &value));
    CHECK(value == 60);
    OK(netvm_pending_context(pending, &context));
    CHECK(context == &tag);
    OK(netvm_pending_close(pending));
    ANSWERS(-EBADF, netvm_pending_close(pending));

    OK(netvm_atomic32(words, 8, NETVM_SWAP, 0, 0, 0, &old32));
    CHECK(old32 == 8);
    OK(netvm_atomic32(words, 8, NETVM_TEST_AND_SET, 0, 0, 0, &old32));
    CHECK(old32 == 0);
    OK(netvm_begin_atomic32(words, 8, NETVM_FETCH_ADD, 4, 0, NETVM_REGARDLESS, NULL, &pending));
    OK(netvm_pending_wait(pending, LONG_TIME));
    OK(netvm_pending_value(pending, &value));
    CHECK(value == 1);
    OK(netvm_pending_close(pending));

    ANSWERS(-EINVAL, netvm_atomic64(words, 0, 77, 0, 0, 0, NULL));
    ANSWERS(-EINVAL, netvm_atomic64(words, 4, NETVM_SWAP, 0, 0, 0, NULL));
    ANSWERS(-EINVAL, netvm_atomic64(words, 0, NETVM_SWAP, 0, 0, NETVM_FENCED, NULL));
    ANSWERS(-ERANGE, netvm_atomic64(words, 1 << 20, NETVM_SWAP, 0, 0, 0, NULL));
}

static void numbers(netvm_remote *words)
{
    enum { AT = 4096 };
    double sum = 0.25, fraction = 0;
    int8_t small = -100, least = -120, byte = 1;
    uint16_t bits = 0xF00F, mask = 0x0FF0;
    int64_t bound = 7, big = INT64_MIN, seen = 1;
    float complex_sum[2] = {1, -2}, complex_old[2] = {9, 9};
    netvm_pending *pending;
    uint64_t value = 0;

    /* Beside each other, so that each has the others for neighbours. */
    OK(netvm_atomic_number(words, AT, NETVM_STORE, NETVM_INT8, &small, NULL, 0, &byte));
    CHECK(byte == 0);
    OK(netvm_atomic_number(words, AT, NETVM_SUM, NETVM_INT8, &small, NULL, NETVM_ORDERED, NULL));
    OK(netvm_atomic_number(words, AT, NETVM_MIN, NETVM_INT8, &least, NULL, NETVM_REGARDLESS, &byte));
    CHECK(byte == 56);
    OK(netvm_atomic_number(words, AT, NETVM_LOAD, NETVM_INT8, NULL, NULL, 0, &byte));
    CHECK(byte == -120);
    OK(netvm_atomic_number(words, AT + 2, NETVM_BIT_OR, NETVM_UINT16, &bits, NULL, 0, NULL));
    OK(netvm_atomic_number(words, AT + 2, NETVM_SWAP_BITS, NETVM_UINT16, &mask, &mask, 0, &bits));
    CHECK(bits == 0xF00F);
    OK(netvm_atomic_number(words, AT + 2, NETVM_LOAD, NETVM_UINT16, NULL, NULL, 0, &bits));
    CHECK(bits == 0xFFFF);
    OK(netvm_atomic_number(words, AT + 8, NETVM_SUM, NETVM_DOUBLE, &sum, NULL, 0, &fraction));
    OK(netvm_begin_atomic_number(words, AT + 8, NETVM_PRODUCT, NETVM_DOUBLE, &sum, NULL, NETVM_ORDERED, NULL, &pending));
    OK(netvm_pending_wait(pending, LONG_TIME));
    OK(netvm_pending_value(pending, &value));
    memcpy(&fraction, &value, sizeof fraction);
    CHECK(fraction == 0.25);
    OK(netvm_pending_close(pending));
    OK(netvm_atomic_number(words, AT + 8, NETVM_LOAD, NETVM_DOUBLE, NULL, NULL, 0, &fraction));
    CHECK(fraction == 0.0625);
    OK(netvm_atomic_number(words, AT + 16, NETVM_SWAP_GT, NETVM_INT64, &big, &bound, 0, &seen));
    CHECK(seen == 0);
    OK(netvm_atomic_number(words, AT + 16, NETVM_SWAP_GE, NETVM_INT64, &bound, &big, 0, &seen));
    CHECK(seen == INT64_MIN);
    OK(netvm_atomic_number(words, AT + 16, NETVM_SWAP_NE, NETVM_INT64, &big, &bound, 0, &seen));
    CHECK(seen == 7);
    OK(netvm_atomic_number(words, AT + 24, NETVM_SUM, NETVM_FLOAT_COMPLEX, complex_sum, NULL, 0, complex_old));
    OK(netvm_atomic_number(words, AT + 24, NETVM_PRODUCT, NETVM_FLOAT_COMPLEX, complex_sum, NULL, 0, complex_old));
    CHECK(complex_old[0] == 1 && complex_old[1] == -2);
    OK(netvm_atomic_number(words, AT + 24, NETVM_LOGICAL_AND, NETVM_FLOAT_COMPLEX, complex_sum, NULL, 0, complex_old));
    CHECK(complex_old[0] == -3 && complex_old[1] == -4);

    ANSWERS(-EOPNOTSUPP, netvm_atomic_number(words, AT, NETVM_BIT_XOR, NETVM_FLOAT, &sum, NULL, 0, NULL));
    ANSWERS(-EOPNOTSUPP, netvm_atomic_number(words, AT, NETVM_MAX, NETVM_FLOAT_COMPLEX, &sum, NULL, 0, NULL));
    ANSWERS(-EINVAL, netvm_atomic_number(words, AT, NETVM_SUM, 12, &sum, NULL, 0, NULL));
    ANSWERS(-EINVAL, netvm_atomic_number(words, AT, NETVM_SUM, 0, &sum, NULL, 0, NULL));
    ANSWERS(-EINVAL, netvm_atomic_number(words, AT, NETVM_SWAP_BITS + 1, NETVM_INT8, &sum, &sum, 0, NULL));
    ANSWERS(-EINVAL, netvm_atomic_number(words, AT, NETVM_SWAP, NETVM_INT8, &sum, NULL, 0, NULL));
    ANSWERS(-EINVAL, netvm_atomic_number(words, AT, NETVM_SUM, NETVM_INT8, NULL, NULL, 0, NULL));
    ANSWERS(-EINVAL, netvm_atomic_number(words, AT, NETVM_SWAP_EQ, NETVM_INT8, &small, NULL, 0, NULL));
    ANSWERS(-EINVAL, netvm_atomic_number(words, AT + 1, NETVM_SUM, NETVM_INT16, &bits, NULL, 0, NULL));
    ANSWERS(-EINVAL, netvm_atomic_number(words, AT, NETVM_SUM, NETVM_INT8, &small, NULL, NETVM_FENCED, NULL));
    ANSWERS(-EINVAL, netvm_begin_atomic_number(words, AT, NETVM_SUM, NETVM_INT8, &small, NULL, 0, NULL, NULL));
    ANSWERS(-ERANGE, netvm_atomic_number(words, 1 << 20, NETVM_SUM, NETVM_INT8, &small, NULL, 0, NULL));
    ANSWERS(-EBADF, netvm_atomic_number((netvm_remote *)pending, AT, NETVM_SUM, NETVM_INT8, &small, NULL, 0, NULL));
}

/* Fills the port's queue without waiting, then waits for room. */
static void room(netvm_port *port, netvm_remote *words, netvm_region *region, uint16_t peer)
{
    unsigned refused = 0, i;
    for (i = 0; i < 100000 && refused < 20; i++) {
        int answer = netvm_write_region(words, 4096, region, 4096, 8 * 4096, NETVM_NOWAIT, 0, NULL);
        if (answer == -EAGAIN) {
            refused++;
            OK(netvm_wait_room(port, LONG_TIME));
        } else {
            CHECK(answer == 0);
        }
    }
    CHECK(refused == 20);
    OK(netvm_flush(port, peer, NETVM_LANDED, LONG_TIME));
    OK(netvm_wait_room(port, 0));
}

/* Imports under way. */
static netvm_remote *import(netvm_port *port, uint16_t peer)
{
    netvm_pending *pending;
    netvm_remote *words = NULL;
    netvm_cq *cq;
    uint32_t op;
    int tag;
    void *context;
    OK(netvm_begin_import(port, peer, 7, "not there", 0, NETVM_FOREVER, NULL, &pending));
    ANSWERS(-EAGAIN, netvm_pending_wait(pending, 0));
    ANSWERS(-EAGAIN, netvm_pending_remote(pending, &words));
    /* Given up. */
    OK(netvm_pending_close(pending));
    OK(netvm_begin_import(port, peer, 7, "not there", 0, 0, NULL, &pending));
    ANSWERS(-ENOENT, netvm_pending_wait(pending, LONG_TIME));
    ANSWERS(-ENOENT, netvm_pending_remote(pending, &words));
    CHECK(netvm_error_status() == NETVM_STATUS_NO_SUCH_EXPORT);
    OK(netvm_pending_close(pending));

    OK(netvm_begin_import(port, peer, 7, "words", NETVM_READ | NETVM_WRITE | NETVM_ATOMIC, LONG_TIME, &tag, &pending));
    OK(netvm_cq_open(port, &cq));
    ANSWERS(-EINVAL, netvm_cq_add(cq, pending));
    OK(netvm_cq_close(cq));
    OK(netvm_pending_wait(pending, LONG_TIME));
    OK(netvm_pending_context(pending, &context));
    OK(netvm_pending_op(pending, &op));
    CHECK(context == &tag && op == 0);
    OK(netvm_pending_remote(pending, &words));
    ANSWERS(-ENODATA, netvm_pending_remote(pending, &words));
    OK(netvm_pending_wait(pending, 0));
    OK(netvm_pending_close(pending));
    return words;
}

/* Many operations in a completion queue, each with a word. */
static void queue(netvm_port *port, netvm_remote *words, netvm_region *region)
{
    static char seen[OPERATIONS];
    netvm_cq *cq;
    struct netvm_completion done;
    size_t len;
    unsigned i;
    OK(netvm_cq_open(port, &cq));
    done.size = 1;
    ANSWERS(-EINVAL, netvm_cq_next(cq, 0, &done));
    done.size = sizeof done;
    ANSWERS(-ENODATA, netvm_cq_next(cq, NETVM_FOREVER, &done));
    for (i = 0; i < OPERATIONS; i++) {
        netvm_pending *pending;
        if (i % 2)
            OK(netvm_begin_atomic64(words, 800, NETVM_FETCH_ADD, 1, 0, NETVM_ORDERED, &seen[i], &pending));
        else
            OK(netvm_begin_read_region(words, 200, region, 64, 5, 0, &seen[i], &pending));
        OK(netvm_cq_add(cq, pending));
        ANSWERS(-EBADF, netvm_pending_wait(pending, 0));
    }
    OK(netvm_cq_len(cq, &len));
    CHECK(len == OPERATIONS);
    for (i = 0; i < OPERATIONS; i++) {
        char *which;
        OK(netvm_cq_next(cq, LONG_TIME, &done));
        which = (char *)done.context;
        CHECK(which >= seen && which < seen + OPERATIONS && !*which);
        *which = 1;
        CHECK(done.result == 0 && done.status == NETVM_STATUS_OK && done.op != 0);
        /* Ordered atomics see one another. */
        if ((which - seen) % 2)
            CHECK(done.value == (uint64_t)(which - seen) / 2);
    }
    ANSWERS(-ENODATA, netvm_cq_next(cq, 0, &done));
    OK(netvm_cq_close(cq));
    {
        netvm_pending *pending;
        OK(netvm_cq_open(port, &cq));
        /* One that is closed with operations under way takes nothing back. */
        OK(netvm_begin_read_region(words, 200, region, 64, 5, 0, NULL, &pending));
        OK(netvm_cq_add(cq, pending));
        OK(netvm_cq_close(cq));
        OK(netvm_flush_reads(port));
    }
}

static void client(struct line line)
{
    netvm_node *node;
    netvm_port *port;
    netvm_region *region;
    netvm_remote *words;
    netvm_pending *pending[3];
    char text[5];
    uint16_t peer;
    uint32_t op, op2;
    uint64_t value;

    hear(line);
    port = join(&node, &peer);
    OK(netvm_region_alloc(port, 1 << 20, &region));
    words = import(port, peer);
    OK(netvm_begin_write(words, 100, "first", 5, 0, 0, NULL, &pending[0]));
    OK(netvm_region_write(region, 0, "again", 5));
    OK(netvm_begin_write_region(words, 200, region, 0, 5, NETVM_ORDERED, 0, NULL, &pending[1]));
    OK(netvm_begin_flush(port, peer, NETVM_LANDED, NULL, &pending[2]));
    OK(netvm_pending_op(pending[0], &op));
    OK(netvm_pending_op(pending[1], &op2));
    CHECK(op != op2);
    OK(netvm_pending_wait(pending[2], LONG_TIME));
    OK(netvm_pending_wait(pending[0], LONG_TIME));
    OK(netvm_pending_wait(pending[1], NETVM_FOREVER));
    ANSWERS(-ENODATA, netvm_pending_value(pending[1], &value));
    for (op = 0; op < 3; op++)
        OK(netvm_pending_close(pending[op]));
    OK(netvm_begin_read_region(words, 200, region, 64, 5, 0, NULL, &pending[0]));
    OK(netvm_pending_wait(pending[0], LONG_TIME));
    OK(netvm_region_read(region, 64, text, 5));
    CHECK(memcmp(text, "again", 5) == 0);
    /* Closed while it is under way: it goes on. */
    OK(netvm_begin_flush(port, peer, NETVM_RECEIVED, NULL, &pending[1]));
    OK(netvm_pending_close(pending[1]));
    OK(netvm_pending_close(pending[0]));
    atomics(words);
    numbers(words);
    queue(port, words, region);
    room(port, words, region, peer);
    say(line);
    OK(netvm_remote_close(words));
    OK(netvm_region_close(region));
    OK(netvm_port_close(port));
    OK(netvm_node_close(node));
}

int main(void)
{
    return two_processes(server, client);
}
