/* One picture of the node per call, and one way to change it.
 *
 * Reading takes no lock: DIR/state/node is never written to, it is replaced. Open, map, look, unmap; the inode lives
 * as long as somebody has it mapped. This also works when the directory is mounted read-only.
 *
 * Writing: flock on DIR/state/lock, copy the current picture, change the copy, write it to node.new, rename. A kill
 * at any instant leaves the old picture or the new one; the lock dies with the process (lock.c). There is no fsync: a node
 * that loses power is a node that rebooted.
 *
 * flock and not a mutex in shared memory: it works across containers with other C libraries and over process ids
 * that mean nothing on the other side.
 */
#include "emulator.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Nothing in it leads out of an array, whatever has happened to the file. */
static bool gpu_valid(const struct gpu *gpu)
{
    const struct models_file *models = emulator_models();
    if (gpu->model >= models->count || gpu->gi_count > MAX_SLICES || gpu->ci_count > MAX_SLICES)
        return false;
    for (uint32_t i = 0; i < gpu->gi_count; i++)
        if (gpu->gis[i].profile >= models->models[gpu->model].profile_count || gpu->gis[i].start >= MAX_SLICES)
            return false;
    for (uint32_t i = 0; i < gpu->ci_count; i++)
        if (gpu->cis[i].profile >= MAX_CI_PROFILES || gpu->cis[i].start >= MAX_SLICES)
            return false;
    return true;
}

static bool node_valid(const struct node *node, size_t size)
{
    if (size < sizeof *node || memcmp(node->magic, NODE_MAGIC, sizeof node->magic) != 0 ||
        node->layout_version != LAYOUT_VERSION || node->gpu_count > MAX_SLICES ||
        size != sizeof *node + node->gpu_count * sizeof node->gpus[0])
        return false;
    for (uint32_t g = 0; g < node->gpu_count; g++)
        if (!gpu_valid(&node->gpus[g]))
            return false;
    return true;
}

nvmlReturn_t view_open(struct view *view)
{
    char path[PATH_SIZE];
    memset(view, 0, sizeof *view);
    emulator_path(path, "state/node");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NVML_ERROR_UNKNOWN;
    off_t size = lseek(fd, 0, SEEK_END);
    void *map = size > 0 ? mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0) : MAP_FAILED;
    close(fd);
    if (map == MAP_FAILED)
        return NVML_ERROR_UNKNOWN;
    view->node = map;
    view->size = (size_t)size;
    view->mapped = true;
    return node_valid(map, (size_t)size) ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

void view_close(struct view *view)
{
    if (view->mapped)
        munmap((void *)(uintptr_t)view->node, view->size);
    view->mapped = false;
}

/* A container has the state read-only; a user has no right to it, or to make device files. */
nvmlReturn_t system_error(void)
{
    bool denied = errno == EROFS || errno == EACCES || errno == EPERM;
    return denied ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_OPERATING_SYSTEM;
}

static bool lock_node(struct lock *lock)
{
    char path[PATH_SIZE];
    emulator_path(path, "state/lock");
    return lock_open(lock, path, O_RDWR) && lock_take(lock, true);
}

static nvmlReturn_t copy_node(struct edit *edit)
{
    VIEW(current);
    nvmlReturn_t result = view_open(&current);
    if (result != NVML_SUCCESS)
        return result;
    edit->node = malloc(current.size);
    if (edit->node == NULL)
        return NVML_ERROR_MEMORY;
    memcpy(edit->node, current.node, current.size);
    edit->view.node = edit->node;
    edit->view.size = current.size;
    return NVML_SUCCESS;
}

nvmlReturn_t edit_open(struct edit *edit)
{
    if (!lock_node(&edit->lock))
        return system_error();
    nvmlReturn_t result = copy_node(edit);
    if (result == NVML_SUCCESS)
        tree_heal(edit->node);
    return result;
}

static bool write_whole(int fd, const void *data, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, (const char *)data + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

nvmlReturn_t edit_commit(struct edit *edit)
{
    char path[PATH_SIZE], next[PATH_SIZE];
    emulator_path(path, "state/node");
    emulator_path(next, "state/node.new"); /* one name is enough: we hold the lock */
    edit->node->revision++;
    unlink(next); /* a killed writer's, who may have been another user */
    int fd = open(next, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return system_error();
    bool ok = fchmod(fd, 0644) == 0 && write_whole(fd, edit->node, edit->view.size); /* whatever the umask is */
    close(fd);
    return ok && rename(next, path) == 0 ? NVML_SUCCESS : NVML_ERROR_OPERATING_SYSTEM;
}

void edit_close(struct edit *edit)
{
    lock_drop(&edit->lock);
    free(edit->node);
}
