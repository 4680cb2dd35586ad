/* nvmlDeviceGetFieldValues: what has a call of its own answers as that call does; no other field is known. */
#include "emulator.h"

static nvmlReturn_t number(nvmlFieldValue_t *field, nvmlReturn_t result, unsigned int value)
{
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    field->value.uiVal = value;
    return result;
}

static nvmlReturn_t ecc_mode(nvmlDevice_t device, nvmlFieldValue_t *field)
{
    nvmlEnableState_t current = 0, pending = 0;
    nvmlReturn_t result = impl_nvmlDeviceGetEccMode(device, &current, &pending);
    return number(field, result, field->fieldId == NVML_FI_DEV_ECC_CURRENT ? current : pending);
}

static nvmlReturn_t ecc_errors(nvmlDevice_t device, nvmlFieldValue_t *field)
{
    bool corrected = field->fieldId == NVML_FI_DEV_ECC_SBE_VOL_TOTAL || field->fieldId == NVML_FI_DEV_ECC_SBE_AGG_TOTAL;
    bool since_boot = field->fieldId == NVML_FI_DEV_ECC_SBE_VOL_TOTAL || field->fieldId == NVML_FI_DEV_ECC_DBE_VOL_TOTAL;
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    return impl_nvmlDeviceGetTotalEccErrors(
        device, corrected ? NVML_MEMORY_ERROR_TYPE_CORRECTED : NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        since_boot ? NVML_VOLATILE_ECC : NVML_AGGREGATE_ECC, &field->value.ullVal);
}

static nvmlReturn_t retired_pending(nvmlDevice_t device, nvmlFieldValue_t *field)
{
    nvmlEnableState_t pending = 0;
    nvmlReturn_t result = impl_nvmlDeviceGetRetiredPagesPendingStatus(device, &pending);
    return number(field, result, pending);
}

static nvmlReturn_t remapped_rows(nvmlDevice_t device, nvmlFieldValue_t *field)
{
    unsigned int rows[4] = { 0 }; /* in the order of the fields' numbers */
    nvmlReturn_t result = impl_nvmlDeviceGetRemappedRows(device, &rows[0], &rows[1], &rows[2], &rows[3]);
    return number(field, result, rows[field->fieldId - NVML_FI_DEV_REMAPPED_COR]);
}

static nvmlReturn_t energy(nvmlDevice_t device, nvmlFieldValue_t *field)
{
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    return impl_nvmlDeviceGetTotalEnergyConsumption(device, &field->value.ullVal);
}

static nvmlReturn_t power(nvmlDevice_t device, nvmlFieldValue_t *field)
{
    unsigned int milliwatt = 0;
    nvmlReturn_t result = impl_nvmlDeviceGetPowerUsage(device, &milliwatt);
    return number(field, result, milliwatt);
}

static nvmlReturn_t power_limit(nvmlDevice_t device, nvmlFieldValue_t *field)
{
    unsigned int milliwatt = 0;
    nvmlReturn_t result = field->fieldId == NVML_FI_DEV_POWER_CURRENT_LIMIT
                              ? impl_nvmlDeviceGetEnforcedPowerLimit(device, &milliwatt)
                              : impl_nvmlDeviceGetPowerManagementLimit(device, &milliwatt);
    return number(field, result, milliwatt);
}

static nvmlReturn_t give_field(nvmlDevice_t device, nvmlFieldValue_t *field)
{
    switch (field->fieldId) {
    case NVML_FI_DEV_ECC_CURRENT:
    case NVML_FI_DEV_ECC_PENDING: return ecc_mode(device, field);
    case NVML_FI_DEV_ECC_SBE_VOL_TOTAL:
    case NVML_FI_DEV_ECC_DBE_VOL_TOTAL:
    case NVML_FI_DEV_ECC_SBE_AGG_TOTAL:
    case NVML_FI_DEV_ECC_DBE_AGG_TOTAL: return ecc_errors(device, field);
    case NVML_FI_DEV_RETIRED_PENDING: return retired_pending(device, field);
    case NVML_FI_DEV_REMAPPED_COR:
    case NVML_FI_DEV_REMAPPED_UNC:
    case NVML_FI_DEV_REMAPPED_PENDING:
    case NVML_FI_DEV_REMAPPED_FAILURE: return remapped_rows(device, field);
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: return energy(device, field);
    case NVML_FI_DEV_POWER_AVERAGE:
    case NVML_FI_DEV_POWER_INSTANT: return power(device, field);
    case NVML_FI_DEV_POWER_CURRENT_LIMIT:
    case NVML_FI_DEV_POWER_REQUESTED_LIMIT: return power_limit(device, field);
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
}

nvmlReturn_t impl_nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount, nvmlFieldValue_t *values)
{
    VIEW(view);
    nvmlReturn_t result = view_device(&view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (values == NULL || valuesCount < 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < valuesCount; i++) {
        values[i].timestamp = (long long)now_us();
        values[i].latencyUsec = 0;
        values[i].nvmlReturn = give_field(device, &values[i]);
    }
    return NVML_SUCCESS;
}
