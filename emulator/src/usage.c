/* How busy a device is: what the control side fed, and nothing where it fed nothing.
 *
 * DIR/state/usage is an array of records, ordered by time: from `at_us` on, this GPU, or the GPU instance that starts
 * at this memory slice, has these levels, until its next record. A file that was fed in advance plays by itself, as
 * every call looks up what holds now; the file is replaced whole.
 */
#include "emulator.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

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

uint64_t used_mib(const struct view *view, const struct gpu_instance *gi)
{
    uint64_t used = usage_of(view, gi, now_us()).level[USAGE_USED];
    uint64_t most = gi ? view->model->profiles[gi->profile].memory_mib : view->model->memory_mib;
    return used < most ? used : most;
}

/* A MIG device: what its GPU instance uses. A GPU in MIG mode: what its instances use together. */
uint64_t memory_used_mib(const struct view *view)
{
    uint64_t used = 0;
    if (view->gi != NULL || !mig_enabled(view))
        return used_mib(view, view->gi);
    for (uint32_t i = 0; i < view->gpu->gi_count; i++)
        used += used_mib(view, &view->gpu->gis[i]);
    return used;
}

/* ---- nvmlDeviceGetSamples: every record in force up to now is one sample */

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

static uint32_t give_samples(const struct view *view, uint32_t key, uint64_t after, nvmlSample_t *out, uint32_t room)
{
    FEED(feed);
    uint32_t count = 0;
    uint64_t now = now_us();
    for (size_t i = 0; i < feed.count && feed.records[i].at_us <= now; i++) {
        const struct usage_record *record = &feed.records[i];
        if (!is_about(record, view, NULL) || record->at_us <= after || (record->set & 1u << key) == 0)
            continue;
        if (out != NULL && count == room)
            break;
        if (out != NULL)
            out[count] = (nvmlSample_t){ .timeStamp = record->at_us, .sampleValue.uiVal = record->level[key] };
        count++;
    }
    return count;
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
