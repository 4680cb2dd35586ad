/* Sizes, offsets and version words of NVML's structures on x86-64 and other LP64 machines, held at build.
 *
 * Clients were built against other headers than this library: what is written here is what they have compiled in. A new
 * nvml.h that moves one of these breaks the build and not the clients.
 */
#include "emulator.h"

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " is not " #bytes " bytes")
#define AT(type, field, offset) \
    _Static_assert(offsetof(type, field) == (offset), #type "." #field " is not at " #offset)
#define VERSION(word, value) _Static_assert((word) == (value), #word " is not " #value)

SIZE(nvmlDevice_t, 8);
SIZE(nvmlGpuInstance_t, 8);
SIZE(nvmlComputeInstance_t, 8);
SIZE(nvmlReturn_t, 4);

SIZE(nvmlPciInfo_t, 68);
AT(nvmlPciInfo_t, domain, 16);
AT(nvmlPciInfo_t, pciDeviceId, 28);
AT(nvmlPciInfo_t, busId, 36); /* the records before version 3 end here */
SIZE(nvmlPciInfoExt_v1_t, 64);
AT(nvmlPciInfoExt_v1_t, busId, 32);
VERSION(nvmlPciInfoExt_v1, 0x01000040);

SIZE(nvmlMemory_t, 24);
SIZE(nvmlMemory_v2_t, 40);
AT(nvmlMemory_v2_t, total, 8);
AT(nvmlMemory_v2_t, reserved, 16);
AT(nvmlMemory_v2_t, used, 32);
VERSION(nvmlMemory_v2, 0x02000028);
SIZE(nvmlBAR1Memory_t, 24);

SIZE(nvmlProcessInfo_v1_t, 16);
SIZE(nvmlProcessInfo_v2_t, 24);
SIZE(nvmlProcessInfo_t, 24);
AT(nvmlProcessInfo_t, usedGpuMemory, 8);
AT(nvmlProcessInfo_t, gpuInstanceId, 16);
SIZE(nvmlProcessUtilizationSample_t, 32);
SIZE(nvmlSample_t, 16);

SIZE(nvmlDeviceAttributes_t, 40);
AT(nvmlDeviceAttributes_t, gpuInstanceSliceCount, 24);
AT(nvmlDeviceAttributes_t, memorySizeMB, 32);

SIZE(nvmlGpuInstancePlacement_t, 8);
SIZE(nvmlComputeInstancePlacement_t, 8);
SIZE(nvmlGpuInstanceProfileInfo_t, 48);
AT(nvmlGpuInstanceProfileInfo_t, memorySizeMB, 40);
SIZE(nvmlGpuInstanceProfileInfo_v2_t, 152);
AT(nvmlGpuInstanceProfileInfo_v2_t, sliceCount, 12);
AT(nvmlGpuInstanceProfileInfo_v2_t, memorySizeMB, 48);
AT(nvmlGpuInstanceProfileInfo_v2_t, name, 56);
VERSION(nvmlGpuInstanceProfileInfo_v2, 0x02000098);
SIZE(nvmlGpuInstanceProfileInfo_v3_t, 152); /* as large as version 2, with other offsets */
AT(nvmlGpuInstanceProfileInfo_v3_t, sliceCount, 8);
AT(nvmlGpuInstanceProfileInfo_v3_t, memorySizeMB, 40);
AT(nvmlGpuInstanceProfileInfo_v3_t, name, 48);
AT(nvmlGpuInstanceProfileInfo_v3_t, capabilities, 144);
VERSION(nvmlGpuInstanceProfileInfo_v3, 0x03000098);
SIZE(nvmlComputeInstanceProfileInfo_t, 36);
SIZE(nvmlComputeInstanceProfileInfo_v2_t, 136);
AT(nvmlComputeInstanceProfileInfo_v2_t, name, 40);
VERSION(nvmlComputeInstanceProfileInfo_v2, 0x02000088);
SIZE(nvmlComputeInstanceProfileInfo_v3_t, 140);
AT(nvmlComputeInstanceProfileInfo_v3_t, capabilities, 136);
VERSION(nvmlComputeInstanceProfileInfo_v3, 0x0300008c);

SIZE(nvmlGpuInstanceInfo_t, 24);
AT(nvmlGpuInstanceInfo_t, placement, 16);
SIZE(nvmlComputeInstanceInfo_t, 32);
AT(nvmlComputeInstanceInfo_t, placement, 24); /* the first version ends here */

SIZE(nvmlEventData_t, 32);
AT(nvmlEventData_t, gpuInstanceId, 24);
SIZE(nvmlFieldValue_t, 40);
AT(nvmlFieldValue_t, nvmlReturn, 28);
SIZE(nvmlTemperature_v1_t, 12);
VERSION(nvmlTemperature_v1, 0x0100000c);

SIZE(nvmlGpmMetric_t, 40);
AT(nvmlGpmMetricsGet_t, metrics, 24); /* its end moved between headers under one version number */
