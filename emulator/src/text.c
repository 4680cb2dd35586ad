/* Strings as NVML spells them. */
#include "emulator.h"

#include <stdio.h>
#include <string.h>

/* The whole text or INSUFFICIENT_SIZE; never a byte past `length`. */
nvmlReturn_t give_text(char *out, uint32_t length, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (size < 0 || (size_t)size >= sizeof text || (uint32_t)size >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, text, (size_t)size + 1);
    return NVML_SUCCESS;
}

void mig_uuid_text(const uint8_t u[16], char out[48])
{
    snprintf(out, 48, "MIG-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3],
             u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

/* `MIG 1g.10gb`, or `MIG 1c.3g.40gb` for a compute instance that does not fill its GPU instance. */
void mig_name(const struct gi_profile *profile, const struct ci_profile *ci, char out[96])
{
    if (ci->slices < profile->compute_slices)
        snprintf(out, 96, "MIG %uc.%s", ci->slices, profile->name);
    else
        snprintf(out, 96, "MIG %s", profile->name);
}

/* 0000:07:00.0, as sysfs and /proc/driver/nvidia/gpus name it. */
void bus_id_sysfs(const struct gpu *gpu, char out[16])
{
    snprintf(out, 16, "%04x:%02x:%02x.0", gpu->pci_domain & 0xffff, gpu->pci_bus & 0xff, gpu->pci_slot & 0x1f);
}
