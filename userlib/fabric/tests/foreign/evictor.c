/* Runs a command, and takes the pages of the processes that use the provider away while it runs.
 *
 *     evictor MILLISECONDS FAULTS COMMAND...
 *
 * Every so many milliseconds, all memory of each descendant that has loaded `libnetvm-fi.so` is given to process_madvise(MADV_PAGEOUT);
 * with 0 milliseconds it only looks on, where a limit of a control group does the work. It fails if one of them has locked or pinned
 * memory, if none was there, or if one had less than so many major faults: pages that had to be read from where they were written to.
 * Otherwise it ends as the command does. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

enum { MOST = 256, RANGES = 512 };

struct victim {
    pid_t pid;
    unsigned long major, rounds;
};
static struct victim victims[MOST];
static int count;
static unsigned long locked, pinned, refused;

static void fail(const char *what)
{
    perror(what);
    exit(125);
}

/* The parent of a process, and its major faults. */
static pid_t parent_of(pid_t pid, unsigned long *major)
{
    char path[64], line[1024];
    pid_t parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    char *behind = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
    if (behind == NULL || sscanf(behind + 1, " %*c %d %*d %*d %*d %*d %*u %*u %*u %lu", &parent, major) != 2)
        parent = 0;
    fclose(file);
    return parent;
}

static int is_descendant(pid_t pid, unsigned long *major)
{
    unsigned long other;
    pid_t parent = parent_of(pid, major);
    while (parent > 1 && parent != getpid())
        parent = parent_of(parent, &other);
    return parent == getpid();
}

/* A number of /proc/PID/status, in KiB. */
static unsigned long status_of(pid_t pid, const char *name)
{
    char path[64], line[256];
    unsigned long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    while (fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0)
            kib = strtoul(line + strlen(name), NULL, 10);
    fclose(file);
    return kib;
}

/* The memory of a process. Gives 0 if it has not loaded the provider. */
static size_t memory_of(pid_t pid, struct iovec *ranges)
{
    char path[64], line[1024], rights[8];
    size_t found = 0;
    int provider = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    while (fgets(line, sizeof line, file)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx %7s", &start, &end, rights) != 3)
            continue;
        provider |= strstr(line, "libnetvm-fi.so") != NULL;
        if (rights[0] == 'r' && strstr(line, "[v") == NULL && found < RANGES)
            ranges[found++] = (struct iovec){(void *)start, end - start};
    }
    fclose(file);
    return provider ? found : 0;
}

static void evict(pid_t pid, unsigned long major, int takes)
{
    struct iovec ranges[RANGES];
    size_t found = memory_of(pid, ranges);
    if (found == 0)
        return;
    int at = 0;
    while (at < count && victims[at].pid != pid)
        at++;
    if (at == MOST)
        return;
    if (at == count)
        victims[count++] = (struct victim){.pid = pid};
    victims[at].major = major;
    locked += status_of(pid, "VmLck:");
    pinned += status_of(pid, "VmPin:");
    if (!takes)
        return;
    int handle = (int)syscall(SYS_pidfd_open, pid, 0);
    if (handle < 0)
        return;
    for (size_t from = 0; from < found; from++) {
        /* One by one: what one range refuses is nothing to the others. */
        if (syscall(SYS_process_madvise, handle, &ranges[from], 1UL, MADV_PAGEOUT, 0UL) < 0 && errno == EPERM)
            refused++;
    }
    close(handle);
    victims[at].rounds++;
}

static void look(int takes)
{
    DIR *all = opendir("/proc");
    struct dirent *entry;
    if (all == NULL)
        fail("/proc");
    while ((entry = readdir(all)) != NULL) {
        unsigned long major = 0;
        pid_t pid = atoi(entry->d_name);
        if (pid > 0 && is_descendant(pid, &major))
            evict(pid, major, takes);
    }
    closedir(all);
}

int main(int arguments, char **argument)
{
    if (arguments < 4) {
        fprintf(stderr, "evictor MILLISECONDS FAULTS COMMAND...\n");
        return 125;
    }
    long pause = atol(argument[1]);
    unsigned long wanted = strtoul(argument[2], NULL, 10), least = ~0UL, sum = 0, rounds = 0;
    struct timespec nap = {0, (pause > 0 ? pause : 20) * 1000000};
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
        fail("prctl");
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    if (child == 0) {
        execvp(argument[3], argument + 3);
        fail(argument[3]);
    }
    int status = 0, ended = 0;
    while (!ended) {
        look(pause > 0);
        nanosleep(&nap, NULL);
        pid_t gone;
        /* What outlives the command is this process' own, until it ends. */
        while (!ended && (gone = waitpid(-1, &status, WNOHANG)) > 0)
            ended = gone == child;
    }
    for (int at = 0; at < count; at++) {
        least = victims[at].major < least ? victims[at].major : least;
        sum += victims[at].major;
        rounds += victims[at].rounds;
    }
    printf("evictor: %d processes, %lu times all of one's memory, %lu major faults, %lu at least, locked %lu KiB, pinned %lu KiB\n", count,
           rounds, sum, count > 0 ? least : 0, locked, pinned);
    if (WIFSIGNALED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "evictor: %s: %s %d\n", argument[3], WIFSIGNALED(status) ? "signal" : "exit status",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    const char *wrong = count == 0          ? "no process has loaded the provider"
                        : locked + pinned   ? "memory is locked or pinned"
                        : refused           ? "process_madvise is not allowed"
                        : least < wanted    ? "pages stayed where they were: too few major faults"
                                            : NULL;
    if (wrong != NULL)
        fprintf(stderr, "evictor: %s\n", wrong);
    return wrong != NULL;
}
