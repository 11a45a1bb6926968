/* The other examples need one process: a node that talks with itself. */
#ifndef SELF_H
#define SELF_H

#include "must.h"

struct self {
    netvm_node *node;
    netvm_port *port;
    uint16_t id, number;
};

static inline struct self open_self(void)
{
    struct self self;
    MUST(netvm_node_open("soft", &self.node));
    MUST(netvm_port_open(self.node, NULL, &self.port));
    MUST(netvm_node_id(self.node, &self.id));
    MUST(netvm_port_id(self.port, &self.number));
    return self;
}

static inline void close_self(struct self self)
{
    MUST(netvm_port_close(self.port));
    MUST(netvm_node_close(self.node));
}

#endif
