/* What the tests share: checks that say what was not so, and two processes that talk. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <netvm/netvm.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

/* Long enough for a slow machine and valgrind. */
#define LONG_TIME INT64_C(60000000000)
#define PAGE 4096u

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition,             \
                    netvm_error_message());                                                         \
            _exit(1);                                                                               \
        }                                                                                           \
    } while (0)

#define OK(call) ANSWERS(0, call)

#define ANSWERS(wanted, call)                                                                       \
    do {                                                                                            \
        int answer_ = (call);                                                                       \
        if (answer_ != (wanted)) {                                                                  \
            fprintf(stderr, "%s:%d: %s answers %d (%s), not %d: %s\n", __FILE__, __LINE__, #call,   \
                    answer_, strerror(-answer_), (int)(wanted), netvm_error_message());             \
            _exit(1);                                                                               \
        }                                                                                           \
    } while (0)

/* Whether a tool watches the program that does not understand a fault which is answered, or a fork of threads. */
static inline int watched(void)
{
    return getenv("NETVM_C_WATCHED") != NULL;
}

/* A line between the two processes: a byte says that something is ready. */
struct line {
    int to, from;
};

static inline void say(struct line line)
{
    char byte = 1;
    CHECK(write(line.to, &byte, 1) == 1);
}

static inline void hear(struct line line)
{
    char byte;
    CHECK(read(line.from, &byte, 1) == 1);
}

/* Runs `server` here and `client` in a child, made before either has a node. Both must end well. */
static inline int two_processes(void (*server)(struct line), void (*client)(struct line))
{
    int to_client[2], to_server[2], status;
    pid_t child;
    CHECK(pipe(to_client) == 0 && pipe(to_server) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct line line;
        close(to_client[1]);
        close(to_server[0]);
        line.to = to_server[1];
        line.from = to_client[0];
        client(line);
        exit(0);
    } else {
        struct line line;
        close(to_client[0]);
        close(to_server[1]);
        line.to = to_client[1];
        line.from = to_server[0];
        server(line);
        close(line.to);
        close(line.from);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return 0;
}

/* A name that no other test has at the same time. The client asks for its parent's. */
static inline const char *name_of(pid_t process)
{
    static char name[64];
    snprintf(name, sizeof name, "c-test-%ld", (long)process);
    return name;
}

/* A software card with the server's name, and its port 7. */
static inline netvm_port *serve(netvm_node **node)
{
    struct netvm_node_options options;
    struct netvm_port_options seven;
    netvm_port *port;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.name = name_of(getpid());
    OK(netvm_node_start(&options, node));
    memset(&seven, 0, sizeof seven);
    seven.size = sizeof seven;
    seven.port = 7;
    OK(netvm_port_open(*node, &seven, &port));
    return port;
}

/* A software card that is linked to the server's, and a port. */
static inline netvm_port *join(netvm_node **node, uint16_t *peer)
{
    netvm_port *port;
    OK(netvm_node_start(NULL, node));
    OK(netvm_node_connect(*node, name_of(getppid()), LONG_TIME, peer));
    OK(netvm_port_open(*node, NULL, &port));
    return port;
}

#endif
