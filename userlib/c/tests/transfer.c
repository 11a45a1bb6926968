/* Two processes: writes of all kinds, reads, completion, notifications. */
#include "check.h"

enum { BYTES = 64 * 1024 };

static void server(struct line line)
{
    netvm_node *node;
    netvm_port *port = serve(&node);
    netvm_region *region;
    netvm_export *inbox;
    struct netvm_access access;
    unsigned char *data;
    void *at;
    uint32_t pending, number, i;
    char text[6] = {0};

    OK(netvm_region_alloc(port, BYTES, &region));
    OK(netvm_region_data(region, &at));
    data = (unsigned char *)at;
    memset(&access, 0, sizeof access);
    access.size = sizeof access;
    access.modes = NETVM_READ | NETVM_WRITE | NETVM_ATOMIC;
    access.notify_first = 1;
    access.notify_last = 2000;
    OK(netvm_export_open(port, "inbox", region, 0, 0, &access, &inbox));
    say(line);

    OK(netvm_notification_wait(port, 5, LONG_TIME, &pending));
    CHECK(pending == 1);
    OK(netvm_notification_ack_up_to(port, 5, 7, &pending));
    CHECK(pending == 1);
    OK(netvm_notification_ack_up_to(port, 5, 7, NULL));
    ANSWERS(-ENOMSG, netvm_notification_ack(port, 5));
    OK(netvm_port_progress(port));
    OK(netvm_notification_pending(port, 5, &pending));
    CHECK(pending == 0);
    OK(netvm_region_read(region, 0, text, 5));
    CHECK(strcmp(text, "hello") == 0);

    /* One-shot notifications come in the order in which they were sent. */
    for (i = 0; i < 10; i++) {
        OK(netvm_notification_next(port, LONG_TIME, &number));
        CHECK(number == 1024 + i);
    }
    for (i = 4096; i < 3 * 4096 + 100; i++)
        CHECK(data[i] == (unsigned char)(i * 7));
    /* The vectors: four bytes of the program, and four of a region, to two places; then what overlaps, in order. */
    CHECK(memcmp(data + 20000, "abcdwxyz", 8) == 0);
    CHECK(memcmp(data + 30000, "wxyz", 4) == 0);
    CHECK(memcmp(data + 30100, "abwxyz", 6) == 0);
    ANSWERS(-EAGAIN, netvm_notification_next(port, 0, &number));
    ANSWERS(-ETIMEDOUT, netvm_notification_wait(port, 6, 1000000, NULL));
    say(line);
    hear(line);
    OK(netvm_export_close(inbox));
    OK(netvm_region_close(region));
    OK(netvm_port_close(port));
    OK(netvm_node_close(node));
}

static void writes(netvm_port *port, netvm_remote *inbox, netvm_region *region, uint16_t peer)
{
    struct netvm_piece pieces[3];
    char abcd[4] = {'a', 'b', 'c', 'd'};
    unsigned char *data;
    void *at;
    uint32_t op = 0, i;
    netvm_pending *pending;

    OK(netvm_region_data(region, &at));
    data = (unsigned char *)at;
    for (i = 0; i < BYTES; i++)
        data[i] = (unsigned char)(i * 7);
    OK(netvm_write_region(inbox, 4096, region, 4096, 2 * 4096 + 100, NETVM_FENCED, 0, &op));
    CHECK(op != 0);
    memcpy(data + 8, "wxyz", 4);
    memset(pieces, 0, sizeof pieces);
    for (i = 0; i < 3; i++) {
        pieces[i].remote = inbox;
        pieces[i].len = 4;
    }
    pieces[0].remote_offset = 20000;
    pieces[0].data = abcd;
    pieces[1].remote_offset = 20004;
    pieces[1].region = region;
    pieces[1].region_offset = 8;
    pieces[2] = pieces[1];
    pieces[2].remote_offset = 30000;
    OK(netvm_write_vector(port, pieces, 3, 0, 0, &op));
    CHECK(op != 0);
    pieces[0].remote_offset = 30100;
    pieces[1].remote_offset = 30102;
    OK(netvm_begin_write_vector(port, pieces, 2, NETVM_ORDERED, 0, NULL, &pending));
    OK(netvm_pending_wait(pending, LONG_TIME));
    OK(netvm_pending_close(pending));
    OK(netvm_flush_writes(port));
    OK(netvm_write(inbox, 0, "hel", 3, NETVM_MORE | NETVM_NOWAIT, 0, NULL));
    OK(netvm_write(inbox, 3, "lo", 2, 0, 5, NULL));
    for (i = 0; i < 10; i++)
        OK(netvm_notify(inbox, 1024 + i, 0, NULL));
    OK(netvm_flush(port, peer, NETVM_RECEIVED, LONG_TIME));
    OK(netvm_flush(port, peer, NETVM_LANDED, NETVM_FOREVER));
}

static void reads(netvm_port *port, netvm_remote *inbox, netvm_region *region)
{
    struct netvm_piece pieces[2];
    char text[9] = {0}, other[5] = {0};
    uint32_t op;
    netvm_pending *pending;

    OK(netvm_read(inbox, 20000, text, 8, NETVM_ORDERED));
    CHECK(strcmp(text, "abcdwxyz") == 0);
    OK(netvm_read_region(inbox, 20000, region, 0, 8, NETVM_FENCED, &op));
    OK(netvm_region_read(region, 0, text, 8));
    CHECK(strcmp(text, "abcdwxyz") == 0);
    memset(pieces, 0, sizeof pieces);
    pieces[0].remote = pieces[1].remote = inbox;
    pieces[0].remote_offset = 20002;
    pieces[0].data = text;
    pieces[0].len = 8;
    pieces[1].remote_offset = 20000;
    pieces[1].data = other;
    pieces[1].len = 4;
    op = 1;
    OK(netvm_read_vector(port, pieces, 2, NETVM_ORDERED, &op));
    CHECK(op == 0 && memcmp(text, "cdwxyz", 6) == 0 && strcmp(other, "abcd") == 0);
    pieces[0].region = pieces[1].region = region;
    pieces[0].region_offset = 100;
    pieces[1].region_offset = 108;
    OK(netvm_read_vector(port, pieces, 2, NETVM_FENCED, &op));
    CHECK(op != 0);
    OK(netvm_region_read(region, 108, text, 4));
    CHECK(memcmp(text, "abcd", 4) == 0);
    pieces[0].remote_offset = 20000;
    OK(netvm_begin_read_vector(port, pieces, 2, 0, NULL, &pending));
    OK(netvm_pending_wait(pending, LONG_TIME));
    OK(netvm_pending_close(pending));
    OK(netvm_region_read(region, 100, text, 8));
    CHECK(memcmp(text, "abcdwxyz", 8) == 0);
    OK(netvm_read_region(inbox, 0, region, 200, 5, NETVM_NOWAIT, NULL));
    OK(netvm_flush_reads(port));
    OK(netvm_region_read(region, 200, text, 5));
    CHECK(memcmp(text, "hello", 5) == 0);
}

/* Any memory of the process is written from and read into, by a port that has no other region. */
static void everything(netvm_node *node, uint16_t peer)
{
    static char from[300];
    char into[300];
    netvm_port *port;
    netvm_region *all, *other;
    netvm_remote *inbox;
    netvm_export *none;
    struct netvm_access access;
    void *at;

    memset(from, 'e', sizeof from);
    memset(into, 0, sizeof into);
    OK(netvm_port_open(node, NULL, &port));
    OK(netvm_region_adopt_all(port, &all));
    ANSWERS(-EOPNOTSUPP, netvm_region_alloc(port, 4096, &other));
    ANSWERS(-EOPNOTSUPP, netvm_region_adopt(port, from, sizeof from, &other));
    ANSWERS(-EOPNOTSUPP, netvm_region_data(all, &at));
    memset(&access, 0, sizeof access);
    access.size = sizeof access;
    access.modes = NETVM_READ;
    ANSWERS(-EOPNOTSUPP, netvm_export_open(port, "all", all, 0, 0, &access, &none));
    OK(netvm_import(port, peer, 7, "inbox", 0, LONG_TIME, &inbox));
    OK(netvm_write_region(inbox, 40000, all, (uint64_t)(uintptr_t)from, sizeof from, 0, 0, NULL));
    OK(netvm_flush(port, peer, NETVM_LANDED, NETVM_FOREVER));
    OK(netvm_read_region(inbox, 40000, all, (uint64_t)(uintptr_t)into, sizeof into, NETVM_FENCED, NULL));
    CHECK(memcmp(from, into, sizeof from) == 0);
    /* Nothing is there; a tool that watches would call the look wrong. */
    if (!watched())
        ANSWERS(-EFAULT, netvm_read_region(inbox, 40000, all, 1 << 16, 300, NETVM_FENCED, NULL));
    OK(netvm_remote_close(inbox));
    OK(netvm_region_close(all));
    OK(netvm_port_close(port));
}

static void client(struct line line)
{
    netvm_node *node;
    netvm_port *port;
    netvm_region *region;
    netvm_remote *inbox, *again;
    struct netvm_remote_info info;
    struct netvm_port_stats stats;
    uint64_t offset;
    uint16_t peer, id;
    bool up;

    hear(line);
    port = join(&node, &peer);
    OK(netvm_node_is_up(node, peer, &up));
    CHECK(up);
    OK(netvm_node_id(node, &id));
    CHECK(id != peer);
    OK(netvm_region_alloc(port, BYTES, &region));
    OK(netvm_import(port, peer, 7, "inbox", 0, LONG_TIME, &inbox));
    info.size = sizeof info;
    OK(netvm_remote_get_info(inbox, &info));
    CHECK(info.size == sizeof info && info.len == BYTES && info.node == peer && info.port == 7);
    CHECK(info.modes == (NETVM_READ | NETVM_WRITE | NETVM_ATOMIC | NETVM_NOTIFY));
    OK(netvm_remote_find(port, peer, 7, info.address + 10, &again, &offset));
    CHECK(offset == 10);
    writes(port, inbox, region, peer);
    reads(port, again, region);
    everything(node, peer);
    OK(netvm_remote_close(again));
    stats.size = sizeof stats;
    OK(netvm_port_get_stats(port, &stats));
    CHECK(stats.writes >= 14 && stats.reads >= 5 && stats.failures == 0);
    hear(line);
    say(line);
    OK(netvm_remote_close(inbox));
    OK(netvm_region_close(region));
    OK(netvm_port_close(port));
    OK(netvm_node_close(node));
}

int main(void)
{
    return two_processes(server, client);
}
