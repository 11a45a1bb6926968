/* Two processes with an endpoint each, for tests that use the provider through libfabric alone.
 *
 * `run` forks before anything is opened; the parent is side 0. Each body runs in both. A check that fails ends the process, and
 * the other one's test with it. */
#ifndef SIDE_H
#define SIDE_H

#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *body_now = "start";

/* The line of the body that a function here was called from. */
static int line_now;

#define CHECK(holds, ...)                                                                                              \
    do {                                                                                                               \
        if (!(holds)) {                                                                                                \
            fprintf(stderr, "%s, side %d, line %d (%d): %s: ", body_now, side.number, line_now, __LINE__, #holds);                    \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fputc('\n', stderr);                                                                                       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
/* A call that ends with 0. */
#define WORKS(call)                                                                                                    \
    do {                                                                                                               \
        long works_ = (long)(call);                                                                                    \
        CHECK(works_ == 0, "%s: %ld (%s)", #call, works_, fi_strerror((int)-works_));                                  \
    } while (0)
/* A call that is refused with this number. */
#define REFUSED(call, errno_)                                                                                          \
    do {                                                                                                               \
        long refused_ = (long)(call);                                                                                  \
        CHECK(refused_ == -(long)(errno_), "%s: %ld (%s)", #call, refused_, fi_strerror((int)-refused_));              \
    } while (0)
/* An operation, as often as it says that it is to come again. */
#define POSTED(call)                                                                                                   \
    do {                                                                                                               \
        long posted_;                                                                                                  \
        double until_ = now() + 20;                                                                                    \
        while ((posted_ = (long)(call)) == -FI_EAGAIN && now() < until_)                                               \
            look();                                                                                                    \
        CHECK(posted_ == 0, "%s: %ld (%s)", #call, posted_, fi_strerror((int)-posted_));                               \
    } while (0)

static struct {
    int number;
    int socket;
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *tx, *rx;
    struct fid_cntr *written, *read;
    struct fid_ep *ep;
    fi_addr_t other, self;
} side;

/* What a program asks for beside the capabilities. */
static struct {
    uint64_t tx_flags, msg_order;
    int mr_mode;
} asked;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Lets the provider work. */
static void look(void)
{
    fi_cq_read(side.tx, NULL, 0);
    fi_cq_read(side.rx, NULL, 0);
    sched_yield();
}

/* Gives the other side some bytes, and takes as many. */
static void swap(const void *mine, void *theirs, size_t len)
{
    CHECK(send(side.socket, mine, len, 0) == (ssize_t)len, "send");
    double until = now() + 30;
    while (recv(side.socket, theirs, len, MSG_DONTWAIT | MSG_PEEK) < (ssize_t)len) {
        CHECK(now() < until, "the other side does not come");
        look();
    }
    CHECK(recv(side.socket, theirs, len, MSG_WAITALL) == (ssize_t)len, "recv");
}

/* Until the other side is here, too. */
static void meet(void)
{
    char mine = 1, theirs;
    swap(&mine, &theirs, 1);
}

/* The next completion of a queue. */
static inline struct fi_cq_tagged_entry completion_(struct fid_cq *cq, fi_addr_t *from)
{
    struct fi_cq_tagged_entry entry;
    double until = now() + 20;
    for (;;) {
        ssize_t got = fi_cq_readfrom(cq, &entry, 1, from);
        if (got == 1)
            return entry;
        if (got == -FI_EAVAIL) {
            struct fi_cq_err_entry bad = {0};
            fi_cq_readerr(cq, &bad, 0);
            CHECK(0, "an operation failed: %s", fi_strerror(bad.err));
        }
        CHECK(got == -FI_EAGAIN, "fi_cq_read: %zd", got);
        CHECK(now() < until, "no completion comes");
        look();
    }
}

/* The next completion, which belongs to this operation. */
static inline struct fi_cq_tagged_entry ends_(struct fid_cq *cq, void *context)
{
    struct fi_cq_tagged_entry entry = completion_(cq, NULL);
    CHECK(entry.op_context == context, "another operation has ended");
    return entry;
}

/* The next completion is an error. */
static inline struct fi_cq_err_entry fails_(struct fid_cq *cq, void *context)
{
    struct fi_cq_err_entry bad = {0};
    struct fi_cq_tagged_entry entry;
    double until = now() + 20;
    ssize_t got;
    while ((got = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN) {
        CHECK(now() < until, "no error comes");
        look();
    }
    CHECK(got == -FI_EAVAIL, "it has ended well, or %zd", got);
    CHECK(fi_cq_readerr(cq, &bad, 0) == 1, "no error to be read");
    CHECK(bad.op_context == context, "another operation has failed");
    return bad;
}

/* What a look for a message finds (FI_PEEK, and these flags). It may be on its way. */
static inline struct fi_cq_tagged_entry found_(const struct fi_msg_tagged *peek, uint64_t flags)
{
    double until = now() + 20;
    for (;;) {
        struct fi_cq_tagged_entry entry;
        struct fi_cq_err_entry bad = {0};
        ssize_t got;
        WORKS(fi_trecvmsg(side.ep, peek, FI_PEEK | flags));
        while ((got = fi_cq_read(side.rx, &entry, 1)) == -FI_EAGAIN)
            CHECK(now() < until, "a look does not end");
        if (got == 1) {
            CHECK(entry.op_context == peek->context, "another operation has ended");
            return entry;
        }
        CHECK(got == -FI_EAVAIL && fi_cq_readerr(side.rx, &bad, 0) == 1 && bad.err == FI_ENOMSG, "a look fails: %s", fi_strerror(bad.err));
        CHECK(now() < until, "no message comes");
        look();
    }
}

#define found(peek, flags) (line_now = __LINE__, found_(peek, flags))
#define completion(cq, from) (line_now = __LINE__, completion_(cq, from))
#define ends(cq, context) (line_now = __LINE__, ends_(cq, context))
#define fails(cq, context) (line_now = __LINE__, fails_(cq, context))

static struct fi_info *hints_of(uint64_t caps)
{
    struct fi_info *hints = fi_allocinfo();
    hints->caps = caps;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = strdup("netvm");
    hints->domain_attr->mr_mode = asked.mr_mode;
    hints->tx_attr->op_flags = asked.tx_flags;
    hints->tx_attr->msg_order = asked.msg_order;
    return hints;
}

static void open_side(enum fi_av_type av_type)
{
    struct fi_info *hints = hints_of(FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SOURCE | FI_DIRECTED_RECV | FI_MULTI_RECV);
    WORKS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &side.info));
    fi_freeinfo(hints);
    CHECK(strcmp(side.info->fabric_attr->prov_name, "netvm") == 0, "another provider");
    WORKS(fi_fabric(side.info->fabric_attr, &side.fabric, NULL));
    WORKS(fi_domain(side.fabric, side.info, &side.domain, NULL));
    struct fi_av_attr av = {.type = av_type, .count = 4};
    WORKS(fi_av_open(side.domain, &av, &side.av, NULL));
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD, .size = 256};
    WORKS(fi_cq_open(side.domain, &cq, &side.tx, NULL));
    WORKS(fi_cq_open(side.domain, &cq, &side.rx, NULL));
    struct fi_cntr_attr cntr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC};
    WORKS(fi_cntr_open(side.domain, &cntr, &side.written, NULL));
    WORKS(fi_cntr_open(side.domain, &cntr, &side.read, NULL));
    WORKS(fi_endpoint(side.domain, side.info, &side.ep, NULL));
    WORKS(fi_ep_bind(side.ep, &side.av->fid, 0));
    WORKS(fi_ep_bind(side.ep, &side.tx->fid, FI_TRANSMIT));
    WORKS(fi_ep_bind(side.ep, &side.rx->fid, FI_RECV));
    WORKS(fi_ep_bind(side.ep, &side.written->fid, FI_WRITE));
    WORKS(fi_ep_bind(side.ep, &side.read->fid, FI_READ));
    WORKS(fi_enable(side.ep));
    char mine[256] = {0}, theirs[256];
    size_t len = sizeof mine;
    WORKS(fi_getname(&side.ep->fid, mine, &len));
    swap(mine, theirs, sizeof mine);
    CHECK(fi_av_insert(side.av, theirs, 1, &side.other, 0, NULL) == 1, "the other's address");
    CHECK(fi_av_insert(side.av, mine, 1, &side.self, 0, NULL) == 1, "the own address");
}

static void close_side(void)
{
    meet();
    WORKS(fi_close(&side.ep->fid));
    WORKS(fi_close(&side.written->fid));
    WORKS(fi_close(&side.read->fid));
    WORKS(fi_close(&side.tx->fid));
    WORKS(fi_close(&side.rx->fid));
    WORKS(fi_close(&side.av->fid));
    WORKS(fi_close(&side.domain->fid));
    WORKS(fi_close(&side.fabric->fid));
    fi_freeinfo(side.info);
}

/* What one side's memory is known by at the other. */
struct remote {
    uint64_t key, start;
};

static inline struct fid_mr *shared(void *start, size_t len, uint64_t key, struct remote *theirs)
{
    struct fid_mr *mr;
    WORKS(fi_mr_reg(side.domain, start, len, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, key, 0, &mr, NULL));
    struct remote mine = {fi_mr_key(mr), side.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)start : 0};
    swap(&mine, theirs, sizeof mine);
    return mr;
}

struct body {
    const char *name;
    void (*run)(void);
};

/* Goes to a network namespace of its own, if the environment names one for this side: SIDE_0=FILE,ADDRESS. */
static void go_apart(void)
{
    char name[] = "SIDE_0", *apart, *address;
    name[5] = (char)('0' + side.number);
    if ((apart = getenv(name)) == NULL)
        return;
    apart = strdup(apart);
    CHECK((address = strchr(apart, ',')) != NULL, "%s=%s", name, apart);
    *address++ = 0;
    int file = open(apart, O_RDONLY | O_CLOEXEC);
    CHECK(file >= 0 && setns(file, CLONE_NEWNET) == 0, "%s", apart);
    close(file);
    setenv("FI_NETVM_UDP", address, 1);
    setenv("FI_NETVM_NUMBER", side.number == 0 ? "0" : "1", 1);
    setenv("FI_NETVM_INSECURE", "1", 1);
    free(apart);
}

/* Runs those with this name, or all. */
static int run_bodies(const struct body *bodies, size_t count, const char *only)
{
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0)
        return 1;
    /* Or the child writes what waits, too. */
    fflush(NULL);
    pid_t child = fork();
    side.number = child == 0;
    side.socket = sockets[side.number];
    close(sockets[1 - side.number]);
    go_apart();
    for (int type = FI_AV_MAP; type <= FI_AV_TABLE; type++) {
        body_now = "open";
        open_side((enum fi_av_type)type);
        for (size_t at = 0; at < count; at++) {
            if (only != NULL && strcmp(only, bodies[at].name) != 0)
                continue;
            body_now = bodies[at].name;
            meet();
            bodies[at].run();
            if (side.number == 0 && type == FI_AV_TABLE)
                printf("ok: %s\n", body_now);
        }
        body_now = "close";
        close_side();
    }
    if (child == 0)
        exit(0);
    int status;
    waitpid(child, &status, 0);
    return status == 0 ? 0 : 1;
}

#endif
