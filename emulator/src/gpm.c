/* GPU Performance Monitoring (GPM): the one way to utilisation per MIG device, from Hopper on.
 *
 * A sample is the sum of level times time since the first record (usage.c), as a hardware counter would have it, and a
 * metric the difference of two over the time between. Handles of samples are numbers: slot, generation and a mark.
 */
#include "emulator.h"

#include <stdatomic.h>

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
    uint32_t architecture = view->model->architecture;
    return architecture >= NVML_DEVICE_ARCH_HOPPER && architecture != NVML_DEVICE_ARCH_UNKNOWN;
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
    uint64_t before = first->sum[known->key], after = last->sum[known->key];
    bool grown = after >= before; /* not so if another file was fed in between */
    metric->nvmlReturn = grown ? NVML_SUCCESS : NVML_ERROR_NO_DATA;
    metric->value = grown ? (double)(after - before) / (double)(last->at_us - first->at_us) : 0;
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
