/* A libnvidia-ml.so.1 with the container's share as the GPU's memory. Everything else is the driver's own library,
   which is a dependency of this one. */
#include "share.h"

#include <stddef.h>

#ifndef ROOT
#define ROOT "/usr/local/plugwright"
#endif
#define EXPORT __attribute__((visibility("default")))
enum { SUCCESS = 0, FUNCTION_NOT_FOUND = 13, UUID_SIZE = 96 };

struct memory { unsigned long long total, left, used; };                                   /* nvmlMemory_t */
struct memory_v2 { unsigned version; unsigned long long total, reserved, left, used; };    /* nvmlMemory_v2_t */

EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory);
EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory);

static void *driver(const char *function) { return share_driver(ROOT "/vgpu/driver/libnvidia-ml.so.1", function); }

static int hexadecimal(char letter)
{
    return letter <= '9' ? letter - '0' : (letter | 0x20) - 'a' + 10;
}

static int gpu_of(void *device)
{
    int (*get_uuid)(void *, char *, unsigned) = driver("nvmlDeviceGetUUID");
    int (*get_index)(void *, unsigned *) = driver("nvmlDeviceGetIndex");
    unsigned char uuid[16] = {0};
    char text[UUID_SIZE] = "";
    unsigned index = 0, digits = 0;
    if (!get_uuid || get_uuid(device, text, sizeof text))
        return -1;
    if (get_index)
        get_index(device, &index);
    for (const char *letter = text + 4; *letter && digits < 32; letter++) /* after `GPU-` or `MIG-` */
        if (*letter != '-') {
            uuid[digits / 2] = (unsigned char)(uuid[digits / 2] << 4 | hexadecimal(*letter));
            digits++;
        }
    return share_gpu(uuid, (int)index);
}

/* Sets the container's limit and use; NVML's numbers stay if they are tighter. */
static void show(void *device, unsigned long long *total, unsigned long long *left, unsigned long long *used)
{
    int gpu = gpu_of(device);
    uint64_t limit = share_limit(gpu), own = share_used(gpu), rest = limit > own ? limit - own : 0;
    if (*total <= limit)
        return;
    *total = limit;
    if (*left > rest)
        *left = rest;
    *used = limit - *left;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
    int (*real)(void *, struct memory *) = driver("nvmlDeviceGetMemoryInfo");
    int result = real ? real(device, memory) : FUNCTION_NOT_FOUND;
    if (!result)
        show(device, &memory->total, &memory->left, &memory->used);
    return result;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory)
{
    int (*real)(void *, struct memory_v2 *) = driver("nvmlDeviceGetMemoryInfo_v2");
    int result = real ? real(device, memory) : FUNCTION_NOT_FOUND;
    if (!result) {
        unsigned long long whole = memory->total;
        show(device, &memory->total, &memory->left, &memory->used);
        if (memory->total != whole)
            memory->reserved = 0; /* of the whole GPU */
    }
    return result;
}
