/* The call log: one JSON object a line, one write a line.
 *
 *   {"t":1700000000.123456,"pid":1,"call":"nvmlDeviceGetMigMode","args":{"device":"gpu0","currentMode":1},"result":0,"us":12}
 *
 * Written if DIR/trace exists and can be written to, or to the file that DYNAMIG_EMULATOR_TRACE names (0: nowhere).
 * Arguments that are answers are shown if the call succeeded. Handles are shown by what they mean: gpu0,
 * gpu0/gi5, gpu0/gi5/ci0, and mig:gpu0/gi5/ci0 for a MIG device.
 */
#include "emulator.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void append(struct call *call, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void append(struct call *call, const char *format, ...)
{
    size_t room = sizeof call->line - call->used;
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(call->line + call->used, room, format, arguments);
    va_end(arguments);
    if (size > 0 && (size_t)size < room)
        call->used += (size_t)size; /* what does not fit is left out whole */
}

static void key(struct call *call, const char *name)
{
    append(call, "%s\"%s\":", call->used ? "," : "", name);
}

static void quoted(struct call *call, const char *text)
{
    char safe[256];
    size_t n = 0;
    for (; *text != '\0' && n < sizeof safe - 1; text++)
        if (*text >= ' ' && *text < 0x7f && *text != '"' && *text != '\\') /* whatever a client gave as a text */
            safe[n++] = *text;
    safe[n] = '\0';
    append(call, "\"%s\"", safe);
}

void trace_handle(struct call *call, const char *name, uint64_t value)
{
    struct handle h;
    char text[64];
    if (!handle_decode(value, &h))
        snprintf(text, sizeof text, "0x%llx", (unsigned long long)value);
    else if (h.kind == HANDLE_GPU)
        snprintf(text, sizeof text, "gpu%u", h.gpu);
    else if (h.kind == HANDLE_GI)
        snprintf(text, sizeof text, "gpu%u/gi%u", h.gpu, h.gi);
    else
        snprintf(text, sizeof text, "%sgpu%u/gi%u/ci%u", h.kind == HANDLE_MIG ? "mig:" : "", h.gpu, h.gi, h.ci);
    key(call, name);
    quoted(call, text);
}

void trace_text(struct call *call, const char *name, const char *value)
{
    key(call, name);
    quoted(call, value ? value : "");
}

void trace_unsigned(struct call *call, const char *name, uint64_t value)
{
    key(call, name);
    append(call, "%llu", (unsigned long long)value);
}

void trace_signed(struct call *call, const char *name, int64_t value)
{
    key(call, name);
    append(call, "%lld", (long long)value);
}

static bool answered(const struct call *call, const void *value)
{
    return value != NULL && call->result == NVML_SUCCESS;
}

void trace_out_handle(struct call *call, const char *name, const void *value)
{
    uint64_t handle;
    if (!answered(call, value) || name[strlen(name) - 1] == 's') /* an array */
        return;
    memcpy(&handle, value, sizeof handle);
    trace_handle(call, name, handle);
}

void trace_out_text(struct call *call, const char *name, const char *value)
{
    if (answered(call, value))
        trace_text(call, name, value);
}

void trace_out_u32(struct call *call, const char *name, const unsigned int *value)
{
    if (answered(call, value))
        trace_unsigned(call, name, *value);
}

void trace_placement(struct call *call, const char *name, const void *value)
{
    nvmlGpuInstancePlacement_t at;
    if (value == NULL)
        return;
    memcpy(&at, value, sizeof at);
    key(call, name);
    append(call, "{\"start\":%u,\"size\":%u}", at.start, at.size);
}

static int open_trace(void)
{
    char path[PATH_SIZE];
    const char *chosen = getenv("DYNAMIG_EMULATOR_TRACE");
    if (chosen != NULL && strcmp(chosen, "0") == 0)
        return -1;
    if (chosen != NULL && chosen[0] != '\0')
        return open(chosen, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (emulator_dir()[0] == '\0')
        return -1;
    emulator_path(path, "trace");
    return open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
}

/* The disk is full in the middle of a line. Where another process has written behind it since, the part stays, and the
 * reader skips it. */
static void take_back(int fd, ssize_t written)
{
    off_t after = lseek(fd, 0, SEEK_CUR);
    if (after >= written && lseek(fd, 0, SEEK_END) == after) {
        int cut = ftruncate(fd, after - written);
        (void)cut;
    }
}

void trace_write(struct call *call)
{
    int fd = open_trace();
    if (fd < 0)
        return;
    char line[sizeof call->line + 512];
    uint64_t t = call->started_us;
    int size = snprintf(line, sizeof line,
                        "{\"t\":%llu.%06llu,\"pid\":%d,\"call\":\"%s\",\"args\":{%.*s},\"result\":%u,\"us\":%llu}\n",
                        (unsigned long long)(t / 1000000), (unsigned long long)(t % 1000000), (int)getpid(), call->name,
                        (int)call->used, call->line, (unsigned)call->result, (unsigned long long)(steady_us() - call->begun_us));
    ssize_t written = write(fd, line, (size_t)size);
    if (written > 0 && written < size)
        take_back(fd, written);
    close(fd);
}
