/* Locks of both kinds, and a semaphore. */
#include "self.h"

int main(void)
{
    struct self self = open_self();
    netvm_home *home, *tokens;
    netvm_lock *lock;
    netvm_alock_home *fast_home;
    netvm_alock *fast;
    netvm_semaphore *semaphore;
    bool died;

    MUST(netvm_lock_create(self.port, "lock", NULL, &home));
    MUST(netvm_lock_join(self.port, self.id, self.number, "lock", NETVM_FOREVER, &lock));
    MUST(netvm_lock_acquire(lock, NETVM_FOREVER, &died));
    printf("held%s\n", died ? ", and the last holder has died" : "");
    MUST(netvm_lock_release(lock));

    /* For a process that takes its own lock often: no message where no other process wants it. */
    MUST(netvm_alock_create(self.port, "fast", NULL, 0, 0, &fast_home));
    MUST(netvm_alock_local(fast_home, &fast));
    MUST(netvm_alock_acquire(fast));
    MUST(netvm_alock_release(fast));

    MUST(netvm_semaphore_create(self.port, "tokens", 2, NULL, &tokens));
    MUST(netvm_semaphore_join(self.port, self.id, self.number, "tokens", NETVM_FOREVER, &semaphore));
    MUST(netvm_semaphore_wait(semaphore, NETVM_FOREVER));
    MUST(netvm_semaphore_signal(semaphore, NULL));

    MUST(netvm_semaphore_close(semaphore));
    MUST(netvm_home_close(tokens));
    MUST(netvm_alock_close(fast));
    MUST(netvm_alock_home_close(fast_home));
    MUST(netvm_lock_close(lock));
    MUST(netvm_home_close(home));
    close_self(self);
    return 0;
}
