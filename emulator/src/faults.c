/* Faults that the control side orders: failures, delays, hangs.
 *
 * DIR/state/faults is an array of records; empty means no faults and costs one open. A call that matches a record
 * counts itself in it under a flock, so "the third creation on this node" means the third of all processes. Where the
 * file is read-only, inside a container, each process counts for itself.
 */
#include "emulator.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HANG_POLL_US 20000

static int open_faults(bool *writable)
{
    char path[PATH_SIZE];
    emulator_path(path, "state/faults");
    int fd = open(path, O_RDWR | O_CLOEXEC);
    *writable = fd >= 0;
    return fd >= 0 ? fd : open(path, O_RDONLY | O_CLOEXEC);
}

static int read_faults(int fd, struct fault out[MAX_FAULTS])
{
    ssize_t size = pread(fd, out, sizeof(struct fault) * MAX_FAULTS, 0);
    return size <= 0 ? 0 : (int)((size_t)size / sizeof(struct fault));
}

/* A name without its version means every version: nvml.h's macros make nvmlInit_v2 of nvmlInit. */
static bool is_named(const char *pattern, const char *symbol)
{
    char stem[sizeof ((struct fault *)0)->call];
    const char *version = strrchr(symbol, '_');
    if (fnmatch(pattern, symbol, 0) == 0)
        return true;
    if (version == NULL || version[1] != 'v' || (size_t)(version - symbol) >= sizeof stem)
        return false;
    memcpy(stem, symbol, (size_t)(version - symbol));
    stem[version - symbol] = '\0';
    return strcmp(pattern, stem) == 0;
}

static bool matches(const struct fault *fault, const struct call *call)
{
    return (fault->gpu < 0 || fault->gpu == call->gpu) && is_named(fault->call, call->name);
}

static bool any_match(const struct fault *faults, int count, const struct call *call)
{
    for (int i = 0; i < count; i++)
        if (matches(&faults[i], call))
            return true;
    return false;
}

/* This process's counts of the records that it cannot write to. Guarded by the lock that `struck` holds. */
static struct {
    uint64_t id;
    uint32_t seen;
} own[MAX_FAULTS];

static bool is_ordered(const struct fault *faults, int count, uint64_t id)
{
    for (int i = 0; i < count; i++)
        if (faults[i].id == id)
            return true;
    return false;
}

/* Orders that were cleared make room; there are never more than MAX_FAULTS of the others. */
static void forget_cleared(const struct fault *faults, int count)
{
    for (int i = 0; i < MAX_FAULTS; i++)
        if (own[i].id != 0 && !is_ordered(faults, count, own[i].id))
            own[i].id = 0, own[i].seen = 0;
}

static int slot_of(uint64_t id)
{
    for (int i = 0; i < MAX_FAULTS; i++)
        if (own[i].id == id)
            return i;
    return -1;
}

static uint32_t count_alone(uint64_t id)
{
    int known = slot_of(id), at = known >= 0 ? known : slot_of(0);
    if (at < 0)
        return 0;
    own[at].id = id;
    return ++own[at].seen;
}

/* The number of this call among those that match, from 1. */
static uint32_t count_call(int fd, bool writable, int index, const struct fault *fault)
{
    if (!writable)
        return count_alone(fault->id);
    uint32_t seen = fault->seen + 1;
    off_t at = (off_t)((size_t)index * sizeof *fault + offsetof(struct fault, seen));
    return pwrite(fd, &seen, sizeof seen, at) == sizeof seen ? seen : 0;
}

static bool hits(const struct fault *fault, uint32_t number)
{
    return number >= fault->nth && (fault->count == 0 || number - fault->nth < fault->count);
}

/* Collects into `hit` the records that strike this call. */
static int struck(int fd, bool writable, const struct call *call, struct fault hit[MAX_FAULTS])
{
    struct fault faults[MAX_FAULTS];
    struct lock lock = NO_LOCK;
    char path[PATH_SIZE];
    int strikes = 0;
    emulator_path(path, "state/faults");
    if (lock_open(&lock, path, O_RDONLY))
        lock_take(&lock, true);
    int count = read_faults(fd, faults);
    if (!writable)
        forget_cleared(faults, count);
    for (int i = 0; i < count; i++)
        if (matches(&faults[i], call) && hits(&faults[i], count_call(fd, writable, i, &faults[i])))
            hit[strikes++] = faults[i];
    lock_drop(&lock);
    return strikes;
}

static void sleep_us(uint64_t us)
{
    struct timespec left = { .tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000 };
    while (nanosleep(&left, &left) != 0)
        ;
}

#define LONGEST_TAIL 8 /* means */

/* mean * -ln(u) for a random u in (0, 1], without libm: the leading zeros of u are the whole part of -log2(u), the
 * bits below them its fraction, within 0.09. */
static uint64_t exponential(uint64_t mean_us, uint64_t random)
{
    uint64_t u = random | 1;
    int zeros = __builtin_clzll(u);
    uint64_t fraction = zeros < 63 ? (u << (zeros + 1)) >> 44 : 0; /* 20 bits */
    uint64_t log2 = ((uint64_t)zeros + 1) * (1u << 20) - fraction;
    uint64_t us = mean_us * (log2 * 693 / 1000) >> 20;
    return us < mean_us * LONGEST_TAIL ? us : mean_us * LONGEST_TAIL;
}

static uint64_t jitter(const struct fault *fault)
{
    uint64_t random = mix(now_us() ^ (uint64_t)getpid() << 32 ^ fault->id);
    if (fault->flags & FAULT_TAIL)
        return exponential(fault->jitter_us, random);
    return random % (fault->jitter_us + 1ull);
}

static bool still_ordered(uint64_t id)
{
    struct fault faults[MAX_FAULTS];
    bool writable;
    int fd = open_faults(&writable);
    int count = fd < 0 ? 0 : read_faults(fd, faults);
    if (fd >= 0)
        close(fd);
    return is_ordered(faults, count, id);
}

static bool strike(const struct fault *fault, struct call *call)
{
    if (fault->kind == FAULT_DELAY)
        sleep_us((uint64_t)fault->delay_us + jitter(fault));
    if (fault->kind == FAULT_HANG)
        while (still_ordered(fault->id))
            usleep(HANG_POLL_US);
    if (fault->kind != FAULT_FAIL)
        return false;
    if (fault->flags & FAULT_AFTER) {
        call->override = true;
        call->code = (nvmlReturn_t)fault->code;
        return false;
    }
    call->result = (nvmlReturn_t)fault->code;
    return true;
}

bool fault_applies(struct call *call)
{
    struct fault faults[MAX_FAULTS], hit[MAX_FAULTS];
    bool writable, refused = false;
    int fd = open_faults(&writable);
    if (fd < 0)
        return false;
    int strikes = 0;
    if (any_match(faults, read_faults(fd, faults), call))
        strikes = struck(fd, writable, call, hit);
    close(fd);
    for (int i = 0; i < strikes; i++)
        refused = strike(&hit[i], call) || refused;
    return refused;
}
