/* What happens around every exported symbol: initialised at all? a fault? then the work, then the log. */
#include "emulator.h"

#include <string.h>
#include <time.h>

uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

/* Since some moment: for durations, which a step of the clock must not change. */
uint64_t steady_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static bool starts_nvml(const char *name)
{
    return strncmp(name, "nvmlInit", strlen("nvmlInit")) == 0;
}

/* true: `call->result` is the answer and the work is not done. */
bool call_refused(struct call *call, uint64_t handle)
{
    struct handle decoded;
    call->started_us = now_us();
    call->begun_us = steady_us();
    call->gpu = handle_decode(handle, &decoded) ? (int)decoded.gpu : -1;
    bool starting = starts_nvml(call->name);
    if (!emulator_enter(starting)) {
        call->result = starting ? NVML_ERROR_DRIVER_NOT_LOADED : NVML_ERROR_UNINITIALIZED;
        return true;
    }
    return fault_applies(call);
}

nvmlReturn_t call_unimplemented(void)
{
    return NVML_ERROR_NOT_SUPPORTED;
}

void call_finish(struct call *call)
{
    if (call->override)
        call->result = call->code;
    trace_write(call);
    emulator_leave();
}
