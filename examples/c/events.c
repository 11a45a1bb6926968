/* A port in an event loop: its descriptor is polled beside others, and no thread waits inside of the library. */
#include "self.h"

#include <errno.h>
#include <poll.h>

int main(void)
{
    struct self self = open_self();
    struct netvm_access access = {
        .size = sizeof access, .modes = NETVM_NOTIFY, .notify_first = 1024, .notify_last = 2000};
    netvm_region *region;
    netvm_export *shared;
    netvm_remote *remote;
    netvm_events *events;
    struct pollfd loop[1];
    uint32_t number = 0;
    int answer;

    MUST(netvm_region_alloc(self.port, 4096, &region));
    MUST(netvm_export_open(self.port, "bell", region, 0, 0, &access, &shared));
    MUST(netvm_import(self.port, self.id, self.number, "bell", 0, NETVM_FOREVER, &remote));
    MUST(netvm_events_open(self.port, &events));
    MUST(netvm_events_fd(events, &loop[0].fd));
    loop[0].events = POLLIN;

    MUST(netvm_notify(remote, 1030, 0, NULL));
    for (;;) {
        /* Arm, look, and poll only if there was nothing. */
        MUST(netvm_events_arm(events));
        answer = netvm_notification_next(self.port, 0, &number);
        if (answer != -EAGAIN)
            break;
        poll(loop, 1, -1);
    }
    MUST(answer);
    printf("notification %u\n", (unsigned)number);

    MUST(netvm_events_close(events));
    MUST(netvm_remote_close(remote));
    MUST(netvm_export_close(shared));
    MUST(netvm_region_close(region));
    close_self(self);
    return number != 1030;
}
