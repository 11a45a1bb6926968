/* Two processes: one writes into the memory of the other, and notifies it.
 *
 *     cc hello.c $(pkg-config --cflags --libs libnetvm) -o hello && ./hello */
#include "must.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void receiver(const char *name)
{
    struct netvm_node_options card = {.size = sizeof card, .name = name};
    struct netvm_port_options seven = {.size = sizeof seven, .port = 7};
    struct netvm_access access = {
        .size = sizeof access, .modes = NETVM_WRITE, .notify_first = 5, .notify_last = 5};
    netvm_node *node;
    netvm_port *port;
    netvm_region *memory;
    netvm_export *inbox;
    char text[64] = "";

    MUST(netvm_node_start(&card, &node));
    MUST(netvm_port_open(node, &seven, &port));
    MUST(netvm_region_alloc(port, 4096, &memory));
    MUST(netvm_export_open(port, "inbox", memory, 0, 0, &access, &inbox));

    /* When the notification comes, the data is there. */
    MUST(netvm_notification_wait(port, 5, NETVM_FOREVER, NULL));
    MUST(netvm_notification_ack(port, 5));
    MUST(netvm_region_read(memory, 0, text, sizeof text - 1));
    printf("received: %s\n", text);

    MUST(netvm_export_close(inbox));
    MUST(netvm_region_close(memory));
    MUST(netvm_port_close(port));
    MUST(netvm_node_close(node));
}

static void sender(const char *name)
{
    static const char text[] = "hello from another process";
    netvm_node *node;
    netvm_port *port;
    netvm_remote *inbox;
    uint16_t peer;

    MUST(netvm_node_start(NULL, &node));
    /* The other process may not have come so far. */
    while (netvm_node_connect(node, name, NETVM_FOREVER, &peer) < 0)
        usleep(1000);
    MUST(netvm_port_open(node, NULL, &port));
    MUST(netvm_import(port, peer, 7, "inbox", 0, NETVM_FOREVER, &inbox));
    MUST(netvm_write(inbox, 0, text, sizeof text, 0, 5, NULL));
    MUST(netvm_flush(port, peer, NETVM_LANDED, NETVM_FOREVER));

    MUST(netvm_remote_close(inbox));
    MUST(netvm_port_close(port));
    MUST(netvm_node_close(node));
}

int main(void)
{
    char name[32];
    int status = 1;
    pid_t child;
    snprintf(name, sizeof name, "hello-%ld", (long)getpid());
    /* Before there is a node: a child has no part in its parent's. */
    child = fork();
    if (child == 0) {
        sender(name);
        return 0;
    }
    receiver(name);
    waitpid(child, &status, 0);
    return status != 0;
}
