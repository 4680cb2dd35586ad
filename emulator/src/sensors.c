/* What monitors and Slurm read: an idle GPU, or what was fed (usage.c).
 *
 * The figures of the idle GPU are round numbers in the range of a data centre GPU; they belong to no model and measure
 * nothing. With MIG on, utilisation of the whole GPU is not supported, as on hardware.
 */
#include "emulator.h"

#include <string.h>
#include <unistd.h>

enum {
    LIMIT_MILLIWATT = 700000,
    GRAPHICS_MHZ = 345,
    MOST_GRAPHICS_MHZ = 1980,
    MEMORY_MHZ = 2619,
    BAR1_MIB = 131072,
};

/* One unsigned answer about the physical GPU. */
static nvmlReturn_t give_number(nvmlDevice_t device, unsigned int *out, unsigned int value)
{
    VIEW(view);
    nvmlReturn_t result = view_physical(&view, device, out);
    if (result == NVML_SUCCESS)
        *out = value;
    return result;
}

nvmlReturn_t impl_nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensorType, unsigned int *temp)
{
    VIEW(view);
    if (sensorType >= NVML_TEMPERATURE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = view_physical(&view, device, temp);
    if (result == NVML_SUCCESS)
        *temp = level_now(&view, USAGE_CELSIUS);
    return result;
}

nvmlReturn_t impl_nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
    VIEW(view);
    nvmlReturn_t result = view_physical(&view, device, temperature);
    if (result != NVML_SUCCESS)
        return result;
    if (temperature->version != nvmlTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (temperature->sensorType >= NVML_TEMPERATURE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    temperature->temperature = (int)level_now(&view, USAGE_CELSIUS);
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *power)
{
    VIEW(view);
    nvmlReturn_t result = view_physical(&view, device, power);
    if (result == NVML_SUCCESS)
        *power = level_now(&view, USAGE_MILLIWATT);
    return result;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *limit)
{
    return give_number(device, limit, LIMIT_MILLIWATT);
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *limit)
{
    return give_number(device, limit, LIMIT_MILLIWATT);
}

nvmlReturn_t impl_nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *energy)
{
    VIEW(view);
    nvmlReturn_t result = view_physical(&view, device, energy);
    if (result == NVML_SUCCESS)
        *energy = energy_mj(&view);
    return result;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t *pState)
{
    VIEW(view);
    nvmlReturn_t result = view_physical(&view, device, pState);
    if (result == NVML_SUCCESS)
        *pState = NVML_PSTATE_0;
    return result;
}

static nvmlReturn_t give_clock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock, unsigned int graphics)
{
    if (type >= NVML_CLOCK_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    return give_number(device, clock, type == NVML_CLOCK_MEM ? MEMORY_MHZ : graphics);
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    return give_clock(device, type, clock, GRAPHICS_MHZ);
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    return give_clock(device, type, clock, MOST_GRAPHICS_MHZ);
}

/* In descending order; `count` is the buffer's size on the way in. */
static nvmlReturn_t give_clocks(nvmlDevice_t device, unsigned int *count, unsigned int *out, const unsigned int *clocks,
                                unsigned int known)
{
    VIEW(view);
    nvmlReturn_t result = view_physical(&view, device, count);
    if (result != NVML_SUCCESS)
        return result;
    unsigned int room = out == NULL ? 0 : *count;
    *count = known;
    if (room < known)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, clocks, known * sizeof clocks[0]);
    return NVML_SUCCESS;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count, unsigned int *clocksMHz)
{
    static const unsigned int clocks[] = { MEMORY_MHZ };
    return give_clocks(device, count, clocksMHz, clocks, 1);
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memoryClockMHz,
                                                       unsigned int *count, unsigned int *clocksMHz)
{
    static const unsigned int clocks[] = { MOST_GRAPHICS_MHZ, 1410, 1005, GRAPHICS_MHZ };
    VIEW(view);
    nvmlReturn_t result = view_physical(&view, device, count);
    if (result == NVML_SUCCESS && memoryClockMHz != MEMORY_MHZ)
        result = NVML_ERROR_NOT_FOUND;
    return result != NVML_SUCCESS ? result : give_clocks(device, count, clocksMHz, clocks, sizeof clocks / sizeof clocks[0]);
}

/* Locking clocks is accepted and changes nothing that can be seen. */
static nvmlReturn_t lock_clocks(nvmlDevice_t device)
{
    VIEW(view);
    nvmlReturn_t result = view_gpu(&view, device);
    return result == NVML_SUCCESS && !is_administrator() ? NVML_ERROR_NO_PERMISSION : result;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned int minMemClockMHz,
                                                  unsigned int maxMemClockMHz)
{
    return minMemClockMHz > maxMemClockMHz ? NVML_ERROR_INVALID_ARGUMENT : lock_clocks(device);
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned int minGpuClockMHz,
                                               unsigned int maxGpuClockMHz)
{
    return minGpuClockMHz > maxGpuClockMHz ? NVML_ERROR_INVALID_ARGUMENT : lock_clocks(device);
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device)
{
    return lock_clocks(device);
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device)
{
    return lock_clocks(device);
}

static nvmlReturn_t view_utilization(struct view *view, nvmlDevice_t device, const void *out)
{
    nvmlReturn_t result = view_physical(view, device, out);
    return result == NVML_SUCCESS && mig_enabled(view) ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlReturn_t impl_nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    VIEW(view);
    nvmlReturn_t result = view_utilization(&view, device, utilization);
    if (result == NVML_SUCCESS)
        *utilization = (nvmlUtilization_t){ .gpu = level_now(&view, USAGE_GPU),
                                            .memory = level_now(&view, USAGE_MEMORY) };
    return result;
}

static nvmlReturn_t give_engine(nvmlDevice_t device, unsigned int *utilization, unsigned int *period,
                                enum usage_key key)
{
    VIEW(view);
    nvmlReturn_t result = view_utilization(&view, device, utilization && period ? utilization : NULL);
    if (result == NVML_SUCCESS) {
        *utilization = level_now(&view, key);
        *period = SAMPLE_PERIOD_US;
    }
    return result;
}

nvmlReturn_t impl_nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *utilization,
                                                  unsigned int *samplingPeriodUs)
{
    return give_engine(device, utilization, samplingPeriodUs, USAGE_ENCODER);
}

nvmlReturn_t impl_nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *utilization,
                                                  unsigned int *samplingPeriodUs)
{
    return give_engine(device, utilization, samplingPeriodUs, USAGE_DECODER);
}

/* A MIG device answers too: nvitop 1.7.2 ends with a KeyError if it does not. */
CONSTANT
nvmlReturn_t impl_nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *bar1Memory)
{
    VIEW(view);
    nvmlReturn_t result = view_device(&view, device);
    if (result == NVML_SUCCESS && bar1Memory == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *bar1Memory = (nvmlBAR1Memory_t){ .bar1Total = (unsigned long long)BAR1_MIB << 20,
                                          .bar1Free = (unsigned long long)BAR1_MIB << 20,
                                          .bar1Used = 0 };
    return result;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned int *value)
{
    if (counter >= NVML_PCIE_UTIL_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    return give_number(device, value, 0);
}
