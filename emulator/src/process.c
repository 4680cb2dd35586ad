/* Where this process's node is, and how often NVML was initialised.
 *
 * Everything is looked up again when the counter leaves 0: Go clients unload and load the library, glibc keeps it
 * mapped, and a test may go from one emulated node to the next inside one process. No state depends on the process
 * id, so a fork may go on using NVML.
 */
#include "emulator.h"

#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEFAULT_DIR "/run/nvidia-emulator" /* where a container finds it without any variable */

static char directory[PATH_SIZE - 256];
static char device_root[PATH_SIZE];
static const struct models_file *models;
static size_t models_size;
static uid_t owner;
static atomic_int inits;
static atomic_flag busy = ATOMIC_FLAG_INIT;

static void enter(void)
{
    while (atomic_flag_test_and_set_explicit(&busy, memory_order_acquire))
        usleep(50);
}

static void leave(void)
{
    atomic_flag_clear_explicit(&busy, memory_order_release);
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

static bool map_models(void)
{
    char path[PATH_SIZE];
    emulator_path(path, "state/models");
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
    if (!models_valid(map, (size_t)size)) {
        munmap(map, (size_t)size);
        return false;
    }
    if (models != NULL)
        munmap((void *)(uintptr_t)models, models_size);
    models = map;
    models_size = (size_t)size;
    owner = status.st_uid;
    return true;
}

bool emulator_attach(void)
{
    if (atomic_load(&inits) > 0)
        return true;
    const char *chosen = getenv("DYNAMIG_EMULATOR_DIR");
    if (chosen == NULL || chosen[0] == '\0')
        chosen = DEFAULT_DIR;
    enter();
    char absolute[PATH_MAX]; /* the client may change its working directory later */
    bool ok = atomic_load(&inits) > 0;
    if (!ok && realpath(chosen, absolute) != NULL && strlen(absolute) < sizeof directory) {
        strcpy(directory, absolute);
        emulator_path(device_root, "dev");
        if (access(device_root, F_OK) != 0)
            strcpy(device_root, "/dev");
        ok = map_models();
    }
    leave();
    return ok;
}

bool emulator_running(void)
{
    return atomic_load(&inits) > 0;
}

const char *emulator_dir(void)
{
    return directory;
}

const char *emulator_dev(void)
{
    return device_root;
}

uid_t emulator_owner(void)
{
    return owner;
}

const struct models_file *emulator_models(void)
{
    return models;
}

int emulator_path(char out[PATH_SIZE], const char *format, ...)
{
    int used = snprintf(out, PATH_SIZE, "%s/", directory);
    va_list arguments;
    va_start(arguments, format);
    used += vsnprintf(out + used, PATH_SIZE - (size_t)used, format, arguments);
    va_end(arguments);
    return used;
}

static nvmlReturn_t initialise(bool gpus_needed)
{
    if (!emulator_attach())
        return NVML_ERROR_DRIVER_NOT_LOADED;
    VIEW(view);
    nvmlReturn_t result = view_open(&view);
    if (result != NVML_SUCCESS)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (gpus_needed && visible_gpus(view.node) == 0)
        return NVML_ERROR_GPU_NOT_FOUND;
    if (atomic_fetch_add(&inits, 1) == 0)
        hold_everything_visible();
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

nvmlReturn_t impl_nvmlShutdown(void)
{
    int count = atomic_load(&inits);
    do {
        if (count == 0)
            return NVML_ERROR_UNINITIALIZED;
    } while (!atomic_compare_exchange_weak(&inits, &count, count - 1));
    if (count == 1) {
        event_sets_drop();
        gpm_samples_drop();
        hold_nothing();
    }
    return NVML_SUCCESS;
}
