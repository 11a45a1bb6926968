/* What the examples do about an error: say what the library says, and end. */
#ifndef MUST_H
#define MUST_H

#include <netvm/netvm.h>
#include <stdio.h>
#include <stdlib.h>

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) < 0) {                                                                          \
            fprintf(stderr, "%s: %s\n", #call, netvm_error_message());                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#endif
