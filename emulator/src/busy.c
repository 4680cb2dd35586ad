/* Who runs on an instance: whoever holds a shared flock on its file in DIR/state/busy.
 *
 * There is a file for each GPU, GPU instance and compute instance. A program runs on a compute instance; who holds a GPU
 * instance keeps all that is in it. A shared lock needs no write access, so a container can take it, and it ends with
 * its process, however that dies. Destroying asks for the exclusive lock and never waits: no lock, IN_USE. Plain queries
 * never take one.
 */
#include "emulator.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

void busy_path(char path[PATH_SIZE], const struct node *node, const struct gpu *gpu, uint32_t gi, uint32_t ci)
{
    unsigned index = (unsigned)(gpu - node->gpus);
    if (gi == NO_ID)
        emulator_path(path, "state/busy/gpu%u", index);
    else if (ci == NO_ID)
        emulator_path(path, "state/busy/gpu%u-gi%u", index, gi);
    else
        emulator_path(path, "state/busy/gpu%u-gi%u-ci%u", index, gi, ci);
}

int busy_open(const struct node *node, const struct gpu *gpu, uint32_t gi, uint32_t ci)
{
    char path[PATH_SIZE];
    busy_path(path, node, gpu, gi, ci);
    return open(path, O_RDONLY | O_CLOEXEC);
}

bool claim_idle(const struct node *node, const struct gpu *gpu, uint32_t gi, uint32_t ci, struct lock *lock)
{
    char path[PATH_SIZE];
    busy_path(path, node, gpu, gi, ci);
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
    bool idle = claim_idle(node, gpu, NO_ID, NO_ID, &lock);
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
        hold(busy_open(view->node, view->gpu, NO_ID, NO_ID));
    for (uint32_t i = 0; i < count; i++)
        hold(busy_open(view->node, view->gpu, visible[i]->gi_id, visible[i]->id));
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
