/* The few symbols that NVML does not have. */
#include "emulator.h"

#include <stdlib.h>

extern const char dynamig_emulator_version[];
const char dynamig_emulator_version[] = "dynamig NVML emulator 1";

extern const uint32_t dynamig_emulator_layout[];
const uint32_t dynamig_emulator_layout[] = {
    LAYOUT_VERSION,
    sizeof(struct ci_profile), sizeof(struct gi_profile), sizeof(struct model), sizeof(struct models_file),
    sizeof(struct gpu_instance), sizeof(struct compute_instance), sizeof(struct gpu), sizeof(struct node),
    sizeof(struct fault), sizeof(struct event), sizeof(struct usage_record),
    offsetof(struct gi_profile, starts), offsetof(struct gi_profile, ci_profiles), offsetof(struct model, memory_mib),
    offsetof(struct model, profiles), offsetof(struct gpu, gi_count), offsetof(struct gpu, gis),
    offsetof(struct gpu, cis), offsetof(struct compute_instance, uuid), offsetof(struct node, loaded_us),
    offsetof(struct node, driver_version), offsetof(struct node, boot_id), offsetof(struct node, gpus),
    offsetof(struct fault, seen), offsetof(struct event, gpu), offsetof(struct usage_record, level),
};

nvmlReturn_t dynamig_emulator_foreign(uint32_t gpu, uint32_t profile_id, uint32_t start, uint32_t with_ci, uint32_t *gi_id);

static const struct ci_profile *whole(const struct gi_profile *profile)
{
    for (uint32_t i = 0; i < profile->ci_profile_count; i++)
        if (profile->ci_profiles[i].multiprocessors == profile->multiprocessors)
            return &profile->ci_profiles[i];
    return NULL;
}

static nvmlReturn_t place(struct edit *edit, const struct gi_profile *profile, uint32_t start, bool with_ci,
                          uint32_t *gi_id)
{
    nvmlGpuInstance_t gi;
    nvmlComputeInstance_t ci;
    nvmlReturn_t result = make_gpu_instance(edit, profile, start, GI_FOREIGN, &gi);
    if (result != NVML_SUCCESS)
        return result;
    result = find_gpu_instance(&edit->view, gi);
    if (result != NVML_SUCCESS)
        return result;
    *gi_id = edit->view.gi->id;
    const struct ci_profile *fill = whole(profile);
    if (!with_ci || fill == NULL)
        return NVML_SUCCESS;
    return make_compute_instance(edit, fill, (uint32_t)__builtin_ctzll(fill->starts), &ci);
}

static nvmlReturn_t make_foreign(uint32_t gpu, uint32_t profile_id, uint32_t start, bool with_ci, uint32_t *gi_id)
{
    EDIT(edit);
    nvmlReturn_t result = edit_open(&edit);
    if (result == NVML_SUCCESS)
        result = find_gpu(&edit.view, gpu_handle(gpu));
    if (result != NVML_SUCCESS)
        return result;
    if (!mig_enabled(&edit.view))
        return NVML_ERROR_NOT_SUPPORTED;
    const struct gi_profile *profile = gi_profile_by_id(edit.view.model, profile_id);
    if (profile == NULL || start >= MAX_SLICES || (profile->starts >> start & 1) == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!gi_fits(edit.view.model, edit.view.gpu, profile, start))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    return place(&edit, profile, start, with_ci, gi_id);
}

/* An instance made by somebody else: no fault strikes it and no trace tells of it. Needs an initialised library. */
nvmlReturn_t dynamig_emulator_foreign(uint32_t gpu, uint32_t profile_id, uint32_t start, uint32_t with_ci, uint32_t *gi_id)
{
    bool initialised = emulator_enter(false);
    nvmlReturn_t result = initialised ? make_foreign(gpu, profile_id, start, with_ci != 0, gi_id) : NVML_ERROR_UNINITIALIZED;
    emulator_leave();
    return result;
}
