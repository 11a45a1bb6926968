/* Everything that a program can do wrong is answered by an errno. */
#include "check.h"

#include <pthread.h>
#include <sys/mman.h>

static netvm_node *node;
static netvm_port *port;
static uint16_t self_id;

static void nodes(void)
{
    netvm_node *other = NULL;
    struct netvm_node_options options;
    char address[64];
    uint16_t peer;
    bool up;

    ANSWERS(-EINVAL, netvm_node_open("nonsense", &other));
    ANSWERS(-EINVAL, netvm_node_open("soft", NULL));
    ANSWERS(-EINVAL, netvm_node_open("\xff\xfe", &other));
    ANSWERS(-EPERM, netvm_node_open("soft://0.0.0.0:0", &other));
    ANSWERS(-ENODEV, netvm_node_open("device:77", &other));
    CHECK(strlen(netvm_error_message()) > 0);
    memset(&options, 0, sizeof options);
    ANSWERS(-EINVAL, netvm_node_start(&options, &other));
    options.size = 1 << 20;
    ANSWERS(-EINVAL, netvm_node_start(&options, &other));
    options.size = sizeof options;
    options.flags = 64;
    ANSWERS(-EINVAL, netvm_node_start(&options, &other));
    options.flags = 0;
    options.reserved2 = 1;
    ANSWERS(-EINVAL, netvm_node_start(&options, &other));
    options.reserved2 = 0;
    options.key_file = "/nowhere/key";
    ANSWERS(-EKEYREJECTED, netvm_node_start(&options, &other));
    options.key_file = NULL;
    options.udp = "no address";
    CHECK(netvm_node_start(&options, &other) < 0);
    options.udp = NULL;
    options.nodes = 10;
    options.number = 11;
    options.flags = NETVM_NODE_NUMBER;
    ANSWERS(-EINVAL, netvm_node_start(&options, &other));
    options.flags = 0;
    options.name = "a name of more than sixty-four bytes, which is the most that a name may have";
    CHECK(netvm_node_start(&options, &other) < 0);
    CHECK(other == NULL);

    ANSWERS(-EINVAL, netvm_node_close(NULL));
    ANSWERS(-EINVAL, netvm_node_connect(node, NULL, 0, &peer));
    CHECK(netvm_node_connect(node, "c-test-is-not-there", 0, &peer) < 0);
    ANSWERS(-EINVAL, netvm_node_id(node, NULL));
    ANSWERS(-ENOENT, netvm_node_udp_address(node, address, sizeof address));
    OK(netvm_node_is_up(node, 999, &up));
    CHECK(!up);
}

/* A structure of a later version: what is not known must be zero. */
static void structures(void)
{
    union {
        struct netvm_port_options options;
        unsigned char bytes[sizeof(struct netvm_port_options) + 16];
    } later;
    netvm_port *opened;
    struct netvm_port_stats stats;
    memset(&later, 0, sizeof later);
    later.options.size = sizeof later;
    OK(netvm_port_open(node, &later.options, &opened));
    OK(netvm_port_close(opened));
    later.bytes[sizeof later - 1] = 1;
    ANSWERS(-E2BIG, netvm_port_open(node, &later.options, &opened));
    later.options.size = 8;
    ANSWERS(-EINVAL, netvm_port_open(node, &later.options, &opened));
    stats.size = 3;
    ANSWERS(-EINVAL, netvm_port_get_stats(port, &stats));
    ANSWERS(-EINVAL, netvm_port_get_stats(port, NULL));
}

static void handles(void)
{
    netvm_port *opened;
    netvm_region *region;
    char on_stack[64];
    uint16_t id;
    uint64_t len;

    OK(netvm_port_open(node, NULL, &opened));
    OK(netvm_port_close(opened));
    /* Closed, closed twice, of another kind, never made. */
    ANSWERS(-EBADF, netvm_port_id(opened, &id));
    ANSWERS(-EBADF, netvm_port_close(opened));
    ANSWERS(-EBADF, netvm_port_id((netvm_port *)(void *)node, &id));
    ANSWERS(-EBADF, netvm_region_len((netvm_region *)(void *)port, &len));
    ANSWERS(-EBADF, netvm_port_id((netvm_port *)(void *)on_stack, &id));
    ANSWERS(-EBADF, netvm_port_id((netvm_port *)(uintptr_t)UINTPTR_MAX, &id));
    ANSWERS(-EBADF, netvm_port_id((netvm_port *)(uintptr_t)1, &id));
    ANSWERS(-EINVAL, netvm_port_id(NULL, &id));
    ANSWERS(-EINVAL, netvm_port_id(port, NULL));
    /* Another object in the same place of the table is not taken for the one that was closed. */
    OK(netvm_region_alloc(port, 100, &region));
    OK(netvm_region_close(region));
    {
        netvm_region *next;
        OK(netvm_region_alloc(port, 100, &next));
        CHECK(next != region);
        ANSWERS(-EBADF, netvm_region_len(region, &len));
        OK(netvm_region_close(next));
    }
}

static void memory(void)
{
    netvm_region *region, *none = NULL;
    netvm_export *exported, *second = NULL;
    struct netvm_access access;
    struct netvm_admission lines[2];
    char bytes[16] = {0};
    uint32_t word;
    uint64_t address, offset;
    void *at;

    ANSWERS(-EINVAL, netvm_region_alloc(port, 0, &none));
    CHECK(netvm_region_alloc(port, UINT64_MAX, &none) < 0);
    CHECK(netvm_region_alloc(port, UINT64_MAX / 2, &none) < 0);
    ANSWERS(-EINVAL, netvm_region_adopt(port, NULL, 4096, &none));
    CHECK(netvm_region_adopt(port, bytes, UINT64_MAX, &none) < 0);
    OK(netvm_region_alloc(port, 100, &region));
    ANSWERS(-ERANGE, netvm_region_read(region, 96, bytes, 5));
    ANSWERS(-ERANGE, netvm_region_read(region, UINT64_MAX, bytes, 5));
    ANSWERS(-EINVAL, netvm_region_read(region, 0, NULL, 5));
    ANSWERS(-EINVAL, netvm_region_write(region, 0, bytes, SIZE_MAX));
    OK(netvm_region_write(region, 0, NULL, 0));
    ANSWERS(-EINVAL, netvm_region_load32(region, 2, &word));
    ANSWERS(-ERANGE, netvm_region_load32(region, 100, &word));

    ANSWERS(-EINVAL, netvm_export_open(port, "", region, 0, 0, NULL, &exported));
    ANSWERS(-EINVAL, netvm_export_open(port, NULL, region, 0, 0, NULL, &exported));
    ANSWERS(-ERANGE, netvm_export_open(port, "x", region, 50, 51, NULL, &exported));
    ANSWERS(-ERANGE, netvm_export_open(port, "x", region, UINT64_MAX, UINT64_MAX, NULL, &exported));
    memset(&access, 0, sizeof access);
    access.size = sizeof access;
    access.modes = 1 << 10;
    ANSWERS(-EINVAL, netvm_export_open(port, "x", region, 0, 0, &access, &exported));
    access.modes = NETVM_READ;
    access.count = 1;
    ANSWERS(-EINVAL, netvm_export_open(port, "x", region, 0, 0, &access, &exported));
    memset(lines, 0, sizeof lines);
    lines[0].node = NETVM_ANY;
    access.admissions = lines;
    ANSWERS(-EINVAL, netvm_export_open(port, "x", region, 0, 0, &access, &exported));
    access.count = 17;
    ANSWERS(-ENOSPC, netvm_export_open(port, "x", region, 0, 0, &access, &exported));
    access.count = 0;
    access.notify_first = 10;
    access.notify_last = 5;
    ANSWERS(-EINVAL, netvm_export_open(port, "x", region, 0, 0, &access, &exported));

    OK(netvm_export_open(port, "x", region, 0, 0, NULL, &exported));
    ANSWERS(-EEXIST, netvm_export_open(port, "x", region, 0, 0, NULL, &second));
    OK(netvm_region_data(region, &at));
    address = (uint64_t)(uintptr_t)at;
    OK(netvm_export_find(port, address + 5, &second, &offset));
    CHECK(offset == 5);
    OK(netvm_export_release(second));
    ANSWERS(-ENOENT, netvm_export_find(port, 1, &second, &offset));
    OK(netvm_export_close(exported));
    ANSWERS(-EBADF, netvm_export_close(exported));
    OK(netvm_region_close(region));
}

static void transfers(void)
{
    netvm_region *region, *foreign;
    netvm_export *exported;
    netvm_remote *remote, *none = NULL;
    netvm_port *other;
    netvm_pending *pending = NULL;
    struct netvm_access access;
    struct netvm_piece pieces[2];
    struct netvm_failure failure;
    char bytes[16] = {0};
    uint32_t op = 5;
    uint16_t own;

    OK(netvm_port_id(port, &own));
    OK(netvm_region_alloc(port, 4096, &region));
    memset(&access, 0, sizeof access);
    access.size = sizeof access;
    access.modes = NETVM_WRITE;
    access.notify_first = access.notify_last = 3;
    OK(netvm_export_open(port, "w", region, 0, 0, &access, &exported));
    ANSWERS(-ENOENT, netvm_import(port, self_id, own, "not there", 0, 0, &none));
    ANSWERS(-EINVAL, netvm_import(port, self_id, own, "w", 1 << 20, 0, &none));
    ANSWERS(-EHOSTUNREACH, netvm_import(port, 60000, own, "w", 0, 0, &none));
    ANSWERS(-EINVAL, netvm_import(port, self_id, own, NULL, 0, 0, &none));
    OK(netvm_import(port, self_id, own, "w", 0, LONG_TIME, &remote));

    ANSWERS(-EINVAL, netvm_write(remote, 0, NULL, 5, 0, 0, NULL));
    ANSWERS(-EINVAL, netvm_write(remote, 0, bytes, 5, 1 << 9, 0, NULL));
    ANSWERS(-EINVAL, netvm_write(remote, 0, bytes, 5, NETVM_NOWAIT | NETVM_FENCED, 0, NULL));
    ANSWERS(-ERANGE, netvm_write(remote, 4095, bytes, 5, 0, 0, NULL));
    ANSWERS(-ERANGE, netvm_write(remote, UINT64_MAX, bytes, 5, 0, 0, NULL));
    ANSWERS(-EACCES, netvm_write(remote, 0, bytes, 5, 0, 4, NULL));
    ANSWERS(-EACCES, netvm_notify(remote, 0, 0, NULL));
    ANSWERS(-EACCES, netvm_read(remote, 0, bytes, 5, 0));
    ANSWERS(-EACCES, netvm_atomic32(remote, 0, NETVM_SWAP, 1, 0, 0, NULL));
    ANSWERS(-EINVAL, netvm_begin_write(remote, 0, bytes, 5, 0, 0, NULL, NULL));
    ANSWERS(-ERANGE, netvm_write_region(remote, 0, region, 4096, 1, 0, 0, NULL));
    ANSWERS(-ERANGE, netvm_write_region(remote, 0, region, UINT64_MAX, 2, 0, 0, NULL));
    ANSWERS(-EINVAL, netvm_write_vector(port, NULL, 3, 0, 0, NULL));
    memset(pieces, 0, sizeof pieces);
    ANSWERS(-EINVAL, netvm_write_vector(port, pieces, SIZE_MAX, 0, 0, NULL));
    ANSWERS(-EINVAL, netvm_write_vector(port, pieces, 1, 0, 0, NULL));
    pieces[0].remote = pieces[1].remote = remote;
    pieces[1].len = 3;
    ANSWERS(-EINVAL, netvm_write_vector(port, pieces, 2, 0, 0, NULL));
    pieces[1].data = bytes;
    pieces[1].remote_offset = 4094;
    ANSWERS(-ERANGE, netvm_write_vector(port, pieces, 2, 0, 3, NULL));
    ANSWERS(-EINVAL, netvm_write_vector(port, pieces, 2, NETVM_NOWAIT | NETVM_FENCED, 0, NULL));
    ANSWERS(-EINVAL, netvm_write_vector(port, NULL, 0, 0, 3, NULL));
    ANSWERS(-EINVAL, netvm_begin_write_vector(port, pieces, 2, 0, 0, NULL, NULL));
    ANSWERS(-EINVAL, netvm_begin_read_vector(port, pieces, 2, 0, NULL, &pending));
    OK(netvm_write_vector(port, NULL, 0, 0, 0, &op));
    CHECK(op == 0);
    /* Nothing but a notification. */
    OK(netvm_write_vector(port, pieces, 1, 0, 3, &op));
    CHECK(op != 0);
    OK(netvm_notification_wait(port, 3, LONG_TIME, NULL));
    OK(netvm_notification_ack(port, 3));
    ANSWERS(-EINVAL, netvm_read_vector(port, pieces, 2, NETVM_NOWAIT, NULL));
    ANSWERS(-EACCES, netvm_read_vector(port, pieces + 1, 1, 0, NULL));
    pieces[0].len = 3;
    pieces[0].data = bytes + 2;
    ANSWERS(-EINVAL, netvm_read_vector(port, pieces, 2, 0, NULL));
    pieces[0].region = region;
    ANSWERS(-EINVAL, netvm_read_vector(port, pieces, 2, 0, NULL));

    OK(netvm_port_open(node, NULL, &other));
    OK(netvm_region_alloc(other, 4096, &foreign));
    ANSWERS(-EXDEV, netvm_write_region(remote, 0, foreign, 0, 100, 0, 0, NULL));
    pieces[0].region = foreign;
    ANSWERS(-EXDEV, netvm_write_vector(port, pieces, 1, 0, 0, NULL));
    pieces[0].region = NULL;
    ANSWERS(-EXDEV, netvm_write_vector(other, pieces, 1, 0, 0, NULL));
    OK(netvm_region_close(foreign));
    OK(netvm_port_close(other));

    ANSWERS(-EINVAL, netvm_flush(port, self_id, 9, 0));
    ANSWERS(-EHOSTUNREACH, netvm_flush(port, 60000, NETVM_LANDED, 0));
    ANSWERS(-EINVAL, netvm_begin_flush(port, self_id, 9, NULL, &pending));
    ANSWERS(-EINVAL, netvm_notification_wait(port, 5000, 0, NULL));
    ANSWERS(-EINVAL, netvm_notification_wait(port, 0, 0, NULL));

    /* What fails at the other side is told, with its number. */
    failure.size = sizeof failure;
    ANSWERS(-ENODATA, netvm_error_failure(&failure));
    OK(netvm_export_close(exported));
    {
        uint32_t op;
        OK(netvm_write(remote, 0, bytes, 5, 0, 0, &op));
        CHECK(netvm_flush(port, self_id, NETVM_LANDED, LONG_TIME) < 0);
        OK(netvm_error_failure(&failure));
        CHECK(failure.op == op && failure.node == self_id && failure.port == own);
        CHECK(netvm_error_status() == failure.status && failure.status != NETVM_STATUS_OK);
        ANSWERS(-ERANGE, netvm_status_text(failure.status, bytes, 0));
        ANSWERS(-EINVAL, netvm_status_text(999, bytes, sizeof bytes));
    }
    CHECK(pending == NULL && none == NULL);
    OK(netvm_remote_close(remote));
    OK(netvm_region_close(region));
}

static void *waits(void *argument)
{
    return (void *)(intptr_t)netvm_notification_wait((netvm_port *)argument, 9, NETVM_FOREVER, NULL);
}

/* A port that is closed while another thread waits there; what was made from it answers, and is closed later. */
static void closing(void)
{
    netvm_port *opened;
    netvm_region *region;
    netvm_export *exported;
    struct netvm_port_stats stats;
    pthread_t thread;
    void *answer;
    char byte = 1;

    OK(netvm_port_open(node, NULL, &opened));
    OK(netvm_region_alloc(opened, 4096, &region));
    OK(netvm_export_open(opened, "closing", region, 0, 0, NULL, &exported));
    CHECK(pthread_create(&thread, NULL, waits, opened) == 0);
    /* Until it waits. */
    stats.size = sizeof stats;
    do {
        OK(netvm_port_get_stats(opened, &stats));
    } while (stats.blocked == 0);
    OK(netvm_port_close(opened));
    CHECK(pthread_join(thread, &answer) == 0);
    CHECK((intptr_t)answer == -ESHUTDOWN);
    OK(netvm_region_write(region, 0, &byte, 1));
    OK(netvm_export_close(exported));
    OK(netvm_region_close(region));
}

/* Memory of the program, and memory that is gone. */
static void adopted(void)
{
    netvm_region *region;
    void *at, *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char byte = 7;
    CHECK(pages != MAP_FAILED);
    OK(netvm_region_adopt(port, pages, 8192, &region));
    OK(netvm_region_data(region, &at));
    CHECK(at == pages);
    OK(netvm_region_write(region, 5000, &byte, 1));
    CHECK(((char *)pages)[5000] == 7);
    CHECK(munmap(pages, 8192) == 0);
    if (!watched())
        ANSWERS(-EFAULT, netvm_region_write(region, 5000, &byte, 1));
    OK(netvm_region_close(region));
}

int main(void)
{
    CHECK(strcmp(netvm_error_message(), "no error") == 0);
    CHECK(netvm_version() != NULL);
    OK(netvm_node_start(NULL, &node));
    OK(netvm_node_id(node, &self_id));
    OK(netvm_port_open(node, NULL, &port));
    nodes();
    structures();
    handles();
    memory();
    transfers();
    closing();
    adopted();
    OK(netvm_port_close(port));
    OK(netvm_node_close(node));
    return 0;
}
