/* Where the GPU sits in the machine, and the few settings that are kept. */
#include "emulator.h"

#include <string.h>
#include <unistd.h>

nvmlReturn_t impl_nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    VIEW(view);
    nvmlReturn_t result = view_physical(&view, device, mode);
    if (result == NVML_SUCCESS)
        *mode = view.gpu->persistence ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return result;
}

nvmlReturn_t impl_nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    EDIT(edit);
    nvmlReturn_t result = edit_open(&edit);
    if (result == NVML_SUCCESS)
        result = find_gpu(&edit.view, device);
    if (result == NVML_SUCCESS && mode != NVML_FEATURE_ENABLED && mode != NVML_FEATURE_DISABLED)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && !is_administrator())
        result = NVML_ERROR_NO_PERMISSION;
    if (result != NVML_SUCCESS)
        return result;
    edit_gpu(&edit)->persistence = mode == NVML_FEATURE_ENABLED;
    return edit_commit(&edit);
}

/* All CPUs of the machine. Never an empty mask: Slurm's gpu/nvml ends slurmd on one. */
CONSTANT
nvmlReturn_t impl_nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int cpuSetSize, unsigned long *cpuSet)
{
    VIEW(view);
    nvmlReturn_t result = view_device(&view, device);
    if (result != NVML_SUCCESS)
        return result;
    const long bits = 8 * (long)sizeof cpuSet[0], cpus = sysconf(_SC_NPROCESSORS_CONF);
    if (cpuSet == NULL || cpuSetSize == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    memset(cpuSet, 0, cpuSetSize * sizeof cpuSet[0]);
    for (long cpu = 0; cpu < cpus && cpu < bits * (long)cpuSetSize; cpu++)
        cpuSet[cpu / bits] |= 1ul << (cpu % bits);
    return NVML_SUCCESS;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int cpuSetSize,
                                                      unsigned long *cpuSet, nvmlAffinityScope_t scope)
{
    if (scope != NVML_AFFINITY_SCOPE_NODE && scope != NVML_AFFINITY_SCOPE_SOCKET)
        return NVML_ERROR_INVALID_ARGUMENT;
    return impl_nvmlDeviceGetCpuAffinity(device, cpuSetSize, cpuSet);
}

/* Every GPU has a root complex of its own in DIR/sys, on one NUMA node. */
CONSTANT
nvmlReturn_t impl_nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
                                                      nvmlGpuTopologyLevel_t *pathInfo)
{
    VIEW(first);
    VIEW(second);
    nvmlReturn_t result = view_gpu(&first, device1);
    nvmlReturn_t other = view_gpu(&second, device2);
    if (result != NVML_SUCCESS || other != NVML_SUCCESS)
        return result != NVML_SUCCESS ? result : other;
    if (pathInfo == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *pathInfo = device1 == device2 ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_NODE;
    return NVML_SUCCESS;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
    VIEW(view);
    nvmlReturn_t result = view_physical(&view, device, mode);
    if (result == NVML_SUCCESS)
        *mode = NVML_COMPUTEMODE_DEFAULT;
    return result;
}

static nvmlReturn_t disabled(nvmlDevice_t device, nvmlEnableState_t *out)
{
    VIEW(view);
    nvmlReturn_t result = view_physical(&view, device, out);
    if (result == NVML_SUCCESS)
        *out = NVML_FEATURE_DISABLED;
    return result;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t *isActive)
{
    return disabled(device, isActive);
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t *display)
{
    return disabled(device, display);
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length)
{
    VIEW(view);
    nvmlReturn_t result = view_physical(&view, device, version);
    return result == NVML_SUCCESS ? give_text(version, length, "00.00.00.00.00") : result;
}
