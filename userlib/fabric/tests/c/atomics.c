/* fi_atomic(3): every operation on every type of up to 8 bytes, in each kind of call, against C's own arithmetic; wider types and
 * operations that are not defined on a type are refused, by the calls and by those that ask. */
#include "side.h"

#include <complex.h>
#include <math.h>
#include <sys/mman.h>

enum { COUNT = 5, TYPES = FI_DATATYPE_LAST, OPS = FI_ATOMIC_OP_LAST };

/* What stands in the other side's memory, an operand, and what it is compared with. */
typedef union {
    uint8_t bytes[8];
    int8_t i8;
    uint8_t u8;
    int16_t i16;
    uint16_t u16;
    int32_t i32;
    uint32_t u32;
    int64_t i64;
    uint64_t u64;
    float f;
    double d;
    float complex c;
} value;

/* As the manual page says it. `addr` and the others are of one type. */
#define ANY(addr, buf, compare)                                                                                        \
    case FI_SUM: addr = addr + buf; return 1;                                                                          \
    case FI_PROD: addr = addr * buf; return 1;                                                                         \
    case FI_LOR: addr = (addr != 0 || buf != 0); return 1;                                                             \
    case FI_LAND: addr = (addr != 0 && buf != 0); return 1;                                                            \
    case FI_LXOR: addr = ((addr != 0 && !(buf != 0)) || (!(addr != 0) && buf != 0)); return 1;                         \
    case FI_ATOMIC_READ: return 1;                                                                                     \
    case FI_ATOMIC_WRITE: addr = buf; return 1;                                                                        \
    case FI_CSWAP: if (compare == addr) addr = buf; return 1;                                                          \
    case FI_CSWAP_NE: if (compare != addr) addr = buf; return 1;
#define ORDERED(addr, buf, compare)                                                                                    \
    case FI_MIN: if (buf < addr) addr = buf; return 1;                                                                 \
    case FI_MAX: if (buf > addr) addr = buf; return 1;                                                                 \
    case FI_CSWAP_LE: if (compare <= addr) addr = buf; return 1;                                                       \
    case FI_CSWAP_LT: if (compare < addr) addr = buf; return 1;                                                        \
    case FI_CSWAP_GE: if (compare >= addr) addr = buf; return 1;                                                       \
    case FI_CSWAP_GT: if (compare > addr) addr = buf; return 1;
#define WHOLE(addr, buf, compare)                                                                                      \
    case FI_BOR: addr = addr | buf; return 1;                                                                          \
    case FI_BAND: addr = addr & buf; return 1;                                                                         \
    case FI_BXOR: addr = addr ^ buf; return 1;                                                                         \
    case FI_MSWAP: addr = (buf & compare) | (addr & ~compare); return 1;
#define ALL(addr, buf, compare)                                                                                        \
    switch ((int)op) { ANY(addr, buf, compare) ORDERED(addr, buf, compare) WHOLE(addr, buf, compare) default: return 0; }
#define FLOATS(addr, buf, compare)                                                                                     \
    switch ((int)op) { ANY(addr, buf, compare) ORDERED(addr, buf, compare) default: return 0; }
#define COMPLEX(addr, buf, compare)                                                                                    \
    switch ((int)op) { ANY(addr, buf, compare) default: return 0; }

/* Whether an operation is defined on a type; if so, does it. Sums and products of whole numbers are those without sign, which wrap. */
static int does(enum fi_datatype type, enum fi_op op, value *at, const value *with, const value *than)
{
    int sums = op == FI_SUM || op == FI_PROD;
    switch ((int)type) {
    case FI_INT8: if (!sums) ALL(at->i8, with->i8, than->i8) /* fall through */
    case FI_UINT8: ALL(at->u8, with->u8, than->u8)
    case FI_INT16: if (!sums) ALL(at->i16, with->i16, than->i16) /* fall through */
    case FI_UINT16:
        if (op == FI_PROD) {
            at->u16 = (uint16_t)((uint32_t)at->u16 * with->u16);
            return 1;
        }
        ALL(at->u16, with->u16, than->u16)
    case FI_INT32: if (!sums) ALL(at->i32, with->i32, than->i32) /* fall through */
    case FI_UINT32: ALL(at->u32, with->u32, than->u32)
    case FI_INT64: if (!sums) ALL(at->i64, with->i64, than->i64) /* fall through */
    case FI_UINT64: ALL(at->u64, with->u64, than->u64)
    case FI_FLOAT: FLOATS(at->f, with->f, than->f)
    case FI_DOUBLE: FLOATS(at->d, with->d, than->d)
    case FI_FLOAT_COMPLEX:
        /* C knows more of products with infinities than the manual page says. */
        if (op == FI_PROD) {
            float a = crealf(at->c), b = cimagf(at->c), c = crealf(with->c), d = cimagf(with->c);
            float parts[2] = {a * c - b * d, a * d + b * c};
            memcpy(&at->c, parts, sizeof parts);
            return 1;
        }
        COMPLEX(at->c, with->c, than->c)
    default: return 0;
    }
}

static size_t width(enum fi_datatype type)
{
    static const size_t widths[TYPES] = {
        [FI_INT8] = 1, [FI_UINT8] = 1, [FI_INT16] = 2, [FI_UINT16] = 2, [FI_INT32] = 4, [FI_UINT32] = 4,
        [FI_INT64] = 8, [FI_UINT64] = 8, [FI_FLOAT] = 4, [FI_DOUBLE] = 8, [FI_FLOAT_COMPLEX] = 8,
    };
    return widths[type];
}

static int compares(enum fi_op op)
{
    return op >= FI_CSWAP && op <= FI_MSWAP;
}

static uint64_t dice_now = 88172645463325252ULL;

static uint64_t dice(void)
{
    dice_now ^= dice_now << 13;
    dice_now ^= dice_now >> 7;
    return dice_now ^= dice_now << 17;
}

/* A number of a type: small ones, so that they are equal now and then, and of both signs. */
static value number(enum fi_datatype type)
{
    static const double fractions[] = {0, -0.0, 1, -1, 0.1, -2.5, 1e30, 1e-40, -3e38, INFINITY};
    double fraction = fractions[dice() % 10], other = fractions[dice() % 9];
    value made;
    memset(&made, 0, sizeof made);
    switch ((int)type) {
    case FI_FLOAT: made.f = (float)fraction; break;
    case FI_DOUBLE: made.d = fraction * 1e-10; break;
    case FI_FLOAT_COMPLEX:
        made.f = (float)fraction;
        memcpy(made.bytes + 4, &(float){(float)other}, 4);
        break;
    default: made.u64 = dice() % 3 ? dice() % 4 : dice(); break;
    }
    return made;
}

static int same(enum fi_datatype type, const void *one, const void *other)
{
    float f, g;
    double d, e;
    switch ((int)type) {
    case FI_FLOAT:
        memcpy(&f, one, 4);
        memcpy(&g, other, 4);
        return memcmp(one, other, 4) == 0 || (isnan(f) && isnan(g));
    case FI_DOUBLE:
        memcpy(&d, one, 8);
        memcpy(&e, other, 8);
        return memcmp(one, other, 8) == 0 || (isnan(d) && isnan(e));
    case FI_FLOAT_COMPLEX:
        return same(FI_FLOAT, one, other) && same(FI_FLOAT, (const char *)one + 4, (const char *)other + 4);
    default:
        return memcmp(one, other, width(type)) == 0;
    }
}

/* The other side's numbers, and the same as this side knows them. */
static struct remote theirs;
static uint8_t known[4096];

struct operands {
    uint8_t buf[8 * COUNT], compare[8 * COUNT], result[8 * COUNT];
};

/* One call: numbers from `place` on, `count` of them; then what it answered is held against what is known. */
static void once(enum fi_datatype type, enum fi_op op, size_t place, size_t count, int manner)
{
    size_t len = width(type);
    struct operands in;
    uint8_t before[8 * COUNT];
    int context, fetches = compares(op) || op == FI_ATOMIC_READ || manner % 2;
    memcpy(before, known + place, len * count);
    memset(in.result, 0xEE, sizeof in.result);
    for (size_t index = 0; index < count; index++) {
        value with = number(type), than = number(type), at;
        uint8_t *here = known + place + index * len;
        memset(&at, 0, sizeof at);
        memcpy(&at, here, len);
        if (dice() % 3 == 0)
            than = at;
        memcpy(in.buf + index * len, &with, len);
        memcpy(in.compare + index * len, &than, len);
        CHECK(does(type, op, &at, &with, &than), "no reference for %d on %d", op, type);
        memcpy(here, &at, len);
    }
    uint64_t at = place, key = theirs.key;
    if (compares(op)) {
        POSTED(fi_compare_atomic(side.ep, in.buf, count, NULL, in.compare, NULL, in.result, NULL, side.other, at, key, type, op, &context));
    } else if (fetches) {
        void *buf = op == FI_ATOMIC_READ ? NULL : in.buf;
        POSTED(fi_fetch_atomic(side.ep, buf, count, NULL, in.result, NULL, side.other, at, key, type, op, &context));
    } else {
        POSTED(fi_atomic(side.ep, in.buf, count, NULL, side.other, at, key, type, op, &context));
    }
    ends(side.tx, &context);
    for (size_t index = 0; fetches && index < count; index++)
        CHECK(same(type, in.result + index * len, before + index * len), "operation %d on type %d has another old value at %d", op, type, (int)index);
    uint8_t now_there[8 * COUNT];
    POSTED(fi_read(side.ep, now_there, len * count, NULL, side.other, at, key, &context));
    ends(side.tx, &context);
    for (size_t index = 0; index < count; index++) {
        uint8_t *expected = known + place + index * len, *found = now_there + index * len;
        CHECK(same(type, found, expected), "operation %d on type %d made %02x%02x, not %02x%02x", op, type, found[len - 1], found[0], expected[len - 1],
              expected[0]);
        /* The bits of a NaN are the computing side's own. */
        memcpy(expected, found, len);
    }
}

static void every(void)
{
    static uint8_t mine[4096] __attribute__((aligned(4096)));
    memset(mine, 0, sizeof mine);
    memset(known, 0, sizeof known);
    struct fid_mr *mr = shared(mine, sizeof mine, 300 + (uint64_t)side.number, &theirs);
    int defined = 0;
    for (int type = 0; type < TYPES; type++) {
        for (int op = 0; op < OPS; op++) {
            value nothing = {{0}};
            int has = does((enum fi_datatype)type, (enum fi_op)op, &nothing, &nothing, &nothing);
            int base = has && !compares((enum fi_op)op) && op != FI_ATOMIC_READ;
            int fetch = has && !compares((enum fi_op)op), compare = has && compares((enum fi_op)op);
            struct fi_atomic_attr attr = {0, 0};
            size_t count = 0;
            enum fi_datatype t = (enum fi_datatype)type;
            enum fi_op o = (enum fi_op)op;
            /* What the provider says of itself is what it does. */
            CHECK(fi_atomicvalid(side.ep, t, o, &count) == (base ? 0 : -FI_EOPNOTSUPP), "%d on %d", op, type);
            CHECK(fi_fetch_atomicvalid(side.ep, t, o, &count) == (fetch ? 0 : -FI_EOPNOTSUPP), "%d on %d", op, type);
            CHECK(fi_compare_atomicvalid(side.ep, t, o, &count) == (compare ? 0 : -FI_EOPNOTSUPP), "%d on %d", op, type);
            CHECK(fi_query_atomic(side.domain, t, o, &attr, 0) == (base ? 0 : -FI_EOPNOTSUPP), "%d on %d", op, type);
            CHECK(fi_query_atomic(side.domain, t, o, &attr, FI_FETCH_ATOMIC) == (fetch ? 0 : -FI_EOPNOTSUPP), "%d on %d", op, type);
            CHECK(fi_query_atomic(side.domain, t, o, &attr, FI_COMPARE_ATOMIC) == (compare ? 0 : -FI_EOPNOTSUPP), "%d on %d", op, type);
            CHECK(!has || (count >= COUNT && attr.count == count && attr.size == width(t)), "%d of %d", (int)attr.count, (int)attr.size);
            REFUSED(fi_query_atomic(side.domain, t, o, &attr, FI_TAGGED), FI_EOPNOTSUPP);
            if (!has) {
                uint8_t some[64] = {0};
                int context;
                REFUSED(fi_atomic(side.ep, some, 1, NULL, side.other, 0, theirs.key, t, o, &context), FI_EOPNOTSUPP);
                REFUSED(fi_fetch_atomic(side.ep, some, 1, NULL, some, NULL, side.other, 0, theirs.key, t, o, &context), FI_EOPNOTSUPP);
                REFUSED(fi_compare_atomic(side.ep, some, 1, NULL, some, NULL, some, NULL, side.other, 0, theirs.key, t, o, &context), FI_EOPNOTSUPP);
                continue;
            }
            defined++;
            size_t len = width(t);
            for (int round = 0; round < 4; round++)
                once(t, o, (1 + dice() % 60) * len, 1 + dice() % COUNT, round);
            once(t, o, sizeof mine - len, 1, 1);
        }
    }
    /* 19 operations on 8 types of whole numbers, 15 on two, 9 on the complex one. */
    CHECK(defined == 19 * 8 + 15 * 2 + 9, "%d operations are defined", defined);
    meet();
    WORKS(fi_close(&mr->fid));
}

/* Scattered operands, one number over a seam between two pieces; messages. */
static void pieces(void)
{
    static uint16_t mine[64];
    memset(mine, 0, sizeof mine);
    struct fid_mr *mr = shared(mine, sizeof mine, 320 + (uint64_t)side.number, &theirs);
    uint16_t one[2] = {1, 2}, two[3] = {3, 4, 5}, old[5] = {9, 9, 9, 9, 9}, than[5] = {1, 2, 3, 4, 6};
    struct fi_ioc parts[2] = {{one, 2}, {two, 3}}, results[2] = {{old, 4}, {old + 4, 1}}, compare = {than, 5};
    struct fi_rma_ioc to = {0, 5, theirs.key};
    int context;
    POSTED(fi_atomicv(side.ep, parts, NULL, 2, side.other, 0, theirs.key, FI_UINT16, FI_SUM, &context));
    ends(side.tx, &context);
    struct fi_msg_atomic message = {parts, NULL, 2, side.other, &to, 1, FI_INT16, FI_MAX, &context, 0};
    POSTED(fi_fetch_atomicmsg(side.ep, &message, results, NULL, 2, FI_COMPLETION));
    ends(side.tx, &context);
    for (int at = 0; at < 5; at++)
        CHECK(old[at] == at + 1, "%d at %d", old[at], at);
    message.op = FI_CSWAP_NE;
    one[0] = 77;
    two[2] = 78;
    POSTED(fi_compare_atomicmsg(side.ep, &message, &compare, NULL, 1, results, NULL, 2, 0));
    ends(side.tx, &context);
    POSTED(fi_fetch_atomic(side.ep, NULL, 5, NULL, old, NULL, side.other, 0, theirs.key, FI_UINT16, FI_ATOMIC_READ, &context));
    ends(side.tx, &context);
    CHECK(old[0] == 1 && old[3] == 4 && old[4] == 78, "%d, %d, %d", old[0], old[3], old[4]);
    /* Counts that do not fit, and more than the provider takes. */
    compare.count = 4;
    REFUSED(fi_compare_atomicmsg(side.ep, &message, &compare, NULL, 1, results, NULL, 2, 0), FI_EINVAL);
    REFUSED(fi_fetch_atomicv(side.ep, parts, NULL, 2, results, NULL, 1, side.other, 0, theirs.key, FI_UINT16, FI_SUM, &context), FI_EINVAL);
    REFUSED(fi_atomic(side.ep, one, 0, NULL, side.other, 0, theirs.key, FI_UINT16, FI_SUM, &context), FI_EINVAL);
    static uint8_t many[100000];
    REFUSED(fi_atomic(side.ep, many, sizeof many, NULL, side.other, 0, theirs.key, FI_UINT8, FI_SUM, &context), FI_EMSGSIZE);
    meet();
    WORKS(fi_close(&mr->fid));
}

/* What is not aligned, or not there, ends with an error, and the next one works. */
static void bad_places(void)
{
    static uint64_t mine[8];
    memset(mine, 0, sizeof mine);
    struct fid_mr *mr = shared(mine, sizeof mine, 340 + (uint64_t)side.number, &theirs);
    static const struct {
        uint64_t at;
        int error;
    } places[] = {{4, FI_EINVAL}, {64, FI_EACCES}, {1UL << 40, FI_EACCES}};
    for (size_t place = 0; place < sizeof places / sizeof *places; place++) {
        double one = 1, old;
        int context;
        POSTED(fi_fetch_atomic(side.ep, &one, 1, NULL, &old, NULL, side.other, places[place].at, theirs.key, FI_DOUBLE, FI_SUM, &context));
        struct fi_cq_err_entry error = fails(side.tx, &context);
        CHECK(error.err == places[place].error, "%d at %ld", error.err, (long)places[place].at);
        POSTED(fi_fetch_atomic(side.ep, &one, 1, NULL, &old, NULL, side.other, 8, theirs.key, FI_DOUBLE, FI_SUM, &context));
        ends(side.tx, &context);
        CHECK(old == (double)place, "%f", old);
    }
    meet();
    WORKS(fi_close(&mr->fid));
}

/* The provider uses the processor's atomics: a program's own on the same words lose nothing, nor do those of another region that
 * shares the memory. */
static void beside(void)
{
    enum { TIMES = 400 };
    static uint64_t words[2];
    words[0] = words[1] = 0;
    struct remote again;
    struct fid_mr *mr = shared(words, sizeof words, 360 + (uint64_t)side.number, &theirs);
    struct fid_mr *other = shared(words, sizeof words, 380 + (uint64_t)side.number, &again);
    uint64_t own = 0;
    uint16_t one = 1;
    for (int time = 0; time < TIMES; time++) {
        int context;
        uint64_t key = time % 2 ? theirs.key : again.key;
        POSTED(fi_atomic(side.ep, &one, 1, NULL, side.other, 2, key, FI_UINT16, FI_SUM, &context));
        for (int spin = 0; spin < 200; spin++, own++)
            __atomic_fetch_add((uint16_t *)words + 1, 1, __ATOMIC_RELAXED);
        ends(side.tx, &context);
    }
    meet();
    CHECK(((uint16_t *)words)[1] == (uint16_t)(own + TIMES), "%d, not %d", ((uint16_t *)words)[1], (uint16_t)(own + TIMES));
    CHECK(((uint16_t *)words)[0] == 0 && ((uint16_t *)words)[2] == 0, "neighbours");
    meet();
    WORKS(fi_close(&mr->fid));
    WORKS(fi_close(&other->fid));
}

/* FI_ORDER_ATOMIC_*: each sees what those before it have done, also where a key names other memory by now, and behind writes that fail:
 * sums and products of one word, which come to another value in any other order. */
static void in_order(void)
{
    enum { ROUNDS = 6, TIMES = 120, KEY = 400, GONE = 401 };
    static uint64_t words[2][3], fetched[TIMES][3];
    static int contexts[TIMES], lost[TIMES];
    struct remote gone_at;
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct fid_mr *mr, *gone = shared(page, 4096, GONE, &gone_at);
    CHECK((side.info->tx_attr->msg_order & asked.msg_order) == asked.msg_order, "order %lx", (long)side.info->tx_attr->msg_order);
    CHECK(side.info->ep_attr->max_order_waw_size > 0, "an order of no bytes");
    munmap(page, 4096);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t expected[3] = {0}, *mine = words[round % 2];
        int ended = 0, failed = 0, writes = 0;
        memset(words, 0, sizeof words);
        mr = shared(mine, sizeof words[0], KEY, &theirs);
        for (int time = 0; time < TIMES; time++) {
            uint64_t with[3] = {(uint64_t)(time + round), 3, (uint64_t)time};
            int sums = time % 2 == 0;
            /* Not in the first rounds: there only keys change. */
            if (round > 2 && time % 25 == 13) {
                POSTED(fi_write(side.ep, words, 8, NULL, side.other, gone_at.start, gone_at.key, &lost[time]));
                writes++;
            }
            if (time % 3 == 2)
                POSTED(fi_fetch_atomic(side.ep, with, 3, NULL, fetched[time], NULL, side.other, theirs.start, theirs.key, FI_UINT64, sums ? FI_SUM : FI_PROD, &contexts[time]));
            else
                POSTED(fi_atomic(side.ep, with, 3, NULL, side.other, theirs.start, theirs.key, FI_UINT64, sums ? FI_SUM : FI_PROD, &contexts[time]));
        }
        double until = now() + 20;
        while (ended + failed < TIMES + writes) {
            struct fi_cq_tagged_entry entry;
            struct fi_cq_err_entry bad = {0};
            ssize_t got = fi_cq_read(side.tx, &entry, 1);
            CHECK(now() < until, "%d have ended, and %d failed", ended, failed);
            if (got == 1)
                ended++;
            if (got != -FI_EAVAIL)
                continue;
            CHECK(fi_cq_readerr(side.tx, &bad, 0) == 1, "no error to be read");
            CHECK((int *)bad.op_context >= lost && (int *)bad.op_context < lost + TIMES, "round %d: an atomic fails: %s, status %d", round, fi_strerror(bad.err), bad.prov_errno);
            failed++;
        }
        CHECK(failed == writes, "%d of %d writes to memory that is gone fail", failed, writes);
        meet();
        for (int time = 0; time < TIMES; time++) {
            uint64_t with[3] = {(uint64_t)(time + round), 3, (uint64_t)time};
            for (int word = 0; word < 3; word++) {
                CHECK(time % 3 != 2 || fetched[time][word] == expected[word], "round %d, atomic %d, word %d was %lx, not %lx", round, time, word, (long)fetched[time][word], (long)expected[word]);
                expected[word] = time % 2 == 0 ? expected[word] + with[word] : expected[word] * with[word];
            }
        }
        CHECK(memcmp(mine, expected, sizeof expected) == 0, "round %d: %lx, %lx, %lx", round, (long)mine[0], (long)mine[1], (long)mine[2]);
        meet();
        WORKS(fi_close(&mr->fid));
        meet();
    }
    WORKS(fi_close(&gone->fid));
}

int main(int count, char **arguments)
{
    const char *only = count > 1 ? arguments[1] : NULL;
    static const struct body bodies[] = {
        {"every", every}, {"pieces", pieces}, {"bad_places", bad_places}, {"beside", beside},
    };
    static const struct body ordered[] = {{"in_order", in_order}, {"beside, in order", beside}};
    /* In a process of its own: what a process has loaded stays. */
    int status = 1;
    pid_t first = fork();
    if (first == 0)
        exit(run_bodies(bodies, sizeof bodies / sizeof *bodies, only));
    if (waitpid(first, &status, 0) != first || status != 0)
        return 1;
    asked.msg_order = FI_ORDER_SAS | FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
    return run_bodies(ordered, sizeof ordered / sizeof *ordered, only);
}
