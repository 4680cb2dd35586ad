/* What the parts of the library offer each other.
 *
 * A call sees one picture of the node: `view` maps DIR/state/node and looks things up in it. A call that changes the
 * node holds an `edit`: the node lock and a private copy, which `edit_commit` publishes with one rename. Handles are
 * numbers (handles.c), so there is nothing to free, to inherit over fork, or to dereference by mistake.
 */
#ifndef DYNAMIG_EMULATOR_H
#define DYNAMIG_EMULATOR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <nvml.h>

#include "layout.h"
#include "prototypes.h" /* generated: impl_<symbol>, weak, for every symbol of nvml.h */

/* In front of an impl_<symbol> whose answer the GPU's model or the node's configuration fixes. symbols.py reads it, and a
 * test holds it true. */
#define CONSTANT

#define NO_ID 0xffffffffu
#define PATH_SIZE 1024

/* ---- process.c: one counter of inits, one emulator directory */
bool emulator_enter(bool starting); /* a call begins; false: not initialised, or no node to start on */
void emulator_leave(void);          /* it ends; once for each enter, whatever that returned */
const char *emulator_dir(void);     /* of the call's node, as all that follows; "" if there is none */
const char *emulator_dev(void); /* DIR/dev on the host, /dev inside a container */
uid_t emulator_owner(void);      /* who made the node */
const struct models_file *emulator_models(void);
int emulator_path(char out[PATH_SIZE], const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- lock.c: exclusive file locks that no fork keeps alive. Stays where it is while open: a list points to it. */
struct lock {
    int fd;
    struct lock *next;
};
#define NO_LOCK { .fd = -1 }
bool lock_open(struct lock *lock, const char *path, int flags);
bool lock_take(struct lock *lock, bool wait);
void lock_drop(struct lock *lock);

/* ---- state.c */
struct view {
    const struct node *node;
    size_t size;
    bool mapped;
    const struct gpu *gpu;
    const struct model *model;
    const struct gpu_instance *gi;
    const struct gi_profile *profile; /* of gi */
    const struct compute_instance *ci;
    bool is_mig; /* the handle was a MIG device */
};
struct edit {
    struct view view; /* of the private copy */
    struct node *node;
    struct lock lock;
};
nvmlReturn_t system_error(void); /* what errno means to a client */
nvmlReturn_t view_open(struct view *view);
void view_close(struct view *view);
nvmlReturn_t edit_open(struct edit *edit);
nvmlReturn_t edit_commit(struct edit *edit);
void edit_close(struct edit *edit);
/* Declares one that closes itself, opened or not, wherever the function returns. */
#define VIEW(name) __attribute__((cleanup(view_close))) struct view name = { 0 }
#define EDIT(name) __attribute__((cleanup(edit_close))) struct edit name = { .lock = NO_LOCK }

static inline struct gpu *edit_gpu(struct edit *edit)
{
    return &edit->node->gpus[edit->view.gpu - edit->node->gpus];
}

/* ---- handles.c: numbers instead of pointers, and what they point to in a view */
enum handle_kind { HANDLE_GPU = 1, HANDLE_GI = 2, HANDLE_CI = 3, HANDLE_MIG = 4 };
struct handle {
    enum handle_kind kind;
    uint32_t gpu, gi, ci, serial;
};
bool handle_decode(uint64_t value, struct handle *out);
nvmlDevice_t gpu_handle(uint32_t gpu);
nvmlDevice_t mig_handle(const struct view *view, const struct compute_instance *ci);
nvmlGpuInstance_t gi_handle(const struct view *view, const struct gpu_instance *gi);
nvmlComputeInstance_t ci_handle(const struct view *view, const struct compute_instance *ci);

nvmlReturn_t find_device(struct view *view, nvmlDevice_t device); /* GPU or MIG device */
nvmlReturn_t find_gpu(struct view *view, nvmlDevice_t device);    /* GPU only */
nvmlReturn_t find_mig_device(struct view *view, nvmlDevice_t device);
nvmlReturn_t find_gpu_instance(struct view *view, nvmlGpuInstance_t handle);
nvmlReturn_t find_compute_instance(struct view *view, nvmlComputeInstance_t handle);
nvmlReturn_t view_device(struct view *view, nvmlDevice_t device); /* view_open and find_device */
nvmlReturn_t view_gpu(struct view *view, nvmlDevice_t device);
nvmlReturn_t view_physical(struct view *view, nvmlDevice_t device, const void *out); /* GPU, else NOT_SUPPORTED */

void select_gpu(struct view *view, uint32_t gpu);
const struct gpu_instance *gi_by_id(const struct gpu *gpu, uint32_t id);
const struct compute_instance *ci_by_id(const struct gpu *gpu, uint32_t gi, uint32_t ci);

/* ---- visibility.c: what this process may see and do */
bool gpu_visible(const struct node *node, const struct gpu *gpu);
bool ci_visible(const struct node *node, const struct gpu *gpu, const struct compute_instance *ci);
uint32_t visible_gpus(const struct node *node);
bool visible_gpu_at(const struct node *node, uint32_t index, uint32_t *gpu);
uint32_t visible_index(const struct node *node, const struct gpu *gpu);
uint32_t mig_devices(const struct view *view, const struct compute_instance *out[MAX_SLICES]);
bool is_administrator(void);
bool may_configure(void); /* an administrator, or one who can read the mig/config capability */

/* ---- geometry.c: pure rules over the model's data */
const struct gi_profile *gi_profile_by_id(const struct model *model, uint32_t id);
const struct gi_profile *gi_profile_by_constant(const struct model *model, uint32_t constant);
const struct ci_profile *ci_profile_by_id(const struct gi_profile *profile, uint32_t id);
const struct ci_profile *ci_profile_by_constant(const struct gi_profile *profile, uint32_t constant);
uint32_t gi_constant_end(void);
uint32_t ci_constant_end(void);
uint64_t slices_mask(uint32_t start, uint32_t size);
uint64_t gpu_slices_taken(const struct model *model, const struct gpu *gpu);
uint64_t gi_slices_taken(const struct gi_profile *profile, const struct gpu *gpu, uint32_t gi_id);
bool gi_fits(const struct model *model, const struct gpu *gpu, const struct gi_profile *profile, uint32_t start);
uint32_t gi_capacity(const struct model *model, const struct gpu *gpu, const struct gi_profile *profile);
bool gi_choose_start(const struct model *model, const struct gpu *gpu, const struct gi_profile *profile,
                     uint32_t *start);
bool ci_fits(const struct gi_profile *parent, const struct gpu *gpu, uint32_t gi_id,
             const struct ci_profile *profile, uint32_t start);
uint32_t ci_capacity(const struct gi_profile *parent, const struct gpu *gpu, uint32_t gi_id,
                     const struct ci_profile *profile);
bool gi_choose_id(const struct node *node, const struct model *model, const struct gpu *gpu,
                  const struct gi_profile *profile, uint32_t *id);
uint64_t mix(uint64_t x);

/* ---- tree.c: the files beside NVML that follow the instances */
uint32_t gi_capability(const struct node *node, const struct gpu *gpu, uint32_t gi);
uint32_t ci_capability(const struct node *node, const struct gpu *gpu, uint32_t gi, uint32_t ci);
bool tree_open_instance(const struct node *node, const struct gpu *gpu, uint32_t gi, uint32_t ci); /* ci NO_ID: the GI */
bool tree_publish_access(const struct gpu *gpu, uint32_t gi, uint32_t ci);
bool tree_withdraw_access(const struct gpu *gpu, uint32_t gi, uint32_t ci);
void tree_close_instance(const struct node *node, const struct gpu *gpu, uint32_t gi, uint32_t ci);
void tree_move_gpu(const struct node *node, const struct gpu *gpu, uint32_t old_minor);
void tree_intend(void);
void tree_settle(void);
void tree_heal(const struct node *node);

/* ---- busy.c: who is busy on an instance; ci NO_ID: the GPU instance as a whole, gi NO_ID too: the GPU */
void busy_path(char path[PATH_SIZE], const struct node *node, const struct gpu *gpu, uint32_t gi, uint32_t ci);
int busy_open(const struct node *node, const struct gpu *gpu, uint32_t gi, uint32_t ci); /* a descriptor, or -1 */
bool claim_idle(const struct node *node, const struct gpu *gpu, uint32_t gi, uint32_t ci, struct lock *lock); /* false: somebody runs there */
bool gpu_idle(const struct node *node, const struct gpu *gpu);
void hold_everything_visible(void);
void hold_nothing(void);

/* ---- instances.c */
nvmlReturn_t make_gpu_instance(struct edit *edit, const struct gi_profile *profile, uint32_t start, uint32_t flags,
                               nvmlGpuInstance_t *out);
nvmlReturn_t make_compute_instance(struct edit *edit, const struct ci_profile *profile, uint32_t start,
                                   nvmlComputeInstance_t *out);
bool mig_enabled(const struct view *view);

/* ---- events.c */
void event_append(const struct node *node, const struct gpu *gpu, uint64_t type, uint64_t data, uint32_t gi, uint32_t ci);
void event_sets_drop(void);

/* ---- usage.c */
#define SAMPLE_PERIOD_US 167000 /* a sixth of a second: the period in utilisation answers */
struct usage {
    uint64_t at_us, since_us; /* when it was asked for; since when the levels hold */
    uint32_t fed;             /* bit k: level[k] was given, else it is 0 */
    uint32_t level[USAGE_KEYS];
    uint64_t sum[USAGE_KEYS]; /* of level times microseconds, from the first record on */
};
struct usage usage_of(const struct view *view, const struct gpu_instance *gi, uint64_t now); /* gi NULL: the GPU */
uint64_t last_sample_us(const struct usage *usage); /* the newest of those taken every period since the levels hold */
uint32_t idle_level(enum usage_key key);
uint32_t level_now(const struct view *view, enum usage_key key); /* of the GPU; what was not fed: idle */
uint64_t energy_mj(const struct view *view); /* of the GPU */
uint64_t used_mib(const struct view *view, const struct gpu_instance *gi); /* at most what there is */
uint64_t memory_used_mib(const struct view *view);

/* ---- gpm.c */
void gpm_samples_drop(void);

/* ---- text.c */
nvmlReturn_t give_text(char *out, uint32_t length, const char *format, ...) __attribute__((format(printf, 3, 4)));
void mig_uuid_text(const uint8_t uuid[16], char out[48]);
void mig_name(const struct gi_profile *profile, const struct ci_profile *ci, char out[96]);
void bus_id_sysfs(const struct gpu *gpu, char out[16]);

/* ---- call.c, faults.c, trace.c: around every exported symbol */
struct call {
    const char *name;
    int gpu; /* index in the node, -1 if no handle names one */
    nvmlReturn_t result;
    bool override; /* report `code` after the work is done */
    nvmlReturn_t code;
    uint64_t started_us; /* since the epoch */
    uint64_t begun_us;   /* by steady_us() */
    size_t used;
    char line[2048]; /* trace, built after the call */
};
bool call_refused(struct call *call, uint64_t handle);
nvmlReturn_t call_unimplemented(void);
void call_finish(struct call *call);
bool fault_applies(struct call *call); /* sleeps for delays; true: do not do the work */

void trace_handle(struct call *call, const char *name, uint64_t value);
void trace_text(struct call *call, const char *name, const char *value);
void trace_unsigned(struct call *call, const char *name, uint64_t value);
void trace_signed(struct call *call, const char *name, int64_t value);
void trace_out_handle(struct call *call, const char *name, const void *value);
void trace_out_text(struct call *call, const char *name, const char *value);
void trace_out_u32(struct call *call, const char *name, const unsigned int *value);
void trace_placement(struct call *call, const char *name, const void *value);
void trace_write(struct call *call);
uint64_t now_us(void);    /* since the epoch */
uint64_t steady_us(void); /* for durations */

#endif
