/* Two processes: channels, a set of receivers, a shared queue, and a port in an event loop. */
#include "check.h"

#include <poll.h>

enum { MESSAGES = 500 };

/* The descriptor of a port, armed before each look. */
static void receive_by_poll(netvm_port *port, netvm_receiver *receiver, struct line line)
{
    netvm_events *events, *second;
    struct pollfd descriptor;
    unsigned received = 0, waits = 0;
    OK(netvm_events_open(port, &events));
    ANSWERS(-EOPNOTSUPP, netvm_events_open(port, &second));
    OK(netvm_events_fd(events, &descriptor.fd));
    descriptor.events = POLLIN;
    while (received < MESSAGES) {
        unsigned message = 0;
        size_t len = 0;
        int answer;
        OK(netvm_events_arm(events));
        answer = netvm_receiver_recv(receiver, &message, sizeof message, &len, 0);
        if (answer == -EAGAIN) {
            /* The first look is before the sender joins. */
            if (waits++ == 0)
                say(line);
            CHECK(poll(&descriptor, 1, 60000) == 1);
            continue;
        }
        CHECK(answer == 0 && len == sizeof message && message == received);
        received++;
    }
    CHECK(waits > 0);
    OK(netvm_events_close(events));
}

static void shared(netvm_port *port, struct line line)
{
    netvm_shared_receiver *receiver;
    struct netvm_channel_options options;
    struct netvm_channel_info info;
    unsigned i;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.refill = 1;
    ANSWERS(-EINVAL, netvm_shared_receiver_open(port, "requests", &options, &receiver));
    options.refill = 0;
    options.capacity = 8;
    OK(netvm_shared_receiver_open(port, "requests", &options, &receiver));
    info.size = sizeof info;
    OK(netvm_shared_receiver_get_info(receiver, &info));
    CHECK(info.capacity == 8 && info.message_bytes == 512 && info.notification != 0);
    /* The library has taken this number for itself. */
    ANSWERS(-EBUSY, netvm_notification_wait(port, info.notification, 0, NULL));
    say(line);
    for (i = 0; i < 100; i++) {
        unsigned message = 0;
        size_t len;
        uint16_t node, from;
        OK(netvm_shared_receiver_recv(receiver, &message, sizeof message, &len, &node, &from, LONG_TIME));
        CHECK(message == i && len == sizeof message);
    }
    ANSWERS(-EAGAIN, netvm_shared_receiver_recv(receiver, &i, sizeof i, NULL, NULL, NULL, 0));
    OK(netvm_shared_receiver_close(receiver));
}

static void server(struct line line)
{
    netvm_node *node;
    netvm_port *port = serve(&node);
    netvm_receiver *receiver, *bulk;
    netvm_receiver_set *all;
    struct netvm_channel_options options;
    struct netvm_channel_info info;
    char text[100];
    size_t len, index, first;
    uint16_t from, of;
    unsigned ends = 0;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.message_bytes = 100;
    options.capacity = 16;
    options.flags = NETVM_CHANNEL_PORT;
    ANSWERS(-EINVAL, netvm_receiver_open(port, "numbers", &options, &receiver));
    options.flags = 0;
    OK(netvm_receiver_open(port, "numbers", &options, &receiver));
    ANSWERS(-ENODATA, netvm_receiver_sender(receiver, &from, &of));
    ANSWERS(-EAGAIN, netvm_receiver_recv(receiver, text, sizeof text, NULL, 0));
    OK(netvm_receiver_open(port, "bulk", NULL, &bulk));
    receive_by_poll(port, receiver, line);
    OK(netvm_receiver_sender(receiver, &from, &of));
    info.size = sizeof info;
    OK(netvm_receiver_get_info(receiver, &info));
    CHECK(info.messages == MESSAGES && info.message_bytes == 100);

    /* Both channels in a set, until both senders have left. */
    OK(netvm_receiver_set_open(port, &all));
    OK(netvm_receiver_set_add(all, receiver, &first));
    ANSWERS(-EBADF, netvm_receiver_recv(receiver, text, sizeof text, NULL, 0));
    OK(netvm_receiver_set_add(all, bulk, &index));
    CHECK(first != index);
    ANSWERS(-ENOENT, netvm_receiver_set_recv(all, 77, text, sizeof text, NULL, 0));
    say(line);
    while (ends < 2) {
        int answer;
        OK(netvm_receiver_set_wait(all, LONG_TIME, &index));
        answer = netvm_receiver_set_recv(all, index, text, sizeof text, &len, 0);
        if (answer == -EPIPE) {
            netvm_receiver *ended;
            OK(netvm_receiver_set_remove(all, index, &ended));
            OK(netvm_receiver_close(ended));
            ends++;
        } else if (answer == -EMSGSIZE) {
            CHECK(index != first);
        } else {
            CHECK(answer == 0 && len == 5 && memcmp(text, index == first ? "small" : "other", 5) == 0);
        }
    }
    ANSWERS(-EAGAIN, netvm_receiver_set_wait(all, 0, &index));
    OK(netvm_receiver_set_close(all));
    shared(port, line);
    OK(netvm_port_close(port));
    OK(netvm_node_close(node));
}

static void client(struct line line)
{
    netvm_node *node;
    netvm_port *port;
    netvm_sender *numbers, *bulk, *third = NULL;
    netvm_shared_sender *requests;
    netvm_region *region;
    struct netvm_channel_info info;
    char long_text[101];
    uint64_t limit;
    uint16_t peer;
    unsigned i;

    hear(line);
    port = join(&node, &peer);
    OK(netvm_sender_join(port, peer, 7, "numbers", LONG_TIME, &numbers));
    ANSWERS(-EBUSY, netvm_sender_join(port, peer, 7, "numbers", LONG_TIME, &third));
    for (i = 0; i < MESSAGES; i++) {
        int answer = netvm_sender_send(numbers, &i, sizeof i, 0);
        if (answer == -EAGAIN)
            answer = netvm_sender_send(numbers, &i, sizeof i, LONG_TIME);
        CHECK(answer == 0);
    }
    OK(netvm_sender_flush(numbers));
    hear(line);
    OK(netvm_sender_join(port, peer, 7, "bulk", LONG_TIME, &bulk));
    memset(long_text, 'x', sizeof long_text);
    ANSWERS(-EMSGSIZE, netvm_sender_send(numbers, long_text, sizeof long_text, 0));
    OK(netvm_sender_send(numbers, "small", 5, LONG_TIME));
    OK(netvm_region_alloc(port, 8192, &region));
    OK(netvm_region_write(region, 1000, "other", 5));
    OK(netvm_sender_send_region(bulk, region, 1000, 5, LONG_TIME));
    OK(netvm_sender_send_region(bulk, region, 0, 3000, LONG_TIME));
    OK(netvm_flush_writes(port));
    info.size = sizeof info;
    OK(netvm_sender_get_info(bulk, &info));
    CHECK(info.messages == 2 && info.message_bytes >= 3000);
    OK(netvm_sender_close(bulk));
    ANSWERS(-EBADF, netvm_sender_send(bulk, "x", 1, 0));
    OK(netvm_sender_close(numbers));
    OK(netvm_region_close(region));

    hear(line);
    OK(netvm_shared_sender_join(port, peer, 7, "requests", LONG_TIME, &requests));
    OK(netvm_shared_sender_message_bytes(requests, &limit));
    CHECK(limit == 512);
    ANSWERS(-EINVAL, netvm_shared_sender_send(requests, NULL, 0, 0));
    for (i = 0; i < 100; i++)
        OK(netvm_shared_sender_send(requests, &i, sizeof i, LONG_TIME));
    OK(netvm_shared_sender_close(requests));
    OK(netvm_port_close(port));
    OK(netvm_node_close(node));
}

int main(void)
{
    return two_processes(server, client);
}
