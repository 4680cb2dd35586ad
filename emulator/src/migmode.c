/* MIG mode.
 *
 * Hopper and later switch at once and lose the mode with the driver; Ampere keeps it over a reboot, but a switch stays
 * pending until the GPU is reset (MIG User Guide). Both refuse while instances live: return code IN_USE, the
 * activation status unwritten, nothing changed. A GPU without instances that a program holds: SUCCESS, activation
 * status IN_USE, and the new mode is pending.
 */
#include "emulator.h"

nvmlReturn_t impl_nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode, unsigned int *pendingMode)
{
    VIEW(view);
    nvmlReturn_t result = view_gpu(&view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (currentMode == NULL || pendingMode == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (view.model->profile_count == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *currentMode = view.gpu->mig_current;
    *pendingMode = view.gpu->mig_pending;
    return NVML_SUCCESS;
}

static nvmlReturn_t activation(const struct view *view)
{
    if (!gpu_idle(view->node, view->gpu))
        return NVML_ERROR_IN_USE;
    if (view->model->reset_to_switch || view->gpu->virtualization == NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH)
        return NVML_ERROR_RESET_REQUIRED;
    return NVML_SUCCESS;
}

static uint32_t unused_minor(const struct node *node)
{
    uint32_t minor = 0;
    for (uint32_t i = 0; i < node->gpu_count; i++)
        if (node->gpus[i].minor == minor) {
            minor++;
            i = UINT32_MAX; /* start over */
        }
    return minor;
}

static nvmlReturn_t switch_mode(struct edit *edit, uint32_t mode, nvmlReturn_t *status)
{
    struct gpu *gpu = edit_gpu(edit);
    uint32_t old_minor = gpu->minor, old_mode = gpu->mig_current;
    nvmlReturn_t outcome = mode == gpu->mig_current ? NVML_SUCCESS : activation(&edit->view);
    gpu->mig_pending = mode;
    if (outcome == NVML_SUCCESS && gpu->mig_current != mode) {
        gpu->mig_current = mode;
        if (edit->node->flags & NODE_RENUMBERS)
            gpu->minor = unused_minor(edit->node);
    }
    if (gpu->minor != old_minor)
        tree_intend();
    nvmlReturn_t result = edit_commit(edit);
    if (result != NVML_SUCCESS)
        return result;
    if (gpu->minor != old_minor) {
        tree_move_gpu(edit->node, gpu, old_minor);
        tree_settle();
    }
    if (gpu->mig_current != old_mode)
        event_append(edit->node, gpu, nvmlEventMigConfigChange, 0, NO_ID, NO_ID);
    *status = outcome;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activationStatus)
{
    EDIT(edit);
    nvmlReturn_t result = edit_open(&edit);
    if (result == NVML_SUCCESS)
        result = find_gpu(&edit.view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (activationStatus == NULL || mode > NVML_DEVICE_MIG_ENABLE)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (edit.view.model->profile_count == 0 || edit.view.gpu->virtualization == NVML_GPU_VIRTUALIZATION_MODE_VGPU)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!is_administrator())
        return NVML_ERROR_NO_PERMISSION;
    if (mode != edit.view.gpu->mig_current && edit.view.gpu->gi_count > 0)
        return NVML_ERROR_IN_USE;
    return switch_mode(&edit, mode, activationStatus);
}
