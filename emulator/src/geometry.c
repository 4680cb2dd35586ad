/* Rules of MIG geometry over the model's data; nothing here knows a particular GPU.
 *
 * A GPU instance takes the memory slices [start, start + size) of a placement of its profile; no slice twice
 * (nvml.h, nvmlDeviceGetGpuInstancePossiblePlacements_v2). Beside that, media engines are counted: the GPU has as
 * many of a kind as the profile with most of them lists, and that is why `+me`, with the one OFA, exists once. Where
 * a profile's own instance count needs more than that, the kind is not counted at all.
 *
 * A compute instance takes compute slices of its GPU instance in the same way, and multiprocessors; no profile has more
 * instances than its own count.
 */
#include "emulator.h"

#include <string.h>

uint64_t slices_mask(uint32_t start, uint32_t size)
{
    uint64_t ones = size >= 64 ? ~0ull : (1ull << size) - 1;
    return start >= 64 ? 0 : ones << start;
}

uint64_t mix(uint64_t x) /* splitmix64: a bijection that scatters its input */
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

const struct gi_profile *gi_profile_by_id(const struct model *model, uint32_t id)
{
    for (uint32_t i = 0; i < model->profile_count; i++)
        if (model->profiles[i].id == id)
            return &model->profiles[i];
    return NULL;
}

const struct gi_profile *gi_profile_by_constant(const struct model *model, uint32_t constant)
{
    for (uint32_t i = 0; i < model->profile_count; i++)
        if (model->profiles[i].constant == constant)
            return &model->profiles[i];
    return NULL;
}

const struct ci_profile *ci_profile_by_id(const struct gi_profile *profile, uint32_t id)
{
    for (uint32_t i = 0; i < profile->ci_profile_count; i++)
        if (profile->ci_profiles[i].id == id)
            return &profile->ci_profiles[i];
    return NULL;
}

const struct ci_profile *ci_profile_by_constant(const struct gi_profile *profile, uint32_t constant)
{
    for (uint32_t i = 0; i < profile->ci_profile_count; i++)
        if (profile->ci_profiles[i].constant == constant)
            return &profile->ci_profiles[i];
    return NULL;
}

/* First constant that no library of this version knows: the header's, or beyond if a model's data goes beyond. */
uint32_t gi_constant_end(void)
{
    uint32_t end = NVML_GPU_INSTANCE_PROFILE_COUNT;
    const struct models_file *all = emulator_models();
    for (uint32_t m = 0; m < all->count; m++)
        for (uint32_t p = 0; p < all->models[m].profile_count; p++)
            if (all->models[m].profiles[p].constant >= end)
                end = all->models[m].profiles[p].constant + 1;
    return end;
}

static uint32_t ci_end_of(const struct gi_profile *profile, uint32_t end)
{
    for (uint32_t c = 0; c < profile->ci_profile_count; c++)
        if (profile->ci_profiles[c].constant >= end)
            end = profile->ci_profiles[c].constant + 1;
    return end;
}

uint32_t ci_constant_end(void)
{
    uint32_t end = NVML_COMPUTE_INSTANCE_PROFILE_COUNT;
    const struct models_file *all = emulator_models();
    for (uint32_t m = 0; m < all->count; m++)
        for (uint32_t p = 0; p < all->models[m].profile_count; p++)
            end = ci_end_of(&all->models[m].profiles[p], end);
    return end;
}

uint64_t gpu_slices_taken(const struct model *model, const struct gpu *gpu)
{
    uint64_t taken = 0;
    for (uint32_t i = 0; i < gpu->gi_count; i++)
        taken |= slices_mask(gpu->gis[i].start, model->profiles[gpu->gis[i].profile].memory_slices);
    return taken;
}

enum { MEDIA_KINDS = 4 };

struct media {
    uint32_t count[MEDIA_KINDS];
};

static struct media media_of(const struct gi_profile *p)
{
    return (struct media){ { p->decoders, p->encoders, p->jpeg_engines, p->ofa_engines } };
}

/* Most intervals of one size from `starts` that keep off `taken`: leftmost first is best, as all are equally long. */
static uint32_t most_disjoint(uint64_t starts, uint32_t size, uint64_t taken)
{
    uint32_t count = 0;
    for (uint32_t start = 0; start < MAX_SLICES; start++) {
        if ((starts >> start & 1) == 0 || (taken & slices_mask(start, size)) != 0)
            continue;
        taken |= slices_mask(start, size);
        count++;
    }
    return count;
}

/* Engines of one kind on the whole GPU; UINT32_MAX if they are no limit. */
static uint32_t media_total(const struct model *model, int kind)
{
    uint32_t total = 0, together = 0;
    for (uint32_t i = 0; i < model->profile_count; i++) {
        const struct gi_profile *p = &model->profiles[i];
        uint32_t each = media_of(p).count[kind], beside = most_disjoint(p->starts, p->memory_slices, 0);
        uint32_t copies = p->max_instances < beside ? p->max_instances : beside;
        total = each > total ? each : total;
        together = each * copies > together ? each * copies : together;
    }
    return together > total ? UINT32_MAX : total;
}

/* How many more instances the media engines allow. */
static uint32_t media_room(const struct model *model, const struct gpu *gpu, const struct gi_profile *profile)
{
    uint32_t room = MAX_SLICES;
    for (int kind = 0; kind < MEDIA_KINDS; kind++) {
        uint32_t need = media_of(profile).count[kind], total = media_total(model, kind), used = 0;
        for (uint32_t i = 0; i < gpu->gi_count; i++)
            used += media_of(&model->profiles[gpu->gis[i].profile]).count[kind];
        if (need == 0 || total == UINT32_MAX)
            continue;
        uint32_t more = used >= total ? 0 : (total - used) / need;
        room = more < room ? more : room;
    }
    return room;
}

static uint32_t count_of(const struct model *model, const struct gpu *gpu, const struct gi_profile *profile)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < gpu->gi_count; i++)
        count += &model->profiles[gpu->gis[i].profile] == profile;
    return count;
}

/* Room by everything but slices. */
static uint32_t room_beside_slices(const struct model *model, const struct gpu *gpu, const struct gi_profile *profile)
{
    uint32_t live = count_of(model, gpu, profile);
    uint32_t by_count = live >= profile->max_instances ? 0 : profile->max_instances - live;
    uint32_t by_media = media_room(model, gpu, profile);
    uint32_t by_storage = MAX_SLICES - gpu->gi_count;
    uint32_t room = by_count < by_media ? by_count : by_media;
    return room < by_storage ? room : by_storage;
}

bool gi_fits(const struct model *model, const struct gpu *gpu, const struct gi_profile *profile, uint32_t start)
{
    return (gpu_slices_taken(model, gpu) & slices_mask(start, profile->memory_slices)) == 0 &&
           room_beside_slices(model, gpu, profile) > 0;
}

uint32_t gi_capacity(const struct model *model, const struct gpu *gpu, const struct gi_profile *profile)
{
    uint32_t by_slices = most_disjoint(profile->starts, profile->memory_slices, gpu_slices_taken(model, gpu));
    uint32_t beside = room_beside_slices(model, gpu, profile);
    return by_slices < beside ? by_slices : beside;
}

/* Placements of any profile that are possible now and would not be after `mask` is taken. */
static uint32_t placements_lost(const struct model *model, uint64_t taken, uint64_t mask)
{
    uint32_t lost = 0;
    for (uint32_t p = 0; p < model->profile_count; p++) {
        const struct gi_profile *other = &model->profiles[p];
        for (uint32_t start = 0; start < MAX_SLICES; start++) {
            uint64_t place = slices_mask(start, other->memory_slices);
            if (other->starts >> start & 1)
                lost += (place & taken) == 0 && (place & mask) != 0;
        }
    }
    return lost;
}

/* The driver's own choice: the placement that costs the fewest placements, the lowest of equals. It is a reading of
 * observed orders, not of the driver: on 7-slice GPUs it gives 6, 4, 5, 0, 1, 2, 3 for 1g and 4 before 0 for 3g, and
 * with it `19,19,14,9` fails and `9,19,14,19` succeeds, as the MIG User Guide shows. */
bool gi_choose_start(const struct model *model, const struct gpu *gpu, const struct gi_profile *profile,
                     uint32_t *start)
{
    uint64_t taken = gpu_slices_taken(model, gpu);
    uint32_t best = UINT32_MAX;
    for (uint32_t s = 0; s < MAX_SLICES; s++) {
        uint64_t mask = slices_mask(s, profile->memory_slices);
        if ((profile->starts >> s & 1) == 0 || (taken & mask) != 0)
            continue;
        uint32_t lost = placements_lost(model, taken, mask);
        if (lost < best) {
            best = lost;
            *start = s;
        }
    }
    return best != UINT32_MAX && room_beside_slices(model, gpu, profile) > 0;
}

uint64_t gi_slices_taken(const struct gi_profile *profile, const struct gpu *gpu, uint32_t gi_id)
{
    uint64_t taken = 0;
    for (uint32_t i = 0; i < gpu->ci_count; i++)
        if (gpu->cis[i].gi_id == gi_id)
            taken |= slices_mask(gpu->cis[i].start, profile->ci_profiles[gpu->cis[i].profile].slices);
    return taken;
}

static uint32_t multiprocessors_free(const struct gi_profile *parent, const struct gpu *gpu, uint32_t gi_id)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < gpu->ci_count; i++)
        if (gpu->cis[i].gi_id == gi_id)
            used += parent->ci_profiles[gpu->cis[i].profile].multiprocessors;
    return used >= parent->multiprocessors ? 0 : parent->multiprocessors - used;
}

static uint32_t ci_count_left(const struct gi_profile *parent, const struct gpu *gpu, uint32_t gi_id,
                              const struct ci_profile *profile)
{
    uint32_t live = 0;
    for (uint32_t i = 0; i < gpu->ci_count; i++)
        live += gpu->cis[i].gi_id == gi_id && &parent->ci_profiles[gpu->cis[i].profile] == profile;
    return live >= profile->max_instances ? 0 : profile->max_instances - live;
}

bool ci_fits(const struct gi_profile *parent, const struct gpu *gpu, uint32_t gi_id, const struct ci_profile *profile,
             uint32_t start)
{
    return (gi_slices_taken(parent, gpu, gi_id) & slices_mask(start, profile->slices)) == 0 &&
           multiprocessors_free(parent, gpu, gi_id) >= profile->multiprocessors &&
           ci_count_left(parent, gpu, gi_id, profile) > 0 && gpu->ci_count < MAX_SLICES;
}

uint32_t ci_capacity(const struct gi_profile *parent, const struct gpu *gpu, uint32_t gi_id,
                     const struct ci_profile *profile)
{
    uint32_t by_slices = most_disjoint(profile->starts, profile->slices, gi_slices_taken(parent, gpu, gi_id));
    uint32_t by_sms = profile->multiprocessors ? multiprocessors_free(parent, gpu, gi_id) / profile->multiprocessors
                                               : by_slices;
    uint32_t room = by_slices < by_sms ? by_slices : by_sms;
    uint32_t by_count = ci_count_left(parent, gpu, gi_id, profile);
    return room < by_count ? room : by_count;
}

/* Smallest k with 2^k >= how many such instances the GPU holds side by side. Class k owns ids 2^k - 1 .. 2^(k+1) - 2:
 * 0 the whole GPU, 1-2 halves, 3-6 quarters, 7-14 eighths, as the kernel's swizzle ids. More than 2^k instances of
 * one class never fit on the GPU, so an id is always free. */
static uint32_t id_class(const struct model *model, const struct gi_profile *profile)
{
    uint32_t fit = model->memory_slices / profile->memory_slices, k = 0;
    while (1u << k < fit)
        k++;
    return k;
}

/* Ids of a class come in an order that the seed shuffles: a client must not read a position out of an id. A freed id
 * is the first to be given again if it was before the others in that order. */
bool gi_choose_id(const struct node *node, const struct model *model, const struct gpu *gpu,
                  const struct gi_profile *profile, uint32_t *id)
{
    uint32_t k = id_class(model, profile);
    uint64_t best = 0, salt = mix(node->seed ^ mix((uint64_t)(gpu - node->gpus)));
    bool found = false;
    for (uint32_t candidate = (1u << k) - 1; candidate <= (2u << k) - 2; candidate++) {
        uint64_t rank = mix(salt + candidate);
        if (gi_by_id(gpu, candidate) != NULL || (found && rank >= best))
            continue;
        best = rank;
        *id = candidate;
        found = true;
    }
    return found;
}
