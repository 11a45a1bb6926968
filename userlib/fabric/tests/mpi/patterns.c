/*
 * Message patterns over MPI: all-to-all in sizes from one byte on, a ring of messages that are probed for, collectives.
 *
 * Every byte that arrives is compared with what its sender must have put there, so a program that ends well has seen no byte of
 * another message, of another round, or of none.
 *
 * Usage: patterns [LARGEST_BYTES [ROUNDS]]
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int me, all;

static void fail(const char *what, long expected, long got)
{
    fprintf(stderr, "rank %d: %s: expected %ld, got %ld\n", me, what, expected, got);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void same(const char *what, long expected, long got)
{
    if (expected != got)
        fail(what, expected, got);
}

static void *room(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory)
        fail("memory", (long)bytes, 0);
    return memory;
}

/* What stands at `at` of a message of `round` from one rank to another. */
static unsigned char byte_of(int from, int to, unsigned round, size_t at)
{
    uint32_t mixed = (uint32_t)at * 2654435761u + (uint32_t)from * 40503u + (uint32_t)to * 30011u + round * 9176u;
    return (unsigned char)(mixed >> 24 ^ mixed);
}

static void fill(unsigned char *bytes, size_t len, int from, int to, unsigned round)
{
    for (size_t at = 0; at < len; at++)
        bytes[at] = byte_of(from, to, round, at);
}

static void check(const char *what, const unsigned char *bytes, size_t len, int from, int to, unsigned round)
{
    for (size_t at = 0; at < len; at++)
        if (bytes[at] != byte_of(from, to, round, at)) {
            fprintf(stderr, "rank %d: %s: byte %zu of %zu from %d, round %u\n", me, what, at, len, from, round);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
}

static void all_to_all(size_t largest, int rounds)
{
    unsigned char *out = room(largest * (size_t)all), *in = room(largest * (size_t)all);
    unsigned round = 0;
    for (size_t len = 1; len <= largest; len = len < 4 ? len + 1 : len * 2)
        for (int again = 0; again < rounds; again++, round++) {
            memset(in, 0xee, len * (size_t)all);
            for (int to = 0; to < all; to++)
                fill(out + len * (size_t)to, len, me, to, round);
            MPI_Alltoall(out, (int)len, MPI_BYTE, in, (int)len, MPI_BYTE, MPI_COMM_WORLD);
            for (int from = 0; from < all; from++)
                check("alltoall", in + len * (size_t)from, len, from, me, round);
        }
    free(out);
    free(in);
}

/* A message goes round; its length is learnt by a probe, its sender and its tag by wildcards. */
static void ring(size_t largest, int rounds)
{
    int next = (me + 1) % all, before = (me + all - 1) % all;
    unsigned char *out = room(largest), *in = room(largest);
    for (int round = 0; round < rounds; round++) {
        size_t len = ((size_t)round * 7919) % (largest + 1);
        MPI_Request sent;
        MPI_Status status;
        int got;
        fill(out, len, me, next, (unsigned)round);
        MPI_Isend(out, (int)len, MPI_BYTE, next, round, MPI_COMM_WORLD, &sent);
        MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &got);
        same("length of a probed message", (long)len, got);
        same("sender of a probed message", before, status.MPI_SOURCE);
        same("tag of a probed message", round, status.MPI_TAG);
        MPI_Recv(in, got, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        check("ring", in, len, before, me, (unsigned)round);
        MPI_Wait(&sent, MPI_STATUS_IGNORE);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    free(out);
    free(in);
}

/* A probe that keeps the message for its receive, while others of the same tag come. */
static void matched_probe(int rounds)
{
    enum { MESSAGES = 16, INTS = 3000 };
    int *bytes = room(INTS * sizeof *bytes);
    for (int round = 0; round < rounds; round++) {
        MPI_Request sent[MESSAGES];
        int *out = room(MESSAGES * INTS * sizeof *out);
        int next = (me + 1) % all, before = (me + all - 1) % all;
        for (int at = 0; at < MESSAGES; at++) {
            int *one = out + at * INTS;
            for (int i = 0; i < INTS; i++)
                one[i] = me * 1000003 + at * 101 + i;
            MPI_Isend(one, 1 + (at * 191) % INTS, MPI_INT, next, 5, MPI_COMM_WORLD, &sent[at]);
        }
        for (int at = 0; at < MESSAGES; at++) {
            MPI_Message message;
            MPI_Status status;
            int got;
            MPI_Mprobe(before, 5, MPI_COMM_WORLD, &message, &status);
            MPI_Get_count(&status, MPI_INT, &got);
            same("order of matched probes", 1 + (at * 191) % INTS, got);
            MPI_Mrecv(bytes, got, MPI_INT, &message, &status);
            for (int i = 0; i < got; i++)
                same("matched probe", before * 1000003 + at * 101 + i, bytes[i]);
        }
        MPI_Waitall(MESSAGES, sent, MPI_STATUSES_IGNORE);
        free(out);
    }
    free(bytes);
}

/* Rank 0 takes what all others send, in whatever order it comes; of each sender it comes in order. */
static void many_to_one(int messages)
{
    if (me == 0) {
        int *next = calloc((size_t)all, sizeof *next);
        for (int left = messages * (all - 1); left > 0; left--) {
            long numbers[2];
            MPI_Status status;
            MPI_Recv(numbers, 2, MPI_LONG, MPI_ANY_SOURCE, 9, MPI_COMM_WORLD, &status);
            same("sender", status.MPI_SOURCE, numbers[0]);
            same("order of one sender's messages", next[status.MPI_SOURCE]++, numbers[1]);
        }
        free(next);
    } else {
        for (long at = 0; at < messages; at++) {
            long numbers[2] = {me, at};
            MPI_Send(numbers, 2, MPI_LONG, 0, 9, MPI_COMM_WORLD);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void collectives(int rounds)
{
    enum { MOST = 60000 };
    long *mine = room(MOST * sizeof *mine), *sum = room(MOST * sizeof *sum);
    long *gathered = room(MOST * (size_t)all * sizeof *gathered);
    for (int round = 0; round < rounds; round++) {
        int count = 1 + (round * 4001) % MOST, root = round % all;
        for (int at = 0; at < count; at++)
            mine[at] = (long)me * 3 + at + round;
        MPI_Allreduce(mine, sum, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        for (int at = 0; at < count; at++)
            same("allreduce", 3L * all * (all - 1) / 2 + (long)all * (at + round), sum[at]);
        MPI_Gather(mine, count, MPI_LONG, gathered, count, MPI_LONG, root, MPI_COMM_WORLD);
        if (me == root)
            for (int from = 0; from < all; from++)
                for (int at = 0; at < count; at++)
                    same("gather", (long)from * 3 + at + round, gathered[(size_t)from * (size_t)count + (size_t)at]);
        if (me == root)
            memcpy(sum, mine, (size_t)count * sizeof *sum);
        MPI_Bcast(sum, count, MPI_LONG, root, MPI_COMM_WORLD);
        for (int at = 0; at < count; at++)
            same("broadcast", (long)root * 3 + at + round, sum[at]);
    }
    free(mine);
    free(sum);
    free(gathered);
}

/* A receive that is taken back gets nothing; the message goes to the next one. */
static void cancel(void)
{
    int next = (me + 1) % all, before = (me + all - 1) % all, cancelled, got = 0, never = -1;
    MPI_Request request;
    MPI_Status status;
    MPI_Irecv(&never, 1, MPI_INT, before, 77, MPI_COMM_WORLD, &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &cancelled);
    same("cancelled", 1, cancelled);
    /* Before that no message may come that the receive could take. */
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Sendrecv(&me, 1, MPI_INT, next, 77, &got, 1, MPI_INT, before, 77, MPI_COMM_WORLD, &status);
    same("after a cancel", before, got);
    same("what was cancelled", -1, never);
}

int main(int argc, char **argv)
{
    size_t largest = argc > 1 ? (size_t)atol(argv[1]) : 1 << 20;
    int rounds = argc > 2 ? atoi(argv[2]) : 3;
    double begin;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &all);
    begin = MPI_Wtime();
#define STEP(call) \
    do { \
        double start = MPI_Wtime(); \
        call; \
        MPI_Barrier(MPI_COMM_WORLD); \
        if (me == 0) \
            printf("%-34s %8.3f s\n", #call, MPI_Wtime() - start), fflush(stdout); \
    } while (0)
    STEP(all_to_all(largest, rounds));
    STEP(ring(largest / 8, 10 * rounds));
    STEP(matched_probe(rounds));
    STEP(many_to_one(1000 * rounds));
    STEP(collectives(3 * rounds));
    STEP(cancel());
    if (me == 0)
        printf("patterns: all is well (%d ranks, %.1f s)\n", all, MPI_Wtime() - begin);
    MPI_Finalize();
    return 0;
}
