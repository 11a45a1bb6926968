/* The calls of libfabric's headers that few programs make: the other forms of each operation, what is asked of objects, what ends a wait,
 * and what is not offered, which is answered and not fallen over. */
#include "side.h"

#include <pthread.h>
#include <rdma/fi_collective.h>
#include <sys/mman.h>

enum { LEN = 9000, KEY = 31 };

static unsigned char out[LEN], in[LEN], target[LEN];

static void fill(int seed)
{
    for (size_t at = 0; at < LEN; at++) {
        out[at] = (unsigned char)(at * 5 + at / 251 + (size_t)seed);
        in[at] = 0;
    }
}

/* fi_rma(3): pieces, messages that say what they mean, data for the other side's queue. */
static void forms_of_one_sided_operations(void)
{
    struct remote remote;
    struct fid_mr *mr = shared(target, LEN, KEY, &remote);
    struct iovec two[2] = {{in, 1000}, {in + 1000, LEN - 1000}};
    struct fi_rma_iov there = {remote.start, LEN, remote.key}, short_one = {remote.start, 8, remote.key};
    struct fi_msg_rma message = {.msg_iov = two, .iov_count = 2, .addr = side.other, .rma_iov = &there, .rma_iov_count = 1, .data = 0x77};
    int context;
    message.context = &context;
    fill(side.number);
    struct iovec whole[2] = {{out, 10}, {out + 10, LEN - 10}};
    message.msg_iov = whole;
    POSTED(fi_writemsg(side.ep, &message, FI_REMOTE_CQ_DATA | FI_DELIVERY_COMPLETE));
    ends(side.tx, &context);
    struct fi_cq_tagged_entry told = completion(side.rx, NULL);
    CHECK(told.flags == (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA) && told.data == 0x77, "flags %lx, data %lx", (long)told.flags, (long)told.data);
    /* What the other side wrote here, read back from there. */
    POSTED(fi_readv(side.ep, two, NULL, 2, side.other, remote.start, remote.key, &context));
    ends(side.tx, &context);
    CHECK(memcmp(in, out, LEN) == 0, "fi_readv gives other bytes");
    memset(in, 0, LEN);
    message.msg_iov = two;
    POSTED(fi_readmsg(side.ep, &message, FI_COMPLETION));
    CHECK((ends(side.tx, &context).flags & (FI_RMA | FI_READ)) == (FI_RMA | FI_READ), "flags");
    CHECK(memcmp(in, out, LEN) == 0, "fi_readmsg gives other bytes");
    meet();
    POSTED(fi_inject_writedata(side.ep, "injected", 8, 0x99, side.other, remote.start, remote.key));
    told = completion(side.rx, NULL);
    CHECK((told.flags & FI_REMOTE_CQ_DATA) && told.data == 0x99 && memcmp(target, "injected", 8) == 0, "data %lx", (long)told.data);
    /* The length of both sides is one; one remote piece; no other flags. */
    message.rma_iov = &short_one;
    REFUSED(fi_writemsg(side.ep, &message, 0), FI_EINVAL);
    message.rma_iov = &there;
    message.rma_iov_count = 0;
    REFUSED(fi_readmsg(side.ep, &message, 0), FI_EINVAL);
    message.rma_iov_count = 1;
    REFUSED(fi_writemsg(side.ep, &message, FI_PEEK), FI_EBADFLAGS);
    REFUSED(fi_writemsg(side.ep, NULL, 0), FI_EINVAL);
    meet();
    WORKS(fi_close(&mr->fid));
}

/* fi_msg(3) and fi_tagged(3): pieces, with data, injected with data. */
static void forms_of_messages(void)
{
    enum { FORMS = 5 };
    static const size_t sizes[FORMS] = {LEN, LEN, LEN, 100, 100};
    int context, received;
    fill(9);
    struct iovec sent[3] = {{out, 1}, {out + 1, 4000}, {out + 4001, LEN - 4001}};
    struct iovec got[2] = {{in, 5000}, {in + 5000, LEN - 5000}};
    struct fi_msg plain = {.msg_iov = sent, .iov_count = 3, .addr = side.other, .context = &context, .data = 0xD0};
    if (side.number == 0) {
        POSTED(fi_tsendv(side.ep, sent, NULL, 3, side.other, 1000, &context));
        CHECK((ends(side.tx, &context).flags & (FI_SEND | FI_TAGGED)) == (FI_SEND | FI_TAGGED), "flags");
        POSTED(fi_tsenddata(side.ep, out, LEN, NULL, 0xD1, side.other, 1001, &context));
        ends(side.tx, &context);
        POSTED(fi_sendmsg(side.ep, &plain, FI_REMOTE_CQ_DATA));
        ends(side.tx, &context);
        POSTED(fi_tinjectdata(side.ep, out, 100, 0xD3, side.other, 1003));
        POSTED(fi_injectdata(side.ep, out, 100, 0xD4, side.other));
        /* A message without the flag has no data. */
        POSTED(fi_sendmsg(side.ep, &plain, 0));
        ends(side.tx, &context);
        meet();
        return;
    }
    static const uint64_t data[FORMS] = {0, 0xD1, 0xD0, 0xD3, 0xD4};
    for (int form = 0; form < FORMS; form++) {
        int tagged = form != 2 && form != 4;
        memset(in, 0, LEN);
        if (tagged)
            WORKS(fi_trecvv(side.ep, got, NULL, 2, side.other, 1000 + (uint64_t)form, 0, &received));
        else
            WORKS(fi_recvv(side.ep, got, NULL, 2, side.other, &received));
        struct fi_cq_tagged_entry entry = ends(side.rx, &received);
        CHECK(entry.len == sizes[form] && memcmp(in, out, sizes[form]) == 0, "form %d: %zu bytes", form, entry.len);
        CHECK((entry.flags & (FI_MSG | FI_TAGGED)) == (tagged ? FI_TAGGED : FI_MSG), "form %d: flags %lx", form, (long)entry.flags);
        CHECK(((entry.flags & FI_REMOTE_CQ_DATA) != 0) == (data[form] != 0), "form %d: flags %lx", form, (long)entry.flags);
        CHECK(data[form] == 0 || entry.data == data[form], "form %d: data %lx", form, (long)entry.data);
        CHECK(!tagged || entry.tag == 1000 + (uint64_t)form, "form %d: tag %ld", form, (long)entry.tag);
    }
    WORKS(fi_recv(side.ep, in, LEN, NULL, FI_ADDR_UNSPEC, &received));
    CHECK((ends(side.rx, &received).flags & FI_REMOTE_CQ_DATA) == 0, "data that was not sent");
    meet();
}

/* fi_atomic(3): messages and vectors. */
static void forms_of_atomics(void)
{
    static uint32_t words[8];
    struct remote remote;
    uint32_t ones[4] = {1, 2, 3, 4}, compare[4] = {1, 0, 3, 4}, swap_in[4] = {10, 20, 30, 40}, old[4];
    struct fi_ioc operands[2] = {{ones, 1}, {ones + 1, 3}}, compared[1] = {{compare, 4}}, swapped[1] = {{swap_in, 4}}, results[2] = {{old, 2}, {old + 2, 2}};
    int context;
    memset(words, 0, sizeof words);
    struct fid_mr *mr = shared(words, sizeof words, KEY, &remote);
    struct fi_rma_ioc there = {remote.start, 4, remote.key};
    struct fi_msg_atomic message = {
        .msg_iov = operands, .iov_count = 2, .addr = side.other, .rma_iov = &there, .rma_iov_count = 1, .datatype = FI_UINT32, .op = FI_SUM, .context = &context};
    POSTED(fi_atomicmsg(side.ep, &message, FI_DELIVERY_COMPLETE));
    ends(side.tx, &context);
    meet();
    for (int at = 0; at < 4; at++)
        CHECK(words[at] == (uint32_t)at + 1, "word %d is %u", at, words[at]);
    meet();
    POSTED(fi_compare_atomicv(side.ep, swapped, NULL, 1, compared, NULL, 1, results, NULL, 2, side.other, remote.start, remote.key, FI_UINT32, FI_CSWAP, &context));
    ends(side.tx, &context);
    for (int at = 0; at < 4; at++)
        CHECK(old[at] == (uint32_t)at + 1, "word %d was %u", at, old[at]);
    meet();
    CHECK(words[0] == 10 && words[1] == 2 && words[2] == 30 && words[3] == 40, "%u, %u, %u, %u", words[0], words[1], words[2], words[3]);
    REFUSED(fi_atomicmsg(side.ep, &message, FI_PEEK), FI_EBADFLAGS);
    REFUSED(fi_atomicmsg(side.ep, NULL, 0), FI_EINVAL);
    meet();
    WORKS(fi_close(&mr->fid));
}

/* fi_mr(3): one piece, with any access or none. */
static void regions(void)
{
    static const uint64_t bits[] = {FI_SEND, FI_RECV, FI_READ, FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE};
    struct fid_mr *mr;
    struct iovec two[2] = {{target, 100}, {target + 200, 100}};
    for (unsigned access = 0; access < 1U << 6; access++) {
        struct fi_mr_attr attr = {.mr_iov = two, .iov_count = 1, .requested_key = KEY, .context = &attr};
        for (int bit = 0; bit < 6; bit++)
            attr.access |= access >> bit & 1 ? bits[bit] : 0;
        WORKS(fi_mr_regattr(side.domain, &attr, 0, &mr));
        CHECK(mr->fid.context == &attr && fi_mr_key(mr) == KEY, "key %ld", (long)fi_mr_key(mr));
        WORKS(fi_mr_enable(mr));
        WORKS(fi_close(&mr->fid));
        WORKS(fi_mr_regv(side.domain, two, 1, attr.access, 0, KEY, 0, &mr, NULL));
        WORKS(fi_close(&mr->fid));
    }
    CHECK(side.info->domain_attr->mr_iov_limit == 1, "more pieces than are taken");
    REFUSED(fi_mr_regv(side.domain, two, 2, FI_REMOTE_READ, 0, KEY, 0, &mr, NULL), FI_EINVAL);
    REFUSED(fi_mr_regv(side.domain, NULL, 1, FI_REMOTE_READ, 0, KEY, 0, &mr, NULL), FI_EINVAL);
    REFUSED(fi_mr_regattr(side.domain, NULL, 0, &mr), FI_EINVAL);
    REFUSED(fi_mr_reg(side.domain, target, 8, FI_REMOTE_READ, 8, KEY, 0, &mr, NULL), FI_EINVAL);
    REFUSED(fi_mr_reg(side.domain, target, 8, FI_REMOTE_READ, 0, KEY, FI_PEEK, &mr, NULL), FI_EBADFLAGS);
}

static void *counts_an_error(void *counter)
{
    usleep(20000);
    WORKS(fi_cntr_adderr(counter, 1));
    return NULL;
}

/* fi_cntr(3): values that the program sets; a wait ends with the value, with an error, or with its time. */
static void counters(void)
{
    struct fid_cntr *counter;
    pthread_t thread;
    struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC}, other = {.events = FI_CNTR_EVENTS_COMP + 1};
    REFUSED(fi_cntr_open(side.domain, &other, &counter, NULL), FI_EINVAL);
    WORKS(fi_cntr_open(side.domain, &attr, &counter, NULL));
    WORKS(fi_cntr_set(counter, 5));
    WORKS(fi_cntr_seterr(counter, 10));
    WORKS(fi_cntr_add(counter, 2));
    WORKS(fi_cntr_adderr(counter, 3));
    CHECK(fi_cntr_read(counter) == 7 && fi_cntr_readerr(counter) == 13, "%ld, %ld", (long)fi_cntr_read(counter), (long)fi_cntr_readerr(counter));
    WORKS(fi_cntr_wait(counter, 7, -1));
    double before = now();
    REFUSED(fi_cntr_wait(counter, 8, 30), FI_ETIMEDOUT);
    CHECK(now() - before > 0.025 && now() - before < 5, "it waits %f s", now() - before);
    /* An error that is counted while it waits. */
    CHECK(pthread_create(&thread, NULL, counts_an_error, counter) == 0, "a thread");
    REFUSED(fi_cntr_wait(counter, 8, 20000), FI_EAVAIL);
    pthread_join(thread, NULL);
    CHECK(fi_cntr_read(counter) == 7 && fi_cntr_readerr(counter) == 14, "%ld, %ld", (long)fi_cntr_read(counter), (long)fi_cntr_readerr(counter));
    WORKS(fi_close(&counter->fid));
    /* An operation that fails is one. */
    int context;
    uint64_t errors = fi_cntr_readerr(side.written), value = fi_cntr_read(side.written);
    POSTED(fi_write(side.ep, out, 8, NULL, side.other, 0, 0x4243, &context));
    CHECK(fails(side.tx, &context).err == FI_EKEYREJECTED, "no such key");
    CHECK(fi_cntr_readerr(side.written) == errors + 1 && fi_cntr_read(side.written) == value, "the counts");
}

static void *signals(void *cq)
{
    usleep(20000);
    WORKS(fi_cq_signal(cq));
    return NULL;
}

/* fi_cq(3): what ends a wait; words for errors. */
static void waits_and_words(void)
{
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry bad;
    struct fid_cq *cq;
    struct fi_cq_attr attr = {.wait_obj = FI_WAIT_UNSPEC}, none = {.wait_obj = FI_WAIT_NONE};
    fi_addr_t from;
    pthread_t thread;
    char text[256];
    int context, kind;
    WORKS(fi_cq_open(side.domain, &attr, &cq, NULL));
    double before = now();
    REFUSED(fi_cq_sread(cq, &entry, 1, NULL, 30), FI_EAGAIN);
    CHECK(now() - before > 0.025 && now() - before < 5, "it waits %f s", now() - before);
    /* A signal ends one wait: the next one, or one that is under way. */
    WORKS(fi_cq_signal(cq));
    REFUSED(fi_cq_sread(cq, &entry, 1, NULL, 60000), FI_EAGAIN);
    CHECK(pthread_create(&thread, NULL, signals, cq) == 0, "a thread");
    REFUSED(fi_cq_sreadfrom(cq, &entry, 1, &from, NULL, -1), FI_EAGAIN);
    pthread_join(thread, NULL);
    CHECK(now() - before < 20, "%f s", now() - before);
    WORKS(fi_control(&cq->fid, FI_GETWAITOBJ, &kind));
    CHECK(kind == FI_WAIT_FD, "kind %d", kind);
    REFUSED(fi_control(&cq->fid, FI_GETWAIT, NULL), FI_EINVAL);
    WORKS(fi_close(&cq->fid));
    WORKS(fi_cq_open(side.domain, &none, &cq, NULL));
    REFUSED(fi_cq_sread(cq, &entry, 1, NULL, 10), FI_ENOSYS);
    REFUSED(fi_control(&cq->fid, FI_GETWAIT, &kind), FI_ENOSYS);
    WORKS(fi_close(&cq->fid));
    POSTED(fi_read(side.ep, in, 8, NULL, side.other, 0, 0x4244, &context));
    bad = fails(side.tx, &context);
    const char *words = fi_cq_strerror(side.tx, bad.prov_errno, bad.err_data, text, sizeof text);
    CHECK(words == text && strlen(text) > 3, "an error of the provider in words: %s", words);
    CHECK(strlen(fi_cq_strerror(side.tx, bad.prov_errno, NULL, text, 4)) == 3, "more than there is room for: %s", text);
    CHECK(fi_cq_strerror(side.tx, 12345, NULL, NULL, 0) != NULL, "no words for what is not known");
    struct fid_eq *eq;
    struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
    WORKS(fi_eq_open(side.fabric, &eq_attr, &eq, NULL));
    CHECK(fi_eq_strerror(eq, 0, NULL, text, sizeof text) == text, "no words");
    WORKS(fi_domain_bind(side.domain, &eq->fid, 0));
    WORKS(fi_close(&eq->fid));
}

/* fi_endpoint(3): options, the flags of operations that have none of their own, completions for some operations only. */
static void what_an_endpoint_is_told(void)
{
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_TAGGED};
    size_t least = 4711, len = sizeof least;
    uint64_t flags = FI_TRANSMIT;
    char name[256] = {0}, here[8];
    fi_addr_t self;
    int context, received;
    size_t name_len = sizeof name;
    WORKS(fi_setopt(&side.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least));
    least = 0;
    WORKS(fi_getopt(&side.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, &len));
    CHECK(least == 4711 && len == sizeof least, "%zu", least);
    len = 2;
    REFUSED(fi_getopt(&side.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, &len), FI_ETOOSMALL);
    CHECK(len == sizeof least, "its length");
    REFUSED(fi_setopt(&side.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, 3), FI_EINVAL);
    REFUSED(fi_setopt(&side.ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &least, sizeof least), FI_ENOPROTOOPT);

    WORKS(fi_cq_open(side.domain, &attr, &cq, NULL));
    WORKS(fi_endpoint(side.domain, side.info, &ep, NULL));
    WORKS(fi_ep_bind(ep, &side.av->fid, 0));
    WORKS(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION));
    WORKS(fi_enable(ep));
    WORKS(fi_getname(&ep->fid, name, &name_len));
    CHECK(fi_av_insert(side.av, name, 1, &self, 0, NULL) == 1, "the own address");
    WORKS(fi_control(&ep->fid, FI_GETOPSFLAG, &flags));
    CHECK(flags == asked.tx_flags, "flags %lx", (long)flags);
    /* Neither end of the first message is told, then the sender's, then the receiver's. */
    for (int round = 0; round < 3; round++) {
        flags = FI_TRANSMIT | (round == 1 ? FI_COMPLETION | FI_DELIVERY_COMPLETE : 0);
        WORKS(fi_control(&ep->fid, FI_SETOPSFLAG, &flags));
        flags = FI_RECV | (round == 2 ? FI_COMPLETION : 0);
        WORKS(fi_control(&ep->fid, FI_SETOPSFLAG, &flags));
        flags = FI_TRANSMIT;
        WORKS(fi_control(&ep->fid, FI_GETOPSFLAG, &flags));
        CHECK(flags == (round == 1 ? FI_COMPLETION | FI_DELIVERY_COMPLETE : 0), "flags %lx", (long)flags);
        memset(here, 0, sizeof here);
        WORKS(fi_recv(ep, here, sizeof here, NULL, FI_ADDR_UNSPEC, &received));
        double until = now() + 20;
        long posted;
        while ((posted = fi_send(ep, "selected", 8, NULL, self, &context)) == -FI_EAGAIN && now() < until)
            fi_cq_read(cq, NULL, 0);
        WORKS(posted);
        struct fi_cq_tagged_entry entry;
        void *told = NULL;
        while (now() < until && (((volatile char *)here)[7] != 'd' || (round > 0 && told == NULL))) {
            if (fi_cq_read(cq, &entry, 1) == 1)
                told = entry.op_context;
            sched_yield();
        }
        CHECK(memcmp(here, "selected", 8) == 0, "round %d: no message", round);
        CHECK(told == (round == 0 ? NULL : round == 1 ? &context : &received), "round %d: another end is told", round);
        CHECK(fi_cq_read(cq, &entry, 1) == -FI_EAGAIN, "round %d: more than one end is told", round);
    }
    flags = FI_TRANSMIT | FI_RECV;
    REFUSED(fi_control(&ep->fid, FI_GETOPSFLAG, &flags), FI_EINVAL);
    flags = FI_TRANSMIT | FI_PEEK;
    REFUSED(fi_control(&ep->fid, FI_SETOPSFLAG, &flags), FI_EBADFLAGS);
    REFUSED(fi_control(&ep->fid, FI_SETOPSFLAG, NULL), FI_EINVAL);
    WORKS(fi_close(&ep->fid));
    WORKS(fi_close(&cq->fid));
    WORKS(fi_av_remove(side.av, &self, 1, 0));
}

/* A peer whose address is removed: what it sends goes to any receive; once inserted again, to its own. */
static void a_peer_that_is_not_known(void)
{
    int context, received[2];
    char theirs[256] = {0}, first[8], second[8];
    size_t len = sizeof theirs;
    fi_addr_t from;
    if (side.number == 0) {
        meet();
        POSTED(fi_send(side.ep, "message1", 8, NULL, side.other, &context));
        ends(side.tx, &context);
        POSTED(fi_send(side.ep, "message2", 8, NULL, side.other, &context));
        ends(side.tx, &context);
        meet();
        return;
    }
    WORKS(fi_av_lookup(side.av, side.other, theirs, &len));
    WORKS(fi_av_remove(side.av, &side.other, 1, 0));
    WORKS(fi_recv(side.ep, first, sizeof first, NULL, FI_ADDR_UNSPEC, &received[0]));
    meet();
    struct fi_cq_tagged_entry entry = completion(side.rx, &from);
    CHECK(entry.op_context == &received[0] && from == FI_ADDR_NOTAVAIL && memcmp(first, "message1", 8) == 0, "from %ld", (long)from);
    meet();
    CHECK(fi_av_insert(side.av, theirs, 1, &side.other, 0, NULL) == 1, "inserted again");
    WORKS(fi_recv(side.ep, second, sizeof second, NULL, side.other, &received[1]));
    entry = completion(side.rx, &from);
    CHECK(entry.op_context == &received[1] && from == side.other && memcmp(second, "message2", 8) == 0, "from %ld", (long)from);
}

/* Memory at this side that is gone is an error, and no signal. */
static void memory_that_is_gone(void)
{
    enum { LONG = 8192 };
    static unsigned char room[LONG], here[LONG];
    int context;
    struct remote theirs;
    struct fid_mr *mr = shared(room, sizeof room, KEY + 2, &theirs);
    void *gone = mmap(NULL, LONG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(gone != MAP_FAILED && munmap(gone, LONG) == 0, "a page");
    POSTED(fi_write(side.ep, gone, LONG, NULL, side.other, theirs.start, theirs.key, &context));
    CHECK(fails(side.tx, &context).err == FI_EFAULT, "a write from nowhere");
    POSTED(fi_read(side.ep, gone, LONG, NULL, side.other, theirs.start, theirs.key, &context));
    CHECK(fails(side.tx, &context).err == FI_EFAULT, "a read to nowhere");
    memset(here, 7, sizeof here);
    POSTED(fi_write(side.ep, here, LONG, NULL, side.other, theirs.start, theirs.key, &context));
    completion(side.tx, NULL);
    meet();
    CHECK(room[0] == 7 && room[LONG - 1] == 7, "what is there goes on");
    meet();
    WORKS(fi_close(&mr->fid));
}

/* A domain whose endpoint was closed just now is closed, too, though a thread of the provider may still look for the other side. */
static void a_domain_in_a_hurry(void)
{
    enum { ROUNDS = 20 };
    char theirs[256] = {0};
    size_t len = sizeof theirs;
    WORKS(fi_av_lookup(side.av, side.other, theirs, &len));
    for (int round = 0; round < ROUNDS; round++) {
        struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
        struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
        struct fid_domain *domain;
        struct fid_ep *ep;
        struct fid_av *av;
        struct fid_cq *cq;
        struct fid_cntr *counter;
        struct fi_cntr_attr cntr_attr = {.events = FI_CNTR_EVENTS_COMP};
        fi_addr_t other;
        int context;
        WORKS(fi_domain(side.fabric, side.info, &domain, NULL));
        WORKS(fi_endpoint(domain, side.info, &ep, NULL));
        WORKS(fi_av_open(domain, &av_attr, &av, NULL));
        WORKS(fi_cq_open(domain, &cq_attr, &cq, NULL));
        WORKS(fi_ep_bind(ep, &av->fid, 0));
        WORKS(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
        WORKS(fi_cntr_open(domain, &cntr_attr, &counter, NULL));
        /* As programs do on any endpoint. */
        WORKS(fi_ep_bind(ep, &counter->fid, FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE));
        WORKS(fi_enable(ep));
        CHECK(fi_av_insert(av, theirs, 1, &other, 0, NULL) == 1, "fi_av_insert");
        WORKS(fi_send(ep, "in haste", 8, NULL, other, &context));
        WORKS(fi_close(&ep->fid));
        WORKS(fi_close(&counter->fid));
        WORKS(fi_close(&cq->fid));
        WORKS(fi_close(&av->fid));
        WORKS(fi_close(&domain->fid));
    }
    meet();
}

/* What is not offered is answered. */
static void what_is_not_offered(void)
{
    struct fid_ep *ep = NULL;
    struct fid_pep *pep = NULL;
    struct fid_stx *stx = NULL;
    struct fid_wait *set = NULL;
    struct fid_mr *mr;
    struct fi_wait_attr wait_attr = {.wait_obj = FI_WAIT_FD};
    struct fid *objects[] = {&side.fabric->fid, &side.domain->fid, &side.av->fid, &side.ep->fid, &side.tx->fid, &side.written->fid};
    void *ops = NULL;
    uint64_t key = 0, base = 0;
    size_t len = sizeof key;
    char name[256] = {0};
    fi_addr_t symbol;
    REFUSED(fi_connect(side.ep, name, NULL, 0), FI_ENOSYS);
    REFUSED(fi_accept(side.ep, NULL, 0), FI_ENOSYS);
    REFUSED(fi_shutdown(side.ep, 0), FI_ENOSYS);
    REFUSED(fi_getpeer(side.ep, name, &len), FI_ENOSYS);
    REFUSED(fi_passive_ep(side.fabric, side.info, &pep, NULL), FI_ENOSYS);
    REFUSED(fi_scalable_ep(side.domain, side.info, &ep, NULL), FI_ENOSYS);
    REFUSED(fi_stx_context(side.domain, NULL, &stx, NULL), FI_ENOSYS);
    REFUSED(fi_srx_context(side.domain, NULL, &ep, NULL), FI_ENOSYS);
    REFUSED(fi_tx_context(side.ep, 0, NULL, &ep, NULL), FI_ENOSYS);
    REFUSED(fi_rx_context(side.ep, 0, NULL, &ep, NULL), FI_ENOSYS);
    REFUSED(fi_ep_alias(side.ep, &ep, FI_TRANSMIT), FI_ENOSYS);
    REFUSED(fi_wait_open(side.fabric, &wait_attr, &set), FI_ENOSYS);
    REFUSED(fi_barrier(side.ep, 0, NULL), FI_ENOSYS);
    REFUSED(fi_allreduce(side.ep, out, 1, NULL, in, NULL, 0, FI_UINT64, FI_SUM, 0, NULL), FI_ENOSYS);
    REFUSED(fi_scatter(side.ep, out, 1, NULL, in, NULL, 0, 0, FI_UINT64, 0, NULL), FI_ENOSYS);
    REFUSED(fi_av_insertsym(side.av, "127.0.0.1", 1, "1", 1, &symbol, 0, NULL), FI_ENOSYS);
    REFUSED(fi_mr_map_raw(side.domain, 0, (uint8_t *)&key, sizeof key, &key, 0), FI_ENOSYS);
    REFUSED(fi_mr_unmap_key(side.domain, key), FI_ENOSYS);
    WORKS(fi_mr_reg(side.domain, target, 8, FI_REMOTE_READ, 0, KEY, 0, &mr, NULL));
    REFUSED(fi_mr_raw_attr(mr, &base, (uint8_t *)&key, &len, 0), FI_ENOSYS);
    REFUSED(fi_mr_refresh(mr, NULL, 0, 0), FI_ENOSYS);
    REFUSED(fi_mr_bind(mr, &side.written->fid, FI_REMOTE_WRITE), FI_ENOSYS);
    REFUSED(fi_ep_bind(side.ep, &side.written->fid, FI_REMOTE_WRITE), FI_EOPBADSTATE);
    WORKS(fi_close(&mr->fid));
    for (size_t at = 0; at < sizeof objects / sizeof *objects; at++) {
        REFUSED(fi_open_ops(objects[at], "netvm", 0, &ops, NULL), FI_ENOSYS);
        REFUSED(fi_set_ops(objects[at], "netvm", 0, &ops, NULL), FI_ENOSYS);
        REFUSED(fi_control(objects[at], 12345, &key), FI_ENOSYS);
    }
}

/* A key that names other memory by now, and more writes by what it named than the card has room to tell of one by one: each lands there. */
static void many_writes_by_an_old_key(void)
{
    enum { MANY = 40, LONG = 100000, ROUNDS = 4 };
    static unsigned char rooms[2][MANY][LONG], sent[LONG];
    static int contexts[MANY];
    struct fid_mr *mr;
    for (int round = 0; round < ROUNDS; round++) {
        memset(rooms[round % 2], 0, sizeof rooms[0]);
        WORKS(fi_mr_reg(side.domain, rooms[round % 2], sizeof rooms[0], FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL));
        meet();
        memset(sent, 10 * round + side.number + 1, LONG);
        for (int at = 0; at < MANY; at++)
            POSTED(fi_write(side.ep, sent, LONG, NULL, side.other, (uint64_t)at * LONG, KEY, &contexts[at]));
        for (int at = 0; at < MANY; at++)
            completion(side.tx, NULL);
        meet();
        for (int at = 0; at < MANY; at++)
            for (int byte = 0; byte < LONG; byte++)
                CHECK(rooms[round % 2][at][byte] == 10 * round + 2 - side.number, "round %d, write %d: byte %d is %d", round, at, byte, rooms[round % 2][at][byte]);
        meet();
        WORKS(fi_close(&mr->fid));
        meet();
    }
}

/* A key whose memory is longer each time: an operation of several values does not begin by what the key named before. */
static void memory_that_grows(void)
{
    enum { MOST = 256 };
    static uint64_t words[2][MOST], ones[MOST], old[MOST];
    int context, round = 0;
    struct fid_mr *mr;
    for (int at = 0; at < MOST; at++)
        ones[at] = 1;
    for (size_t count = 1; count <= MOST; count *= 2, round++) {
        size_t bytes = count * sizeof **words;
        memset(words, 0, sizeof words);
        memset(old, 0xff, sizeof old);
        WORKS(fi_mr_reg(side.domain, words[round % 2], bytes, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL));
        meet();
        POSTED(fi_atomic(side.ep, ones, count, NULL, side.other, 0, KEY, FI_UINT64, FI_SUM, &context));
        completion(side.tx, NULL);
        POSTED(fi_fetch_atomic(side.ep, ones, count, NULL, old, NULL, side.other, 0, KEY, FI_UINT64, FI_SUM, &context));
        completion(side.tx, NULL);
        meet();
        for (size_t at = 0; at < count; at++)
            CHECK(words[round % 2][at] == 2 && old[at] == 1, "%zu values, the one at %zu: %ld, %ld", count, at, (long)words[round % 2][at], (long)old[at]);
        POSTED(fi_atomic(side.ep, ones, count, NULL, side.other, sizeof **words, KEY, FI_UINT64, FI_SUM, &context));
        CHECK(fails(side.tx, &context).err == FI_EACCES, "one that does not fit");
        meet();
        CHECK(words[round % 2][count - 1] == 2, "one that does not fit has changed what does");
        meet();
        WORKS(fi_close(&mr->fid));
        meet();
    }
}

/* More regions than a table of the driver has room for if nothing is said, and as many keys of the other side: a program that registers what
 * it sends has thousands. */
static void many_regions(void)
{
    enum { MANY = 3000, FIRST = 1000 };
    static uint64_t words[MANY];
    static struct fid_mr *regions[MANY];
    int context;
    for (uint64_t at = 0; at < MANY; at++) {
        words[at] = 0;
        WORKS(fi_mr_reg(side.domain, &words[at], sizeof *words, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, FIRST + at, 0, &regions[at], NULL));
    }
    meet();
    for (uint64_t at = 0; at < MANY; at++) {
        uint64_t value = at + 7;
        POSTED(fi_write(side.ep, &value, sizeof value, NULL, side.other, 0, FIRST + at, &context));
        ends(side.tx, &context);
    }
    meet();
    for (uint64_t at = 0; at < MANY; at++) {
        CHECK(words[at] == at + 7, "region %ld has %ld", (long)at, (long)words[at]);
        WORKS(fi_close(&regions[at]->fid));
    }
    meet();
}

/* One operation whose key names other memory by now, before many that hold all that the card has room for: all of them end. */
static void an_old_key_before_many(void)
{
    enum { MANY = 3000, LONG = 8000, ROUNDS = 2 };
    static uint64_t words[2][2];
    static unsigned char room[LONG], got[MANY][LONG];
    static int contexts[MANY + 1];
    struct remote steady;
    struct fid_mr *mr, *whole = shared(room, sizeof room, KEY + 1, &steady);
    memset(room, 0x40 + side.number, sizeof room);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t one = 1, old = 4711;
        memset(words, 0, sizeof words);
        WORKS(fi_mr_reg(side.domain, words[round % 2], sizeof words[0], FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL));
        memset(got, 0, sizeof got);
        meet();
        for (int at = 0; at < MANY; at++) {
            if (at == MANY / 3)
                POSTED(fi_fetch_atomic(side.ep, &one, 1, NULL, &old, NULL, side.other, 8, KEY, FI_UINT64, FI_SUM, &contexts[MANY]));
            POSTED(fi_read(side.ep, got[at], LONG, NULL, side.other, steady.start, steady.key, &contexts[at]));
        }
        for (int at = 0; at <= MANY; at++)
            completion(side.tx, NULL);
        for (int at = 0; at < MANY; at++)
            CHECK(got[at][0] == 0x41 - side.number && got[at][LONG - 1] == got[at][0], "round %d, read %d: %x", round, at, got[at][0]);
        meet();
        CHECK(old == 0 && words[round % 2][1] == 1, "round %d: %ld, %ld", round, (long)old, (long)words[round % 2][1]);
        meet();
        WORKS(fi_close(&mr->fid));
        meet();
    }
    WORKS(fi_close(&whole->fid));
}

/* A child of fork has no part in what its parent has opened: each call is answered, and the parent goes on. It may open its own. */
static void a_child(void)
{
    int context, received, status;
    char here[8];
    for (int round = 0; round < 2; round++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            struct fi_cq_tagged_entry entry;
            struct fid_fabric *fabric;
            struct fid_domain *domain;
            struct fid_mr *mr;
            /* Nothing waits for ever. */
            alarm(30);
            if (round == 0)
                exit(0);
            REFUSED(fi_send(side.ep, "of child", 8, NULL, side.other, &context), FI_EBADF);
            REFUSED(fi_inject(side.ep, "of child", 8, side.other), FI_EBADF);
            REFUSED(fi_cq_read(side.rx, &entry, 1), FI_EBADF);
            REFUSED(fi_cq_sread(side.rx, &entry, 1, NULL, -1), FI_EBADF);
            REFUSED(fi_cntr_wait(side.written, 1000000, -1), FI_EBADF);
            REFUSED(fi_mr_reg(side.domain, here, 8, FI_REMOTE_READ, 0, KEY, 0, &mr, NULL), FI_EBADF);
            REFUSED(fi_close(&side.ep->fid), FI_EBADF);
            REFUSED(fi_close(&side.domain->fid), FI_EBADF);
            /* Its parent has that one. */
            unsetenv("FI_NETVM_NUMBER");
            WORKS(fi_fabric(side.info->fabric_attr, &fabric, NULL));
            WORKS(fi_domain(fabric, side.info, &domain, NULL));
            WORKS(fi_mr_reg(domain, here, 8, FI_REMOTE_READ, 0, KEY, 0, &mr, NULL));
            WORKS(fi_close(&mr->fid));
            WORKS(fi_close(&domain->fid));
            WORKS(fi_close(&fabric->fid));
            exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0, "the child: %x", status);
        meet();
        WORKS(fi_recv(side.ep, here, sizeof here, NULL, side.other, &received));
        POSTED(fi_send(side.ep, "goes on.", 8, NULL, side.other, &context));
        ends(side.tx, &context);
        ends(side.rx, &received);
        CHECK(memcmp(here, "goes on.", 8) == 0, "%.8s", here);
        meet();
    }
}

int main(int count, char **arguments)
{
    static const struct body bodies[] = {
        {"forms_of_one_sided_operations", forms_of_one_sided_operations},
        {"forms_of_messages", forms_of_messages},
        {"forms_of_atomics", forms_of_atomics},
        {"regions", regions},
        {"counters", counters},
        {"waits_and_words", waits_and_words},
        {"what_an_endpoint_is_told", what_an_endpoint_is_told},
        {"a_peer_that_is_not_known", a_peer_that_is_not_known},
        {"memory_that_is_gone", memory_that_is_gone},
        {"a_domain_in_a_hurry", a_domain_in_a_hurry},
        {"what_is_not_offered", what_is_not_offered},
        {"many_writes_by_an_old_key", many_writes_by_an_old_key},
        {"memory_that_grows", memory_that_grows},
        {"many_regions", many_regions},
        {"an_old_key_before_many", an_old_key_before_many},
        {"a_child", a_child},
    };
    return run_bodies(bodies, sizeof bodies / sizeof *bodies, count > 1 ? arguments[1] : NULL);
}
