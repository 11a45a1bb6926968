/* registration PROVIDER BYTES: microseconds to register fresh memory, and to lock it (the median of nine each). */
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

enum { TIMES = 9 };

static void ok(const char *what, int result)
{
    if (result == 0)
        return;
    fprintf(stderr, "%s: %s\n", what, fi_strerror(-result));
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static int less(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static void say(const char *name, double *times)
{
    qsort(times, TIMES, sizeof *times, less);
    printf("%s %.3f\n", name, times[TIMES / 2]);
}

static char *fresh(size_t len)
{
    char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return memory;
}

int main(int argc, char **argv)
{
    size_t len = argc == 3 ? strtoull(argv[2], NULL, 0) : 0;
    if (len == 0) {
        fprintf(stderr, "registration PROVIDER BYTES\n");
        return 2;
    }
    struct fi_info *hints = fi_allocinfo(), *info;
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_RMA;
    hints->fabric_attr->prov_name = strdup(argv[1]);
    hints->domain_attr->mr_mode = FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
    ok("fi_getinfo", fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    ok("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    ok("fi_domain", fi_domain(fabric, info, &domain, NULL));

    double times[TIMES];
    for (int time = 0; time < TIMES; time++) {
        char *memory = fresh(len);
        struct fid_mr *mr;
        double begin = now();
        ok("fi_mr_reg", fi_mr_reg(domain, memory, len, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, (uint64_t)time + 1, 0, &mr, NULL));
        times[time] = now() - begin;
        ok("fi_close", fi_close(&mr->fid));
        munmap(memory, len);
    }
    say("register", times);

    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    /* Without the right to, the present limit decides. */
    (void)setrlimit(RLIMIT_MEMLOCK, &all);
    for (int time = 0; time < TIMES; time++) {
        char *memory = fresh(len);
        double begin = now();
        if (mlock(memory, len) != 0) {
            perror("mlock");
            return 1;
        }
        times[time] = now() - begin;
        munmap(memory, len);
    }
    say("lock", times);
    ok("fi_close", fi_close(&domain->fid));
    ok("fi_close", fi_close(&fabric->fid));
    fi_freeinfo(info);
    fi_freeinfo(hints);
    return 0;
}
