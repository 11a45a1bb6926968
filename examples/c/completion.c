/* Many reads under way at once, collected as they end, each with a word of the program. */
#include "self.h"

enum { PAGES = 16, PAGE = 4096 };

int main(void)
{
    struct self self = open_self();
    netvm_region *far, *near;
    netvm_export *shared;
    netvm_remote *remote;
    netvm_cq *queue;
    int handled = 0, page;

    MUST(netvm_region_alloc(self.port, PAGES * PAGE, &far));
    MUST(netvm_region_alloc(self.port, PAGES * PAGE, &near));
    for (page = 0; page < PAGES; page++)
        MUST(netvm_region_store64(far, (uint64_t)page * PAGE, (uint64_t)page + 1));
    MUST(netvm_export_open(self.port, "pages", far, 0, 0, NULL, &shared));
    MUST(netvm_import(self.port, self.id, self.number, "pages", 0, NETVM_FOREVER, &remote));

    MUST(netvm_cq_open(self.port, &queue));
    for (page = 0; page < PAGES; page++) {
        uint64_t at = (uint64_t)page * PAGE;
        netvm_pending *read;
        int answer;
        while ((answer = netvm_begin_read_region(remote, at, near, at, PAGE, 0, (void *)(uintptr_t)at,
                                                 &read)) < 0) {
            if (netvm_wait_room(self.port, NETVM_FOREVER) < 0)
                MUST(answer);
        }
        MUST(netvm_cq_add(queue, read));
    }
    for (page = 0; page < PAGES; page++) {
        struct netvm_completion done = {.size = sizeof done};
        uint64_t word, at;
        MUST(netvm_cq_next(queue, NETVM_FOREVER, &done));
        MUST(done.result);
        at = (uint64_t)(uintptr_t)done.context;
        MUST(netvm_region_load64(near, at, &word));
        handled += word == at / PAGE + 1;
    }
    printf("%d pages read\n", handled);

    MUST(netvm_cq_close(queue));
    MUST(netvm_remote_close(remote));
    MUST(netvm_export_close(shared));
    MUST(netvm_region_close(near));
    MUST(netvm_region_close(far));
    close_self(self);
    return handled != PAGES;
}
