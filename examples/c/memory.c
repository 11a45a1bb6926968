/* Memory that the program already has is read by others without a copy, and nothing of it is pinned. */
#include "self.h"

#include <string.h>

static char table[1 << 20];

int main(void)
{
    struct self self = open_self();
    struct netvm_access readers = {.size = sizeof readers, .modes = NETVM_READ};
    netvm_region *region;
    netvm_export *shared;
    netvm_remote *remote;
    char text[16];

    strcpy(table + 500000, "row 7");
    MUST(netvm_region_adopt(self.port, table, sizeof table, &region));
    MUST(netvm_export_open(self.port, "table", region, 0, 0, &readers, &shared));

    MUST(netvm_import(self.port, self.id, self.number, "table", NETVM_READ, NETVM_FOREVER, &remote));
    MUST(netvm_read(remote, 500000, text, sizeof text, 0));
    printf("%s\n", text);

    MUST(netvm_remote_close(remote));
    MUST(netvm_export_close(shared));
    MUST(netvm_region_close(region));
    close_self(self);
    return strcmp(text, "row 7") != 0;
}
