/* Two ranks of MPI measure. Rank 0 prints a line for each: its name, and the microseconds of one.
 *
 *   measure messages N     8 bytes there and back (one way); 8 bytes, 64 at a time; 1 MiB, 16 at a time
 *   measure windows N      puts, gets and fetch-and-ops of 8 bytes, each with a flush
 *
 * N: single operations. Each is done N / 10 times before it is measured. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AT_A_TIME = 64, LARGE = 1 << 20, LARGE_AT_A_TIME = 16 };

static int rank;

static void say(const char *name, double begin, long count)
{
    if (rank == 0)
        printf("%s %.4f\n", name, (MPI_Wtime() - begin) * 1e6 / (double)count);
}

static void there_and_back(long rounds)
{
    char bytes[8] = {0};
    for (long round = 0; round < rounds; round++) {
        if (rank == 0)
            MPI_Send(bytes, 8, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
        MPI_Recv(bytes, 8, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1)
            MPI_Send(bytes, 8, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    }
}

/* From rank 0 to rank 1, which says after each lot that it has it. */
static void lots(char *bytes, int len, int lot, long rounds)
{
    MPI_Request all[AT_A_TIME];
    for (long round = 0; round < rounds; round++) {
        for (int one = 0; one < lot; one++) {
            char *place = bytes + (size_t)one * (size_t)len;
            if (rank == 0)
                MPI_Isend(place, len, MPI_BYTE, 1, 2, MPI_COMM_WORLD, &all[one]);
            else
                MPI_Irecv(place, len, MPI_BYTE, 0, 2, MPI_COMM_WORLD, &all[one]);
        }
        MPI_Waitall(lot, all, MPI_STATUSES_IGNORE);
        if (rank == 0)
            MPI_Recv(NULL, 0, MPI_BYTE, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            MPI_Send(NULL, 0, MPI_BYTE, 0, 3, MPI_COMM_WORLD);
    }
}

static void messages(long count)
{
    char *bytes = calloc(LARGE_AT_A_TIME, LARGE);
    there_and_back(count / 10);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    there_and_back(count);
    say("latency", begin, 2 * count);

    lots(bytes, 8, AT_A_TIME, count / 10 / AT_A_TIME + 1);
    MPI_Barrier(MPI_COMM_WORLD);
    begin = MPI_Wtime();
    lots(bytes, 8, AT_A_TIME, count / AT_A_TIME + 1);
    say("rate", begin, (count / AT_A_TIME + 1) * AT_A_TIME);

    long large = count / 1000 + 1;
    lots(bytes, LARGE, LARGE_AT_A_TIME, large / 10 + 1);
    MPI_Barrier(MPI_COMM_WORLD);
    begin = MPI_Wtime();
    lots(bytes, LARGE, LARGE_AT_A_TIME, large);
    say("bandwidth", begin, large * LARGE_AT_A_TIME);
    free(bytes);
}

enum one_sided { PUT, GET, FETCH };

static void at_rank_1(enum one_sided what, MPI_Win window, long rounds)
{
    long mine = 1, old = 0;
    for (long round = 0; round < rounds; round++) {
        switch (what) {
        case PUT:
            MPI_Put(&mine, 1, MPI_LONG, 1, 0, 1, MPI_LONG, window);
            break;
        case GET:
            MPI_Get(&old, 1, MPI_LONG, 1, 0, 1, MPI_LONG, window);
            break;
        case FETCH:
            MPI_Fetch_and_op(&mine, &old, MPI_LONG, 1, 1, MPI_SUM, window);
            break;
        }
        MPI_Win_flush(1, window);
    }
}

static void windows(long count)
{
    static const char *const names[] = {"put", "get", "fetch"};
    /* Memory that MPI makes for a window is shared by the processes of a machine, and reached without any of what is measured here. */
    long *words = calloc(512, sizeof(long));
    MPI_Win window;
    MPI_Win_create(words, 512 * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, window);
    for (int what = PUT; what <= FETCH; what++) {
        /* Rank 1 takes part, as it would in a program: it waits in the barrier. */
        if (rank == 0) {
            at_rank_1((enum one_sided)what, window, count / 10);
            double begin = MPI_Wtime();
            at_rank_1((enum one_sided)what, window, count);
            say(names[what], begin, count);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    free(words);
}

int main(int argc, char **argv)
{
    int ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long count = argc == 3 ? atol(argv[2]) : 0;
    if (ranks != 2 || count <= 0) {
        fprintf(stderr, "mpirun -n 2 measure messages|windows N\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (strcmp(argv[1], "messages") == 0)
        messages(count);
    else
        windows(count);
    MPI_Finalize();
    return 0;
}
