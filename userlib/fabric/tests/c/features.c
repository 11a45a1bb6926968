/* What the manual pages of libfabric say of what few programs use: keys and addresses of the provider (FI_MR_BASIC), poll sets, event
 * queues, addresses that come and go, FI_MORE, FI_DELIVERY_COMPLETE of messages, messages that are claimed. */
#include "side.h"

enum { LONG = 200000 };

/* Nothing completes on a queue for a while. */
static void silent_(struct fid_cq *cq)
{
    struct fi_cq_tagged_entry entry;
    double until = now() + 0.05;
    while (now() < until) {
        ssize_t got = fi_cq_read(cq, &entry, 1);
        CHECK(got == -FI_EAGAIN, "a completion comes too early: %zd", got);
        look();
    }
}

#define silent(cq) (line_now = __LINE__, silent_(cq))

/* fi_mr(3), FI_MR_BASIC: the provider chooses keys, and targets are addresses. */
static void keys_of_the_provider(void)
{
    static uint64_t words[1024];
    struct fid_mr *mr, *second;
    struct {
        uint64_t key, second, start;
    } mine, theirs;
    uint64_t in[4] = {0}, one = 1;
    int context;
    CHECK(side.info->domain_attr->mr_mode == FI_MR_BASIC, "mr_mode %x", side.info->domain_attr->mr_mode);
    for (int at = 0; at < 1024; at++)
        words[at] = (uint64_t)at * 10 + (uint64_t)side.number;
    /* The key that is asked for says nothing, so the same one may be asked for twice. */
    WORKS(fi_mr_reg(side.domain, words, sizeof words / 2, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 7, 0, &mr, NULL));
    WORKS(fi_mr_reg(side.domain, words + 512, sizeof words / 2, FI_REMOTE_READ, 0, 7, 0, &second, NULL));
    mine.key = fi_mr_key(mr);
    mine.second = fi_mr_key(second);
    mine.start = (uint64_t)(uintptr_t)words;
    CHECK(mine.key != mine.second, "two regions with one key");
    swap(&mine, &theirs, sizeof mine);
    POSTED(fi_read(side.ep, in, sizeof in, fi_mr_desc(mr), side.other, theirs.start + 80, theirs.key, &context));
    ends(side.tx, &context);
    CHECK(in[0] == 100 + 1 - (uint64_t)side.number, "another word: %ld", (long)in[0]);
    POSTED(fi_read(side.ep, in, sizeof in, NULL, side.other, theirs.start + 4096, theirs.second, &context));
    ends(side.tx, &context);
    CHECK(in[0] == 5120 + 1 - (uint64_t)side.number, "another word of the second region: %ld", (long)in[0]);
    meet();
    in[0] = 4711;
    POSTED(fi_write(side.ep, in, 8, NULL, side.other, theirs.start, theirs.key, &context));
    ends(side.tx, &context);
    POSTED(fi_atomic(side.ep, &one, 1, NULL, side.other, theirs.start + 8, theirs.key, FI_UINT64, FI_SUM, &context));
    ends(side.tx, &context);
    meet();
    CHECK(words[0] == 4711 && words[1] == 11 + (uint64_t)side.number, "words %ld, %ld", (long)words[0], (long)words[1]);
    /* Before its beginning, behind its end, an offset instead of an address, what it does not allow. */
    POSTED(fi_read(side.ep, in, 8, NULL, side.other, theirs.start + 4088, theirs.second, &context));
    CHECK(fails(side.tx, &context).err == FI_EACCES, "before its beginning");
    POSTED(fi_read(side.ep, in, 16, NULL, side.other, theirs.start + 4088, theirs.key, &context));
    CHECK(fails(side.tx, &context).err == FI_EACCES, "beyond its end");
    POSTED(fi_read(side.ep, in, 8, NULL, side.other, 0, theirs.key, &context));
    CHECK(fails(side.tx, &context).err == FI_EACCES, "an offset");
    POSTED(fi_write(side.ep, in, 8, NULL, side.other, theirs.start + 4096, theirs.second, &context));
    CHECK(fails(side.tx, &context).err == FI_EACCES, "a write where only reads are allowed");
    meet();
    WORKS(fi_close(&mr->fid));
    WORKS(fi_close(&second->fid));
}

/* A key that is closed may name other memory after it, of another length. */
static void keys_again(void)
{
    enum { MOST = 20000 };
    static unsigned char rooms[4][MOST], in[MOST];
    uint64_t one = 1, old;
    int context;
    for (int round = 0; round < 8; round++) {
        unsigned char *room = rooms[round % 4];
        size_t len = round % 2 ? MOST : MOST / 2;
        struct fid_mr *mr;
        memset(room, 10 * round + side.number, MOST);
        WORKS(fi_mr_reg(side.domain, room, len, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 700, 0, &mr, NULL));
        meet();
        /* By each kind of operation first. */
        if (round % 4 == 0) {
            POSTED(fi_read(side.ep, in, len, NULL, side.other, 0, 700, &context));
            ends(side.tx, &context);
            CHECK(in[0] == 10 * round + 1 - side.number && in[len - 1] == in[0], "round %d: bytes of another round", round);
        } else if (round % 4 == 1) {
            memset(in, 200 + round, sizeof in);
            POSTED(fi_write(side.ep, in, len, NULL, side.other, 0, 700, &context));
            ends(side.tx, &context);
        } else if (round % 4 == 2) {
            POSTED(fi_fetch_atomic(side.ep, &one, 1, NULL, &old, NULL, side.other, 8, 700, FI_UINT64, FI_SUM, &context));
            ends(side.tx, &context);
            CHECK((old & 0xFF) == (uint64_t)(10 * round + 1 - side.number), "round %d: %lx", round, (long)old);
        } else {
            POSTED(fi_inject_write(side.ep, "injected", 8, side.other, len - 8, 700));
            POSTED(fi_read(side.ep, in, 8, NULL, side.other, 100, 700, &context));
            ends(side.tx, &context);
        }
        meet();
        double until = now() + 10;
        while (round % 4 == 3 && ((volatile unsigned char *)room)[len - 8] != 'i' && now() < until)
            look();
        CHECK(round % 4 != 1 || (room[0] == 200 + round && room[len - 1] == room[0]), "round %d: a write went elsewhere", round);
        CHECK(round % 4 != 3 || memcmp(room + len - 8, "injected", 8) == 0, "round %d: an injected write went elsewhere", round);
        meet();
        WORKS(fi_close(&mr->fid));
        meet();
    }
}

/* fi_poll(3). */
static void poll_sets(void)
{
    enum { CQ = 1, COUNTER = 2, MOST = 4 };
    struct fid_poll *set;
    struct fid_cq *cq;
    struct fid_cntr *counter;
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT};
    struct fi_cntr_attr cntr_attr = {.events = FI_CNTR_EVENTS_COMP};
    struct fi_poll_attr attr = {0}, odd = {.flags = 1};
    void *found[MOST] = {0};
    char here[8] = "nothing", mine[256] = {0};
    size_t len = sizeof mine;
    int contexts[2];
    struct fid_ep *ep;
    fi_addr_t self;
    /* An endpoint of its own, that sends to itself. */
    WORKS(fi_cq_open(side.domain, &cq_attr, &cq, &contexts[0]));
    WORKS(fi_cntr_open(side.domain, &cntr_attr, &counter, &contexts[1]));
    WORKS(fi_endpoint(side.domain, side.info, &ep, NULL));
    WORKS(fi_ep_bind(ep, &side.av->fid, 0));
    WORKS(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    WORKS(fi_ep_bind(ep, &counter->fid, FI_RECV));
    WORKS(fi_enable(ep));
    WORKS(fi_getname(&ep->fid, mine, &len));
    CHECK(fi_av_insert(side.av, mine, 1, &self, 0, NULL) == 1, "the own address");

    REFUSED(fi_poll_open(side.domain, &odd, &set), FI_EINVAL);
    WORKS(fi_poll_open(side.domain, &attr, &set));
    REFUSED(fi_poll_add(set, &side.av->fid, 0), FI_EINVAL);
    REFUSED(fi_poll_add(set, &cq->fid, 1), FI_EINVAL);
    WORKS(fi_poll_add(set, &cq->fid, 0));
    REFUSED(fi_close(&cq->fid), FI_EBUSY);
    CHECK(fi_poll(set, found, MOST) == 0, "nothing has happened");
    WORKS(fi_poll_add(set, &counter->fid, 0));
    CHECK(fi_poll(set, found, MOST) == 0, "nothing has happened to the counter");
    WORKS(fi_recv(ep, here, sizeof here, NULL, FI_ADDR_UNSPEC, NULL));
    double until = now() + 10;
    long posted;
    while ((posted = fi_inject(ep, "an event", 8, self)) == -FI_EAGAIN && now() < until)
        fi_cq_read(cq, NULL, 0);
    WORKS(posted);
    /* It makes the provider work; and where only one fits, the other one comes with the next call. */
    int seen = 0;
    while (seen != (CQ | COUNTER)) {
        int count = fi_poll(set, found, 1);
        CHECK(count >= 0 && count <= 1, "fi_poll: %d", count);
        if (count == 1) {
            CHECK(found[0] == &contexts[0] || found[0] == &contexts[1], "another context");
            seen |= found[0] == &contexts[0] ? CQ : COUNTER;
        }
        if (seen & CQ) {
            struct fi_cq_entry entry;
            fi_cq_read(cq, &entry, 1);
        }
        CHECK(now() < until, "an event is lost: %d", seen);
    }
    CHECK(fi_cntr_read(counter) == 1 && memcmp(here, "an event", 8) == 0, "the message");
    CHECK(fi_poll(set, found, MOST) == 0, "all was told");
    /* What the program does to its counter itself is no news to it. */
    WORKS(fi_cntr_add(counter, 5));
    CHECK(fi_poll(set, found, MOST) == 0, "fi_cntr_add is told");
    WORKS(fi_cntr_set(counter, 2));
    CHECK(fi_poll(set, found, MOST) == 0, "fi_cntr_set is told");
    WORKS(fi_poll_del(set, &cq->fid, 0));
    REFUSED(fi_poll_del(set, &cq->fid, 0), FI_EINVAL);
    REFUSED(fi_close(&set->fid), FI_EBUSY);
    WORKS(fi_poll_del(set, &counter->fid, 0));
    WORKS(fi_close(&set->fid));
    WORKS(fi_close(&ep->fid));
    WORKS(fi_close(&cq->fid));
    WORKS(fi_close(&counter->fid));
    WORKS(fi_av_remove(side.av, &self, 1, 0));
}

/* fi_eq(3). */
static void event_queues(void)
{
    struct fid_eq *eq;
    struct fi_eq_attr attr = {.wait_obj = FI_WAIT_FD, .flags = FI_WRITE};
    struct fi_eq_entry in = {.context = &attr, .data = 42}, out = {0};
    uint32_t event = 0;
    int descriptor;
    WORKS(fi_eq_open(side.fabric, &attr, &eq, NULL));
    REFUSED(fi_eq_read(eq, &event, &out, sizeof out, 0), FI_EAGAIN);
    double before = now();
    REFUSED(fi_eq_sread(eq, &event, &out, sizeof out, 30, 0), FI_EAGAIN);
    CHECK(now() - before > 0.025 && now() - before < 5, "it waits %f s", now() - before);
    WORKS(fi_control(&eq->fid, FI_GETWAIT, &descriptor));
    struct fid *fids[] = {&eq->fid};
    struct pollfd polled = {.fd = descriptor, .events = POLLIN};
    WORKS(fi_trywait(side.fabric, fids, 1));
    CHECK(poll(&polled, 1, 0) == 0, "its descriptor tells of nothing");
    CHECK(fi_eq_write(eq, FI_NOTIFY, &in, sizeof in, 0) == sizeof in, "fi_eq_write");
    CHECK(poll(&polled, 1, 1000) == 1, "its descriptor does not tell");
    REFUSED(fi_trywait(side.fabric, fids, 1), FI_EAGAIN);
    REFUSED(fi_eq_read(eq, &event, &out, 4, 0), FI_ETOOSMALL);
    CHECK(fi_eq_read(eq, &event, &out, sizeof out, FI_PEEK) == sizeof out && event == FI_NOTIFY, "peek");
    event = 0;
    CHECK(fi_eq_sread(eq, &event, &out, sizeof out, -1, 0) == sizeof out && event == FI_NOTIFY, "sread");
    CHECK(out.context == &attr && out.data == 42, "another event");
    REFUSED(fi_eq_read(eq, &event, &out, sizeof out, 0), FI_EAGAIN);
    struct fi_eq_err_entry none = {0};
    REFUSED(fi_eq_readerr(eq, &none, 0), FI_EAGAIN);
    /* What is bound stays open. */
    struct fid_ep *ep;
    WORKS(fi_endpoint(side.domain, side.info, &ep, NULL));
    WORKS(fi_ep_bind(ep, &eq->fid, 0));
    REFUSED(fi_close(&eq->fid), FI_EBUSY);
    WORKS(fi_close(&ep->fid));
    WORKS(fi_close(&eq->fid));
}

/* fi_av(3), FI_EVENT: an error for each address that is none, and then the end of the whole. */
static void addresses_with_events(void)
{
    struct fid_eq *eq;
    struct fid_av *av;
    struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .flags = FI_EVENT};
    struct fi_eq_entry entry;
    struct fi_eq_err_entry bad = {0};
    char three[3 * 256] = {0}, name[256];
    size_t len = sizeof name;
    fi_addr_t indices[3];
    uint32_t event;
    int context;
    WORKS(fi_getname(&side.ep->fid, name, &len));
    memcpy(three, name, len);
    memcpy(three + 2 * len, name, len);
    three[3 * len - 1] ^= 1;
    WORKS(fi_eq_open(side.fabric, &eq_attr, &eq, NULL));
    WORKS(fi_av_open(side.domain, &av_attr, &av, NULL));
    REFUSED(fi_av_insert(av, three, 3, indices, 0, &context), FI_ENOEQ);
    REFUSED(fi_av_bind(av, &eq->fid, 1), FI_EINVAL);
    WORKS(fi_av_bind(av, &eq->fid, 0));
    WORKS(fi_av_insert(av, three, 3, indices, 0, &context));
    REFUSED(fi_eq_sread(eq, &event, &entry, sizeof entry, 1000, 0), FI_EAVAIL);
    CHECK(fi_eq_readerr(eq, &bad, 0) == sizeof bad, "fi_eq_readerr");
    CHECK(bad.fid == &av->fid && bad.context == &context && bad.data == 1 && bad.err == FI_EINVAL, "%ld, %d", (long)bad.data, bad.err);
    CHECK(fi_eq_sread(eq, &event, &entry, sizeof entry, 1000, 0) == sizeof entry, "no event");
    CHECK(event == FI_AV_COMPLETE && entry.fid == &av->fid && entry.context == &context && entry.data == 2, "event %d", event);
    CHECK(indices[0] == 0 && indices[1] == FI_ADDR_NOTAVAIL && indices[2] == 2, "indices %ld, %ld", (long)indices[0], (long)indices[2]);
    WORKS(fi_close(&av->fid));
    WORKS(fi_close(&eq->fid));
}

/* fi_av(3): addresses are removed, inserted again, shown. */
static void addresses(void)
{
    char name[256], theirs[256] = {0}, again[256] = {0}, text[128];
    size_t len = sizeof name, room = sizeof text;
    int errors[2] = {-1, -1}, context, received;
    char two[2 * 256] = {0}, here[8];
    fi_addr_t indices[2], from;
    WORKS(fi_getname(&side.ep->fid, name, &len));
    swap(name, theirs, len);
    REFUSED(fi_av_remove(side.av, &side.other, 1, 1), FI_EINVAL);
    size_t size = sizeof again;
    WORKS(fi_av_lookup(side.av, side.other, again, &size));
    CHECK(size == len && memcmp(again, theirs, len) == 0, "another address is looked up");
    size = 4;
    WORKS(fi_av_lookup(side.av, side.other, again, &size));
    CHECK(size == len, "an address has %zu bytes", size);
    CHECK(strstr(fi_av_straddr(side.av, theirs, text, &room), "netvm://") == text, "%s", text);
    CHECK(room == strlen(text) + 1, "%zu bytes of text", room);
    memcpy(two, theirs, len);
    WORKS(fi_av_remove(side.av, &side.other, 1, 0));
    REFUSED(fi_av_remove(side.av, &side.other, 1, 0), FI_EINVAL);
    REFUSED(fi_av_lookup(side.av, side.other, again, &size), FI_EINVAL);
    REFUSED(fi_send(side.ep, here, 8, NULL, side.other, &context), FI_EINVAL);
    CHECK(fi_av_insert(side.av, two, 2, indices, FI_SYNC_ERR, errors) == 1, "one of two");
    CHECK(errors[0] == 0 && errors[1] == FI_EINVAL && indices[1] == FI_ADDR_NOTAVAIL, "%d, %d", errors[0], errors[1]);
    CHECK(indices[0] == side.other, "not the lowest index that is free: %ld", (long)indices[0]);
    side.other = indices[0];
    meet();
    /* The connection that there was has its new name. */
    WORKS(fi_recv(side.ep, here, sizeof here, NULL, side.other, &received));
    POSTED(fi_send(side.ep, "the same", 8, NULL, side.other, &context));
    ends(side.tx, &context);
    CHECK(completion(side.rx, &from).op_context == &received && from == side.other, "from %ld", (long)from);
    meet();
}

/* FI_MORE: a hint, and nothing waits for ever for what does not come. */
static void more(void)
{
    enum { MANY = 20 };
    static unsigned char in[MANY][64], target[MANY * 8];
    static int contexts[MANY], received[MANY];
    struct fid_mr *mr;
    uint64_t mine, theirs;
    WORKS(fi_mr_reg(side.domain, target, sizeof target, FI_REMOTE_WRITE, 0, 500 + (uint64_t)side.number, 0, &mr, NULL));
    mine = fi_mr_key(mr);
    swap(&mine, &theirs, sizeof mine);
    for (int at = 0; at < MANY; at++) {
        struct iovec iov = {in[at], sizeof in[at]};
        struct fi_msg message = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &received[at]};
        WORKS(fi_recvmsg(side.ep, &message, at + 1 < MANY ? FI_MORE : 0));
    }
    meet();
    for (int at = 0; at < MANY; at++) {
        unsigned char out[64];
        memset(out, at + 1, sizeof out);
        struct iovec iov = {out, sizeof out};
        struct fi_msg message = {.msg_iov = &iov, .iov_count = 1, .addr = side.other, .context = &contexts[at]};
        POSTED(fi_sendmsg(side.ep, &message, FI_INJECT | FI_MORE));
    }
    for (int at = 0; at < MANY; at++)
        ends(side.tx, &contexts[at]);
    for (int at = 0; at < MANY; at++) {
        ends(side.rx, &received[at]);
        CHECK(in[at][0] == at + 1 && in[at][63] == at + 1, "message %d", at);
    }
    meet();
    static uint64_t words[MANY];
    uint64_t start = side.info->domain_attr->mr_mode == FI_MR_BASIC ? (uint64_t)(uintptr_t)target : 0;
    swap(&start, &start, sizeof start);
    for (uint64_t at = 0; at < MANY; at++) {
        words[at] = at * 3 + 1;
        struct iovec iov = {&words[at], 8};
        struct fi_rma_iov remote = {start + at * 8, 8, theirs};
        struct fi_msg_rma message = {.msg_iov = &iov, .iov_count = 1, .addr = side.other, .rma_iov = &remote, .rma_iov_count = 1, .context = &contexts[at]};
        POSTED(fi_writemsg(side.ep, &message, at + 1 < MANY ? FI_MORE : 0));
    }
    for (int at = 0; at < MANY; at++)
        completion(side.tx, NULL);
    meet();
    for (uint64_t at = 0; at < MANY; at++)
        CHECK(((uint64_t *)target)[at] == at * 3 + 1, "write %d", (int)at);
    meet();
    WORKS(fi_close(&mr->fid));
}

/* One message, with or without a tag. */
static void sent(const void *out, size_t len, int with_tag, uint64_t flags, void *context)
{
    struct iovec iov = {(void *)out, len};
    struct fi_msg message = {.msg_iov = &iov, .iov_count = 1, .addr = side.other, .context = context};
    struct fi_msg_tagged tagged = {.msg_iov = &iov, .iov_count = 1, .addr = side.other, .tag = 5, .context = context};
    if (flags == 0 && with_tag)
        POSTED(fi_tsend(side.ep, out, len, NULL, side.other, 5, context));
    else if (flags == 0)
        POSTED(fi_send(side.ep, out, len, NULL, side.other, context));
    else if (with_tag)
        POSTED(fi_tsendmsg(side.ep, &tagged, flags));
    else
        POSTED(fi_sendmsg(side.ep, &message, flags));
}

/* FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE: not before the message is in its buffer. FI_TRANSMIT_COMPLETE, for what is short: before. */
static void delivered(void)
{
    static const size_t sizes[] = {0, 8, 4000, LONG};
    static unsigned char out[LONG], in[LONG];
    int context, received;
    /* With 0, those of the endpoint. */
    uint64_t levels[] = {FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE, 0};
    size_t count = asked.tx_flags & FI_DELIVERY_COMPLETE ? 3 : 2;
    memset(out, 0x77, sizeof out);
    for (size_t level = 0; level < count; level++)
        for (size_t at = 0; at < 4; at++)
            for (int with_tag = 0; with_tag < 2; with_tag++) {
                meet();
                if (side.number == 0) {
                    sent(out, sizes[at], with_tag, levels[level], &context);
                    silent(side.tx);
                    meet();
                    ends(side.tx, &context);
                } else {
                    memset(in, 0, sizeof in);
                    meet();
                    if (with_tag)
                        WORKS(fi_trecv(side.ep, in, sizeof in, NULL, side.other, 5, 0, &received));
                    else
                        WORKS(fi_recv(side.ep, in, sizeof in, NULL, side.other, &received));
                    CHECK(ends(side.rx, &received).len == sizes[at] && memcmp(in, out, sizes[at]) == 0, "other bytes");
                }
            }
    meet();
    if (side.number == 0) {
        sent(out, 8, 1, FI_TRANSMIT_COMPLETE, &context);
        ends(side.tx, &context);
        sent(out, 8, 1, FI_DELIVERY_COMPLETE, &context);
        meet();
        /* One that is thrown away was delivered. */
        ends(side.tx, &context);
    } else {
        meet();
        WORKS(fi_trecv(side.ep, in, 8, NULL, side.other, 5, 0, &received));
        ends(side.rx, &received);
        struct fi_msg_tagged discard = {.addr = side.other, .tag = 5, .context = &received};
        found(&discard, FI_DISCARD);
    }
    meet();
}

/* FI_CLAIM: a message that was claimed is no one else's, and what becomes of it where its sender closes. */
static void claimed(void)
{
    static unsigned char out[LONG], in[LONG];
    struct fi_context contexts[3];
    char text[8];
    int context, received;
    memset(out, 0x31, sizeof out);
    if (side.number == 0) {
        struct fid_ep *ep;
        POSTED(fi_tinject(side.ep, "the first", 8, side.other, 9));
        POSTED(fi_tinject(side.ep, "a second", 8, side.other, 9));
        sent(out, LONG, 1, 0, &context);
        meet();
        ends(side.tx, &context);
        WORKS(fi_endpoint(side.domain, side.info, &ep, NULL));
        WORKS(fi_ep_bind(ep, &side.av->fid, 0));
        WORKS(fi_ep_bind(ep, &side.tx->fid, FI_TRANSMIT));
        WORKS(fi_ep_bind(ep, &side.rx->fid, FI_RECV));
        WORKS(fi_enable(ep));
        POSTED(fi_tinject(ep, "of a ghost", 8, side.other, 10));
        POSTED(fi_tsend(ep, out, LONG, NULL, side.other, 11, &context));
        meet();
        /* Both were claimed. */
        WORKS(fi_close(&ep->fid));
        meet();
        meet();
        return;
    }
    meet();
    struct fi_msg_tagged peek = {.addr = FI_ADDR_UNSPEC, .tag = 9, .context = &contexts[0]};
    CHECK(found(&peek, FI_CLAIM).len == 8, "the first");
    WORKS(fi_trecv(side.ep, text, 8, NULL, side.other, 9, 0, &received));
    ends(side.rx, &received);
    CHECK(memcmp(text, "a second", 8) == 0, "a receive gets what another one has claimed: %.8s", text);
    struct iovec iov = {text, sizeof text};
    struct fi_msg_tagged claim = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = 9, .context = &contexts[0]};
    WORKS(fi_trecvmsg(side.ep, &claim, FI_CLAIM));
    ends(side.rx, &contexts[0]);
    CHECK(memcmp(text, "the first", 8) == 0, "the first: %.8s", text);
    REFUSED(fi_trecvmsg(side.ep, &claim, FI_CLAIM), FI_EINVAL);
    REFUSED(fi_trecvmsg(side.ep, &claim, FI_DISCARD), FI_EBADFLAGS);
    /* A long one, whose bytes are fetched with the claim; it is thrown away. */
    peek.tag = 5;
    peek.context = &contexts[2];
    CHECK(found(&peek, FI_CLAIM).len == LONG, "the long one");
    WORKS(fi_trecvmsg(side.ep, &peek, FI_CLAIM | FI_DISCARD));
    ends(side.rx, &contexts[2]);
    /* Of an endpoint that closes: the bytes of the short one are here, those of the long one are not. */
    for (int at = 0; at < 2; at++) {
        peek.tag = 10 + (uint64_t)at;
        peek.context = &contexts[at];
        found(&peek, FI_CLAIM);
    }
    meet();
    meet();
    /* The farewell is here with the next message of the other side at the latest; it came before. */
    silent(side.rx);
    claim.context = &contexts[0];
    WORKS(fi_trecvmsg(side.ep, &claim, FI_CLAIM));
    ends(side.rx, &contexts[0]);
    CHECK(memcmp(text, "of a ghost", 8) == 0, "a short one of an endpoint that has closed: %.8s", text);
    iov.iov_base = in;
    iov.iov_len = sizeof in;
    claim.context = &contexts[1];
    WORKS(fi_trecvmsg(side.ep, &claim, FI_CLAIM));
    CHECK(fails(side.rx, &contexts[1]).err == FI_ECONNRESET, "a long one of an endpoint that has closed");
    REFUSED(fi_trecvmsg(side.ep, &claim, FI_CLAIM), FI_EINVAL);
    meet();
}

/* FI_MULTI_RECV: a buffer is given back when nothing more comes to it, whatever comes late. */
static void given_back_last(void)
{
    enum { SMALL = 100 };
    static unsigned char out[LONG], room[LONG + SMALL];
    int contexts[2], received;
    size_t least = 64;
    memset(out, 0x42, sizeof out);
    if (side.number == 0) {
        meet();
        POSTED(fi_send(side.ep, out, LONG, NULL, side.other, &contexts[0]));
        POSTED(fi_send(side.ep, out, SMALL, NULL, side.other, &contexts[1]));
        completion(side.tx, NULL);
        completion(side.tx, NULL);
        meet();
        return;
    }
    WORKS(fi_setopt(&side.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least));
    struct iovec iov = {room, sizeof room};
    struct fi_msg message = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &received};
    WORKS(fi_recvmsg(side.ep, &message, FI_MULTI_RECV));
    meet();
    for (int at = 0; at < 2; at++) {
        struct fi_cq_tagged_entry entry = ends(side.rx, &received);
        CHECK(entry.len == SMALL || entry.len == LONG, "%zu bytes", entry.len);
        CHECK(memcmp(entry.buf, out, entry.len) == 0, "other bytes");
        CHECK(((entry.flags & FI_MULTI_RECV) != 0) == (at == 1), "given back with completion %d, of %zu bytes", at, entry.len);
    }
    meet();
}

/* Long messages both ways at once: neither side has room while the other one has none. */
static void both_ways(void)
{
    enum { HUGE_ = 2000000, WAYS = 2 };
    unsigned char *out = malloc(HUGE_), *in = calloc(WAYS, HUGE_);
    int contexts[WAYS], received[WAYS];
    for (int round = 0; round < 15; round++) {
        memset(out, 100 * side.number + round, HUGE_);
        memset(in, 0xEE, WAYS * (size_t)HUGE_);
        for (int way = 0; way < WAYS; way++)
            WORKS(fi_trecv(side.ep, in + (size_t)way * HUGE_, HUGE_, NULL, side.other, (uint64_t)way, 0, &received[way]));
        meet();
        for (int way = 0; way < WAYS; way++)
            POSTED(fi_tsend(side.ep, out, HUGE_, NULL, side.other, (uint64_t)way, &contexts[way]));
        for (int way = 0; way < WAYS; way++) {
            completion(side.rx, NULL);
            completion(side.tx, NULL);
        }
        for (size_t at = 0; at < WAYS * (size_t)HUGE_; at++)
            CHECK(in[at] == (unsigned char)(100 * (1 - side.number) + round), "round %d: another byte at %zu", round, at);
        meet();
    }
    free(out);
    free(in);
}

int main(int count, char **arguments)
{
    const char *only = count > 1 ? arguments[1] : NULL;
    static const struct body usual[] = {
        {"keys_again", keys_again},
        {"poll_sets", poll_sets},
        {"event_queues", event_queues},
        {"addresses_with_events", addresses_with_events},
        {"addresses", addresses},
        {"more", more},
        {"delivered", delivered},
        {"claimed", claimed},
        {"given_back_last", given_back_last},
        {"both_ways", both_ways},
    };
    static const struct body basic[] = {
        {"keys_of_the_provider", keys_of_the_provider},
        {"more, with keys of the provider", more},
        {"delivered, by the endpoint's flags", delivered},
    };
    /* In a process of its own: what a process has loaded stays. */
    int status = 1;
    pid_t first = fork();
    if (first == 0)
        exit(run_bodies(usual, sizeof usual / sizeof *usual, only));
    if (waitpid(first, &status, 0) != first || status != 0)
        return 1;
    asked.mr_mode = FI_MR_BASIC;
    asked.tx_flags = FI_DELIVERY_COMPLETE;
    return run_bodies(basic, sizeof basic / sizeof *basic, only);
}
