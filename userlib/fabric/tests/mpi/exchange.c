/* Every rank sends to every other one, in each of the ways in which MPI programs do it, and checks each byte.
 *
 * Arguments: the largest message in bytes (a power of 2; 1 MiB), rounds (3). */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

static void fail(const char *what, long at)
{
    fprintf(stderr, "rank %d: %s at %ld\n", rank, what, at);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* What a byte of a message from one rank to another is. */
static unsigned char byte_of(int from, int to, long at, int round)
{
    return (unsigned char)(from * 31 + to * 17 + at * 7 + at / 251 + round);
}

static unsigned char *bytes(long len)
{
    unsigned char *all = malloc(len > 0 ? (size_t)len : 1);
    if (all == NULL)
        fail("no memory", len);
    return all;
}

static void all_to_all(long len, int round)
{
    unsigned char *out = bytes(len * ranks), *in = bytes(len * ranks);
    for (int to = 0; to < ranks; to++)
        for (long at = 0; at < len; at++)
            out[to * len + at] = byte_of(rank, to, at, round);
    memset(in, 0xEE, (size_t)(len * ranks));
    MPI_Alltoall(out, (int)len, MPI_BYTE, in, (int)len, MPI_BYTE, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++)
        for (long at = 0; at < len; at++)
            if (in[from * len + at] != byte_of(from, rank, at, round))
                fail("all to all: another byte", at);
    free(out);
    free(in);
}

/* A ring in which the length is found by a probe, and the sender is not named. */
static void around(long len, int round)
{
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, came;
    unsigned char *out = bytes(len);
    for (long at = 0; at < len; at++)
        out[at] = byte_of(rank, next, at, round);
    MPI_Request sent;
    MPI_Isend(out, (int)len, MPI_BYTE, next, 7 + round, MPI_COMM_WORLD, &sent);
    MPI_Status status;
    MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_BYTE, &came);
    if (came != len || status.MPI_SOURCE != before || status.MPI_TAG != 7 + round)
        fail("around: another message", came);
    unsigned char *in = bytes(len);
    MPI_Recv(in, came, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (long at = 0; at < len; at++)
        if (in[at] != byte_of(before, rank, at, round))
            fail("around: another byte", at);
    MPI_Wait(&sent, MPI_STATUS_IGNORE);
    /* The next ring's probe is not to find a message of this one. */
    MPI_Barrier(MPI_COMM_WORLD);
    free(out);
    free(in);
}

/* Many at once, received in the opposite order of their tags; every second one is a synchronous send. */
static void crossed(long len, int round)
{
    enum { MANY = 16 };
    MPI_Request in[MANY], out[MANY];
    unsigned char *sent = bytes(len * MANY), *came = bytes(len * MANY);
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (long at = 0; at < len * MANY; at++)
        sent[at] = byte_of(rank, next, at, round);
    for (int tag = 0; tag < MANY; tag++) {
        int (*send)(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *) = tag % 2 ? MPI_Issend : MPI_Isend;
        send(sent + tag * len, (int)len, MPI_BYTE, next, tag, MPI_COMM_WORLD, &out[tag]);
    }
    for (int tag = MANY - 1; tag >= 0; tag--)
        MPI_Irecv(came + tag * len, (int)len, MPI_BYTE, before, tag, MPI_COMM_WORLD, &in[tag]);
    MPI_Waitall(MANY, in, MPI_STATUSES_IGNORE);
    MPI_Waitall(MANY, out, MPI_STATUSES_IGNORE);
    for (long at = 0; at < len * MANY; at++)
        if (came[at] != byte_of(before, rank, at, round))
            fail("crossed: another byte", at);
    free(sent);
    free(came);
}

static void summed(int round)
{
    double mine = rank + round, sum = 0;
    long most = 0, number = rank * 10 + round;
    MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&number, &most, 1, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
    if (sum != ranks * (ranks - 1) / 2.0 + (double)ranks * round || most != (ranks - 1) * 10 + round)
        fail("summed: another sum", (long)sum);
}

int main(int count, char **arguments)
{
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long most = count > 1 ? atol(arguments[1]) : 1 << 20;
    int rounds = count > 2 ? atoi(arguments[2]) : 3;
    for (int round = 0; round < rounds; round++) {
        for (long len = 1; len <= most; len *= 4) {
            all_to_all(len, round);
            around(len, round);
            if (len <= 65536)
                crossed(len, round);
            summed(round);
        }
        around(0, round);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("ok: %d ranks, %d rounds, up to %ld bytes\n", ranks, rounds, most);
    MPI_Finalize();
    return 0;
}
