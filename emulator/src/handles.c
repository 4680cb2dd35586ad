/* Handles are numbers, not addresses.
 *
 *   63..56 0xD9   55..52 kind   51..44 GPU   43..37 GPU instance   36..31 compute instance   30..0 serial
 *
 * The serial is the instance's own, given once per node; an instance that was destroyed, by whomever, is found no
 * more, and a new one with the same ids has another serial. So a dead handle fails cleanly in every process and
 * nothing has to be told to anybody. The top byte keeps the number out of every address range in use, which a Go
 * runtime with its pointer checks needs. A GPU's handle has no serial: it is the same for the life of the process,
 * as NVML promises.
 */
#include "emulator.h"

#define MAGIC 0xD9ull

bool handle_decode(uint64_t value, struct handle *out)
{
    *out = (struct handle){
        .kind = (enum handle_kind)(value >> 52 & 0xf),
        .gpu = (uint32_t)(value >> 44 & 0xff),
        .gi = (uint32_t)(value >> 37 & 0x7f),
        .ci = (uint32_t)(value >> 31 & 0x3f),
        .serial = (uint32_t)(value & 0x7fffffff),
    };
    return value >> 56 == MAGIC && out->kind >= HANDLE_GPU && out->kind <= HANDLE_MIG;
}

static uintptr_t encode(enum handle_kind kind, uint32_t gpu, uint32_t gi, uint32_t ci, uint32_t serial)
{
    return (uintptr_t)(MAGIC << 56 | (uint64_t)kind << 52 | (uint64_t)gpu << 44 | (uint64_t)gi << 37 |
                       (uint64_t)ci << 31 | serial);
}

static uint32_t gpu_number(const struct view *view)
{
    return (uint32_t)(view->gpu - view->node->gpus);
}

nvmlDevice_t gpu_handle(uint32_t gpu)
{
    return (nvmlDevice_t)encode(HANDLE_GPU, gpu, 0, 0, 0);
}

nvmlDevice_t mig_handle(const struct view *view, const struct compute_instance *ci)
{
    return (nvmlDevice_t)encode(HANDLE_MIG, gpu_number(view), ci->gi_id, ci->id, ci->serial);
}

nvmlGpuInstance_t gi_handle(const struct view *view, const struct gpu_instance *gi)
{
    return (nvmlGpuInstance_t)encode(HANDLE_GI, gpu_number(view), gi->id, 0, gi->serial);
}

nvmlComputeInstance_t ci_handle(const struct view *view, const struct compute_instance *ci)
{
    return (nvmlComputeInstance_t)encode(HANDLE_CI, gpu_number(view), ci->gi_id, ci->id, ci->serial);
}

const struct gpu_instance *gi_by_id(const struct gpu *gpu, uint32_t id)
{
    for (uint32_t i = 0; i < gpu->gi_count; i++)
        if (gpu->gis[i].id == id)
            return &gpu->gis[i];
    return NULL;
}

const struct compute_instance *ci_by_id(const struct gpu *gpu, uint32_t gi, uint32_t ci)
{
    for (uint32_t i = 0; i < gpu->ci_count; i++)
        if (gpu->cis[i].gi_id == gi && gpu->cis[i].id == ci)
            return &gpu->cis[i];
    return NULL;
}

void select_gpu(struct view *view, uint32_t gpu)
{
    view->gpu = &view->node->gpus[gpu];
    view->model = &emulator_models()->models[view->gpu->model];
}

static nvmlReturn_t usable_gpu(struct view *view, uint32_t gpu)
{
    if (gpu >= view->node->gpu_count || !gpu_visible(view->node, &view->node->gpus[gpu]))
        return NVML_ERROR_INVALID_ARGUMENT;
    select_gpu(view, gpu);
    return view->gpu->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

static nvmlReturn_t select_gi(struct view *view, uint32_t id)
{
    view->gi = gi_by_id(view->gpu, id);
    if (view->gi == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    view->profile = &view->model->profiles[view->gi->profile];
    return NVML_SUCCESS;
}

static nvmlReturn_t select_ci(struct view *view, const struct handle *handle)
{
    nvmlReturn_t result = select_gi(view, handle->gi);
    if (result != NVML_SUCCESS)
        return result;
    view->ci = ci_by_id(view->gpu, handle->gi, handle->ci);
    return view->ci != NULL && view->ci->serial == handle->serial ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t find_device(struct view *view, nvmlDevice_t device)
{
    struct handle handle;
    if (!handle_decode((uintptr_t)device, &handle) || (handle.kind != HANDLE_GPU && handle.kind != HANDLE_MIG))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = usable_gpu(view, handle.gpu);
    if (result != NVML_SUCCESS || handle.kind == HANDLE_GPU)
        return result;
    view->is_mig = true;
    result = select_ci(view, &handle);
    if (result == NVML_SUCCESS && !ci_visible(view->node, view->gpu, view->ci))
        result = NVML_ERROR_INVALID_ARGUMENT;
    return result;
}

nvmlReturn_t find_gpu(struct view *view, nvmlDevice_t device)
{
    nvmlReturn_t result = find_device(view, device);
    return result == NVML_SUCCESS && view->is_mig ? NVML_ERROR_INVALID_ARGUMENT : result;
}

nvmlReturn_t find_mig_device(struct view *view, nvmlDevice_t device)
{
    nvmlReturn_t result = find_device(view, device);
    return result == NVML_SUCCESS && !view->is_mig ? NVML_ERROR_INVALID_ARGUMENT : result;
}

nvmlReturn_t find_gpu_instance(struct view *view, nvmlGpuInstance_t handle_)
{
    struct handle handle;
    if (!handle_decode((uintptr_t)handle_, &handle) || handle.kind != HANDLE_GI)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = usable_gpu(view, handle.gpu);
    if (result == NVML_SUCCESS)
        result = select_gi(view, handle.gi);
    if (result == NVML_SUCCESS && view->gi->serial != handle.serial)
        result = NVML_ERROR_INVALID_ARGUMENT;
    return result;
}

nvmlReturn_t find_compute_instance(struct view *view, nvmlComputeInstance_t handle_)
{
    struct handle handle;
    if (!handle_decode((uintptr_t)handle_, &handle) || handle.kind != HANDLE_CI)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = usable_gpu(view, handle.gpu);
    return result == NVML_SUCCESS ? select_ci(view, &handle) : result;
}

nvmlReturn_t view_device(struct view *view, nvmlDevice_t device)
{
    nvmlReturn_t result = view_open(view);
    return result == NVML_SUCCESS ? find_device(view, device) : result;
}

nvmlReturn_t view_gpu(struct view *view, nvmlDevice_t device)
{
    nvmlReturn_t result = view_open(view);
    return result == NVML_SUCCESS ? find_gpu(view, device) : result;
}

/* A fact of the physical GPU, for `out`; MIG devices do not have it. */
nvmlReturn_t view_physical(struct view *view, nvmlDevice_t device, const void *out)
{
    nvmlReturn_t result = view_device(view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return view->is_mig ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}
