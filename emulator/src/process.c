/* Where this process's node is, and how often NVML was initialised.
 *
 * Everything is looked up again when the counter leaves 0: Go clients unload and load the library, glibc keeps it
 * mapped, and a test may go from one emulated node to the next inside one process. What was looked up is an attachment,
 * which never changes: a call uses the one that was current when it began, whatever other threads initialise or shut
 * down meanwhile, and the last of its users frees it.
 *
 * No state depends on the process id, so a fork may go on using NVML; `guard` is held over a fork, so the child never
 * inherits it from a thread that the child does not have.
 */
#include "emulator.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEFAULT_DIR "/run/nvidia-emulator" /* where a container finds it without any variable */

struct attachment {
    char directory[PATH_SIZE - 256];
    char device_root[PATH_SIZE];
    const struct models_file *models;
    size_t models_size;
    uid_t owner;
    unsigned users; /* calls that run, and `current` */
};

/* Guards `current`, `inits`, every `users`, and what a first init or a last shutdown does. */
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct attachment *current;
static unsigned inits;

/* Of the call that this thread is in. This TLS model needs nothing of ld.so, so libc stays the only library needed. */
static _Thread_local struct attachment *mine __attribute__((tls_model("initial-exec")));

static void lock_guard(void)
{
    pthread_mutex_lock(&guard);
}

static void unlock_guard(void)
{
    pthread_mutex_unlock(&guard);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(lock_guard, unlock_guard, unlock_guard);
}

static bool profiles_valid(const struct model *model)
{
    if (model->profile_count > MAX_GI_PROFILES || model->memory_slices > MAX_SLICES ||
        model->compute_slices > MAX_SLICES)
        return false;
    for (uint32_t i = 0; i < model->profile_count; i++)
        if (model->profiles[i].memory_slices == 0 || model->profiles[i].memory_slices > MAX_SLICES ||
            model->profiles[i].ci_profile_count > MAX_CI_PROFILES)
            return false;
    return true;
}

static bool models_valid(const struct models_file *file, size_t size)
{
    if (size < sizeof *file || memcmp(file->magic, MODELS_MAGIC, sizeof file->magic) != 0 ||
        file->layout_version != LAYOUT_VERSION || size != sizeof *file + file->count * sizeof file->models[0])
        return false;
    for (uint32_t i = 0; i < file->count; i++)
        if (!profiles_valid(&file->models[i]))
            return false;
    return true;
}

static bool map_models(struct attachment *to)
{
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/state/models", to->directory);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    struct stat status;
    if (syscall(SYS_fstat, fd, &status) != 0) /* glibc's own fstat is of 2.33 */
        status.st_uid = 0;
    off_t size = lseek(fd, 0, SEEK_END);
    void *map = size > 0 ? mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    close(fd);
    if (map == MAP_FAILED)
        return false;
    to->models = map;
    to->models_size = (size_t)size;
    to->owner = status.st_uid;
    return models_valid(map, (size_t)size);
}

static void let_go(struct attachment *attachment)
{
    if (attachment == NULL || --attachment->users > 0)
        return;
    if (attachment->models != NULL)
        munmap((void *)(uintptr_t)attachment->models, attachment->models_size);
    free(attachment);
}

static bool find_node(struct attachment *found)
{
    const char *chosen = getenv("DYNAMIG_EMULATOR_DIR");
    char absolute[PATH_MAX]; /* the client may change its working directory later */
    if (chosen == NULL || chosen[0] == '\0')
        chosen = DEFAULT_DIR;
    if (realpath(chosen, absolute) == NULL || strlen(absolute) >= sizeof found->directory)
        return false;
    strcpy(found->directory, absolute);
    snprintf(found->device_root, sizeof found->device_root, "%s/dev", absolute);
    if (access(found->device_root, F_OK) != 0)
        strcpy(found->device_root, "/dev");
    return map_models(found);
}

/* The node of DYNAMIG_EMULATOR_DIR as it is now becomes current; false if there is none, and nothing changes. */
static bool attach(void)
{
    struct attachment *found = calloc(1, sizeof *found);
    if (found == NULL)
        return false;
    found->users = 1;
    if (!find_node(found)) {
        let_go(found);
        return false;
    }
    let_go(current);
    current = found;
    return true;
}

bool emulator_enter(bool starting)
{
    lock_guard();
    bool ready = inits > 0 || (starting && attach());
    mine = ready || !starting ? current : NULL; /* a call before any init is told in the log of the last node */
    if (mine != NULL)
        mine->users++;
    unlock_guard();
    return ready;
}

void emulator_leave(void)
{
    lock_guard();
    let_go(mine);
    unlock_guard();
    mine = NULL;
}

const char *emulator_dir(void)
{
    return mine != NULL ? mine->directory : "";
}

const char *emulator_dev(void)
{
    return mine->device_root;
}

uid_t emulator_owner(void)
{
    return mine->owner;
}

const struct models_file *emulator_models(void)
{
    return mine->models;
}

int emulator_path(char out[PATH_SIZE], const char *format, ...)
{
    int used = snprintf(out, PATH_SIZE, "%s/", emulator_dir());
    va_list arguments;
    va_start(arguments, format);
    used += vsnprintf(out + used, PATH_SIZE - (size_t)used, format, arguments);
    va_end(arguments);
    return used;
}

static nvmlReturn_t initialise(bool gpus_needed)
{
    VIEW(view);
    nvmlReturn_t result = view_open(&view);
    if (result != NVML_SUCCESS)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (gpus_needed && visible_gpus(view.node) == 0)
        return NVML_ERROR_GPU_NOT_FOUND;
    lock_guard();
    if (inits++ == 0)
        hold_everything_visible();
    unlock_guard();
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlInitWithFlags(unsigned int flags)
{
    return initialise((flags & NVML_INIT_FLAG_NO_GPUS) == 0);
}

nvmlReturn_t impl_nvmlInit_v2(void)
{
    return initialise(true);
}

nvmlReturn_t impl_nvmlInit(void)
{
    return initialise(true);
}

static void drop_everything(void)
{
    event_sets_drop();
    gpm_samples_drop();
    hold_nothing();
}

nvmlReturn_t impl_nvmlShutdown(void)
{
    lock_guard();
    bool initialised = inits > 0;
    if (initialised && --inits == 0)
        drop_everything();
    unlock_guard();
    return initialised ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}
