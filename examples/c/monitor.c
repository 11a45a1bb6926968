/* A monitor with a condition: one thread waits for what the other one does. */
#include "self.h"

#include <pthread.h>

static struct self self;
static int ready;

static void *consumer(void *answer)
{
    netvm_monitor *monitor;
    netvm_condition *condition;
    MUST(netvm_monitor_join(self.port, self.id, self.number, "monitor", NETVM_FOREVER, &monitor));
    MUST(netvm_condition_join(self.port, self.id, self.number, "ready", NETVM_FOREVER, &condition));
    MUST(netvm_monitor_enter(monitor, NULL));
    while (!ready)
        MUST(netvm_monitor_wait(monitor, condition, NULL));
    *(int *)answer = ready;
    MUST(netvm_monitor_leave(monitor));
    MUST(netvm_condition_close(condition));
    MUST(netvm_monitor_close(monitor));
    return NULL;
}

int main(void)
{
    netvm_home *home, *condition_home;
    netvm_monitor *monitor;
    netvm_condition *condition;
    pthread_t thread;
    int answer = 0;

    self = open_self();
    MUST(netvm_monitor_create(self.port, "monitor", NULL, &home));
    MUST(netvm_condition_create(self.port, "ready", NULL, &condition_home));
    if (pthread_create(&thread, NULL, consumer, &answer) != 0)
        return 1;

    MUST(netvm_monitor_join(self.port, self.id, self.number, "monitor", NETVM_FOREVER, &monitor));
    MUST(netvm_condition_join(self.port, self.id, self.number, "ready", NETVM_FOREVER, &condition));
    MUST(netvm_monitor_enter(monitor, NULL));
    ready = 42;
    MUST(netvm_condition_signal(condition, NULL));
    MUST(netvm_monitor_leave(monitor));
    pthread_join(thread, NULL);
    printf("the other thread saw %d\n", answer);

    MUST(netvm_condition_close(condition));
    MUST(netvm_monitor_close(monitor));
    MUST(netvm_home_close(condition_home));
    MUST(netvm_home_close(home));
    close_self(self);
    return answer != 42;
}
