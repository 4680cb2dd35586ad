/* MIG devices: compute instances as CUDA sees them. */
#include "emulator.h"

/* As many MIG devices as compute instances fit on the GPU; 0 with MIG off. */
nvmlReturn_t impl_nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    VIEW(view);
    nvmlReturn_t result = view_gpu(&view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = view.gpu->mig_current ? view.model->compute_slices : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *migDevice)
{
    VIEW(view);
    const struct compute_instance *all[MAX_SLICES];
    nvmlReturn_t result = view_gpu(&view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (migDevice == NULL || index >= view.model->compute_slices)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (index >= mig_devices(&view, all))
        return NVML_ERROR_NOT_FOUND;
    *migDevice = mig_handle(&view, all[index]);
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *isMigDevice)
{
    VIEW(view);
    nvmlReturn_t result = view_device(&view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (isMigDevice == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *isMigDevice = view.is_mig;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    VIEW(view);
    nvmlReturn_t result = view_open(&view);
    if (result == NVML_SUCCESS)
        result = find_mig_device(&view, device);
    if (result == NVML_SUCCESS && id == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *id = view.ci->gi_id;
    return result;
}

nvmlReturn_t impl_nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    VIEW(view);
    nvmlReturn_t result = view_open(&view);
    if (result == NVML_SUCCESS)
        result = find_mig_device(&view, device);
    if (result == NVML_SUCCESS && id == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *id = view.ci->id;
    return result;
}

nvmlReturn_t impl_nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t migDevice, nvmlDevice_t *device)
{
    VIEW(view);
    nvmlReturn_t result = view_open(&view);
    if (result == NVML_SUCCESS)
        result = find_mig_device(&view, migDevice);
    if (result == NVML_SUCCESS && device == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *device = gpu_handle((uint32_t)(view.gpu - view.node->gpus));
    return result;
}

/* Multiprocessors and compute slices are the compute instance's; engines and memory are shared in the GPU instance. */
nvmlReturn_t impl_nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    VIEW(view);
    nvmlReturn_t result = view_device(&view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (attributes == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!view.is_mig)
        return NVML_ERROR_NOT_SUPPORTED;
    const struct ci_profile *ci = &view.profile->ci_profiles[view.ci->profile];
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = ci->multiprocessors,
        .sharedCopyEngineCount = view.profile->copy_engines,
        .sharedDecoderCount = view.profile->decoders,
        .sharedEncoderCount = view.profile->encoders,
        .sharedJpegCount = view.profile->jpeg_engines,
        .sharedOfaCount = view.profile->ofa_engines,
        .gpuInstanceSliceCount = view.profile->compute_slices,
        .computeInstanceSliceCount = ci->slices,
        .memorySizeMB = view.profile->memory_mib,
    };
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    return impl_nvmlDeviceGetAttributes_v2(device, attributes);
}
