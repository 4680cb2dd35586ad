/* Compute instances: profiles of a GPU instance, made, destroyed, listed. */
#include "emulator.h"

#include <string.h>

static nvmlReturn_t view_gi(struct view *view, nvmlGpuInstance_t handle)
{
    nvmlReturn_t result = view_open(view);
    return result == NVML_SUCCESS ? find_gpu_instance(view, handle) : result;
}

static nvmlReturn_t ci_profile_asked(const struct view *view, uint32_t constant, uint32_t engines, const void *info,
                                     const struct ci_profile **profile)
{
    if (info == NULL || constant >= ci_constant_end() || engines >= NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    *profile = ci_profile_by_constant(view->profile, constant);
    return *profile != NULL ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* All versions share these field names; the offsets differ. */
#define FILL_CI_INFO(info, parent, ci)                                                                                \
    do {                                                                                                              \
        (info)->id = (ci)->id;                                                                                        \
        (info)->sliceCount = (ci)->slices;                                                                            \
        (info)->instanceCount = (ci)->max_instances;                                                                  \
        (info)->multiprocessorCount = (ci)->multiprocessors;                                                          \
        (info)->sharedCopyEngineCount = (parent)->copy_engines;                                                       \
        (info)->sharedDecoderCount = (parent)->decoders;                                                              \
        (info)->sharedEncoderCount = (parent)->encoders;                                                              \
        (info)->sharedJpegCount = (parent)->jpeg_engines;                                                             \
        (info)->sharedOfaCount = (parent)->ofa_engines;                                                               \
    } while (0)

CONSTANT
nvmlReturn_t impl_nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t gpuInstance, unsigned int profile,
                                                               unsigned int engProfile,
                                                               nvmlComputeInstanceProfileInfo_t *info)
{
    VIEW(view);
    const struct ci_profile *ci;
    nvmlReturn_t result = view_gi(&view, gpuInstance);
    if (result == NVML_SUCCESS)
        result = ci_profile_asked(&view, profile, engProfile, info, &ci);
    if (result != NVML_SUCCESS)
        return result;
    FILL_CI_INFO(info, view.profile, ci);
    return NVML_SUCCESS;
}

/* The caller's version word decides which structure the pointer means; it is never written to. */
CONSTANT
nvmlReturn_t impl_nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t gpuInstance, unsigned int profile,
                                                                unsigned int engProfile,
                                                                nvmlComputeInstanceProfileInfo_v2_t *info)
{
    VIEW(view);
    const struct ci_profile *ci;
    char name[96];
    nvmlReturn_t result = view_gi(&view, gpuInstance);
    if (result == NVML_SUCCESS)
        result = ci_profile_asked(&view, profile, engProfile, info, &ci);
    if (result != NVML_SUCCESS)
        return result;
    mig_name(view.profile, ci, name);
    if (info->version == nvmlComputeInstanceProfileInfo_v2) {
        FILL_CI_INFO(info, view.profile, ci);
        return give_text(info->name, sizeof info->name, "%s", name);
    }
    if (info->version == nvmlComputeInstanceProfileInfo_v3) {
        nvmlComputeInstanceProfileInfo_v3_t *v3 = (nvmlComputeInstanceProfileInfo_v3_t *)info;
        FILL_CI_INFO(v3, view.profile, ci);
        v3->capabilities = 0;
        return give_text(v3->name, sizeof v3->name, "%s", name);
    }
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}

static nvmlReturn_t view_gi_profile(struct view *view, nvmlGpuInstance_t handle, uint32_t profile_id, const void *out,
                                    const struct ci_profile **profile)
{
    nvmlReturn_t result = view_gi(view, handle);
    if (result != NVML_SUCCESS)
        return result;
    if (!may_configure())
        return NVML_ERROR_NO_PERMISSION;
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *profile = ci_profile_by_id(view->profile, profile_id);
    return *profile != NULL ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t impl_nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t gpuInstance,
                                                                     unsigned int profileId, unsigned int *count)
{
    VIEW(view);
    const struct ci_profile *profile;
    nvmlReturn_t result = view_gi_profile(&view, gpuInstance, profileId, count, &profile);
    if (result == NVML_SUCCESS)
        *count = ci_capacity(view.profile, view.gpu, view.gi->id, profile);
    return result;
}

CONSTANT
nvmlReturn_t impl_nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t gpuInstance,
                                                                      unsigned int profileId,
                                                                      nvmlComputeInstancePlacement_t *placements,
                                                                      unsigned int *count)
{
    VIEW(view);
    const struct ci_profile *profile;
    nvmlReturn_t result = view_gi_profile(&view, gpuInstance, profileId, count, &profile);
    if (result != NVML_SUCCESS)
        return result;
    uint32_t found = 0;
    for (uint32_t start = 0; start < MAX_SLICES; start++) {
        if ((profile->starts >> start & 1) == 0)
            continue;
        if (placements != NULL)
            placements[found] = (nvmlComputeInstancePlacement_t){ .start = start, .size = profile->slices };
        found++;
    }
    *count = found;
    return NVML_SUCCESS;
}

static uint32_t lowest_free_id(const struct gpu *gpu, uint32_t gi)
{
    uint32_t id = 0;
    while (ci_by_id(gpu, gi, id) != NULL)
        id++;
    return id;
}

/* Shaped like a version 5 UUID, as the driver's are, and new at each creation: the serial is never used twice. */
static void make_uuid(const struct edit *edit, uint32_t serial, uint8_t out[16])
{
    uint64_t salt = edit->node->seed;
    for (const char *c = edit->view.gpu->uuid; *c != '\0'; c++)
        salt = mix(salt ^ (uint8_t)*c);
    uint64_t high = mix(salt ^ serial), low = mix(high ^ ~salt);
    memcpy(out, &high, sizeof high);
    memcpy(out + 8, &low, sizeof low);
    out[6] = (uint8_t)((out[6] & 0x0f) | 0x50);
    out[8] = (uint8_t)((out[8] & 0x3f) | 0x80);
}

nvmlReturn_t make_compute_instance(struct edit *edit, const struct ci_profile *profile, uint32_t start,
                                   nvmlComputeInstance_t *out)
{
    struct gpu *gpu = edit_gpu(edit);
    uint32_t gi = edit->view.gi->id;
    struct compute_instance ci = {
        .gi_id = gi,
        .id = lowest_free_id(gpu, gi),
        .profile = (uint32_t)(profile - edit->view.profile->ci_profiles),
        .start = start,
        .serial = edit->node->next_serial++ & 0x7fffffff,
    };
    if (ci.id >= edit->node->cap_cis)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    make_uuid(edit, ci.serial, ci.uuid);
    tree_intend();
    if (!tree_open_instance(edit->node, gpu, gi, ci.id))
        return system_error();
    gpu->cis[gpu->ci_count++] = ci;
    nvmlReturn_t result = edit_commit(edit);
    if (result != NVML_SUCCESS)
        return result;
    if (tree_publish_access(gpu, gi, ci.id))
        tree_settle();
    event_append(edit->node, gpu, nvmlEventMigConfigChange, 0, NO_ID, NO_ID);
    *out = ci_handle(&edit->view, &gpu->cis[gpu->ci_count - 1]);
    return NVML_SUCCESS;
}

static nvmlReturn_t open_for_creation(struct edit *edit, nvmlGpuInstance_t handle, uint32_t profile_id,
                                      const void *out, const struct ci_profile **profile)
{
    nvmlReturn_t result = edit_open(edit);
    if (result == NVML_SUCCESS)
        result = find_gpu_instance(&edit->view, handle);
    if (result != NVML_SUCCESS)
        return result;
    if (!may_configure())
        return NVML_ERROR_NO_PERMISSION;
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *profile = ci_profile_by_id(edit->view.profile, profile_id);
    return *profile != NULL ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t impl_nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
                                                       nvmlComputeInstance_t *computeInstance)
{
    EDIT(edit);
    const struct ci_profile *profile;
    nvmlReturn_t result = open_for_creation(&edit, gpuInstance, profileId, computeInstance, &profile);
    if (result != NVML_SUCCESS)
        return result;
    for (uint32_t start = 0; start < MAX_SLICES; start++)
        if ((profile->starts >> start & 1) && ci_fits(edit.view.profile, edit.view.gpu, edit.view.gi->id, profile, start))
            return make_compute_instance(&edit, profile, start, computeInstance);
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

nvmlReturn_t impl_nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t gpuInstance,
                                                                    unsigned int profileId,
                                                                    const nvmlComputeInstancePlacement_t *placement,
                                                                    nvmlComputeInstance_t *computeInstance)
{
    EDIT(edit);
    const struct ci_profile *profile;
    nvmlReturn_t result = open_for_creation(&edit, gpuInstance, profileId, computeInstance, &profile);
    if (result != NVML_SUCCESS)
        return result;
    if (placement == NULL || placement->start >= MAX_SLICES || (profile->starts >> placement->start & 1) == 0 ||
        placement->size != profile->slices)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!ci_fits(edit.view.profile, edit.view.gpu, edit.view.gi->id, profile, placement->start))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    return make_compute_instance(&edit, profile, placement->start, computeInstance);
}

static nvmlReturn_t remove_compute_instance(struct edit *edit)
{
    struct gpu *gpu = edit_gpu(edit);
    uint32_t gi = edit->view.ci->gi_id, id = edit->view.ci->id, at = (uint32_t)(edit->view.ci - gpu->cis);
    tree_intend();
    if (!tree_withdraw_access(gpu, gi, id))
        return system_error(); /* tree.dirty stays: the next writer puts back what is gone */
    gpu->cis[at] = gpu->cis[--gpu->ci_count];
    nvmlReturn_t result = edit_commit(edit);
    if (result != NVML_SUCCESS)
        return result;
    tree_close_instance(edit->node, gpu, gi, id);
    tree_settle();
    event_append(edit->node, gpu, nvmlEventMigConfigChange, 0, NO_ID, NO_ID);
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlComputeInstanceDestroy(nvmlComputeInstance_t computeInstance)
{
    EDIT(edit);
    struct lock outer = NO_LOCK, inner = NO_LOCK;
    nvmlReturn_t result = edit_open(&edit);
    if (result == NVML_SUCCESS)
        result = find_compute_instance(&edit.view, computeInstance);
    if (result == NVML_SUCCESS && !may_configure())
        result = NVML_ERROR_NO_PERMISSION;
    if (result != NVML_SUCCESS)
        return result;
    uint32_t gi = edit.view.ci->gi_id, ci = edit.view.ci->id;
    bool idle = claim_idle(edit.node, edit.view.gpu, gi, NO_ID, &outer) &&
                claim_idle(edit.node, edit.view.gpu, gi, ci, &inner);
    result = idle ? remove_compute_instance(&edit) : NVML_ERROR_IN_USE;
    lock_drop(&inner);
    lock_drop(&outer);
    return result;
}

nvmlReturn_t impl_nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
                                                     nvmlComputeInstance_t *computeInstances, unsigned int *count)
{
    VIEW(view);
    const struct ci_profile *profile;
    nvmlReturn_t result = view_gi_profile(&view, gpuInstance, profileId, count, &profile);
    if (result != NVML_SUCCESS)
        return result;
    if (computeInstances == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    for (uint32_t i = 0; i < view.gpu->ci_count; i++) {
        const struct compute_instance *ci = &view.gpu->cis[i];
        if (ci->gi_id == view.gi->id && &view.profile->ci_profiles[ci->profile] == profile)
            computeInstances[(*count)++] = ci_handle(&view, ci);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gpuInstance, unsigned int id,
                                                        nvmlComputeInstance_t *computeInstance)
{
    VIEW(view);
    nvmlReturn_t result = view_gi(&view, gpuInstance);
    if (result != NVML_SUCCESS)
        return result;
    if (!may_configure())
        return NVML_ERROR_NO_PERMISSION;
    if (computeInstance == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const struct compute_instance *ci = ci_by_id(view.gpu, view.gi->id, id);
    if (ci == NULL)
        return NVML_ERROR_NOT_FOUND;
    *computeInstance = ci_handle(&view, ci);
    return NVML_SUCCESS;
}

/* The GPU, as nvml.h says; or the MIG device, as a client's source expects it (NODE_CI_INFO_NAMES_MIG). */
static nvmlDevice_t info_device(const struct view *view)
{
    if (view->node->flags & NODE_CI_INFO_NAMES_MIG)
        return mig_handle(view, view->ci);
    return gpu_handle((uint32_t)(view->gpu - view->node->gpus));
}

nvmlReturn_t impl_nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t computeInstance, nvmlComputeInstanceInfo_t *info)
{
    VIEW(view);
    nvmlReturn_t result = view_open(&view);
    if (result == NVML_SUCCESS)
        result = find_compute_instance(&view, computeInstance);
    if (result != NVML_SUCCESS)
        return result;
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const struct ci_profile *profile = &view.profile->ci_profiles[view.ci->profile];
    *info = (nvmlComputeInstanceInfo_t){
        .device = info_device(&view),
        .gpuInstance = gi_handle(&view, view.gi),
        .id = view.ci->id,
        .profileId = profile->id,
        .placement = { .start = view.ci->start, .size = profile->slices },
    };
    return NVML_SUCCESS;
}

/* The first version's record ends before `placement`; its callers have no room for more. */
nvmlReturn_t impl_nvmlComputeInstanceGetInfo(nvmlComputeInstance_t computeInstance, nvmlComputeInstanceInfo_t *info)
{
    nvmlComputeInstanceInfo_t whole;
    nvmlReturn_t result = impl_nvmlComputeInstanceGetInfo_v2(computeInstance, &whole);
    if (result == NVML_SUCCESS && info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        memcpy(info, &whole, offsetof(nvmlComputeInstanceInfo_t, placement));
    return result;
}
