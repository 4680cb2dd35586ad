/* Picks the right trace function by the type of the argument, so that the generator need not know types. */
#ifndef DYNAMIG_EMULATOR_TRACE_GENERIC_H
#define DYNAMIG_EMULATOR_TRACE_GENERIC_H

#include "emulator.h"

static inline void trace_device(struct call *c, const char *n, nvmlDevice_t v) { trace_handle(c, n, (uint64_t)(uintptr_t)v); }
static inline void trace_gi(struct call *c, const char *n, nvmlGpuInstance_t v) { trace_handle(c, n, (uint64_t)(uintptr_t)v); }
static inline void trace_ci(struct call *c, const char *n, nvmlComputeInstance_t v) { trace_handle(c, n, (uint64_t)(uintptr_t)v); }
static inline void trace_uint(struct call *c, const char *n, unsigned int v) { trace_unsigned(c, n, v); }
static inline void trace_int(struct call *c, const char *n, int v) { trace_signed(c, n, v); }
static inline void trace_ulong(struct call *c, const char *n, unsigned long v) { trace_unsigned(c, n, v); }
static inline void trace_ulonglong(struct call *c, const char *n, unsigned long long v) { trace_unsigned(c, n, v); }
static inline void trace_out_device(struct call *c, const char *n, const nvmlDevice_t *v) { trace_out_handle(c, n, v); }
static inline void trace_out_gi(struct call *c, const char *n, const nvmlGpuInstance_t *v) { trace_out_handle(c, n, v); }
static inline void trace_out_ci(struct call *c, const char *n, const nvmlComputeInstance_t *v) { trace_out_handle(c, n, v); }
static inline void trace_opaque(struct call *c, const char *n, const void *v) { (void)c; (void)n; (void)v; }

#define TRACE(call, name, value)                                                                                      \
    _Generic((value),                                                                                                 \
        nvmlDevice_t: trace_device,                                                                                   \
        nvmlGpuInstance_t: trace_gi,                                                                                  \
        nvmlComputeInstance_t: trace_ci,                                                                              \
        nvmlDevice_t *: trace_out_device,                                                                             \
        nvmlGpuInstance_t *: trace_out_gi,                                                                            \
        nvmlComputeInstance_t *: trace_out_ci,                                                                        \
        const nvmlGpuInstancePlacement_t *: trace_placement,                                                          \
        const nvmlComputeInstancePlacement_t *: trace_placement,                                                      \
        const char *: trace_text,                                                                                     \
        char *: trace_out_text,                                                                                       \
        unsigned int *: trace_out_u32,                                                                                \
        unsigned int: trace_uint,                                                                                     \
        int: trace_int,                                                                                               \
        unsigned long: trace_ulong,                                                                                   \
        unsigned long long: trace_ulonglong,                                                                          \
        default: trace_opaque)(call, name, value)

#endif
