/* Files beside NVML that follow the instances: device nodes and capability files.
 *
 *   DIR/dev/nvidia-caps/nvidia-cap<n>                                  one per live instance, decides visibility
 *   DIR/proc/driver/nvidia/capabilities/gpu<m>/mig/gi<G>[/ci<C>]/access    tells <n>
 *
 * Order: node, then the commit of the state, then the access file; backwards when destroying. So an access file never
 * names an instance that is not there, and a live instance always has its node. Whatever may fail comes before the
 * commit: the access file is written under another name there, and only renamed afterwards. A process killed in between
 * leaves DIR/state/tree.dirty behind, and the next writer makes the tree equal to the state before it does anything else.
 *
 * The driver's capability directories are 0555; here they are 0755, as who owns the node writes to them, not the kernel.
 * What an administrator makes on a user's node belongs to that user, who may take it away again.
 *
 * A container has neither DIR/dev nor DIR/proc; it never writes, so nothing here runs there.
 */
#include "emulator.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <unistd.h>

#define NVIDIA_MAJOR 195u
#define CAPABILITY_BASE 3u /* 0 fabric, 1 mig/config, 2 mig/monitor come first (kernel-open/nvidia/nv-caps.c) */

uint32_t gi_capability(const struct node *node, const struct gpu *gpu, uint32_t gi)
{
    uint32_t per_gi = 1 + node->cap_cis;
    return CAPABILITY_BASE + gpu->minor * node->cap_gis * per_gi + gi * per_gi;
}

uint32_t ci_capability(const struct node *node, const struct gpu *gpu, uint32_t gi, uint32_t ci)
{
    return gi_capability(node, gpu, gi) + 1 + ci;
}

static uint32_t capability(const struct node *node, const struct gpu *gpu, uint32_t gi, uint32_t ci)
{
    return ci == NO_ID ? gi_capability(node, gpu, gi) : ci_capability(node, gpu, gi, ci);
}

static void capability_dir(char out[PATH_SIZE], const struct gpu *gpu, uint32_t gi, uint32_t ci)
{
    int used = emulator_path(out, "proc/driver/nvidia/capabilities/gpu%u/mig/gi%u", gpu->minor, gi);
    if (ci != NO_ID)
        snprintf(out + used, PATH_SIZE - (size_t)used, "/ci%u", ci);
}

/* mknod(2) without glibc's wrapper, which is newer (2.33) than the libc of many a container. */
static bool make_device_file(const struct node *node, const char *path, mode_t mode, unsigned major_, unsigned minor_)
{
    bool character = (node->flags & NODE_CHARACTER_NODES) != 0;
    dev_t device = character ? makedev(major_, minor_) : 0;
    if (syscall(SYS_mknodat, AT_FDCWD, path, (character ? S_IFCHR : S_IFREG) | mode, (unsigned)device) == 0)
        return chmod(path, mode) == 0; /* whatever the umask is */
    return errno == EEXIST;
}

static void node_path(char out[PATH_SIZE], uint32_t number)
{
    emulator_path(out, "dev/nvidia-caps/nvidia-cap%u", number);
}

static bool remove_if_there(int (*remove_)(const char *), const char *path)
{
    return remove_(path) == 0 || errno == ENOENT;
}

/* Who has not the right to give it away keeps it; the owner is then told NO_PERMISSION when it is to go. */
static void give_to_owner(int fd)
{
    int given = geteuid() == emulator_owner() ? 0 : fchown(fd, emulator_owner(), (gid_t)-1);
    (void)given;
}

static bool make_busy_file(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return false;
    bool made = fchmod(fd, 0644) == 0; /* a container takes shared locks on it */
    give_to_owner(fd);
    close(fd);
    return made;
}

static bool make_directory(const char *path)
{
    if (mkdir(path, 0755) != 0 && errno != EEXIST)
        return false;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool made = fchmod(fd, 0755) == 0; /* whatever the umask is */
    give_to_owner(fd);
    close(fd);
    return made;
}

/* The file that tells the capability's number, whole, under the name that no reader knows. */
static bool prepare_access(const char *path, uint32_t number)
{
    char content[96];
    int size = snprintf(content, sizeof content, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n", number);
    if (!remove_if_there(unlink, path)) /* of a writer that was killed; it is read-only */
        return false;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    if (fd < 0)
        return false;
    ssize_t written = write(fd, content, (size_t)size);
    if (written >= 0 && written < size)
        errno = ENOSPC;
    bool made = written == size && fchmod(fd, 0444) == 0;
    give_to_owner(fd);
    close(fd);
    return made;
}

struct access_paths {
    char directory[PATH_SIZE], file[PATH_SIZE + 16], prepared[PATH_SIZE + 16];
};

static struct access_paths access_of(const struct gpu *gpu, uint32_t gi, uint32_t ci)
{
    struct access_paths paths;
    capability_dir(paths.directory, gpu, gi, ci);
    snprintf(paths.file, sizeof paths.file, "%s/access", paths.directory);
    snprintf(paths.prepared, sizeof paths.prepared, "%s/access.new", paths.directory);
    return paths;
}

/* All that an instance needs beside NVML but the access file's name. false, with errno: it must not be made. */
bool tree_open_instance(const struct node *node, const struct gpu *gpu, uint32_t gi, uint32_t ci)
{
    char path[PATH_SIZE];
    struct access_paths paths = access_of(gpu, gi, ci);
    uint32_t number = capability(node, gpu, gi, ci);
    busy_path(path, node, gpu, gi, ci);
    if (!make_busy_file(path) || !make_directory(paths.directory) || !prepare_access(paths.prepared, number))
        return false;
    node_path(path, number);
    return make_device_file(node, path, 0444, node->caps_major, number);
}

bool tree_publish_access(const struct gpu *gpu, uint32_t gi, uint32_t ci)
{
    struct access_paths paths = access_of(gpu, gi, ci);
    return rename(paths.prepared, paths.file) == 0;
}

/* false, with errno: somebody else's, whom this process cannot act for. */
bool tree_withdraw_access(const struct gpu *gpu, uint32_t gi, uint32_t ci)
{
    struct access_paths paths = access_of(gpu, gi, ci);
    return remove_if_there(unlink, paths.file) && remove_if_there(unlink, paths.prepared) &&
           remove_if_there(rmdir, paths.directory);
}

void tree_close_instance(const struct node *node, const struct gpu *gpu, uint32_t gi, uint32_t ci)
{
    char path[PATH_SIZE];
    node_path(path, capability(node, gpu, gi, ci));
    unlink(path);
    busy_path(path, node, gpu, gi, ci);
    unlink(path);
}

static void replace_text(const char *path, const char *from, const char *to)
{
    char text[4096], out[4096 + 64], next[PATH_SIZE + 8];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    text[size > 0 ? size : 0] = '\0';
    char *at = strstr(text, from);
    if (at == NULL)
        return;
    int length = snprintf(out, sizeof out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    snprintf(next, sizeof next, "%s.new", path); /* a kill leaves the old text or the new one */
    fd = open(next, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return;
    bool whole = write(fd, out, (size_t)length) == length && fchmod(fd, 0644) == 0;
    close(fd);
    if (whole)
        rename(next, path);
}

/* After a renumbering: the GPU's own node, its capability directory and, last, its information file: as long as that
 * tells the old minor, this is to be done again, and each step may have been done. */
void tree_move_gpu(const struct node *node, const struct gpu *gpu, uint32_t old_minor)
{
    char from[PATH_SIZE], to[PATH_SIZE], old_line[64], new_line[64], bus[16];
    emulator_path(to, "dev/nvidia%u", gpu->minor);
    make_device_file(node, to, 0666, NVIDIA_MAJOR, gpu->minor);
    emulator_path(from, "dev/nvidia%u", old_minor);
    unlink(from);
    emulator_path(from, "proc/driver/nvidia/capabilities/gpu%u", old_minor);
    emulator_path(to, "proc/driver/nvidia/capabilities/gpu%u", gpu->minor);
    rename(from, to);
    bus_id_sysfs(gpu, bus);
    emulator_path(from, "proc/driver/nvidia/gpus/%s/information", bus);
    snprintf(old_line, sizeof old_line, "Device Minor: \t %u\n", old_minor);
    snprintf(new_line, sizeof new_line, "Device Minor: \t %u\n", gpu->minor);
    replace_text(from, old_line, new_line);
}

void tree_intend(void)
{
    char path[PATH_SIZE];
    emulator_path(path, "state/tree.dirty");
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd >= 0)
        close(fd);
}

void tree_settle(void)
{
    char path[PATH_SIZE];
    emulator_path(path, "state/tree.dirty");
    unlink(path);
}

/* The instance that a capability directory or node stands for lives in the state. */
static bool number_lives(const struct node *node, uint32_t number)
{
    for (uint32_t g = 0; g < node->gpu_count; g++) {
        const struct gpu *gpu = &node->gpus[g];
        for (uint32_t i = 0; i < gpu->gi_count; i++)
            if (gi_capability(node, gpu, gpu->gis[i].id) == number)
                return true;
        for (uint32_t i = 0; i < gpu->ci_count; i++)
            if (ci_capability(node, gpu, gpu->cis[i].gi_id, gpu->cis[i].id) == number)
                return true;
    }
    return false;
}

static void remove_dead_nodes(const struct node *node)
{
    char path[PATH_SIZE + 280], directory[PATH_SIZE];
    emulator_path(directory, "dev/nvidia-caps");
    DIR *listing = opendir(directory);
    if (listing == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        unsigned number;
        if (sscanf(entry->d_name, "nvidia-cap%u", &number) != 1 || number < CAPABILITY_BASE ||
            number_lives(node, number))
            continue;
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        unlink(path);
    }
    closedir(listing);
}

static void remove_dead_cis(const struct gpu *gpu, uint32_t gi)
{
    for (uint32_t ci = 0; ci < MAX_SLICES; ci++)
        if (ci_by_id(gpu, gi, ci) == NULL)
            tree_withdraw_access(gpu, gi, ci);
}

static void remove_dead_access(const struct gpu *gpu)
{
    char directory[PATH_SIZE];
    emulator_path(directory, "proc/driver/nvidia/capabilities/gpu%u/mig", gpu->minor);
    DIR *listing = opendir(directory);
    if (listing == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        unsigned gi;
        if (sscanf(entry->d_name, "gi%u", &gi) != 1)
            continue;
        remove_dead_cis(gpu, gi);
        if (gi_by_id(gpu, gi) == NULL)
            tree_withdraw_access(gpu, gi, NO_ID);
    }
    closedir(listing);
}

static bool has_all_files(const struct node *node, const struct gpu *gpu, uint32_t gi, uint32_t ci)
{
    char device[PATH_SIZE], busy[PATH_SIZE];
    struct access_paths paths = access_of(gpu, gi, ci);
    node_path(device, capability(node, gpu, gi, ci));
    busy_path(busy, node, gpu, gi, ci);
    return access(paths.file, F_OK) == 0 && access(device, F_OK) == 0 && access(busy, F_OK) == 0;
}

static bool add_missing_instance(const struct node *node, const struct gpu *gpu, uint32_t gi, uint32_t ci)
{
    if (has_all_files(node, gpu, gi, ci))
        return true;
    return tree_open_instance(node, gpu, gi, ci) && tree_publish_access(gpu, gi, ci);
}

static bool add_missing(const struct node *node, const struct gpu *gpu)
{
    bool whole = true;
    for (uint32_t i = 0; i < gpu->gi_count; i++)
        whole = add_missing_instance(node, gpu, gpu->gis[i].id, NO_ID) && whole;
    for (uint32_t i = 0; i < gpu->ci_count; i++)
        whole = add_missing_instance(node, gpu, gpu->cis[i].gi_id, gpu->cis[i].id) && whole;
    return whole;
}

static bool minor_taken(const struct node *node, uint32_t minor)
{
    for (uint32_t g = 0; g < node->gpu_count; g++)
        if (node->gpus[g].minor == minor)
            return true;
    return false;
}

/* The minor that the GPU's information file tells; false if it tells none. */
static bool told_minor(const struct gpu *gpu, unsigned *minor)
{
    char path[PATH_SIZE], bus[16], line[256];
    bus_id_sysfs(gpu, bus);
    emulator_path(path, "proc/driver/nvidia/gpus/%s/information", bus);
    FILE *information = fopen(path, "re");
    bool found = false;
    while (information != NULL && !found && fgets(line, sizeof line, information) != NULL)
        found = sscanf(line, "Device Minor: %u", minor) == 1;
    if (information != NULL)
        fclose(information);
    return found;
}

/* A writer that died while it renumbered the GPU has left files under a minor that is nobody's now. */
static void heal_minor(const struct node *node, const struct gpu *gpu)
{
    unsigned old;
    if (told_minor(gpu, &old) && old != gpu->minor && !minor_taken(node, old))
        tree_move_gpu(node, gpu, old);
}

/* The instance that a lock file stands for lives in the state; those of GPUs always do. */
static bool busy_lives(const struct node *node, const char *name)
{
    unsigned gpu, gi, ci;
    int read = sscanf(name, "gpu%u-gi%u-ci%u", &gpu, &gi, &ci);
    if (read < 2)
        return true;
    if (gpu >= node->gpu_count)
        return false;
    return read == 2 ? gi_by_id(&node->gpus[gpu], gi) != NULL : ci_by_id(&node->gpus[gpu], gi, ci) != NULL;
}

/* Lock files of instances that are gone: a writer died between its commit and its last step. */
static void remove_dead_busy(const struct node *node)
{
    char path[PATH_SIZE + 280], directory[PATH_SIZE];
    emulator_path(directory, "state/busy");
    DIR *listing = opendir(directory);
    if (listing == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        if (busy_lives(node, entry->d_name))
            continue;
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        unlink(path);
    }
    closedir(listing);
}

void tree_heal(const struct node *node)
{
    char path[PATH_SIZE];
    emulator_path(path, "state/tree.dirty");
    if (access(path, F_OK) != 0)
        return;
    bool whole = true;
    for (uint32_t g = 0; g < node->gpu_count; g++) {
        heal_minor(node, &node->gpus[g]);
        remove_dead_access(&node->gpus[g]);
        whole = add_missing(node, &node->gpus[g]) && whole;
    }
    remove_dead_nodes(node);
    remove_dead_busy(node);
    if (whole)
        tree_settle(); /* else the next writer tries again: it may have the room or the right */
}
