/* Health getters that clients poll: an emulated GPU has no errors of its own; `fail` and `xid` give it some. */
#include "emulator.h"

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t errorType,
                                              nvmlEccCounterType_t counterType, unsigned long long *eccCounts)
{
    VIEW(view);
    nvmlReturn_t result = view_physical(&view, device, eccCounts);
    if (result != NVML_SUCCESS)
        return result;
    if (errorType >= NVML_MEMORY_ERROR_TYPE_COUNT || counterType >= NVML_ECC_COUNTER_TYPE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    *eccCounts = 0;
    return NVML_SUCCESS;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
    VIEW(view);
    nvmlReturn_t result = view_physical(&view, device, current && pending ? current : NULL);
    if (result == NVML_SUCCESS)
        *current = *pending = NVML_FEATURE_ENABLED;
    return result;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *isPending)
{
    VIEW(view);
    nvmlReturn_t result = view_physical(&view, device, isPending);
    if (result == NVML_SUCCESS)
        *isPending = NVML_FEATURE_DISABLED;
    return result;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrRows, unsigned int *uncRows,
                                            unsigned int *isPending, unsigned int *failureOccurred)
{
    VIEW(view);
    bool given = corrRows && uncRows && isPending && failureOccurred;
    nvmlReturn_t result = view_physical(&view, device, given ? corrRows : NULL);
    if (result == NVML_SUCCESS)
        *corrRows = *uncRows = *isPending = *failureOccurred = 0;
    return result;
}
