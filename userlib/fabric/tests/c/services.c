/* What the manual pages of libfabric say of nodes and services: an endpoint at an IP address and a port, and programs that know no more
 * of it (fi_getinfo(3), fi_av_insertsvc(3), fi_setname(3)). */
#include "side.h"

#include <arpa/inet.h>
#include <netinet/in.h>

enum { KEY = 77, WORDS = 512 };

/* An endpoint beside those of the sides: it has a domain of its own. */
struct end {
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
};

static long try_open(struct end *end, struct fi_info *info)
{
    struct fi_av_attr av = {.type = FI_AV_MAP};
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED};
    WORKS(fi_domain(side.fabric, info, &end->domain, NULL));
    WORKS(fi_av_open(end->domain, &av, &end->av, NULL));
    WORKS(fi_cq_open(end->domain, &cq, &end->cq, NULL));
    long opened = fi_endpoint(end->domain, info, &end->ep, NULL);
    if (opened != 0)
        return opened;
    WORKS(fi_ep_bind(end->ep, &end->av->fid, 0));
    WORKS(fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV));
    WORKS(fi_enable(end->ep));
    return 0;
}

static void close_end(struct end *end)
{
    if (end->ep != NULL)
        WORKS(fi_close(&end->ep->fid));
    WORKS(fi_close(&end->cq->fid));
    WORKS(fi_close(&end->av->fid));
    WORKS(fi_close(&end->domain->fid));
    memset(end, 0, sizeof *end);
}

/* The next end of one of its operations. */
static void *ended_(struct end *end, fi_addr_t *from)
{
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry bad = {0};
    double until = now() + 20;
    ssize_t got;
    while ((got = fi_cq_readfrom(end->cq, &entry, 1, from)) == -FI_EAGAIN) {
        CHECK(now() < until, "no completion comes");
        sched_yield();
    }
    if (got == -FI_EAVAIL)
        fi_cq_readerr(end->cq, &bad, 0);
    CHECK(got == 1, "%zd: %s", got, fi_strerror(bad.err));
    return entry.op_context;
}

#define ended(end, from) (line_now = __LINE__, ended_(end, from))
/* An operation of it, as often as it is to come again, until it has ended. */
#define DONE(end, call)                                                                                                \
    do {                                                                                                               \
        int context;                                                                                                   \
        long posted_;                                                                                                  \
        while ((posted_ = (long)(call)) == -FI_EAGAIN)                                                                 \
            fi_cq_read((end)->cq, NULL, 0);                                                                            \
        WORKS(posted_);                                                                                                \
        CHECK(ended(end, NULL) == &context, "another operation has ended");                                            \
    } while (0)

/* A text that has no completion. */
#define INJECTED(end, text, to)                                                                                        \
    do {                                                                                                               \
        long posted_;                                                                                                  \
        while ((posted_ = (long)fi_inject((end)->ep, text, sizeof text, to)) == -FI_EAGAIN)                            \
            fi_cq_read((end)->cq, NULL, 0);                                                                            \
        WORKS(posted_);                                                                                                \
    } while (0)

static struct fi_info *infos(const char *node, const char *service, uint64_t flags)
{
    struct fi_info *hints = hints_of(FI_MSG | FI_RMA | FI_SOURCE), *info;
    WORKS(fi_getinfo(FI_VERSION(1, 17), node, service, flags, hints, &info));
    fi_freeinfo(hints);
    CHECK(info->src_addr != NULL && info->src_addrlen > 0, "no source address");
    return info;
}

/* Where side 0 is found. */
static const char *host(void)
{
    static char ip[64] = "127.0.0.1";
    const char *apart = getenv("SIDE_0"), *from, *to;
    if (apart != NULL && (from = strchr(apart, ',')) != NULL && (to = strrchr(from, ':')) != NULL)
        snprintf(ip, sizeof ip, "%.*s", (int)(to - from - 1), from + 1);
    return ip;
}

/* A port that no program has, and both sides know; or a listener that has it. */
static int port_of_both(char *text, size_t room, int *kept)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t len = sizeof address;
    int mine = 0, theirs, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 4) == 0, "a port");
    CHECK(getsockname(listener, (struct sockaddr *)&address, &len) == 0, "a port's number");
    mine = ntohs(address.sin_port);
    if (kept != NULL)
        *kept = listener;
    else
        close(listener);
    swap(&mine, &theirs, sizeof mine);
    snprintf(text, room, "%d", side.number == 0 ? mine : theirs);
    return mine;
}

/* A server is known by its service alone; it learns of its client by the client's first message. */
static void found_by_a_service(void)
{
    static uint64_t words[WORDS], in[WORDS];
    char service[8], text[64] = {0}, name[256] = {0};
    struct end end = {0};
    fi_addr_t client, server, from;
    int received;
    port_of_both(service, sizeof service, NULL);
    if (side.number == 0) {
        struct fid_mr *mr;
        struct fi_info *info = infos(NULL, service, FI_SOURCE);
        CHECK(info->dest_addr == NULL, "a server knows of no client");
        /* The client is there first. */
        usleep(100000);
        WORKS(try_open(&end, info));
        for (int at = 0; at < WORDS; at++)
            words[at] = (uint64_t)at;
        WORKS(fi_mr_reg(end.domain, words, sizeof words, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL));
        WORKS(fi_recv(end.ep, name, sizeof name, NULL, FI_ADDR_UNSPEC, &received));
        CHECK(ended(&end, &from) == &received && from == FI_ADDR_NOTAVAIL, "a client that is not known yet: %ld", (long)from);
        CHECK(fi_av_insert(end.av, name, 1, &client, 0, NULL) == 1, "the client's name");
        for (int round = 0; round < 2; round++) {
            WORKS(fi_recv(end.ep, text, sizeof text, NULL, FI_ADDR_UNSPEC, &received));
            INJECTED(&end, "welcome", client);
            CHECK(ended(&end, &from) == &received && from == client, "from %ld", (long)from);
            CHECK(strcmp(text, "thank you") == 0, "%s", text);
        }
        meet();
        CHECK(words[1] == 4711, "a write: %ld", (long)words[1]);
        WORKS(fi_close(&mr->fid));
        fi_freeinfo(info);
    } else {
        struct fi_info *info = infos(host(), service, 0);
        size_t len = sizeof name;
        WORKS(try_open(&end, info));
        CHECK(fi_av_insert(end.av, info->dest_addr, 1, &server, 0, NULL) == 1, "the server's service");
        WORKS(fi_getname(&end.ep->fid, name, &len));
        WORKS(fi_recv(end.ep, text, sizeof text, NULL, FI_ADDR_UNSPEC, &received));
        DONE(&end, fi_send(end.ep, name, len, NULL, server, &context));
        CHECK(ended(&end, &from) == &received && from == server, "from %ld", (long)from);
        CHECK(strcmp(text, "welcome") == 0, "%s", text);
        INJECTED(&end, "thank you", server);
        DONE(&end, fi_read(end.ep, in, sizeof in, NULL, server, 0, KEY, &context));
        CHECK(in[WORDS - 1] == WORDS - 1, "a word is %ld", (long)in[WORDS - 1]);
        /* What the vector holds is the server's own address. It is removed, and taken in again by its service. */
        WORKS(fi_av_remove(end.av, &server, 1, 0));
        CHECK(fi_av_insertsvc(end.av, host(), service, &server, 0, NULL) == 1, "the server's service once more");
        WORKS(fi_recv(end.ep, text, sizeof text, NULL, FI_ADDR_UNSPEC, &received));
        CHECK(ended(&end, &from) == &received && from == server, "from %ld once more", (long)from);
        INJECTED(&end, "thank you", server);
        in[0] = 4711;
        DONE(&end, fi_write(end.ep, in, 8, NULL, server, 8, KEY, &context));
        meet();
        fi_freeinfo(info);
    }
    meet();
    close_end(&end);
}

/* fi_getinfo(3): each answer has a source, and a target if there is one. */
static void addresses_of_answers(void)
{
    struct fi_info *hints, *info, *again;
    struct sockaddr_in foreign = {.sin_family = AF_INET};
    char text[128];
    size_t room = sizeof text;
    fi_freeinfo(infos(NULL, NULL, 0));
    fi_freeinfo(infos("localhost", NULL, FI_SOURCE));
    fi_freeinfo(infos(NULL, "9228", FI_SOURCE));
    info = infos("localhost", "9228", FI_SOURCE);
    CHECK(strcmp(fi_av_straddr(side.av, info->src_addr, text, &room), "netvm://127.0.0.1:9228") == 0, "%s", text);
    CHECK(info->dest_addr == NULL, "a source is no target");
    /* A source of hints stays while a target is looked up; an answer serves as hints. */
    hints = fi_dupinfo(info);
    WORKS(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "4800", 0, hints, &again));
    CHECK(again->src_addrlen == info->src_addrlen && memcmp(again->src_addr, info->src_addr, info->src_addrlen) == 0, "another source");
    room = sizeof text;
    CHECK(again->dest_addrlen == info->src_addrlen, "%zu bytes", again->dest_addrlen);
    CHECK(strcmp(fi_av_straddr(side.av, again->dest_addr, text, &room), "netvm://127.0.0.1:4800") == 0, "%s", text);
    fi_freeinfo(hints);
    fi_freeinfo(info);
    /* So does an endpoint's own address. */
    hints = hints_of(FI_MSG);
    hints->dest_addr = calloc(1, 256);
    hints->dest_addrlen = 256;
    WORKS(fi_getname(&side.ep->fid, hints->dest_addr, &hints->dest_addrlen));
    WORKS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    CHECK(info->dest_addrlen == hints->dest_addrlen && memcmp(info->dest_addr, hints->dest_addr, info->dest_addrlen) == 0, "another target");
    fi_freeinfo(info);
    /* What there is not. */
    memcpy(hints->dest_addr, &foreign, sizeof foreign);
    hints->dest_addrlen = sizeof foreign;
    REFUSED(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), FI_ENODATA);
    fi_freeinfo(hints);
    hints = hints_of(FI_MSG);
    REFUSED(fi_getinfo(FI_VERSION(1, 17), "localhost", "9228", FI_NUMERICHOST, hints, &info), FI_ENODATA);
    REFUSED(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "no such service", 0, hints, &info), FI_ENODATA);
    hints->fabric_attr->name = strdup("another");
    REFUSED(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), FI_ENODATA);
    fi_freeinfo(hints);
    fi_freeinfo(again);
}

/* One endpoint has a service; the next one, when it has closed. fi_setname(3) gives another one. */
static void in_use(void)
{
    char service[8], name[256] = {0};
    struct end first = {0}, second = {0};
    size_t len = sizeof name;
    fi_addr_t found;
    int port = port_of_both(service, sizeof service, NULL);
    snprintf(service, sizeof service, "%d", port);
    struct fi_info *info = infos("127.0.0.1", service, FI_SOURCE), *other = infos("192.0.2.1", service, FI_SOURCE);
    struct fi_info *none = infos(NULL, NULL, 0);
    WORKS(try_open(&first, info));
    REFUSED(try_open(&second, info), FI_EADDRINUSE);
    close_end(&second);
    /* No address of this machine. */
    REFUSED(try_open(&second, other), FI_EADDRNOTAVAIL);
    close_end(&second);
    close_end(&first);
    WORKS(try_open(&first, info));
    /* Its own one again; an address of an endpoint is none that it could have. What is refused changes nothing. */
    WORKS(fi_setname(&first.ep->fid, info->src_addr, info->src_addrlen));
    CHECK(fi_av_insertsvc(first.av, "127.0.0.1", service, &found, 0, NULL) == 1, "the own service");
    WORKS(fi_getname(&first.ep->fid, name, &len));
    REFUSED(fi_setname(&first.ep->fid, name, len), FI_EOPNOTSUPP);
    REFUSED(fi_setname(&first.ep->fid, name, 7), FI_EINVAL);
    REFUSED(fi_setname(&first.ep->fid, other->src_addr, other->src_addrlen), FI_EADDRNOTAVAIL);
    CHECK(fi_av_insertsvc(first.av, "127.0.0.1", service, &found, 0, NULL) == 1, "still the own service");
    /* None: another one may have it. */
    WORKS(fi_setname(&first.ep->fid, none->src_addr, none->src_addrlen));
    WORKS(try_open(&second, info));
    close_end(&second);
    close_end(&first);
    fi_freeinfo(info);
    fi_freeinfo(other);
    fi_freeinfo(none);
}

/* What listens there is a program of another kind; or nothing does. */
static void no_endpoint(void)
{
    char service[8];
    struct end end = {0};
    int listener, error = 0;
    fi_addr_t found = 0;
    int port = port_of_both(service, sizeof service, &listener);
    snprintf(service, sizeof service, "%d", port);
    struct fi_info *info = infos(NULL, NULL, 0), *target = infos("127.0.0.1", service, 0);
    pid_t answers = fork();
    if (answers == 0) {
        static const char greeting[] = "220 mail.example ESMTP: a text that is longer than any address";
        CHECK(write(accept(listener, NULL, NULL), greeting, sizeof greeting) == sizeof greeting, "write");
        _exit(0);
    }
    close(listener);
    WORKS(try_open(&end, info));
    CHECK(fi_av_insert(end.av, target->dest_addr, 1, &found, FI_SYNC_ERR, &error) == 0, "a mail server is taken in");
    CHECK(found == FI_ADDR_NOTAVAIL && error == FI_EHOSTUNREACH, "%d", error);
    waitpid(answers, NULL, 0);
    /* An endpoint that is not there yet is waited for, once here: it takes long. */
    static int waited;
    double before = now();
    if (!waited++) {
        error = 0;
        CHECK(fi_av_insertsvc(end.av, "127.0.0.1", service, &found, FI_SYNC_ERR, &error) == 0, "nothing is taken in");
        CHECK(error == FI_EHOSTUNREACH, "%d", error);
        CHECK(now() - before > 1 && now() - before < 15, "it was waited for %f s", now() - before);
    }
    REFUSED(fi_av_insertsvc(end.av, NULL, NULL, &found, 0, NULL), FI_EINVAL);
    CHECK(fi_av_insertsvc(end.av, "127.0.0.1", "no such service", &found, FI_SYNC_ERR, &error) == 0 && error == FI_ENODATA, "%d", error);
    meet();
    close_end(&end);
    fi_freeinfo(info);
    fi_freeinfo(target);
}

int main(int count, char **arguments)
{
    static const struct body bodies[] = {
        {"found_by_a_service", found_by_a_service},
        {"addresses_of_answers", addresses_of_answers},
        {"in_use", in_use},
        {"no_endpoint", no_endpoint},
    };
    return run_bodies(bodies, sizeof bodies / sizeof *bodies, count > 1 ? arguments[1] : NULL);
}
