/* Which programs run on a GPU, and what they use: those that hold a file of it in DIR/state/busy (busy.c).
 *
 * Which process holds a lock is read from /proc/locks, by the file's device and inode.
 */
#include "emulator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

struct process_list {
    nvmlProcessInfo_v2_t *found;
    uint32_t count;
};

static void list_drop(struct process_list *list)
{
    free(list->found);
}

/* Declares an empty one that is freed wherever the function returns. */
#define LIST(name) __attribute__((cleanup(list_drop))) struct process_list name = { 0 }

static bool is_listed(const struct process_list *list, unsigned pid, uint32_t gi, uint32_t ci)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (list->found[i].pid == pid && list->found[i].gpuInstanceId == gi && list->found[i].computeInstanceId == ci)
            return true;
    return false;
}

/* Once, however often the program has opened the device. */
static void add_process(struct process_list *list, unsigned pid, uint32_t gi, uint32_t ci)
{
    if (is_listed(list, pid, gi, ci))
        return;
    nvmlProcessInfo_v2_t *more = realloc(list->found, (list->count + 1) * sizeof *more);
    if (more == NULL)
        return;
    list->found = more;
    list->found[list->count++] = (nvmlProcessInfo_v2_t){ .pid = pid, .gpuInstanceId = gi, .computeInstanceId = ci };
}

/* The memory in use is shared evenly by those that were added from `first` on. */
static void share_memory(struct process_list *list, uint32_t first, uint64_t used_mib)
{
    for (uint32_t i = first; i < list->count; i++)
        list->found[i].usedGpuMemory = (unsigned long long)(used_mib << 20) / (list->count - first);
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

static void collect_file(const struct view *view, uint32_t gi, uint32_t ci, struct process_list *list)
{
    struct lock_file file;
    int fd = busy_open(view->node, view->gpu, gi, ci);
    if (fd < 0)
        return;
    if (identify(fd, &file))
        add_holders(list, &file, gi, ci);
    close(fd);
}

static void collect_instance(const struct view *view, const struct gpu_instance *gi, struct process_list *list)
{
    uint32_t first = list->count;
    collect_file(view, gi->id, NO_ID, list);
    for (uint32_t i = 0; i < view->gpu->ci_count; i++)
        if (view->gpu->cis[i].gi_id == gi->id)
            collect_file(view, gi->id, view->gpu->cis[i].id, list);
    share_memory(list, first, used_mib(view, gi));
}

/* Who holds the GPU instance as a whole runs on each of its compute instances. */
static void collect_mig_device(const struct view *view, struct process_list *list)
{
    LIST(all);
    uint32_t ci = view->ci->id;
    collect_instance(view, view->gi, &all);
    for (uint32_t i = 0; i < all.count; i++) {
        const nvmlProcessInfo_v2_t *process = &all.found[i];
        if (process->computeInstanceId != NO_ID && process->computeInstanceId != ci)
            continue;
        uint32_t before = list->count;
        add_process(list, process->pid, view->gi->id, ci);
        if (list->count > before)
            list->found[before].usedGpuMemory = process->usedGpuMemory;
    }
}

static void collect(const struct view *view, struct process_list *list)
{
    if (view->is_mig) {
        collect_mig_device(view, list);
        return;
    }
    collect_file(view, NO_ID, NO_ID, list);
    share_memory(list, 0, used_mib(view, NULL));
    for (uint32_t i = 0; i < view->gpu->gi_count; i++)
        collect_instance(view, &view->gpu->gis[i], list);
}

/* Too small a buffer: INSUFFICIENT_SIZE and the count that is needed, never 0 with it (go-nvml would loop on it). */
static nvmlReturn_t list_processes(nvmlDevice_t device, unsigned int *count, const void *infos, struct process_list *list)
{
    VIEW(view);
    nvmlReturn_t result = view_device(&view, device);
    if (result != NVML_SUCCESS)
        return result;
    if (count == NULL || (*count > 0 && infos == NULL))
        return NVML_ERROR_INVALID_ARGUMENT;
    collect(&view, list);
    uint32_t room = *count;
    *count = list->count;
    return list->count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t give_processes(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)
{
    LIST(list);
    nvmlReturn_t result = list_processes(device, count, infos, &list);
    if (result == NVML_SUCCESS && list.count > 0)
        memcpy(infos, list.found, list.count * sizeof *infos);
    return result;
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
    LIST(list);
    nvmlReturn_t result = list_processes(device, infoCount, infos, &list);
    for (uint32_t i = 0; result == NVML_SUCCESS && i < list.count; i++)
        infos[i] = (nvmlProcessInfo_v1_t){ .pid = list.found[i].pid, .usedGpuMemory = list.found[i].usedGpuMemory };
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
    LIST(list);
    nvmlReturn_t result = view_physical(&view, device, processSamplesCount);
    if (result == NVML_SUCCESS && mig_enabled(&view))
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result != NVML_SUCCESS)
        return result;
    struct usage usage = usage_of(&view, NULL, now_us());
    if (is_busy(&usage) && last_sample_us(&usage) > lastSeenTimeStamp)
        collect(&view, &list);
    uint32_t room = utilization ? *processSamplesCount : 0, count = list.count;
    *processSamplesCount = count;
    if (count == 0)
        return NVML_ERROR_NOT_FOUND;
    if (count > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (uint32_t i = 0; i < count; i++)
        fill_utilization(&utilization[i], &list.found[i], count, &usage);
    return NVML_SUCCESS;
}
