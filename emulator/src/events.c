/* Events: DIR/state/events is a list that only grows; an event set is a position in it.
 *
 * A set sees what happened after it registered. Waiting polls the length of the file and holds no lock, so any other
 * call goes on meanwhile.
 */
#include "emulator.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#define SUPPORTED_EVENTS (nvmlEventTypeXidCriticalError | nvmlEventMigConfigChange)
#define POLL_US 5000

enum { MAX_SETS = 64 };

struct event_set {
    atomic_uint used; /* generation while in use, 0 when free */
    _Atomic uint64_t position;
    _Atomic uint64_t types[MAX_SLICES]; /* per GPU: registered types */
};

static struct event_set sets[MAX_SETS];
static atomic_uint generation;

static bool count_events(uint64_t *count)
{
    char path[PATH_SIZE];
    emulator_path(path, "state/events");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    off_t size = lseek(fd, 0, SEEK_END);
    close(fd);
    *count = size < 0 ? 0 : (uint64_t)size / sizeof(struct event);
    return size >= 0;
}

/* The end of the last whole record. What follows is no event: a writer died in the middle of one, or a disk was full. */
static off_t end_of_events(int fd)
{
    off_t size = lseek(fd, 0, SEEK_END);
    return size - size % (off_t)sizeof(struct event);
}

/* The caller holds the node lock, so nobody else appends meanwhile. */
void event_append(const struct node *node, const struct gpu *gpu, uint64_t type, uint64_t data, uint32_t gi, uint32_t ci)
{
    char path[PATH_SIZE];
    struct event event = { .type = type, .data = data, .gpu = (uint32_t)(gpu - node->gpus), .gi_id = gi, .ci_id = ci };
    emulator_path(path, "state/events");
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0)
        return;
    off_t end = end_of_events(fd);
    bool aligned = ftruncate(fd, end) == 0;
    if (aligned && write(fd, &event, sizeof event) != sizeof event) { /* a full disk: an event is whole, or not there */
        int cut = ftruncate(fd, end);
        (void)cut;
    }
    close(fd);
}

void event_sets_drop(void)
{
    for (int i = 0; i < MAX_SETS; i++)
        atomic_store(&sets[i].used, 0);
}

/* 1 + slot in the low byte, generation above: a freed set is not mistaken for its successor. */
static struct event_set *set_of(nvmlEventSet_t handle)
{
    uintptr_t value = (uintptr_t)handle;
    uint32_t slot = (uint32_t)(value & 0xff);
    if (value >> 56 != 0xD9 || slot >= MAX_SETS)
        return NULL;
    uint32_t wanted = (uint32_t)(value >> 8);
    return atomic_load(&sets[slot].used) == wanted && wanted != 0 ? &sets[slot] : NULL;
}

nvmlReturn_t impl_nvmlEventSetCreate(nvmlEventSet_t *set)
{
    uint64_t now;
    if (set == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!count_events(&now))
        return NVML_ERROR_UNKNOWN; /* no descriptor is left: from the beginning it would tell of what is long past */
    unsigned fresh = atomic_fetch_add(&generation, 1) + 1;
    for (uintptr_t slot = 0; slot < MAX_SETS; slot++) {
        unsigned free = 0;
        if (!atomic_compare_exchange_strong(&sets[slot].used, &free, fresh))
            continue;
        for (int g = 0; g < MAX_SLICES; g++)
            atomic_store(&sets[slot].types[g], 0);
        atomic_store(&sets[slot].position, now);
        *set = (nvmlEventSet_t)((uintptr_t)0xD9 << 56 | (uintptr_t)fresh << 8 | slot);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_MEMORY;
}

nvmlReturn_t impl_nvmlEventSetFree(nvmlEventSet_t set)
{
    struct event_set *found = set_of(set);
    if (found == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    atomic_store(&found->used, 0);
    return NVML_SUCCESS;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *eventTypes)
{
    VIEW(view);
    nvmlReturn_t result = view_device(&view, device);
    if (result == NVML_SUCCESS && eventTypes == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *eventTypes = SUPPORTED_EVENTS;
    return result;
}

nvmlReturn_t impl_nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long eventTypes, nvmlEventSet_t set)
{
    VIEW(view);
    struct event_set *found = set_of(set);
    nvmlReturn_t result = view_physical(&view, device, found); /* not a MIG device: nvml.h at nvmlEventSetWait_v2 */
    if (result != NVML_SUCCESS)
        return result;
    if ((eventTypes & ~(unsigned long long)SUPPORTED_EVENTS) != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    atomic_fetch_or(&found->types[view.gpu - view.node->gpus], eventTypes);
    return NVML_SUCCESS;
}

static bool next_event(struct event_set *set, struct event *out)
{
    char path[PATH_SIZE];
    emulator_path(path, "state/events");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool found = false;
    while (!found) {
        uint64_t at = atomic_load(&set->position);
        if (pread(fd, out, sizeof *out, (off_t)(at * sizeof *out)) != sizeof *out)
            break;
        if (!atomic_compare_exchange_strong(&set->position, &at, at + 1))
            continue; /* another thread took it */
        found = out->gpu < MAX_SLICES && (atomic_load(&set->types[out->gpu]) & out->type) != 0;
    }
    close(fd);
    return found;
}

static bool has_lost_gpu(struct event_set *set)
{
    VIEW(view);
    if (view_open(&view) != NVML_SUCCESS)
        return false;
    for (uint32_t g = 0; g < view.node->gpu_count; g++)
        if (view.node->gpus[g].lost && atomic_load(&set->types[g]) != 0)
            return true;
    return false;
}

/* What happened before a GPU was lost is delivered first. */
nvmlReturn_t impl_nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
    struct event_set *found = set_of(set);
    struct event event;
    if (found == NULL || data == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    uint64_t deadline = steady_us() + (uint64_t)timeoutms * 1000;
    while (!next_event(found, &event)) {
        if (set_of(set) == NULL)
            return NVML_ERROR_INVALID_ARGUMENT; /* freed by another thread */
        if (has_lost_gpu(found))
            return NVML_ERROR_GPU_IS_LOST;
        if (steady_us() >= deadline)
            return NVML_ERROR_TIMEOUT;
        usleep(POLL_US);
    }
    *data = (nvmlEventData_t){ .device = gpu_handle(event.gpu),
                               .eventType = event.type,
                               .eventData = event.data,
                               .gpuInstanceId = event.gi_id,
                               .computeInstanceId = event.ci_id };
    return NVML_SUCCESS;
}

/* The first version's record has no instance ids. */
nvmlReturn_t impl_nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
    nvmlEventData_t whole;
    nvmlReturn_t result = impl_nvmlEventSetWait_v2(set, &whole, timeoutms);
    if (result != NVML_SUCCESS)
        return result;
    if (data == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    data->device = whole.device;
    data->eventType = whole.eventType;
    data->eventData = whole.eventData;
    return NVML_SUCCESS;
}
