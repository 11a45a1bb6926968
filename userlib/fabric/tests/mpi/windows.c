/* One-sided communication over MPI: put, get, accumulate of several types and operations, and fetch-and-op, by fences and by locks.
 *
 * Every rank does each with every other one, at the same time. There is no compare-and-swap: that of Open MPI 4.1.4 (`osc rdma`) ends in
 * a segmentation fault over its own shared memory, too. Arguments: bytes of a window (1 MiB), rounds (3). */
#include <mpi.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

/* All operations are done. Between two hosts `osc rdma` of Open MPI 4.1.4 asks its own `btl ofi` for those of MPI_Accumulate, and that
 * one knows sums and exchanges of 4 and 8 bytes, and ends the program at any other. */
static int all_operations;

static void find_operations(void)
{
    const char *osc = getenv("OMPI_MCA_osc");
    int near_ranks;
    MPI_Comm near;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &near);
    MPI_Comm_size(near, &near_ranks);
    MPI_Comm_free(&near);
    all_operations = near_ranks == ranks || osc == NULL || strcmp(osc, "rdma") != 0;
}

static void same(const char *what, long expected, long found)
{
    if (expected == found)
        return;
    fprintf(stderr, "rank %d: %s: %ld instead of %ld\n", rank, what, found, expected);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Each rank has a part of each window. */
static void put_and_get(long len, int round)
{
    long part = len / ranks;
    char *mine, *back = malloc((size_t)part), *out = malloc((size_t)part);
    MPI_Win window;
    MPI_Win_allocate(len, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &mine, &window);
    memset(mine, 0, (size_t)len);
    MPI_Win_fence(0, window);
    for (int to = 0; to < ranks; to++) {
        memset(out, 1 + rank * 16 + to + round, (size_t)part);
        MPI_Win_lock(MPI_LOCK_SHARED, to, 0, window);
        MPI_Put(out, (int)part, MPI_BYTE, to, rank * part, (int)part, MPI_BYTE, window);
        MPI_Win_flush(to, window);
        MPI_Get(back, (int)part, MPI_BYTE, to, rank * part, (int)part, MPI_BYTE, window);
        MPI_Win_unlock(to, window);
        same("what was put is got back", 0, memcmp(out, back, (size_t)part));
    }
    MPI_Win_fence(0, window);
    for (int from = 0; from < ranks; from++)
        for (long at = 0; at < part; at++)
            same("a byte that another rank put", (char)(1 + from * 16 + rank + round), mine[from * part + at]);
    MPI_Win_free(&window);
    free(back);
    free(out);
}

/* All count in the words of rank 0. */
static void counted(int times)
{
    long *words, one = 1, old, minus = -1, sum = 0;
    int most[4] = {rank, 2 * rank, -rank, 7};
    MPI_Win window;
    MPI_Win_allocate(4096, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &words, &window);
    memset(words, 0, 4096);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, window);
    for (int time = 0; time < times; time++) {
        MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, 3, MPI_SUM, window);
        MPI_Win_flush(0, window);
        sum += old;
    }
    MPI_Win_unlock_all(window);
    /* Without an atomic: a lock keeps all others out. */
    for (int time = 0; time < times; time++) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
        MPI_Get(&old, 1, MPI_LONG, 0, 6, 1, MPI_LONG, window);
        MPI_Win_flush(0, window);
        old++;
        MPI_Put(&old, 1, MPI_LONG, 0, 6, 1, MPI_LONG, window);
        MPI_Win_unlock(0, window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, window);
    MPI_Accumulate(&minus, 1, MPI_LONG, 0, 3, 1, MPI_LONG, MPI_SUM, window);
    if (all_operations)
        MPI_Accumulate(most, 4, MPI_INT, 0, 8, 4, MPI_INT, MPI_MAX, window);
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    long all = 0, count = (long)times * ranks;
    MPI_Reduce(&sum, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        int maxima[4];
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
        memcpy(maxima, words + 8, sizeof maxima);
        same("a sum", count - ranks, words[3]);
        same("old values, each once", count * (count - 1) / 2, all);
        same("counted under a lock", count, words[6]);
        if (all_operations) {
            same("a maximum", ranks - 1, maxima[0]);
            same("another maximum", 2 * (ranks - 1), maxima[1]);
            same("the maximum of what is not above 0", 0, maxima[2]);
        }
        MPI_Win_unlock(0, window);
    }
    MPI_Win_free(&window);
}

/* Every rank changes numbers of several types at rank 0, which lie side by side. */
static void reduced(void)
{
    struct numbers {
        signed char least;
        unsigned char bits;
        short sum;
        unsigned most;
        float product;
        double fractions;
        long all;
    } *numbers, mine = {(signed char)-rank, (unsigned char)(1 << rank % 8), -3, 1000u + (unsigned)rank, 2, 0.25, ~(1L << rank)};
    const struct {
        MPI_Datatype type;
        MPI_Op op;
        size_t at;
    } calls[] = {
        {MPI_SIGNED_CHAR, MPI_MIN, offsetof(struct numbers, least)},    {MPI_UNSIGNED_CHAR, MPI_BOR, offsetof(struct numbers, bits)},
        {MPI_SHORT, MPI_SUM, offsetof(struct numbers, sum)},            {MPI_UNSIGNED, MPI_MAX, offsetof(struct numbers, most)},
        {MPI_FLOAT, MPI_PROD, offsetof(struct numbers, product)},       {MPI_DOUBLE, MPI_SUM, offsetof(struct numbers, fractions)},
        {MPI_LONG, MPI_BAND, offsetof(struct numbers, all)},
    };
    MPI_Win window;
    MPI_Win_allocate(4096, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &numbers, &window);
    *numbers = (struct numbers){0, 0, 0, 0, 1, 0, -1};
    MPI_Win_fence(0, window);
    for (size_t call = 0; call < sizeof calls / sizeof *calls; call++)
        MPI_Accumulate((char *)&mine + calls[call].at, 1, calls[call].type, 0, (MPI_Aint)calls[call].at, 1, calls[call].type, calls[call].op, window);
    MPI_Win_fence(0, window);
    if (rank == 0) {
        unsigned char bits = 0;
        long all = -1;
        for (int one = 0; one < ranks; one++) {
            bits |= (unsigned char)(1 << one % 8);
            all &= ~(1L << one);
        }
        same("the least", 1 - ranks, numbers->least);
        same("an OR of bits", bits, numbers->bits);
        same("a sum of short numbers", -3 * ranks, numbers->sum);
        same("the greatest", 999 + ranks, numbers->most);
        same("a product", 1L << ranks, (long)numbers->product);
        same("a sum of quarters", ranks, (long)(numbers->fractions * 4));
        same("an AND of bits", all, numbers->all);
    }
    MPI_Win_free(&window);
}

int main(int count, char **arguments)
{
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    find_operations();
    long len = count > 1 ? atol(arguments[1]) : 1 << 20;
    int rounds = count > 2 ? atoi(arguments[2]) : 3;
    for (int round = 0; round < rounds; round++) {
        put_and_get(len, round);
        counted(50);
        if (all_operations)
            reduced();
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("ok: %d ranks, %d rounds, windows of %ld bytes\n", ranks, rounds, len);
    MPI_Finalize();
    return 0;
}
