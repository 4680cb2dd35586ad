/* nvml-list: what NVML says about this machine, as one JSON object.
 *
 * An independent reader: it knows only nvml.h and loads whatever libnvidia-ml.so.1 the loader finds, real or emulated.
 * On a host it lists everything; inside a container it lists what is visible there. What cannot be read (GPU instances
 * without permission, a lost GPU's fields) is left out of the object, it is not a failure.
 *
 * usage: nvml-list [--watch SECONDS]
 * exit:  0 listed; 1 bad usage; 2 no usable libnvidia-ml.so.1; 3 NVML did not start; 4 output failed
 */
#include <dlfcn.h>
#include <nvml.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_USAGE = 1, EXIT_LIBRARY = 2, EXIT_NVML = 3, EXIT_OUTPUT = 4 };
enum {
    ROOM = 256,      /* GPU instances of one profile, compute instances of one GPU instance */
    CONSTANTS = 256, /* profile constants asked for; nvml.h of today ends at 18 */
};

/* Every function is looked up by name: a driver that lacks one costs one field. */
#define FUNCTIONS(F)                                                                                                  \
    F(nvmlInitWithFlags) F(nvmlShutdown) F(nvmlErrorString) F(nvmlSystemGetDriverVersion) F(nvmlDeviceGetCount_v2)    \
    F(nvmlDeviceGetHandleByIndex_v2) F(nvmlDeviceGetUUID) F(nvmlDeviceGetMinorNumber) F(nvmlDeviceGetName)            \
    F(nvmlDeviceGetPciInfo_v3) F(nvmlDeviceGetMigMode) F(nvmlDeviceGetGpuInstanceProfileInfo)                         \
    F(nvmlDeviceGetGpuInstances) F(nvmlGpuInstanceGetInfo) F(nvmlGpuInstanceGetComputeInstanceProfileInfo)            \
    F(nvmlGpuInstanceGetComputeInstances) F(nvmlComputeInstanceGetInfo_v2) F(nvmlDeviceGetMaxMigDeviceCount)          \
    F(nvmlDeviceGetMigDeviceHandleByIndex) F(nvmlDeviceGetGpuInstanceId) F(nvmlDeviceGetComputeInstanceId)            \
    F(nvmlDeviceGetMemoryInfo)

static struct {
#define POINTER(name) __typeof__(name) *name;
    FUNCTIONS(POINTER)
} api;

#define CALL(name, ...) (api.name ? api.name(__VA_ARGS__) : NVML_ERROR_FUNCTION_NOT_FOUND)
#define GOT(name, ...) (CALL(name, __VA_ARGS__) == NVML_SUCCESS)

static bool load(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "nvml-list: %s; is the driver's library directory known to the loader?\n", dlerror());
        return false;
    }
#define LOOK_UP(name) *(void **)&api.name = dlsym(library, #name);
    FUNCTIONS(LOOK_UP)
    if (api.nvmlInitWithFlags == NULL || api.nvmlShutdown == NULL) {
        fprintf(stderr, "nvml-list: libnvidia-ml.so.1 has no nvmlInitWithFlags; it is not NVML\n");
        return false;
    }
    return true;
}

/* ---- JSON: `comma` says whether the enclosing list has begun */

static void separate(bool *comma)
{
    if (*comma)
        putchar(',');
    *comma = true;
}

static void key(bool *comma, const char *name)
{
    separate(comma);
    printf("\"%s\":", name);
}

static void string_field(bool *comma, const char *name, const char *value)
{
    key(comma, name);
    putchar('"');
    for (; *value != '\0'; value++) {
        if (*value == '"' || *value == '\\')
            putchar('\\');
        if ((unsigned char)*value >= ' ')
            putchar(*value);
    }
    putchar('"');
}

static void number_field(bool *comma, const char *name, unsigned long long value)
{
    key(comma, name);
    printf("%llu", value);
}

/* ---- the machine */

static bool find_mig_device(nvmlDevice_t gpu, unsigned gi, unsigned ci, nvmlDevice_t *out)
{
    unsigned most = 0, its_gi, its_ci;
    if (!GOT(nvmlDeviceGetMaxMigDeviceCount, gpu, &most))
        return false;
    for (unsigned i = 0; i < most; i++)
        if (GOT(nvmlDeviceGetMigDeviceHandleByIndex, gpu, i, out) && GOT(nvmlDeviceGetGpuInstanceId, *out, &its_gi) &&
            GOT(nvmlDeviceGetComputeInstanceId, *out, &its_ci) && its_gi == gi && its_ci == ci)
            return true;
    return false;
}

static void list_compute_instance(bool *comma, nvmlDevice_t gpu, unsigned gi, nvmlComputeInstance_t ci)
{
    nvmlComputeInstanceInfo_t info;
    nvmlDevice_t mig;
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    bool inner = false;
    if (!GOT(nvmlComputeInstanceGetInfo_v2, ci, &info))
        return; /* destroyed since it was listed */
    separate(comma);
    putchar('{');
    number_field(&inner, "ci_id", info.id);
    number_field(&inner, "profile_id", info.profileId);
    if (find_mig_device(gpu, gi, info.id, &mig) && GOT(nvmlDeviceGetUUID, mig, uuid, sizeof uuid))
        string_field(&inner, "mig_uuid", uuid);
    putchar('}');
}

static void list_compute_instances(bool *outer, nvmlDevice_t gpu, unsigned gi_id, nvmlGpuInstance_t gi)
{
    nvmlComputeInstanceProfileInfo_t info;
    nvmlComputeInstance_t all[ROOM];
    bool comma = false;
    key(outer, "compute_instances");
    putchar('[');
    for (unsigned constant = 0; constant < CONSTANTS; constant++) {
        unsigned count = 0;
        nvmlReturn_t known = CALL(nvmlGpuInstanceGetComputeInstanceProfileInfo, gi, constant,
                                  NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, &info);
        if (known == NVML_ERROR_NOT_SUPPORTED)
            continue;
        if (known != NVML_SUCCESS)
            break;
        if (info.instanceCount <= ROOM && GOT(nvmlGpuInstanceGetComputeInstances, gi, info.id, all, &count))
            for (unsigned i = 0; i < count; i++)
                list_compute_instance(&comma, gpu, gi_id, all[i]);
    }
    putchar(']');
}

static void list_gpu_instance(bool *comma, nvmlDevice_t gpu, nvmlGpuInstance_t gi)
{
    nvmlGpuInstanceInfo_t info;
    bool inner = false;
    if (!GOT(nvmlGpuInstanceGetInfo, gi, &info))
        return;
    separate(comma);
    putchar('{');
    number_field(&inner, "gi_id", info.id);
    number_field(&inner, "profile_id", info.profileId);
    number_field(&inner, "start", info.placement.start);
    number_field(&inner, "size", info.placement.size);
    list_compute_instances(&inner, gpu, info.id, gi);
    putchar('}');
}

/* May this process list GPU instances at all? The first profile that exists tells. */
static bool instances_readable(nvmlDevice_t gpu)
{
    nvmlGpuInstanceProfileInfo_t info;
    nvmlGpuInstance_t all[ROOM];
    for (unsigned constant = 0; constant < CONSTANTS; constant++) {
        unsigned count = 0;
        nvmlReturn_t known = CALL(nvmlDeviceGetGpuInstanceProfileInfo, gpu, constant, &info);
        if (known == NVML_ERROR_NOT_SUPPORTED)
            continue;
        return known == NVML_SUCCESS && info.instanceCount <= ROOM &&
               GOT(nvmlDeviceGetGpuInstances, gpu, info.id, all, &count);
    }
    return false;
}

static void list_gpu_instances(bool *outer, nvmlDevice_t gpu)
{
    nvmlGpuInstanceProfileInfo_t info;
    nvmlGpuInstance_t all[ROOM];
    bool comma = false;
    if (!instances_readable(gpu))
        return;
    key(outer, "gpu_instances");
    putchar('[');
    for (unsigned constant = 0; constant < CONSTANTS; constant++) {
        unsigned count = 0;
        nvmlReturn_t known = CALL(nvmlDeviceGetGpuInstanceProfileInfo, gpu, constant, &info);
        if (known == NVML_ERROR_NOT_SUPPORTED)
            continue;
        if (known != NVML_SUCCESS)
            break;
        if (info.instanceCount <= ROOM && GOT(nvmlDeviceGetGpuInstances, gpu, info.id, all, &count))
            for (unsigned i = 0; i < count; i++)
                list_gpu_instance(&comma, gpu, all[i]);
    }
    putchar(']');
}

static void list_gpu(bool *comma, unsigned index)
{
    nvmlDevice_t gpu;
    char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    unsigned minor, current, pending;
    nvmlPciInfo_t pci;
    bool inner = false;
    nvmlReturn_t reached = CALL(nvmlDeviceGetHandleByIndex_v2, index, &gpu);
    separate(comma);
    putchar('{');
    number_field(&inner, "index", index);
    if (reached != NVML_SUCCESS) {
        number_field(&inner, "error", reached);
        putchar('}');
        return;
    }
    if (GOT(nvmlDeviceGetUUID, gpu, text, sizeof text))
        string_field(&inner, "uuid", text);
    if (GOT(nvmlDeviceGetMinorNumber, gpu, &minor))
        number_field(&inner, "minor", minor);
    if (GOT(nvmlDeviceGetName, gpu, text, sizeof text))
        string_field(&inner, "name", text);
    if (GOT(nvmlDeviceGetPciInfo_v3, gpu, &pci))
        string_field(&inner, "pci_bus_id", pci.busId);
    if (GOT(nvmlDeviceGetMigMode, gpu, &current, &pending)) {
        number_field(&inner, "mig_current", current);
        number_field(&inner, "mig_pending", pending);
        if (current == NVML_DEVICE_MIG_ENABLE)
            list_gpu_instances(&inner, gpu);
    }
    putchar('}');
}

static void list_mig_device(bool *comma, nvmlDevice_t gpu, unsigned index)
{
    nvmlDevice_t mig;
    char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    unsigned id;
    nvmlMemory_t memory;
    bool inner = false;
    if (!GOT(nvmlDeviceGetMigDeviceHandleByIndex, gpu, index, &mig))
        return;
    separate(comma);
    putchar('{');
    if (GOT(nvmlDeviceGetUUID, gpu, text, sizeof text))
        string_field(&inner, "parent_uuid", text);
    number_field(&inner, "index", index);
    if (GOT(nvmlDeviceGetUUID, mig, text, sizeof text))
        string_field(&inner, "uuid", text);
    if (GOT(nvmlDeviceGetName, mig, text, sizeof text))
        string_field(&inner, "name", text);
    if (GOT(nvmlDeviceGetGpuInstanceId, mig, &id))
        number_field(&inner, "gi_id", id);
    if (GOT(nvmlDeviceGetComputeInstanceId, mig, &id))
        number_field(&inner, "ci_id", id);
    if (GOT(nvmlDeviceGetMemoryInfo, mig, &memory))
        number_field(&inner, "memory_mib", memory.total >> 20);
    putchar('}');
}

static void list_mig_devices(bool *outer, unsigned gpus)
{
    bool comma = false;
    key(outer, "mig_devices");
    putchar('[');
    for (unsigned g = 0; g < gpus; g++) {
        nvmlDevice_t gpu;
        unsigned most = 0;
        if (!GOT(nvmlDeviceGetHandleByIndex_v2, g, &gpu) || !GOT(nvmlDeviceGetMaxMigDeviceCount, gpu, &most))
            continue;
        for (unsigned i = 0; i < most; i++)
            list_mig_device(&comma, gpu, i);
    }
    putchar(']');
}

static void list_machine(void)
{
    char version[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE];
    unsigned count = 0;
    bool outer = false, comma = false;
    putchar('{');
    if (GOT(nvmlSystemGetDriverVersion, version, sizeof version))
        string_field(&outer, "driver_version", version);
    if (GOT(nvmlDeviceGetCount_v2, &count)) {
        key(&outer, "gpus");
        putchar('[');
        for (unsigned i = 0; i < count; i++)
            list_gpu(&comma, i);
        putchar(']');
        list_mig_devices(&outer, count);
    }
    puts("}");
}

static int list_once(void)
{
    nvmlReturn_t started = api.nvmlInitWithFlags(NVML_INIT_FLAG_NO_GPUS);
    if (started != NVML_SUCCESS) {
        fprintf(stderr, "nvml-list: NVML did not start: %s (%u)\n",
                api.nvmlErrorString ? api.nvmlErrorString(started) : "?", started);
        return EXIT_NVML;
    }
    list_machine();
    api.nvmlShutdown();
    return fflush(stdout) == 0 && !ferror(stdout) ? EXIT_SUCCESS : EXIT_OUTPUT;
}

static int usage(void)
{
    fputs("usage: nvml-list [--watch SECONDS]\n", stderr);
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    double period = 0;
    if (argc == 3 && strcmp(argv[1], "--watch") == 0) {
        char *end;
        period = strtod(argv[2], &end);
        if (*end != '\0' || end == argv[2] || !(period > 0 && period < 1e6))
            return usage();
    } else if (argc != 1) {
        return usage();
    }
    if (!load())
        return EXIT_LIBRARY;
    int code = list_once();
    while (code == EXIT_SUCCESS && period > 0) {
        usleep((useconds_t)(period * 1e6));
        code = list_once();
    }
    return code;
}
