/* Versions and error texts. */
#include "emulator.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

CONSTANT
nvmlReturn_t impl_nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    VIEW(view);
    nvmlReturn_t result = view_open(&view);
    return result == NVML_SUCCESS ? give_text(version, length, "%s", view.node->driver_version) : result;
}

/* Clients look at the first number at most; what follows the last says what this is. */
CONSTANT
nvmlReturn_t impl_nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    VIEW(view);
    nvmlReturn_t result = view_open(&view);
    if (result != NVML_SUCCESS)
        return result;
    return give_text(version, length, "%d.%s-emulator", NVML_API_VERSION, view.node->driver_version);
}

CONSTANT
nvmlReturn_t impl_nvmlSystemGetCudaDriverVersion_v2(int *cudaDriverVersion)
{
    VIEW(view);
    nvmlReturn_t result = view_open(&view);
    if (result == NVML_SUCCESS && cudaDriverVersion == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *cudaDriverVersion = (int)view.node->cuda_version;
    return result;
}

CONSTANT
nvmlReturn_t impl_nvmlSystemGetCudaDriverVersion(int *cudaDriverVersion)
{
    return impl_nvmlSystemGetCudaDriverVersion_v2(cudaDriverVersion);
}

/* Its first argument, cropped to what fits, as nvml.h has it; a kernel thread's is empty. */
nvmlReturn_t impl_nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    char path[64];
    if (name == NULL || length == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NVML_ERROR_NOT_FOUND;
    ssize_t size = read(fd, name, length - 1);
    close(fd);
    name[size > 0 ? size : 0] = '\0';
    return size < 0 ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS; /* it has ended in between */
}

/* Works before the first init and after a failed one. */
CONSTANT
const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_ALREADY_INITIALIZED: return "Already Initialized";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_INSUFFICIENT_POWER: return "Insufficient External Power";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_IRQ_ISSUE: return "Interrupt Request Issue";
    case NVML_ERROR_LIBRARY_NOT_FOUND: return "NVML Shared Library Not Found";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
    case NVML_ERROR_CORRUPTED_INFOROM: return "Corrupted infoROM";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
    case NVML_ERROR_OPERATING_SYSTEM: return "Blocked By Operating System";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case NVML_ERROR_IN_USE: return "In use by another client";
    case NVML_ERROR_MEMORY: return "Insufficient Memory";
    case NVML_ERROR_NO_DATA: return "No data";
    case NVML_ERROR_VGPU_ECC_NOT_SUPPORTED: return "vGPU ECC Not Supported";
    case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    case NVML_ERROR_FREQ_NOT_SUPPORTED: return "Frequency Not Supported";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument Version Mismatch";
    case NVML_ERROR_DEPRECATED: return "Deprecated";
    case NVML_ERROR_NOT_READY: return "Not Ready";
    case NVML_ERROR_GPU_NOT_FOUND: return "No GPUs Found";
    case NVML_ERROR_INVALID_STATE: return "Invalid State";
    case NVML_ERROR_RESET_TYPE_NOT_SUPPORTED: return "Reset Type Not Supported";
    case NVML_ERROR_UNKNOWN: break;
    }
    return "Unknown Error";
}
