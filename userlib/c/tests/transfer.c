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
    /* The vector: four bytes of the program, then four of a region. */
    CHECK(memcmp(data + 20000, "abcdwxyz", 8) == 0);
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
    struct netvm_part parts[2];
    char abcd[4] = {'a', 'b', 'c', 'd'};
    unsigned char *data;
    void *at;
    uint32_t op = 0, i;
    size_t posted = 9;

    OK(netvm_region_data(region, &at));
    data = (unsigned char *)at;
    for (i = 0; i < BYTES; i++)
        data[i] = (unsigned char)(i * 7);
    OK(netvm_write_region(inbox, 4096, region, 4096, 2 * 4096 + 100, NETVM_FENCED, 0, &op));
    CHECK(op != 0);
    memcpy(data + 8, "wxyz", 4);
    memset(parts, 0, sizeof parts);
    parts[0].data = abcd;
    parts[0].len = 4;
    parts[1].region = region;
    parts[1].offset = 8;
    parts[1].len = 4;
    OK(netvm_write_vector(inbox, 20000, parts, 2, NETVM_ORDERED, 0, &posted, &op));
    CHECK(posted == 2);
    OK(netvm_flush_writes(port));
    OK(netvm_write(inbox, 0, "hello", 5, 0, 5, NULL));
    for (i = 0; i < 10; i++)
        OK(netvm_notify(inbox, 1024 + i, 0, NULL));
    OK(netvm_flush(port, peer, NETVM_RECEIVED, LONG_TIME));
    OK(netvm_flush(port, peer, NETVM_LANDED, NETVM_FOREVER));
}

static void reads(netvm_port *port, netvm_remote *inbox, netvm_region *region)
{
    struct netvm_part parts[2];
    char text[9] = {0}, other[5] = {0};
    uint32_t op;
    size_t posted;

    OK(netvm_read(inbox, 20000, text, 8, NETVM_ORDERED));
    CHECK(strcmp(text, "abcdwxyz") == 0);
    OK(netvm_read_region(inbox, 20000, region, 0, 8, NETVM_FENCED, &op));
    OK(netvm_region_read(region, 0, text, 8));
    CHECK(strcmp(text, "abcdwxyz") == 0);
    memset(parts, 0, sizeof parts);
    parts[0].region = region;
    parts[0].offset = 100;
    parts[0].len = 4;
    parts[1].data = other;
    parts[1].len = 4;
    OK(netvm_read_vector(inbox, 20000, parts, 2, NETVM_FENCED, &posted, &op));
    CHECK(posted == 2 && strcmp(other, "wxyz") == 0);
    OK(netvm_region_read(region, 100, text, 4));
    CHECK(memcmp(text, "abcd", 4) == 0);
    OK(netvm_read_region(inbox, 0, region, 200, 5, NETVM_NOWAIT, NULL));
    OK(netvm_flush_reads(port));
    OK(netvm_region_read(region, 200, text, 5));
    CHECK(memcmp(text, "hello", 5) == 0);
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
