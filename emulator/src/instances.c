/* GPU instances: made, destroyed, listed. */
#include "emulator.h"

#include <string.h>

bool mig_enabled(const struct view *view)
{
    return view->gpu->mig_current == NVML_DEVICE_MIG_ENABLE;
}

static uint32_t profile_index(const struct view *view, const struct gi_profile *profile)
{
    return (uint32_t)(profile - view->model->profiles);
}

/* The state of an instance that fits is committed; afterwards its capability file tells of it. */
nvmlReturn_t make_gpu_instance(struct edit *edit, const struct gi_profile *profile, uint32_t start, uint32_t flags,
                               nvmlGpuInstance_t *out)
{
    struct gpu *gpu = edit_gpu(edit);
    struct gpu_instance gi = { .profile = profile_index(&edit->view, profile), .start = start, .flags = flags };
    if (!gi_choose_id(edit->node, edit->view.model, gpu, profile, &gi.id))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    gi.serial = edit->node->next_serial++ & 0x7fffffff;
    tree_intend();
    if (!tree_open_instance(edit->node, gpu, gi.id, NO_ID))
        return system_error();
    gpu->gis[gpu->gi_count++] = gi;
    nvmlReturn_t result = edit_commit(edit);
    if (result != NVML_SUCCESS)
        return result;
    if (tree_publish_access(gpu, gi.id, NO_ID))
        tree_settle();
    event_append(edit->node, gpu, nvmlEventMigConfigChange, 0, NO_ID, NO_ID);
    *out = gi_handle(&edit->view, &gpu->gis[gpu->gi_count - 1]);
    return NVML_SUCCESS;
}

static nvmlReturn_t may_create(const struct view *view)
{
    if (!may_configure())
        return NVML_ERROR_NO_PERMISSION;
    if (!mig_enabled(view) || view->gpu->virtualization == NVML_GPU_VIRTUALIZATION_MODE_VGPU)
        return NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

static nvmlReturn_t open_for_creation(struct edit *edit, nvmlDevice_t device, const void *out, uint32_t profile_id,
                                      const struct gi_profile **profile)
{
    nvmlReturn_t result = edit_open(edit);
    if (result == NVML_SUCCESS)
        result = find_gpu(&edit->view, device);
    if (result == NVML_SUCCESS)
        result = out == NULL ? NVML_ERROR_INVALID_ARGUMENT : may_create(&edit->view);
    if (result != NVML_SUCCESS)
        return result;
    *profile = gi_profile_by_id(edit->view.model, profile_id);
    if (*profile == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return gpu_idle(edit->node, edit->view.gpu) ? NVML_SUCCESS : NVML_ERROR_IN_USE;
}

nvmlReturn_t impl_nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profileId,
                                              nvmlGpuInstance_t *gpuInstance)
{
    EDIT(edit);
    const struct gi_profile *profile;
    uint32_t start;
    nvmlReturn_t result = open_for_creation(&edit, device, gpuInstance, profileId, &profile);
    if (result != NVML_SUCCESS)
        return result;
    if (!gi_choose_start(edit.view.model, edit.view.gpu, profile, &start))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    return make_gpu_instance(&edit, profile, start, 0, gpuInstance);
}

/* A placement that is not the profile's is a wrong argument; one that is taken is a lack of room (nvml.h's list). */
nvmlReturn_t impl_nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profileId,
                                                           const nvmlGpuInstancePlacement_t *placement,
                                                           nvmlGpuInstance_t *gpuInstance)
{
    EDIT(edit);
    const struct gi_profile *profile;
    nvmlReturn_t result = open_for_creation(&edit, device, gpuInstance, profileId, &profile);
    if (result != NVML_SUCCESS)
        return result;
    if (placement == NULL || placement->start >= MAX_SLICES || (profile->starts >> placement->start & 1) == 0 ||
        placement->size != profile->memory_slices)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!gi_fits(edit.view.model, edit.view.gpu, profile, placement->start))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    return make_gpu_instance(&edit, profile, placement->start, 0, gpuInstance);
}

static bool has_compute_instances(const struct view *view)
{
    for (uint32_t i = 0; i < view->gpu->ci_count; i++)
        if (view->gpu->cis[i].gi_id == view->gi->id)
            return true;
    return false;
}

static nvmlReturn_t remove_gpu_instance(struct edit *edit)
{
    struct gpu *gpu = edit_gpu(edit);
    uint32_t id = edit->view.gi->id, at = (uint32_t)(edit->view.gi - gpu->gis);
    tree_intend();
    if (!tree_withdraw_access(gpu, id, NO_ID))
        return system_error(); /* tree.dirty stays: the next writer puts back what is gone */
    gpu->gis[at] = gpu->gis[--gpu->gi_count];
    nvmlReturn_t result = edit_commit(edit);
    if (result != NVML_SUCCESS)
        return result; /* as above */
    tree_close_instance(edit->node, gpu, id, NO_ID);
    tree_settle();
    event_append(edit->node, gpu, nvmlEventMigConfigChange, 0, NO_ID, NO_ID);
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlGpuInstanceDestroy(nvmlGpuInstance_t gpuInstance)
{
    EDIT(edit);
    struct lock lock = NO_LOCK;
    nvmlReturn_t result = edit_open(&edit);
    if (result == NVML_SUCCESS)
        result = find_gpu_instance(&edit.view, gpuInstance);
    if (result == NVML_SUCCESS)
        result = may_create(&edit.view);
    if (result != NVML_SUCCESS)
        return result;
    if (has_compute_instances(&edit.view) || !claim_idle(edit.node, edit.view.gpu, edit.view.gi->id, NO_ID, &lock))
        return NVML_ERROR_IN_USE;
    result = remove_gpu_instance(&edit);
    lock_drop(&lock);
    return result;
}

static nvmlReturn_t view_live_instances(struct view *view, nvmlDevice_t device)
{
    nvmlReturn_t result = view_gpu(view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (!mig_enabled(view))
        return NVML_ERROR_NOT_SUPPORTED;
    return may_configure() ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profileId,
                                            nvmlGpuInstance_t *gpuInstances, unsigned int *count)
{
    VIEW(view);
    nvmlReturn_t result = view_live_instances(&view, device);
    if (result != NVML_SUCCESS)
        return result;
    const struct gi_profile *profile = gi_profile_by_id(view.model, profileId);
    if (gpuInstances == NULL || count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (profile == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    *count = 0;
    for (uint32_t i = 0; i < view.gpu->gi_count; i++)
        if (view.gpu->gis[i].profile == profile_index(&view, profile))
            gpuInstances[(*count)++] = gi_handle(&view, &view.gpu->gis[i]);
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *gpuInstance)
{
    VIEW(view);
    nvmlReturn_t result = view_live_instances(&view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (gpuInstance == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const struct gpu_instance *gi = gi_by_id(view.gpu, id);
    if (gi == NULL)
        return NVML_ERROR_NOT_FOUND;
    *gpuInstance = gi_handle(&view, gi);
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gpuInstance, nvmlGpuInstanceInfo_t *info)
{
    VIEW(view);
    nvmlReturn_t result = view_open(&view);
    if (result == NVML_SUCCESS)
        result = find_gpu_instance(&view, gpuInstance);
    if (result != NVML_SUCCESS)
        return result;
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *info = (nvmlGpuInstanceInfo_t){
        .device = gpu_handle((uint32_t)(view.gpu - view.node->gpus)),
        .id = view.gi->id,
        .profileId = view.profile->id,
        .placement = { .start = view.gi->start, .size = view.profile->memory_slices },
    };
    return NVML_SUCCESS;
}
