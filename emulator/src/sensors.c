/* What monitors and Slurm read: an idle GPU, or what was fed (usage.c).
 *
 * The figures of the idle GPU are numbers in the range of a data centre GPU; they belong to no model and measure
 * nothing. Limits are the model's, and NOT_SUPPORTED where no public source tells them. With MIG on, utilisation of the whole GPU is not supported, as on hardware.
 */
#include "emulator.h"

#include <string.h>
#include <unistd.h>

enum {
    IDLE_GRAPHICS_MHZ = 345,
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

static nvmlReturn_t give_if_known(unsigned int known, unsigned int *out)
{
    if (known == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *out = known;
    return NVML_SUCCESS;
}

static nvmlReturn_t give_power_limit(nvmlDevice_t device, unsigned int *limit)
{
    VIEW(view);
    nvmlReturn_t result = view_physical(&view, device, limit);
    return result == NVML_SUCCESS ? give_if_known(view.model->limit_milliwatt, limit) : result;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *limit)
{
    return give_power_limit(device, limit);
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *limit)
{
    return give_power_limit(device, limit);
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

static nvmlReturn_t view_clock(struct view *view, nvmlDevice_t device, nvmlClockType_t type, const void *out)
{
    if (type >= NVML_CLOCK_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    return view_physical(view, device, out);
}

/* Memory has one clock, idle or not. */
CONSTANT
nvmlReturn_t impl_nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    VIEW(view);
    nvmlReturn_t result = view_clock(&view, device, type, clock);
    if (result != NVML_SUCCESS)
        return result;
    return give_if_known(type == NVML_CLOCK_MEM ? view.model->memory_mhz : IDLE_GRAPHICS_MHZ, clock);
}

/* The video clock has a maximum of its own, which is not among the model's data. */
CONSTANT
nvmlReturn_t impl_nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    VIEW(view);
    nvmlReturn_t result = view_clock(&view, device, type, clock);
    if (result != NVML_SUCCESS)
        return result;
    if (type == NVML_CLOCK_VIDEO)
        return NVML_ERROR_NOT_SUPPORTED;
    return give_if_known(type == NVML_CLOCK_MEM ? view.model->memory_mhz : view.model->graphics_mhz, clock);
}

/* In descending order; `count` is the buffer's size on the way in. */
static nvmlReturn_t give_clocks(unsigned int *count, unsigned int *out, const unsigned int *clocks, unsigned int known)
{
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
    VIEW(view);
    nvmlReturn_t result = view_physical(&view, device, count);
    if (result == NVML_SUCCESS && view.model->memory_mhz == 0)
        result = NVML_ERROR_NOT_SUPPORTED;
    return result == NVML_SUCCESS ? give_clocks(count, clocksMHz, &view.model->memory_mhz, 1) : result;
}

/* The two that are known: the highest, and that of the idle GPU. */
CONSTANT
nvmlReturn_t impl_nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memoryClockMHz,
                                                       unsigned int *count, unsigned int *clocksMHz)
{
    VIEW(view);
    nvmlReturn_t result = view_physical(&view, device, count);
    if (result != NVML_SUCCESS)
        return result;
    if (view.model->memory_mhz == 0 || view.model->graphics_mhz == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (memoryClockMHz != view.model->memory_mhz)
        return NVML_ERROR_NOT_FOUND;
    const unsigned int clocks[] = { view.model->graphics_mhz, IDLE_GRAPHICS_MHZ };
    return give_clocks(count, clocksMHz, clocks, sizeof clocks / sizeof clocks[0]);
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
