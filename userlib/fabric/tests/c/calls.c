/* What the manual pages of libfabric say of messages, one-sided operations, atomics, counters and waiting, call by call. */
#include "side.h"

enum { LEN = 200000 };

static unsigned char *bytes(int seed, size_t len)
{
    unsigned char *all = malloc(len);
    for (size_t at = 0; at < len; at++)
        all[at] = (unsigned char)(at * 7 + at / 253 + (size_t)seed);
    return all;
}

/* fi_msg(3): sizes that go in one piece and that do not, from one buffer and from several, injected, with data. */
static void messages(void)
{
    static const size_t sizes[] = {0, 1, 64, 4000, 5000, LEN};
    int context, received;
    for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
        size_t len = sizes[at];
        unsigned char *out = bytes((int)at, len + 1), *in = calloc(len + 1, 1);
        if (side.number == 0) {
            POSTED(fi_send(side.ep, out, len, NULL, side.other, &context));
            struct fi_cq_tagged_entry entry = ends(side.tx, &context);
            CHECK((entry.flags & (FI_SEND | FI_MSG)) == (FI_SEND | FI_MSG), "flags %lx", (long)entry.flags);
            struct iovec parts[2] = {{out, len / 3}, {out + len / 3, len - len / 3}};
            POSTED(fi_sendv(side.ep, parts, NULL, 2, side.other, &context));
            ends(side.tx, &context);
            POSTED(fi_senddata(side.ep, out, len, NULL, 0xABCDEF, side.other, &context));
            ends(side.tx, &context);
            if (len <= side.info->tx_attr->inject_size)
                POSTED(fi_inject(side.ep, out, len, side.other));
        } else {
            fi_addr_t from;
            int rounds = len <= side.info->tx_attr->inject_size ? 4 : 3;
            for (int round = 0; round < rounds; round++) {
                memset(in, 0, len + 1);
                struct iovec parts[2] = {{in, len / 2}, {in + len / 2, len - len / 2}};
                if (round % 2)
                    WORKS(fi_recvv(side.ep, parts, NULL, 2, side.other, &received));
                else
                    WORKS(fi_recv(side.ep, in, len, NULL, FI_ADDR_UNSPEC, &received));
                struct fi_cq_tagged_entry entry = completion(side.rx, &from);
                CHECK(entry.op_context == &received && entry.len == len && from == side.other, "len %zu", entry.len);
                CHECK((entry.flags & FI_RECV) != 0, "flags %lx", (long)entry.flags);
                CHECK(((entry.flags & FI_REMOTE_CQ_DATA) != 0) == (round == 2), "data in round %d", round);
                CHECK(round != 2 || entry.data == 0xABCDEF, "data %lx", (long)entry.data);
                CHECK(memcmp(in, out, len) == 0, "other bytes");
            }
        }
        free(out);
        free(in);
    }
    /* Too long for its buffer. */
    char small[8];
    if (side.number == 0) {
        POSTED(fi_send(side.ep, "much too long", 13, NULL, side.other, &context));
        ends(side.tx, &context);
    } else {
        WORKS(fi_recv(side.ep, small, sizeof small, NULL, side.other, &received));
        struct fi_cq_err_entry bad = fails(side.rx, &received);
        CHECK(bad.err == FI_ETRUNC && bad.olen == 5 && memcmp(small, "much too", 8) == 0, "%d, %zu over", bad.err, bad.olen);
    }
}

/* fi_tagged(3): tags, bits to ignore, messages that come before their receive, peeks and claims, cancelled receives. */
static void tagged(void)
{
    int contexts[4], received;
    char text[16] = {0};
    if (side.number == 0) {
        for (uint64_t tag = 0; tag < 4; tag++)
            POSTED(fi_tsend(side.ep, "abcd" + tag, 1, NULL, side.other, 0x100 + tag, &contexts[tag]));
        for (int tag = 0; tag < 4; tag++)
            ends(side.tx, &contexts[tag]);
        meet();
    } else {
        WORKS(fi_trecv(side.ep, text, 1, NULL, side.other, 0x102, 0, &received));
        CHECK(ends(side.rx, &received).tag == 0x102 && text[0] == 'c', "tag 0x102");
        /* Of those that match the first one. */
        WORKS(fi_trecv(side.ep, text, 1, NULL, FI_ADDR_UNSPEC, 0x101, 0xFE, &received));
        CHECK(ends(side.rx, &received).tag == 0x101 && text[0] == 'b', "odd tags: %c", text[0]);
        /* A peek finds it and leaves it there. */
        struct fi_msg_tagged peek = {.addr = FI_ADDR_UNSPEC, .tag = 0x100, .context = &received};
        struct fi_cq_tagged_entry entry = found(&peek, 0);
        CHECK(entry.len == 1 && entry.tag == 0x100, "peek");
        peek.tag = 0x777;
        WORKS(fi_trecvmsg(side.ep, &peek, FI_PEEK));
        CHECK(fails(side.rx, &received).err == FI_ENOMSG, "a peek at nothing");
        WORKS(fi_trecv(side.ep, text, 1, NULL, side.other, 0, ~0ULL, &received));
        CHECK(ends(side.rx, &received).tag == 0x100 && text[0] == 'a', "any tag");
        WORKS(fi_trecv(side.ep, text, 1, NULL, side.other, 0x103, 0, &received));
        ends(side.rx, &received);
        WORKS(fi_trecv(side.ep, text, 1, NULL, side.other, 0x999, 0, &received));
        WORKS(fi_cancel(&side.ep->fid, &received));
        CHECK(fails(side.rx, &received).err == FI_ECANCELED, "a cancelled receive");
        meet();
    }
}

/* FI_MULTI_RECV: one buffer for many messages. */
static void many_in_one_buffer(void)
{
    enum { MANY = 6, SIZE = 100 };
    int contexts[MANY], received;
    size_t least = SIZE;
    unsigned char *room = calloc(MANY, SIZE);
    if (side.number == 1) {
        WORKS(fi_setopt(&side.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least));
        struct iovec iov = {room, MANY * SIZE};
        struct fi_msg message = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &received};
        WORKS(fi_recvmsg(side.ep, &message, FI_MULTI_RECV));
    }
    meet();
    if (side.number == 0) {
        for (int at = 0; at < MANY; at++) {
            unsigned char *out = bytes(at, SIZE);
            POSTED(fi_send(side.ep, out, SIZE, NULL, side.other, &contexts[at]));
            ends(side.tx, &contexts[at]);
            free(out);
        }
    } else {
        int released = 0;
        for (int at = 0; at < MANY; at++) {
            struct fi_cq_tagged_entry entry = ends(side.rx, &received);
            unsigned char *expected = bytes(at, SIZE);
            CHECK(entry.len == SIZE && entry.buf == room + at * SIZE, "message %d lies elsewhere", at);
            CHECK(memcmp(entry.buf, expected, SIZE) == 0, "message %d has other bytes", at);
            released += (entry.flags & FI_MULTI_RECV) != 0;
            CHECK((released == 1) == (at == MANY - 1), "the buffer is given back with message %d", at);
            free(expected);
        }
    }
    meet();
    free(room);
}

/* fi_rma(3), with counters and data for the other side's queue. */
static void one_sided(void)
{
    unsigned char *mine = bytes(side.number, LEN), *in = calloc(LEN, 1), *theirs = bytes(1 - side.number, LEN);
    struct remote remote;
    struct fid_mr *mr = shared(mine, LEN, 40 + (uint64_t)side.number, &remote);
    int context;
    uint64_t reads = fi_cntr_read(side.read), writes = fi_cntr_read(side.written);
    POSTED(fi_read(side.ep, in, LEN, NULL, side.other, remote.start, remote.key, &context));
    CHECK((ends(side.tx, &context).flags & (FI_RMA | FI_READ)) == (FI_RMA | FI_READ), "flags");
    CHECK(memcmp(in, theirs, LEN) == 0, "a read gives other bytes");
    WORKS(fi_cntr_wait(side.read, reads + 1, 10000));
    meet();
    /* The other side's first half, from two pieces; a word by inject; a word with data. */
    memset(in, 0x5A, LEN);
    struct iovec parts[2] = {{in, 1000}, {in + 5000, LEN / 2 - 1000}};
    POSTED(fi_writev(side.ep, parts, NULL, 2, side.other, remote.start, remote.key, &context));
    ends(side.tx, &context);
    POSTED(fi_inject_write(side.ep, "injected", 8, side.other, remote.start + LEN - 8, remote.key));
    WORKS(fi_cntr_wait(side.written, writes + 2, 10000));
    POSTED(fi_writedata(side.ep, "with data", 9, NULL, 0x1234, side.other, remote.start + LEN - 100, remote.key, &context));
    ends(side.tx, &context);
    struct fi_cq_tagged_entry told = completion(side.rx, NULL);
    CHECK((told.flags & FI_REMOTE_CQ_DATA) != 0 && told.data == 0x1234, "data %lx, flags %lx", (long)told.data, (long)told.flags);
    CHECK(memcmp(mine + LEN - 100, "with data", 9) == 0, "its data comes before its bytes");
    meet();
    CHECK(mine[0] == 0x5A && mine[LEN / 2 - 1] == 0x5A, "a write did not land");
    CHECK(mine[LEN / 2] == (unsigned char)((LEN / 2) * 7 + LEN / 2 / 253 + (size_t)side.number), "a write went too far");
    CHECK(memcmp(mine + LEN - 8, "injected", 8) == 0, "an injected write did not land");
    /* Beyond the end, a key that is not there, and one whose memory is closed. */
    POSTED(fi_read(side.ep, in, 16, NULL, side.other, remote.start + LEN - 8, remote.key, &context));
    CHECK(fails(side.tx, &context).err == FI_EACCES, "beyond the end");
    POSTED(fi_write(side.ep, in, 16, NULL, side.other, remote.start, 0x4242, &context));
    CHECK(fails(side.tx, &context).err == FI_EKEYREJECTED, "no such key");
    meet();
    WORKS(fi_close(&mr->fid));
    meet();
    POSTED(fi_write(side.ep, in, 16, NULL, side.other, remote.start, remote.key, &context));
    CHECK(fails(side.tx, &context).err == FI_EKEYREJECTED, "a closed key");
    /* What failed keeps nothing from going on. */
    mr = shared(mine, LEN, 60 + (uint64_t)side.number, &remote);
    POSTED(fi_write(side.ep, in, 16, NULL, side.other, remote.start, remote.key, &context));
    ends(side.tx, &context);
    meet();
    WORKS(fi_close(&mr->fid));
    free(mine);
    free(in);
    free(theirs);
}

/* fi_atomic(3): what the provider says is valid works, on both sides at once; the rest is refused. */
static void atomics(void)
{
    enum { TIMES = 300 };
    static uint64_t words[8];
    struct remote remote;
    uint64_t one = 1, old, compare, swap_in;
    int context;
    size_t count = 0;
    memset(words, 0, sizeof words);
    struct fid_mr *mr = shared(words, sizeof words, 80 + (uint64_t)side.number, &remote);
    WORKS(fi_atomicvalid(side.ep, FI_UINT64, FI_SUM, &count));
    CHECK(count > 0, "no operands");
    WORKS(fi_fetch_atomicvalid(side.ep, FI_UINT64, FI_SUM, &count));
    WORKS(fi_compare_atomicvalid(side.ep, FI_UINT64, FI_CSWAP, &count));
    REFUSED(fi_atomicvalid(side.ep, FI_LONG_DOUBLE_COMPLEX, FI_SUM, &count), FI_EOPNOTSUPP);
    REFUSED(fi_atomicvalid(side.ep, FI_UINT64, FI_ATOMIC_OP_LAST, &count), FI_EOPNOTSUPP);
    /* Both change side 0's word: one of them its own. */
    fi_addr_t at = side.number == 0 ? side.self : side.other;
    uint64_t key = side.number == 0 ? fi_mr_key(mr) : remote.key;
    for (int time = 0; time < TIMES; time++) {
        POSTED(fi_fetch_atomic(side.ep, &one, 1, NULL, &old, NULL, at, 0, key, FI_UINT64, FI_SUM, &context));
        ends(side.tx, &context);
        POSTED(fi_atomic(side.ep, &one, 1, NULL, at, 8, key, FI_UINT64, FI_SUM, &context));
        ends(side.tx, &context);
    }
    meet();
    CHECK(side.number == 1 || (words[0] == 2 * TIMES && words[1] == 2 * TIMES), "%ld, %ld", (long)words[0], (long)words[1]);
    if (side.number == 1) {
        compare = 7;
        swap_in = 9;
        POSTED(fi_compare_atomic(side.ep, &swap_in, 1, NULL, &compare, NULL, &old, NULL, side.other, 16, key, FI_UINT64, FI_CSWAP, &context));
        ends(side.tx, &context);
        CHECK(old == 0, "an old value: %ld", (long)old);
        compare = 0;
        POSTED(fi_compare_atomic(side.ep, &swap_in, 1, NULL, &compare, NULL, &old, NULL, side.other, 16, key, FI_UINT64, FI_CSWAP, &context));
        ends(side.tx, &context);
        uint32_t some[3] = {5, 6, 7};
        POSTED(fi_inject_atomic(side.ep, some, 3, side.other, 24, key, FI_UINT32, FI_ATOMIC_WRITE));
        POSTED(fi_fetch_atomic(side.ep, NULL, 1, NULL, &old, NULL, side.other, 16, key, FI_UINT64, FI_ATOMIC_READ, &context));
        ends(side.tx, &context);
        CHECK(old == 9, "read %ld", (long)old);
    }
    meet();
    double until = now() + 10;
    while (side.number == 0 && ((volatile uint64_t *)words)[4] != 7 && now() < until)
        look();
    CHECK(side.number == 1 || (words[2] == 9 && words[3] == (6ULL << 32 | 5) && words[4] == 7), "words");
    meet();
    WORKS(fi_close(&mr->fid));
}

/* fi_trywait and the queue's descriptor; fi_cq_sread. */
static void waits(void)
{
    int context, received;
    char text[8];
    if (side.number == 0) {
        for (int round = 0; round < 20; round++) {
            meet();
            if (round % 4 == 3)
                usleep(20000);
            POSTED(fi_send(side.ep, "tick", 4, NULL, side.other, &context));
            ends(side.tx, &context);
        }
        return;
    }
    int descriptor;
    WORKS(fi_control(&side.rx->fid, FI_GETWAIT, &descriptor));
    for (int round = 0; round < 20; round++) {
        WORKS(fi_recv(side.ep, text, sizeof text, NULL, side.other, &received));
        meet();
        struct fi_cq_tagged_entry entry;
        double until = now() + 10;
        if (round % 2) {
            ssize_t got = fi_cq_sread(side.rx, &entry, 1, NULL, 10000);
            CHECK(got == 1, "fi_cq_sread: %zd", got);
            continue;
        }
        while (fi_cq_read(side.rx, &entry, 1) != 1) {
            struct fid *fids[] = {&side.rx->fid};
            CHECK(now() < until, "its descriptor does not tell");
            if (fi_trywait(side.fabric, fids, 1) == FI_SUCCESS) {
                struct pollfd polled = {.fd = descriptor, .events = POLLIN};
                poll(&polled, 1, 10000);
            }
        }
    }
}

/* An endpoint that sends to itself. */
static void itself(void)
{
    int context, received;
    unsigned char *out = bytes(3, LEN), *in = calloc(LEN, 1);
    static const size_t sizes[] = {8, 4000, LEN};
    for (size_t at = 0; at < 3; at++) {
        WORKS(fi_trecv(side.ep, in, LEN, NULL, side.self, 5, 0, &received));
        POSTED(fi_tsend(side.ep, out, sizes[at], NULL, side.self, 5, &context));
        CHECK(ends(side.rx, &received).len == sizes[at] && memcmp(in, out, sizes[at]) == 0, "other bytes");
        ends(side.tx, &context);
    }
    free(out);
    free(in);
}

/* Bad use is an errno, and nothing is lost by it. */
static void refused(void)
{
    struct fid_mr *mr, *again;
    struct fid_ep *other;
    char text[8];
    int context;
    REFUSED(fi_close(&side.domain->fid), FI_EBUSY);
    REFUSED(fi_close(&side.av->fid), FI_EBUSY);
    REFUSED(fi_close(&side.tx->fid), FI_EBUSY);
    REFUSED(fi_close(&side.fabric->fid), FI_EBUSY);
    REFUSED(fi_send(side.ep, text, 8, NULL, 4711, &context), FI_EINVAL);
    REFUSED(fi_inject(side.ep, text, side.info->tx_attr->inject_size + 1, side.other), FI_EMSGSIZE);
    REFUSED(fi_mr_reg(side.domain, text, 8, 1ULL << 60, 0, 0, 0, &mr, NULL), FI_EINVAL);
    WORKS(fi_mr_reg(side.domain, text, 8, FI_REMOTE_READ, 0, 99, 0, &mr, NULL));
    REFUSED(fi_mr_reg(side.domain, text, 8, FI_REMOTE_READ, 0, 99, 0, &again, NULL), FI_ENOKEY);
    WORKS(fi_close(&mr->fid));
    WORKS(fi_endpoint(side.domain, side.info, &other, NULL));
    REFUSED(fi_send(other, text, 8, NULL, side.other, &context), FI_EOPBADSTATE);
    REFUSED(fi_enable(other), FI_ENOAV);
    WORKS(fi_close(&other->fid));
    struct fi_info *hints = hints_of(FI_MSG), *none = NULL;
    hints->ep_attr->type = FI_EP_DGRAM;
    REFUSED(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &none), FI_ENODATA);
    fi_freeinfo(hints);
}

/* A registration touches nothing: a terabyte of it takes no longer than a page. */
static void huge(void)
{
    struct fid_mr *mr;
    double before = now();
    WORKS(fi_mr_reg(side.domain, (void *)(1UL << 40), 1UL << 40, FI_REMOTE_READ, 0, 123, 0, &mr, NULL));
    WORKS(fi_close(&mr->fid));
    CHECK(now() - before < 0.1, "%f s", now() - before);
}

int main(int count, char **arguments)
{
    static const struct body bodies[] = {
        {"messages", messages}, {"tagged", tagged},   {"many_in_one_buffer", many_in_one_buffer},
        {"one_sided", one_sided}, {"atomics", atomics}, {"waits", waits},
        {"itself", itself},     {"refused", refused}, {"huge", huge},
    };
    return run_bodies(bodies, sizeof bodies / sizeof *bodies, count > 1 ? arguments[1] : NULL);
}
