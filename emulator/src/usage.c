/* How busy a device is: what the control side fed, and nothing where it fed nothing.
 *
 * DIR/state/usage is an array of records, ordered by time: from `at_us` on, this GPU, or the GPU instance that starts
 * at this memory slice, has these levels, until its next record. A file that was fed in advance plays by itself, as
 * every call looks up what holds now; the file is replaced whole.
 *
 * GPU Performance Monitoring (GPM) is the one way to utilisation per MIG device: a sample is the sum of level times
 * time since the beginning, as a hardware counter would have it, and a metric the difference of two over the time.
 */
#include "emulator.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
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
    void *map = feed.count ? mmap(NULL, feed.count * sizeof feed.records[0], PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
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

/* ---- GPM */

enum { MAX_GPM_SAMPLES = 2048 };

struct gpm_sample {
    atomic_uint used; /* generation while allocated, 0 when free */
    bool taken;
    uint64_t subject; /* handle of the GPU, or of the GPU instance, that it was taken of */
    struct usage usage;
};

static struct gpm_sample gpm_samples[MAX_GPM_SAMPLES];
static atomic_uint gpm_generation;

static struct gpm_sample *sample_of(nvmlGpmSample_t handle)
{
    uintptr_t value = (uintptr_t)handle, slot = value & 0xffff;
    uint32_t wanted = (uint32_t)(value >> 16 & 0xffffffff);
    if (value >> 56 != 0xD9 || slot >= MAX_GPM_SAMPLES || wanted == 0)
        return NULL;
    return atomic_load(&gpm_samples[slot].used) == wanted ? &gpm_samples[slot] : NULL;
}

void gpm_samples_drop(void)
{
    for (int i = 0; i < MAX_GPM_SAMPLES; i++)
        atomic_store(&gpm_samples[i].used, 0);
}

nvmlReturn_t impl_nvmlGpmSampleAlloc(nvmlGpmSample_t *gpmSample)
{
    if (gpmSample == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned fresh = atomic_fetch_add(&gpm_generation, 1) + 1;
    for (uintptr_t slot = 0; slot < MAX_GPM_SAMPLES; slot++) {
        unsigned free = 0;
        if (!atomic_compare_exchange_strong(&gpm_samples[slot].used, &free, fresh))
            continue;
        gpm_samples[slot].taken = false;
        *gpmSample = (nvmlGpmSample_t)((uintptr_t)0xD9 << 56 | (uintptr_t)fresh << 16 | slot);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_MEMORY;
}

nvmlReturn_t impl_nvmlGpmSampleFree(nvmlGpmSample_t gpmSample)
{
    struct gpm_sample *sample = sample_of(gpmSample);
    if (sample == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    atomic_store(&sample->used, 0);
    return NVML_SUCCESS;
}

static bool has_gpm(const struct view *view)
{
    return view->model->architecture >= NVML_DEVICE_ARCH_HOPPER && view->model->architecture != NVML_DEVICE_ARCH_UNKNOWN;
}

CONSTANT
nvmlReturn_t impl_nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *gpmSupport)
{
    VIEW(view);
    nvmlReturn_t result = view_device(&view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (gpmSupport == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (gpmSupport->version != NVML_GPM_SUPPORT_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    gpmSupport->isSupportedDevice = has_gpm(&view);
    return NVML_SUCCESS;
}

static nvmlReturn_t take_sample(const struct view *view, const struct gpu_instance *gi, nvmlGpmSample_t handle)
{
    struct gpm_sample *sample = sample_of(handle);
    if (sample == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!has_gpm(view))
        return NVML_ERROR_NOT_SUPPORTED;
    sample->usage = usage_of(view, gi, now_us());
    sample->subject = gi ? (uint64_t)(uintptr_t)gi_handle(view, gi)
                         : (uint64_t)(uintptr_t)gpu_handle((uint32_t)(view->gpu - view->node->gpus));
    sample->taken = true;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t gpmSample)
{
    VIEW(view);
    nvmlReturn_t result = view_device(&view, device);
    return result == NVML_SUCCESS ? take_sample(&view, view.gi, gpmSample) : result;
}

nvmlReturn_t impl_nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpuInstanceId, nvmlGpmSample_t gpmSample)
{
    VIEW(view);
    nvmlReturn_t result = view_gpu(&view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (!mig_enabled(&view))
        return NVML_ERROR_NOT_SUPPORTED;
    const struct gpu_instance *gi = gi_by_id(view.gpu, gpuInstanceId);
    return gi != NULL ? take_sample(&view, gi, gpmSample) : NVML_ERROR_NOT_FOUND;
}

struct gpm_known {
    uint32_t metric, key;
    const char *short_name, *long_name;
};

static const struct gpm_known *known_metric(uint32_t metric)
{
    static const struct gpm_known known[] = {
        { NVML_GPM_METRIC_GRAPHICS_UTIL, USAGE_GPU, "graphics_util", "Graphics utilization" },
        { NVML_GPM_METRIC_SM_UTIL, USAGE_SM, "sm_util", "SM utilization" },
        { NVML_GPM_METRIC_SM_OCCUPANCY, USAGE_OCCUPANCY, "sm_occupancy", "SM occupancy" },
        { NVML_GPM_METRIC_ANY_TENSOR_UTIL, USAGE_TENSOR, "any_tensor_util", "Tensor utilization" },
        { NVML_GPM_METRIC_DRAM_BW_UTIL, USAGE_DRAM, "dram_bw_util", "DRAM bandwidth utilization" },
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].metric == metric)
            return &known[i];
    return NULL;
}

static void give_metric(nvmlGpmMetric_t *metric, const struct usage *first, const struct usage *last)
{
    const struct gpm_known *known = known_metric(metric->metricId);
    if (known == NULL) {
        metric->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        return;
    }
    bool grown = last->sum[known->key] >= first->sum[known->key]; /* not so if another file was fed in between */
    metric->nvmlReturn = grown ? NVML_SUCCESS : NVML_ERROR_NO_DATA;
    metric->value = grown ? (double)(last->sum[known->key] - first->sum[known->key]) / (double)(last->at_us - first->at_us)
                          : 0;
    metric->metricInfo.shortName = (char *)(uintptr_t)known->short_name;
    metric->metricInfo.longName = (char *)(uintptr_t)known->long_name;
    metric->metricInfo.unit = (char *)(uintptr_t)"%";
}

/* The structure grew with the header under one version number: only the metrics that were asked for are touched. */
nvmlReturn_t impl_nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *metricsGet)
{
    if (metricsGet == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (metricsGet->version != NVML_GPM_METRICS_GET_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const struct gpm_sample *first = sample_of(metricsGet->sample1), *last = sample_of(metricsGet->sample2);
    if (first == NULL || last == NULL || !first->taken || !last->taken || first->subject != last->subject ||
        last->usage.at_us <= first->usage.at_us || metricsGet->numMetrics > NVML_GPM_METRIC_MAX)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < metricsGet->numMetrics; i++)
        give_metric(&metricsGet->metrics[i], &first->usage, &last->usage);
    return NVML_SUCCESS;
}
