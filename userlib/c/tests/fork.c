/* A fork in the middle: the child is refused what its parent has made, and the parent goes on. */
#include "check.h"

/* A child of fork has no part in its parent's handles, and may open a node of its own. */
static void forked(netvm_node *node, netvm_port *port)
{
    netvm_region *region;
    int status;
    pid_t child;
    OK(netvm_region_alloc(port, 4096, &region));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        netvm_node *own;
        netvm_port *opened;
        uint16_t id;
        uint64_t len;
        ANSWERS(-EBADF, netvm_port_id(port, &id));
        ANSWERS(-EBADF, netvm_region_len(region, &len));
        ANSWERS(-EBADF, netvm_port_close(port));
        ANSWERS(-EBADF, netvm_node_connect(node, "x", 0, NULL));
        OK(netvm_node_start(NULL, &own));
        OK(netvm_port_open(own, NULL, &opened));
        OK(netvm_port_id(opened, &id));
        ANSWERS(-EBADF, netvm_port_id(port, &id));
        OK(netvm_port_close(opened));
        OK(netvm_node_close(own));
        /* A sanitizer takes what only the parent's other threads know for lost. */
        if (watched())
            _exit(0);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    /* The parent goes on as before. */
    {
        uint64_t len;
        OK(netvm_region_len(region, &len));
        CHECK(len == 4096);
    }
    OK(netvm_region_close(region));
}

int main(void)
{
    netvm_node *node;
    netvm_port *port;
    int round;
    OK(netvm_node_start(NULL, &node));
    OK(netvm_port_open(node, NULL, &port));
    for (round = 0; round < 5; round++)
        forked(node, port);
    OK(netvm_port_close(port));
    OK(netvm_node_close(node));
    return 0;
}
