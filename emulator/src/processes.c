/* Who runs on an instance: whoever holds a shared flock on its file in DIR/state/busy.
 *
 * A shared lock needs no write access, so a container can take it, and it ends with its process, however that dies.
 * Destroying asks for the exclusive lock and never waits: no lock, IN_USE. Plain queries never take one.
 * Which process holds a lock is read from /proc/locks, by the file's device and inode.
 */
#include "emulator.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static void busy_path(char path[PATH_SIZE], const struct node *node, const struct gpu *gpu, uint32_t gi)
{
    unsigned index = (unsigned)(gpu - node->gpus);
    if (gi == NO_ID)
        emulator_path(path, "state/busy/gpu%u", index);
    else
        emulator_path(path, "state/busy/gpu%u-gi%u", index, gi);
}

static int open_busy(const struct node *node, const struct gpu *gpu, uint32_t gi)
{
    char path[PATH_SIZE];
    busy_path(path, node, gpu, gi);
    return open(path, O_RDONLY | O_CLOEXEC);
}

bool gi_claim_idle(const struct node *node, const struct gpu *gpu, uint32_t gi, struct lock *lock)
{
    char path[PATH_SIZE];
    busy_path(path, node, gpu, gi);
    if (!lock_open(lock, path, O_RDONLY))
        return errno == ENOENT; /* a file that is gone cannot be held */
    if (lock_take(lock, false))
        return true;
    lock_drop(lock);
    return false;
}

/* Nobody holds the GPU as a whole. */
bool gpu_idle(const struct node *node, const struct gpu *gpu)
{
    struct lock lock = NO_LOCK;
    bool idle = gi_claim_idle(node, gpu, NO_ID, &lock);
    lock_drop(&lock);
    return idle;
}

/* ---- DYNAMIG_EMULATOR_HOLD=1: this process behaves like a CUDA program */

static int *held; /* a fork goes on holding, as it does a device file */
static size_t held_count;

static void hold(int fd)
{
    int *more = fd < 0 ? NULL : realloc(held, (held_count + 1) * sizeof *held);
    if (more != NULL)
        held = more;
    if (more != NULL && flock(fd, LOCK_SH) == 0) /* exclusive holders look and let go */
        held[held_count++] = fd;
    else if (fd >= 0)
        close(fd);
}

static void hold_gpu(struct view *view)
{
    const struct compute_instance *visible[MAX_SLICES];
    uint32_t count = mig_devices(view, visible);
    if (!view->gpu->mig_current)
        hold(open_busy(view->node, view->gpu, NO_ID));
    for (uint32_t i = 0; i < count; i++)
        hold(open_busy(view->node, view->gpu, visible[i]->gi_id));
}

void hold_everything_visible(void)
{
    const char *wanted = getenv("DYNAMIG_EMULATOR_HOLD");
    VIEW(view);
    if (wanted == NULL || strcmp(wanted, "1") != 0 || view_open(&view) != NVML_SUCCESS)
        return;
    for (uint32_t g = 0; g < view.node->gpu_count; g++) {
        if (!gpu_visible(view.node, &view.node->gpus[g]))
            continue;
        select_gpu(&view, g);
        hold_gpu(&view);
    }
}

void hold_nothing(void)
{
    while (held_count > 0) {
        int fd = held[--held_count];
        flock(fd, LOCK_UN); /* also from copies that a fork made */
        close(fd);
    }
    free(held);
    held = NULL;
}

/* ---- nvmlDeviceGet*RunningProcesses */

struct process_list {
    nvmlProcessInfo_v2_t *out;
    uint32_t room, count;
};

static void add_process(struct process_list *list, unsigned pid, uint32_t gi, uint32_t ci)
{
    if (list->out != NULL && list->count < list->room)
        list->out[list->count] = (nvmlProcessInfo_v2_t){ .pid = pid, .gpuInstanceId = gi, .computeInstanceId = ci };
    list->count++;
}

/* The memory in use is shared evenly by those that were added from `first` on. */
static void share_memory(struct process_list *list, uint32_t first, uint64_t used_mib)
{
    for (uint32_t i = first; list->out != NULL && i < list->count && i < list->room; i++)
        list->out[i].usedGpuMemory = (unsigned long long)(used_mib << 20) / (list->count - first);
}

/* A file as /proc/locks names it. */
struct lock_file {
    unsigned major, minor;
    unsigned long inode;
};

static void add_holders(struct process_list *list, const struct lock_file *file, uint32_t gi, uint32_t ci)
{
    char line[256];
    FILE *locks = fopen("/proc/locks", "re");
    if (locks == NULL)
        return;
    while (fgets(line, sizeof line, locks) != NULL) {
        unsigned pid;
        struct lock_file of;
        if (sscanf(line, "%*u: FLOCK %*s READ %u %x:%x:%lu", &pid, &of.major, &of.minor, &of.inode) == 4 && pid != 0 &&
            of.inode == file->inode && of.major == file->major && of.minor == file->minor)
            add_process(list, pid, gi, ci);
    }
    fclose(locks);
}

/* The device of the file system, which on overlayfs and btrfs is not what stat says: proc_pid_mountinfo(5). */
static bool device_of_mount(int mount, struct lock_file *file)
{
    char line[4096];
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    bool found = false;
    while (mounts != NULL && !found && fgets(line, sizeof line, mounts) != NULL) {
        int id;
        found = sscanf(line, "%d %*d %u:%u", &id, &file->major, &file->minor) == 3 && id == mount;
    }
    if (mounts != NULL)
        fclose(mounts);
    return found;
}

/* From proc_pid_fdinfo(5), whose inode is the one that /proc/locks shows. */
static bool identify(int fd, struct lock_file *file)
{
    char path[64], line[256];
    struct stat status;
    int mount = -1;
    bool found = false;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *info = fopen(path, "re");
    while (info != NULL && fgets(line, sizeof line, info) != NULL) {
        sscanf(line, "mnt_id: %d", &mount);
        found = sscanf(line, "ino: %lu", &file->inode) == 1 || found;
    }
    if (info != NULL)
        fclose(info);
    if (!found || device_of_mount(mount, file))
        return found;
    if (syscall(SYS_fstat, fd, &status) != 0) /* a chroot hides the mount; glibc's own fstat is of 2.33 */
        return false;
    file->major = major(status.st_dev);
    file->minor = minor(status.st_dev);
    return true;
}

static bool lock_file_of(const struct view *view, uint32_t gi, struct lock_file *file)
{
    int fd = open_busy(view->node, view->gpu, gi);
    if (fd < 0)
        return false;
    bool found = identify(fd, file);
    close(fd);
    return found;
}

static void collect_one(const struct view *view, const struct gpu_instance *gi, uint32_t ci, struct process_list *list)
{
    struct lock_file file;
    uint32_t first = list->count, id = gi ? gi->id : NO_ID;
    if (!lock_file_of(view, id, &file))
        return;
    add_holders(list, &file, id, ci);
    share_memory(list, first, used_mib(view, gi));
}

static void collect(const struct view *view, struct process_list *list)
{
    if (view->is_mig) {
        collect_one(view, view->gi, view->ci->id, list);
        return;
    }
    collect_one(view, NULL, NO_ID, list);
    for (uint32_t i = 0; i < view->gpu->gi_count; i++)
        collect_one(view, &view->gpu->gis[i], NO_ID, list);
}

/* Too small a buffer: INSUFFICIENT_SIZE and the count that is needed, never 0 with it (go-nvml would loop on it). */
static nvmlReturn_t give_processes(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)
{
    VIEW(view);
    nvmlReturn_t result = view_device(&view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (count == NULL || (*count > 0 && infos == NULL))
        return NVML_ERROR_INVALID_ARGUMENT;
    struct process_list list = { .out = infos, .room = *count };
    collect(&view, &list);
    *count = list.count;
    return list.count > list.room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount,
                                                          nvmlProcessInfo_t *infos)
{
    return give_processes(device, infoCount, infos);
}

nvmlReturn_t impl_nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *infoCount,
                                                          nvmlProcessInfo_v2_t *infos)
{
    return give_processes(device, infoCount, infos);
}

/* The records of the first version are 16 bytes: pid and memory only. */
nvmlReturn_t impl_nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *infoCount,
                                                       nvmlProcessInfo_v1_t *infos)
{
    nvmlProcessInfo_v2_t wide[256];
    if (infoCount == NULL || (*infoCount > 0 && infos == NULL))
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned int room = *infoCount < 256 ? *infoCount : 256, count = room;
    nvmlReturn_t result = give_processes(device, &count, room ? wide : NULL);
    *infoCount = count;
    for (unsigned int i = 0; result == NVML_SUCCESS && i < count; i++)
        infos[i] = (nvmlProcessInfo_v1_t){ .pid = wide[i].pid, .usedGpuMemory = wide[i].usedGpuMemory };
    return result;
}

/* Nothing draws on an emulated GPU, and no MPS server runs on it. */
static nvmlReturn_t no_processes(nvmlDevice_t device, unsigned int *count)
{
    VIEW(view);
    nvmlReturn_t result = view_device(&view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount,
                                                           nvmlProcessInfo_t *infos)
{
    (void)infos;
    return no_processes(device, infoCount);
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int *infoCount,
                                                           nvmlProcessInfo_v2_t *infos)
{
    (void)infos;
    return no_processes(device, infoCount);
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int *infoCount,
                                                        nvmlProcessInfo_v1_t *infos)
{
    (void)infos;
    return no_processes(device, infoCount);
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount,
                                                             nvmlProcessInfo_t *infos)
{
    (void)infos;
    return no_processes(device, infoCount);
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *infoCount,
                                                             nvmlProcessInfo_v2_t *infos)
{
    (void)infos;
    return no_processes(device, infoCount);
}

CONSTANT
nvmlReturn_t impl_nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int *infoCount,
                                                          nvmlProcessInfo_v1_t *infos)
{
    (void)infos;
    return no_processes(device, infoCount);
}

/* ---- nvmlDeviceGetProcessUtilization: with MIG off, whoever holds the GPU has done what was fed for it */

/* nvml.h: one for each process "that had some non-zero utilization during the last sample period". */
static bool is_busy(const struct usage *usage)
{
    return (usage->level[USAGE_GPU] | usage->level[USAGE_MEMORY] | usage->level[USAGE_ENCODER] |
            usage->level[USAGE_DECODER]) != 0;
}

static void fill_utilization(nvmlProcessUtilizationSample_t *out, const nvmlProcessInfo_v2_t *process, uint32_t count,
                             const struct usage *usage)
{
    *out = (nvmlProcessUtilizationSample_t){ .pid = process->pid,
                                             .timeStamp = last_sample_us(usage),
                                             .smUtil = usage->level[USAGE_GPU] / count,
                                             .memUtil = usage->level[USAGE_MEMORY] / count,
                                             .encUtil = usage->level[USAGE_ENCODER] / count,
                                             .decUtil = usage->level[USAGE_DECODER] / count };
}

nvmlReturn_t impl_nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *utilization,
                                                  unsigned int *processSamplesCount,
                                                  unsigned long long lastSeenTimeStamp)
{
    VIEW(view);
    nvmlProcessInfo_v2_t holders[256];
    struct process_list list = { .out = holders, .room = sizeof holders / sizeof holders[0] };
    nvmlReturn_t result = view_physical(&view, device, processSamplesCount);
    if (result == NVML_SUCCESS && mig_enabled(&view))
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result != NVML_SUCCESS)
        return result;
    struct usage usage = usage_of(&view, NULL, now_us());
    if (is_busy(&usage) && last_sample_us(&usage) > lastSeenTimeStamp)
        collect(&view, &list);
    uint32_t room = utilization ? *processSamplesCount : 0, count = list.count < list.room ? list.count : list.room;
    *processSamplesCount = count;
    if (count == 0)
        return NVML_ERROR_NOT_FOUND;
    if (count > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (uint32_t i = 0; i < count; i++)
        fill_utilization(&utilization[i], &holders[i], count, &usage);
    return NVML_SUCCESS;
}
