/* GPU instance profiles: what a GPU can be cut into, and how much of it is left. */
#include "emulator.h"

#define LAST_BLIND_BRANCH 535u /* up to R535 the driver lists profiles only with MIG on (mig-parted discovery.go) */

static bool profiles_hidden(const struct view *view)
{
    return view->model->profile_count == 0 || (view->node->driver_branch <= LAST_BLIND_BRANCH && !mig_enabled(view));
}

#define FILL_GI_INFO(info, p)                                                                                         \
    do {                                                                                                              \
        (info)->id = (p)->id;                                                                                         \
        (info)->sliceCount = (p)->compute_slices;                                                                     \
        (info)->instanceCount = (p)->max_instances;                                                                   \
        (info)->multiprocessorCount = (p)->multiprocessors;                                                           \
        (info)->copyEngineCount = (p)->copy_engines;                                                                  \
        (info)->decoderCount = (p)->decoders;                                                                         \
        (info)->encoderCount = (p)->encoders;                                                                         \
        (info)->jpegCount = (p)->jpeg_engines;                                                                        \
        (info)->ofaCount = (p)->ofa_engines;                                                                          \
        (info)->memorySizeMB = (p)->memory_mib;                                                                       \
    } while (0)

static nvmlReturn_t give_versioned(const struct gi_profile *p, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    if (info->version == nvmlGpuInstanceProfileInfo_v2) {
        FILL_GI_INFO(info, p);
        info->isP2pSupported = 0;
        return give_text(info->name, sizeof info->name, "MIG %s", p->name);
    }
    if (info->version == nvmlGpuInstanceProfileInfo_v3) { /* as large as v2, other offsets */
        nvmlGpuInstanceProfileInfo_v3_t *v3 = (nvmlGpuInstanceProfileInfo_v3_t *)info;
        FILL_GI_INFO(v3, p);
        v3->capabilities = 0;
        return give_text(v3->name, sizeof v3->name, "MIG %s", p->name);
    }
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}

static nvmlReturn_t profile_asked(struct view *view, nvmlDevice_t device, uint32_t constant, const void *info,
                                  const struct gi_profile **profile)
{
    nvmlReturn_t result = view_gpu(view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (info == NULL || constant >= gi_constant_end())
        return NVML_ERROR_INVALID_ARGUMENT;
    *profile = profiles_hidden(view) ? NULL : gi_profile_by_constant(view->model, constant);
    return *profile != NULL ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                      nvmlGpuInstanceProfileInfo_t *info)
{
    VIEW(view);
    const struct gi_profile *p;
    nvmlReturn_t result = profile_asked(&view, device, profile, info, &p);
    if (result != NVML_SUCCESS)
        return result;
    FILL_GI_INFO(info, p);
    info->isP2pSupported = 0;
    return NVML_SUCCESS;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                                       nvmlGpuInstanceProfileInfo_v2_t *info)
{
    VIEW(view);
    const struct gi_profile *p;
    nvmlReturn_t result = profile_asked(&view, device, profile, info, &p);
    return result == NVML_SUCCESS ? give_versioned(p, info) : result;
}

static nvmlReturn_t profile_id_asked(struct view *view, nvmlDevice_t device, uint32_t id, const void *out,
                                     const struct gi_profile **profile)
{
    nvmlReturn_t result = view_gpu(view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *profile = profiles_hidden(view) ? NULL : gi_profile_by_id(view->model, id);
    return *profile != NULL ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int profileId,
                                                           nvmlGpuInstanceProfileInfo_v2_t *info)
{
    VIEW(view);
    const struct gi_profile *p;
    nvmlReturn_t result = profile_id_asked(&view, device, profileId, info, &p);
    return result == NVML_SUCCESS ? give_versioned(p, info) : result;
}

/* `count` is output only: a caller may leave anything in it. */
CONSTANT
nvmlReturn_t impl_nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int profileId,
                                                                nvmlGpuInstancePlacement_t *placements,
                                                                unsigned int *count)
{
    VIEW(view);
    const struct gi_profile *p;
    nvmlReturn_t result = profile_id_asked(&view, device, profileId, count, &p);
    if (result == NVML_SUCCESS && !may_configure())
        result = NVML_ERROR_NO_PERMISSION;
    if (result != NVML_SUCCESS)
        return result;
    uint32_t found = 0;
    for (uint32_t start = 0; start < MAX_SLICES; start++) {
        if ((p->starts >> start & 1) == 0)
            continue;
        if (placements != NULL)
            placements[found] = (nvmlGpuInstancePlacement_t){ .start = start, .size = p->memory_slices };
        found++;
    }
    *count = found;
    return NVML_SUCCESS;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int profileId,
                                                             nvmlGpuInstancePlacement_t *placements,
                                                             unsigned int *count)
{
    return impl_nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, profileId, placements, count);
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int profileId,
                                                            unsigned int *count)
{
    VIEW(view);
    const struct gi_profile *p;
    nvmlReturn_t result = profile_id_asked(&view, device, profileId, count, &p);
    if (result == NVML_SUCCESS && !may_configure())
        result = NVML_ERROR_NO_PERMISSION;
    if (result == NVML_SUCCESS && !mig_enabled(&view))
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS)
        *count = gi_capacity(view.model, view.gpu, p);
    return result;
}
