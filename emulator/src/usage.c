/* How busy a device is: what the control side fed, and an idle GPU where it fed nothing.
 *
 * DIR/state/usage is an array of records, ordered by time: from `at_us` on, this GPU, or the GPU instance that starts
 * at this memory slice, has these levels, until its next record. A file that was fed in advance plays by itself, as
 * every call looks up what holds now; the file is replaced whole.
 */
#include "emulator.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { IDLE_CELSIUS = 30, IDLE_MILLIWATT = 70000 }; /* round numbers in the range of a data centre GPU */

struct feed {
    const struct usage_record *records;
    size_t count;
};

static void feed_close(struct feed *feed)
{
    if (feed->records != NULL)
        munmap((void *)(uintptr_t)feed->records, feed->count * sizeof feed->records[0]);
}

#define FEED(name) __attribute__((cleanup(feed_close))) struct feed name = feed_open()

static struct feed feed_open(void)
{
    char path[PATH_SIZE];
    struct feed feed = { 0 };
    emulator_path(path, "state/usage");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return feed;
    off_t size = lseek(fd, 0, SEEK_END);
    feed.count = size < 0 ? 0 : (size_t)size / sizeof feed.records[0];
    size_t bytes = feed.count * sizeof feed.records[0];
    void *map = bytes > 0 ? mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    close(fd);
    feed.records = map == MAP_FAILED ? NULL : map;
    if (feed.records == NULL)
        feed.count = 0;
    return feed;
}

static bool is_about(const struct usage_record *record, const struct view *view, const struct gpu_instance *gi)
{
    return record->gpu == (uint32_t)(view->gpu - view->node->gpus) && record->start == (gi ? gi->start : NO_ID);
}

static void add_time(struct usage *usage, uint64_t us)
{
    for (int k = 0; k < USAGE_KEYS; k++)
        usage->sum[k] += usage->level[k] * us;
}

struct usage usage_of(const struct view *view, const struct gpu_instance *gi, uint64_t now)
{
    FEED(feed);
    struct usage usage = { .at_us = now };
    uint64_t since = now;
    for (size_t i = 0; i < feed.count && feed.records[i].at_us <= now; i++) {
        const struct usage_record *record = &feed.records[i];
        if (!is_about(record, view, gi))
            continue;
        if (usage.fed != 0)
            add_time(&usage, record->at_us - since);
        since = record->at_us;
        for (uint32_t k = 0; k < USAGE_KEYS; k++)
            if (record->set & 1u << k)
                usage.level[k] = record->level[k];
        usage.fed |= record->set;
    }
    usage.since_us = since;
    add_time(&usage, now - since);
    return usage;
}

uint64_t last_sample_us(const struct usage *usage)
{
    return usage->at_us - (usage->at_us - usage->since_us) % SAMPLE_PERIOD_US;
}

uint32_t idle_level(enum usage_key key)
{
    return key == USAGE_CELSIUS ? IDLE_CELSIUS : key == USAGE_MILLIWATT ? IDLE_MILLIWATT : 0;
}

uint32_t level_now(const struct view *view, enum usage_key key)
{
    struct usage usage = usage_of(view, NULL, now_us());
    return usage.fed & 1u << key ? usage.level[key] : idle_level(key);
}

static uint64_t millijoules(uint32_t milliwatt, uint64_t since_us, uint64_t until_us)
{
    return until_us > since_us ? (until_us - since_us) / 1000 * milliwatt / 1000 : 0;
}

/* Since the driver was loaded, as nvml.h has it; of a file that was fed in between, what it had come to at its end. */
uint64_t energy_mj(const struct view *view)
{
    FEED(feed);
    uint64_t now = now_us(), since = view->node->loaded_us, energy = 0;
    uint32_t milliwatt = IDLE_MILLIWATT;
    for (size_t i = 0; i < feed.count && feed.records[i].at_us <= now; i++) {
        const struct usage_record *record = &feed.records[i];
        if (record->gpu != (uint32_t)(view->gpu - view->node->gpus))
            continue;
        if (record->start == ENERGY_BEFORE && record->at_us >= since) {
            energy = record->level[0] | (uint64_t)record->level[1] << 32;
            since = record->at_us;
        }
        if (record->start == NO_ID && record->set & 1u << USAGE_MILLIWATT) {
            energy += millijoules(milliwatt, since, record->at_us);
            since = record->at_us > since ? record->at_us : since;
            milliwatt = record->level[USAGE_MILLIWATT];
        }
    }
    return energy + millijoules(milliwatt, since, now);
}

uint64_t used_mib(const struct view *view, const struct gpu_instance *gi)
{
    uint64_t used = usage_of(view, gi, now_us()).level[USAGE_USED];
    uint64_t most = gi ? view->model->profiles[gi->profile].memory_mib : view->model->memory_mib;
    return used < most ? used : most;
}

/* A MIG device: what its GPU instance uses. A GPU in MIG mode: what its instances use together, at most what it has. */
uint64_t memory_used_mib(const struct view *view)
{
    uint64_t used = 0;
    if (view->gi != NULL || !mig_enabled(view))
        return used_mib(view, view->gi);
    for (uint32_t i = 0; i < view->gpu->gi_count; i++)
        used += used_mib(view, &view->gpu->gis[i]);
    return used < view->model->memory_mib ? used : view->model->memory_mib;
}

/* ---- nvmlDeviceGetSamples: each record is a sample when it comes into force, and another every period while it holds.
 * Nothing fed: those of the idle GPU. How many the driver keeps is not published: 20 seconds here. */

enum { SAMPLES_KEPT = 120 };

static bool sampled_key(nvmlSamplingType_t type, uint32_t *key)
{
    static const uint32_t keys[] = { [NVML_TOTAL_POWER_SAMPLES] = USAGE_MILLIWATT,
                                     [NVML_GPU_UTILIZATION_SAMPLES] = USAGE_GPU,
                                     [NVML_MEMORY_UTILIZATION_SAMPLES] = USAGE_MEMORY,
                                     [NVML_ENC_UTILIZATION_SAMPLES] = USAGE_ENCODER,
                                     [NVML_DEC_UTILIZATION_SAMPLES] = USAGE_DECODER };
    if ((unsigned)type >= sizeof keys / sizeof keys[0])
        return false;
    *key = keys[type];
    return true;
}

struct samples {
    uint64_t after;
    nvmlSample_t *out; /* NULL: they are only counted */
    uint32_t room, count;
};

/* One at `first` and one every period from there, before `end`; only those after `after`. */
static void add_samples(struct samples *samples, uint64_t first, uint64_t end, uint32_t level)
{
    uint64_t seen = samples->after < first ? 0 : (samples->after - first) / SAMPLE_PERIOD_US + 1;
    for (uint64_t at = first + seen * SAMPLE_PERIOD_US; at < end; at += SAMPLE_PERIOD_US) {
        if (samples->out != NULL && samples->count == samples->room)
            return;
        if (samples->out != NULL)
            samples->out[samples->count] = (nvmlSample_t){ .timeStamp = at, .sampleValue.uiVal = level };
        samples->count++;
    }
}

static uint32_t give_samples(const struct view *view, uint32_t key, uint64_t after, nvmlSample_t *out, uint32_t room)
{
    FEED(feed);
    uint64_t now = now_us(), kept = now - (uint64_t)SAMPLES_KEPT * SAMPLE_PERIOD_US;
    struct samples samples = { .after = after < kept ? kept : after < now ? after : now, .out = out, .room = room };
    uint64_t first = kept - kept % SAMPLE_PERIOD_US;
    uint32_t level = idle_level(key);
    for (size_t i = 0; i < feed.count && feed.records[i].at_us <= now; i++) {
        const struct usage_record *record = &feed.records[i];
        if (!is_about(record, view, NULL) || (record->set & 1u << key) == 0)
            continue;
        add_samples(&samples, first, record->at_us, level);
        first = record->at_us;
        level = record->level[key];
    }
    add_samples(&samples, first, now + 1, level);
    return samples.count;
}

nvmlReturn_t impl_nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type,
                                       unsigned long long lastSeenTimeStamp, nvmlValueType_t *sampleValType,
                                       unsigned int *sampleCount, nvmlSample_t *samples)
{
    VIEW(view);
    uint32_t key;
    nvmlReturn_t result = view_physical(&view, device, sampleCount);
    if (result != NVML_SUCCESS)
        return result;
    if (sampleValType == NULL || (samples != NULL && *sampleCount == 0) || (unsigned)type >= NVML_SAMPLINGTYPE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!sampled_key(type, &key) || (mig_enabled(&view) && key != USAGE_MILLIWATT))
        return NVML_ERROR_NOT_SUPPORTED;
    *sampleValType = NVML_VALUE_TYPE_UNSIGNED_INT;
    *sampleCount = give_samples(&view, key, lastSeenTimeStamp, samples, *sampleCount);
    return *sampleCount > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
