/* Health getters that clients poll: an emulated GPU has no errors of its own; `fail` gives it some. */
#include "emulator.h"

static nvmlReturn_t physical(nvmlDevice_t device, bool arguments_given)
{
    VIEW view;
    nvmlReturn_t result = view_device(&view, device);
    if (result == NVML_SUCCESS && !arguments_given)
        result = NVML_ERROR_INVALID_ARGUMENT;
    return result == NVML_SUCCESS && view.is_mig ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlReturn_t impl_nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t errorType,
                                              nvmlEccCounterType_t counterType, unsigned long long *eccCounts)
{
    bool known = errorType < NVML_MEMORY_ERROR_TYPE_COUNT && counterType < NVML_ECC_COUNTER_TYPE_COUNT;
    nvmlReturn_t result = physical(device, eccCounts != NULL && known);
    if (result == NVML_SUCCESS)
        *eccCounts = 0;
    return result;
}

nvmlReturn_t impl_nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *isPending)
{
    nvmlReturn_t result = physical(device, isPending != NULL);
    if (result == NVML_SUCCESS)
        *isPending = NVML_FEATURE_DISABLED;
    return result;
}

nvmlReturn_t impl_nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrRows, unsigned int *uncRows,
                                            unsigned int *isPending, unsigned int *failureOccurred)
{
    nvmlReturn_t result = physical(device, corrRows && uncRows && isPending && failureOccurred);
    if (result == NVML_SUCCESS)
        *corrRows = *uncRows = *isPending = *failureOccurred = 0;
    return result;
}
