/* Messages from one port to another, and from many ports to one. */
#include "self.h"

#include <string.h>

int main(void)
{
    struct self self = open_self();
    netvm_receiver *receiver;
    netvm_sender *sender;
    netvm_shared_receiver *inbox;
    netvm_shared_sender *client;
    char one[64], other[64];
    size_t len;
    uint16_t node, port;

    MUST(netvm_receiver_open(self.port, "channel", NULL, &receiver));
    MUST(netvm_sender_join(self.port, self.id, self.number, "channel", NETVM_FOREVER, &sender));
    MUST(netvm_sender_send(sender, "first", 6, NETVM_FOREVER));
    MUST(netvm_receiver_recv(receiver, one, sizeof one, &len, NETVM_FOREVER));
    printf("a message of %u bytes: %s\n", (unsigned)len, one);
    MUST(netvm_sender_close(sender));
    MUST(netvm_receiver_close(receiver));

    MUST(netvm_shared_receiver_open(self.port, "inbox", NULL, &inbox));
    MUST(netvm_shared_sender_join(self.port, self.id, self.number, "inbox", NETVM_FOREVER, &client));
    MUST(netvm_shared_sender_send(client, "second", 7, NETVM_FOREVER));
    MUST(netvm_shared_receiver_recv(inbox, other, sizeof other, &len, &node, &port, NETVM_FOREVER));
    printf("port %u of node %u sends: %s\n", (unsigned)port, (unsigned)node, other);
    MUST(netvm_shared_sender_close(client));
    MUST(netvm_shared_receiver_close(inbox));
    close_self(self);
    return strcmp(one, "first") != 0 || strcmp(other, "second") != 0;
}
