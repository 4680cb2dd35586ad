/* What this process may see, decided by device nodes as with the real driver.
 *
 * A GPU is there if its nvidia<minor> node is; a MIG device if the capability nodes of its GPU instance and of its
 * compute instance are. They are looked for in DIR/dev, which only the host has, else in /dev: a container gets
 * DIR/state and the nodes of its own devices, and sees exactly those. The test is existence, not opening: an emulated
 * node must never open a real driver that happens to own the same device number.
 */
#include "emulator.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool node_exists(const char *format, uint32_t number)
{
    char path[PATH_SIZE + 64];
    int used = snprintf(path, sizeof path, "%s/", emulator_dev());
    if (snprintf(path + used, sizeof path - (size_t)used, format, number) < 0)
        return false;
    return access(path, F_OK) == 0;
}

bool gpu_visible(const struct node *node, const struct gpu *gpu)
{
    (void)node;
    return node_exists("nvidia%u", gpu->minor);
}

bool ci_visible(const struct node *node, const struct gpu *gpu, const struct compute_instance *ci)
{
    return node_exists("nvidia-caps/nvidia-cap%u", gi_capability(node, gpu, ci->gi_id)) &&
           node_exists("nvidia-caps/nvidia-cap%u", ci_capability(node, gpu, ci->gi_id, ci->id));
}

uint32_t visible_gpus(const struct node *node)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < node->gpu_count; i++)
        count += gpu_visible(node, &node->gpus[i]);
    return count;
}

bool visible_gpu_at(const struct node *node, uint32_t index, uint32_t *gpu)
{
    for (uint32_t i = 0; i < node->gpu_count; i++) {
        if (!gpu_visible(node, &node->gpus[i]))
            continue;
        if (index-- == 0) {
            *gpu = i;
            return true;
        }
    }
    return false;
}

uint32_t visible_index(const struct node *node, const struct gpu *gpu)
{
    uint32_t index = 0;
    for (const struct gpu *other = node->gpus; other < gpu; other++)
        index += gpu_visible(node, other);
    return index;
}

static int by_instance_id(const void *left, const void *right)
{
    const struct compute_instance *a = *(const struct compute_instance *const *)left;
    const struct compute_instance *b = *(const struct compute_instance *const *)right;
    return a->gi_id != b->gi_id ? (a->gi_id < b->gi_id ? -1 : 1) : (a->id > b->id) - (a->id < b->id);
}

/* In order of GPU instance id, then compute instance id, without holes: Slurm and nvitop stop at the first one. */
uint32_t mig_devices(const struct view *view, const struct compute_instance *out[MAX_SLICES])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < view->gpu->ci_count; i++)
        if (ci_visible(view->node, view->gpu, &view->gpu->cis[i]))
            out[count++] = &view->gpu->cis[i];
    qsort(out, count, sizeof out[0], by_instance_id);
    return count;
}

/* In its own user namespace, so that a node works in a rootless container too. */
static bool has_sys_admin(void)
{
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    return syscall(SYS_capget, &header, data) == 0 &&
           (data[CAP_TO_INDEX(CAP_SYS_ADMIN)].effective & CAP_TO_MASK(CAP_SYS_ADMIN)) != 0;
}

/* Whoever has CAP_SYS_ADMIN. On a node that an ordinary user made nobody has more right to it than that user. */
bool is_administrator(void)
{
    return has_sys_admin() || (emulator_owner() != 0 && emulator_owner() == geteuid());
}

bool may_configure(void)
{
    if (is_administrator())
        return true;
    char path[PATH_SIZE + 64];
    snprintf(path, sizeof path, "%s/nvidia-caps/nvidia-cap1", emulator_dev());
    return faccessat(AT_FDCWD, path, R_OK, AT_EACCESS) == 0;
}
