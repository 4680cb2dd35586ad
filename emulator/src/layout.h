/* Files that the emulated node consists of, as bytes.
 *
 * DIR/state/models   what the GPU models can do; written once by `init`, never changed.
 * DIR/state/node     what lives now: modes, minors, instances. NEVER changed in place: a writer makes node.new and
 *                    renames it over node, so whoever has mapped the old file keeps a whole, consistent picture.
 * DIR/state/faults   an array of `struct fault`; counters inside are updated in place under a flock on this file.
 * DIR/state/events   an array of `struct event`, only ever appended to.
 * DIR/state/usage    an array of `struct usage_record`, ordered by time; replaced whole. No file: nothing is used.
 *
 * src/dynamig/testing/emulator/layout.py declares the same structures for the control side; a test compares sizes
 * and offsets. The limits below are room in a file; no rule depends on them.
 */
#ifndef DYNAMIG_EMULATOR_LAYOUT_H
#define DYNAMIG_EMULATOR_LAYOUT_H

#include <stdint.h>

#define LAYOUT_VERSION 3u
#define MODELS_MAGIC "DYNMODEL"
#define NODE_MAGIC "DYNNODE\0"

enum {
    MAX_SLICES = 64,       /* memory or compute slices of a GPU: a set of them is one uint64_t */
    MAX_GI_PROFILES = 32,
    MAX_CI_PROFILES = 12,
    MAX_FAULTS = 64,
};

/* A way to cut a GPU instance. `starts` has bit s set if the profile may start at compute slice s. */
struct ci_profile {
    uint32_t constant; /* NVML_COMPUTE_INSTANCE_PROFILE_* */
    uint32_t id;
    uint32_t slices;
    uint32_t multiprocessors;
    uint32_t max_instances;
    uint32_t reserved;
    uint64_t starts;
};

/* A way to cut a GPU. `starts` has bit s set if the profile may start at memory slice s. */
struct gi_profile {
    char name[64];     /* 1g.10gb+me */
    uint32_t constant; /* NVML_GPU_INSTANCE_PROFILE_* */
    uint32_t id;       /* ID column of `nvidia-smi mig -lgip` */
    uint32_t compute_slices;
    uint32_t memory_slices;
    uint32_t max_instances;
    uint32_t multiprocessors;
    uint32_t copy_engines;
    uint32_t decoders;
    uint32_t encoders;
    uint32_t jpeg_engines;
    uint32_t ofa_engines;
    uint32_t ci_profile_count;
    uint64_t memory_mib;
    uint64_t starts;
    struct ci_profile ci_profiles[MAX_CI_PROFILES];
};

struct model {
    char key[64];      /* h100-80gb-sxm5 */
    char product[96];  /* NVIDIA H100 80GB HBM3 */
    uint32_t architecture; /* NVML_DEVICE_ARCH_* */
    uint32_t brand;
    uint32_t cc_major;
    uint32_t cc_minor;
    uint32_t pci_device; /* device << 16 | vendor, as nvmlPciInfo_t.pciDeviceId */
    uint32_t pci_subsystem;
    uint32_t compute_slices;
    uint32_t memory_slices;
    uint32_t multiprocessors;
    uint32_t reset_to_switch; /* 1: MIG mode stays pending until a reset, and survives a reboot (Ampere) */
    uint32_t profile_count;
    uint32_t limit_milliwatt; /* 0 here and in the two below: not known */
    uint32_t graphics_mhz;    /* the highest */
    uint32_t memory_mhz;
    uint64_t memory_mib;
    struct gi_profile profiles[MAX_GI_PROFILES];
};

struct models_file {
    char magic[8];
    uint32_t layout_version;
    uint32_t count;
    struct model models[];
};

enum { GI_FOREIGN = 1u };

struct gpu_instance {
    uint32_t id;
    uint32_t profile; /* index into model.profiles */
    uint32_t start;   /* memory slice */
    uint32_t serial;  /* given once per node, never reused: what makes an old handle invalid */
    uint32_t flags;
    uint32_t reserved;
};

struct compute_instance {
    uint32_t gi_id;
    uint32_t id;
    uint32_t profile; /* index into gi_profile.ci_profiles */
    uint32_t start;   /* compute slice of the GPU instance */
    uint32_t serial;
    uint32_t reserved;
    uint8_t uuid[16];
};

struct gpu {
    char uuid[48];   /* GPU-... */
    char serial_number[32];
    char bus_id[32]; /* 00000000:07:00.0 */
    uint32_t model;
    uint32_t minor;
    uint32_t pci_domain;
    uint32_t pci_bus;
    uint32_t pci_slot;
    int32_t numa_node;
    uint32_t mig_current;
    uint32_t mig_pending;
    uint32_t lost;
    uint32_t persistence;
    uint32_t virtualization; /* nvmlGpuVirtualizationMode_t: 0 none, 1 passthrough, 2 vGPU guest */
    uint32_t reserved;
    uint32_t gi_count;
    uint32_t ci_count;
    struct gpu_instance gis[MAX_SLICES];
    struct compute_instance cis[MAX_SLICES];
};

enum {
    NODE_RENUMBERS = 1u,       /* a MIG mode switch gives the GPU another minor */
    NODE_CHARACTER_NODES = 2u, /* DIR/dev holds character devices, not plain files */
    NODE_CI_INFO_NAMES_MIG = 4u, /* nvmlComputeInstanceInfo_t.device is the MIG device, not the GPU */
};

struct node {
    char magic[8];
    uint32_t layout_version;
    uint32_t gpu_count;
    uint64_t revision; /* counts commits */
    uint64_t seed;
    uint32_t next_serial;
    uint32_t flags;
    uint32_t cuda_version; /* 13000 */
    uint32_t driver_branch; /* 580 */
    uint32_t caps_major;   /* device major of nvidia-caps */
    uint32_t cap_gis;      /* GPU instances per GPU in the capability table: 15 in the real driver */
    uint32_t cap_cis;      /* compute instances per GPU instance: 8 in the real driver */
    uint32_t reserved;
    uint64_t loaded_us;    /* when the driver was loaded, since the epoch */
    char driver_version[32];
    char boot_id[40];
    struct gpu gpus[];
};

enum fault_kind { FAULT_FAIL = 1, FAULT_DELAY = 2, FAULT_HANG = 3 };
enum {
    FAULT_AFTER = 1u, /* the call does its work and then reports the code */
    FAULT_TAIL = 2u,  /* jitter_us is the mean of an exponential tail, not the width of an even share */
};

struct fault {
    uint64_t id;
    char call[96]; /* symbol or shell pattern */
    int32_t gpu;   /* -1: any */
    uint32_t kind;
    uint32_t code;
    uint32_t nth;   /* the first matching call that is hit, from 1 */
    uint32_t count; /* how many are hit; 0: all that follow */
    uint32_t seen;  /* matching calls so far */
    uint32_t delay_us;
    uint32_t jitter_us;
    uint32_t flags;
    uint32_t reserved;
};

struct event {
    uint64_t type; /* nvmlEventType* */
    uint64_t data; /* XID */
    uint32_t gpu;
    uint32_t gi_id; /* 0xffffffff: the whole GPU */
    uint32_t ci_id;
    uint32_t reserved;
};

/* MiB, percent, degrees Celsius, milliwatts. */
enum usage_key {
    USAGE_USED,
    USAGE_GPU,
    USAGE_MEMORY,
    USAGE_ENCODER,
    USAGE_DECODER,
    USAGE_SM,
    USAGE_OCCUPANCY,
    USAGE_TENSOR,
    USAGE_DRAM,
    USAGE_CELSIUS,
    USAGE_MILLIWATT,
    USAGE_KEYS
};

/* In usage_record.start: no levels, but what the GPU has consumed before this file, in level[0] | level[1] << 32 mJ. */
#define ENERGY_BEFORE 0xfffffffeu

struct usage_record {
    uint64_t at_us; /* since the epoch */
    uint32_t gpu;
    uint32_t start; /* memory slice at which the GPU instance starts; 0xffffffff: the whole GPU */
    uint32_t set;   /* bit k: level[k] is given, else it stays what it was */
    uint32_t level[USAGE_KEYS];
};

#endif
