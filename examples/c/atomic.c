/* A counter that several nodes raise. */
#include "self.h"

int main(void)
{
    struct self self = open_self();
    netvm_region *region;
    netvm_export *shared;
    netvm_remote *remote;
    netvm_pending *pending;
    uint64_t old, later;

    MUST(netvm_region_alloc(self.port, 4096, &region));
    MUST(netvm_export_open(self.port, "counter", region, 0, 0, NULL, &shared));
    MUST(netvm_import(self.port, self.id, self.number, "counter", 0, NETVM_FOREVER, &remote));

    /* One round trip. */
    MUST(netvm_atomic64(remote, 0, NETVM_FETCH_ADD, 5, 0, 0, &old));
    /* The same without waiting for the answer at once. */
    MUST(netvm_begin_atomic64(remote, 0, NETVM_FETCH_ADD, 2, 0, 0, NULL, &pending));
    MUST(netvm_pending_wait(pending, NETVM_FOREVER));
    MUST(netvm_pending_value(pending, &later));
    MUST(netvm_pending_close(pending));
    printf("it was %u, then %u\n", (unsigned)old, (unsigned)later);

    MUST(netvm_remote_close(remote));
    MUST(netvm_export_close(shared));
    MUST(netvm_region_close(region));
    close_self(self);
    return later != 5;
}
