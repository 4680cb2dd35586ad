/* Who a device is: handles, UUID, name, numbers, PCI address, memory. */
#include "emulator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

nvmlReturn_t impl_nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
    VIEW(view);
    nvmlReturn_t result = view_open(&view);
    if (result != NVML_SUCCESS)
        return result;
    if (deviceCount == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *deviceCount = visible_gpus(view.node);
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetCount(unsigned int *deviceCount)
{
    return impl_nvmlDeviceGetCount_v2(deviceCount);
}

static nvmlReturn_t give_gpu(struct view *view, uint32_t gpu, nvmlDevice_t *device)
{
    select_gpu(view, gpu);
    if (view->gpu->lost)
        return NVML_ERROR_GPU_IS_LOST;
    *device = gpu_handle(gpu);
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    VIEW(view);
    uint32_t gpu;
    nvmlReturn_t result = view_open(&view);
    if (result != NVML_SUCCESS)
        return result;
    if (device == NULL || !visible_gpu_at(view.node, index, &gpu))
        return NVML_ERROR_INVALID_ARGUMENT;
    return give_gpu(&view, gpu, device);
}

nvmlReturn_t impl_nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return impl_nvmlDeviceGetHandleByIndex_v2(index, device);
}

enum { UUIDS_OF_THEIR_OWN = 470 }; /* the first driver branch that gives MIG devices some (MIG User Guide, device names) */

/* Before: MIG-<gpu uuid>/<gi>/<ci>. */
static void mig_uuid(const struct view *view, const struct compute_instance *ci, char out[96])
{
    if (view->node->driver_branch < UUIDS_OF_THEIR_OWN)
        snprintf(out, 96, "MIG-%s/%u/%u", view->gpu->uuid, ci->gi_id, ci->id);
    else
        mig_uuid_text(ci->uuid, out);
}

/* The UUID itself, or the form before R470, with or without GPU- in it. */
static bool names_mig_device(const char *asked, const struct view *view, const struct compute_instance *ci)
{
    char now[96], old[96], older[96];
    const char *gpu = view->gpu->uuid;
    mig_uuid(view, ci, now);
    snprintf(old, sizeof old, "MIG-%s/%u/%u", gpu, ci->gi_id, ci->id);
    snprintf(older, sizeof older, "MIG-%s/%u/%u", gpu + strlen("GPU-"), ci->gi_id, ci->id);
    return strcasecmp(asked, now) == 0 || strcasecmp(asked, old) == 0 || strcasecmp(asked, older) == 0;
}

static nvmlReturn_t mig_device_named(struct view *view, const char *uuid, nvmlDevice_t *device)
{
    const struct compute_instance *all[MAX_SLICES];
    uint32_t count = mig_devices(view, all);
    for (uint32_t i = 0; i < count; i++) {
        if (!names_mig_device(uuid, view, all[i]))
            continue;
        if (view->gpu->lost)
            return NVML_ERROR_GPU_IS_LOST;
        *device = mig_handle(view, all[i]);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t impl_nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    VIEW(view);
    nvmlReturn_t result = view_open(&view);
    if (result != NVML_SUCCESS)
        return result;
    if (uuid == NULL || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    result = NVML_ERROR_NOT_FOUND;
    for (uint32_t g = 0; g < view.node->gpu_count && result == NVML_ERROR_NOT_FOUND; g++) {
        if (!gpu_visible(view.node, &view.node->gpus[g]))
            continue;
        select_gpu(&view, g);
        result = strcasecmp(uuid, view.gpu->uuid) == 0 ? give_gpu(&view, g, device)
                                                       : mig_device_named(&view, uuid, device);
    }
    return result;
}

/* Both domain widths, any case, with or without the function. */
static bool bus_id_is(const char *asked, const struct gpu *gpu)
{
    unsigned domain, bus, slot, function = 0;
    char rest;
    int read = sscanf(asked, "%x:%x:%x.%x%c", &domain, &bus, &slot, &function, &rest);
    return (read == 3 || read == 4) && domain == gpu->pci_domain && bus == gpu->pci_bus && slot == gpu->pci_slot &&
           function == 0;
}

nvmlReturn_t impl_nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device)
{
    VIEW(view);
    nvmlReturn_t result = view_open(&view);
    if (result != NVML_SUCCESS)
        return result;
    if (pciBusId == NULL || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t g = 0; g < view.node->gpu_count; g++)
        if (gpu_visible(view.node, &view.node->gpus[g]) && bus_id_is(pciBusId, &view.node->gpus[g]))
            return give_gpu(&view, g, device);
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t impl_nvmlDeviceGetHandleByPciBusId(const char *pciBusId, nvmlDevice_t *device)
{
    return impl_nvmlDeviceGetHandleByPciBusId_v2(pciBusId, device);
}

nvmlReturn_t impl_nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    VIEW(view);
    char text[96];
    nvmlReturn_t result = view_device(&view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (!view.is_mig)
        return give_text(uuid, length, "%s", view.gpu->uuid);
    mig_uuid(&view, view.ci, text);
    return give_text(uuid, length, "%s", text);
}

nvmlReturn_t impl_nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    VIEW(view);
    char mig[96];
    nvmlReturn_t result = view_device(&view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (!view.is_mig)
        return give_text(name, length, "%s", view.model->product);
    mig_name(view.profile, &view.profile->ci_profiles[view.ci->profile], mig);
    return give_text(name, length, "%s %s", view.model->product, mig);
}

static uint32_t mig_index(const struct view *view)
{
    const struct compute_instance *all[MAX_SLICES];
    uint32_t count = mig_devices(view, all), index = 0;
    while (index < count && all[index] != view->ci)
        index++;
    return index;
}

nvmlReturn_t impl_nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    VIEW(view);
    nvmlReturn_t result = view_device(&view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (index == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *index = view.is_mig ? mig_index(&view) : visible_index(view.node, view.gpu);
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minorNumber)
{
    VIEW(view);
    nvmlReturn_t result = view_physical(&view, device, minorNumber);
    if (result == NVML_SUCCESS)
        *minorNumber = view.gpu->minor;
    return result;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
    VIEW(view);
    nvmlReturn_t result = view_physical(&view, device, serial);
    return result == NVML_SUCCESS ? give_text(serial, length, "%s", view.gpu->serial_number) : result;
}

static void fill_pci(const struct view *view, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof *pci);
    pci->domain = view->gpu->pci_domain;
    pci->bus = view->gpu->pci_bus;
    pci->device = view->gpu->pci_slot;
    pci->pciDeviceId = view->model->pci_device;
    pci->pciSubSystemId = view->model->pci_subsystem;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff,
             pci->device & 0x1f);
    snprintf(pci->busId, sizeof pci->busId, "%s", view->gpu->bus_id);
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    VIEW(view);
    nvmlReturn_t result = view_device(&view, device); /* a MIG device answers with its GPU's address */
    if (result != NVML_SUCCESS)
        return result;
    if (pci == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    fill_pci(&view, pci);
    return NVML_SUCCESS;
}

/* The records before version 3 end before `busId`. */
CONSTANT
nvmlReturn_t impl_nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    nvmlPciInfo_t whole;
    nvmlReturn_t result = impl_nvmlDeviceGetPciInfo_v3(device, &whole);
    if (result == NVML_SUCCESS && pci == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        memcpy(pci, &whole, offsetof(nvmlPciInfo_t, busId));
    return result;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return impl_nvmlDeviceGetPciInfo_v2(device, pci);
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
    VIEW(view);
    nvmlReturn_t result = view_device(&view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (pci == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (pci->version != nvmlPciInfoExt_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    pci->domain = view.gpu->pci_domain;
    pci->bus = view.gpu->pci_bus;
    pci->device = view.gpu->pci_slot;
    pci->pciDeviceId = view.model->pci_device;
    pci->pciSubSystemId = view.model->pci_subsystem;
    pci->baseClass = 0x03; /* display controller */
    pci->subClass = 0x02;  /* 3D, as data centre parts are */
    return give_text(pci->busId, sizeof pci->busId, "%s", view.gpu->bus_id);
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *type)
{
    VIEW(view);
    nvmlReturn_t result = view_device(&view, device);
    if (result == NVML_SUCCESS && type == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *type = (nvmlBrandType_t)view.model->brand;
    return result;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *arch)
{
    VIEW(view);
    nvmlReturn_t result = view_device(&view, device);
    if (result == NVML_SUCCESS && arch == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *arch = view.model->architecture;
    return result;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    VIEW(view);
    nvmlReturn_t result = view_device(&view, device);
    if (result == NVML_SUCCESS && (major == NULL || minor == NULL))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    *major = (int)view.model->cc_major;
    *minor = (int)view.model->cc_minor;
    return NVML_SUCCESS;
}

static unsigned long long memory_bytes(const struct view *view)
{
    return (view->is_mig ? view->profile->memory_mib : view->model->memory_mib) << 20;
}

/* The slice of a MIG device, not the GPU. Nothing ever allocates on an emulated GPU: what is used was fed. */
nvmlReturn_t impl_nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    VIEW(view);
    nvmlReturn_t result = view_device(&view, device);
    if (result == NVML_SUCCESS && memory == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    unsigned long long used = memory_used_mib(&view) << 20;
    *memory = (nvmlMemory_t){ .total = memory_bytes(&view), .free = memory_bytes(&view) - used, .used = used };
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlMemory_t plain;
    VIEW(view);
    nvmlReturn_t result = view_device(&view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (memory == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    result = impl_nvmlDeviceGetMemoryInfo(device, &plain);
    if (result != NVML_SUCCESS)
        return result;
    memory->total = plain.total;
    memory->free = plain.free;
    memory->used = plain.used;
    memory->reserved = 0;
    return NVML_SUCCESS;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, nvmlGpuVirtualizationMode_t *pVirtualMode)
{
    VIEW(view);
    nvmlReturn_t result = view_device(&view, device);
    if (result == NVML_SUCCESS && pVirtualMode == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *pVirtualMode = (nvmlGpuVirtualizationMode_t)view.gpu->virtualization;
    return result;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
    VIEW(view);
    nvmlReturn_t result = view_physical(&view, device, node);
    if (result != NVML_SUCCESS)
        return result;
    if (view.gpu->numa_node < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *node = (unsigned int)view.gpu->numa_node;
    return NVML_SUCCESS;
}
