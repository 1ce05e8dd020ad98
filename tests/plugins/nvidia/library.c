/* A libnvidia-ml.so.1 with one GPU, for testing how the real binding loads, asks and unloads one. VERSION is the driver's.
   What it does not have is, to the binding, a function that the driver is too old for. */
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10 };
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { void *device; unsigned long long kind, data; unsigned gpu_instance, compute_instance; } event;
typedef struct { unsigned id, scope; long long time, latency; int type, result; unsigned long long value; } field;

static const char *uuid = "GPU-11111111-2222-3333-4444-555555555555";
static int gpu, events;

int nvmlInitWithFlags(unsigned flags) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "some error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, VERSION, size); return OK; }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = 13010; return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &gpu; return index ? NOT_FOUND : OK; }
int nvmlDeviceGetHandleByUUID(const char *text, void **device) { *device = &gpu; return strcmp(text, uuid) ? NOT_FOUND : OK; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) { strncpy(text, uuid, size); return OK; }
int nvmlDeviceGetName(void *device, char *text, unsigned size) { strncpy(text, "NVIDIA H200", size); return OK; }
int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) { *minor = 5; return OK; }
int nvmlDeviceGetPciInfo_v3(void *device, pci *info) { memset(info, 0, sizeof *info); info->bus = 0x5d; return OK; }
int nvmlDeviceGetMemoryInfo(void *device, memory *info) { info->total = 143771ULL << 20; return OK; }
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { *major = 9; *minor = 0; return OK; }
int nvmlDeviceGetComputeMode(void *device, int *mode) { *mode = 0; return OK; }
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *then) { *now = *then = 0; return OK; }
int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *count) { *count = 3; return OK; }
int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    *corrected = *uncorrected = *pending = 1;
    *failed = 0;
    return OK;
}
int nvmlDeviceGetFieldValues(void *device, int count, field *fields)
{
    fields[0].result = OK;
    fields[0].value = 1; /* a reset is asked for */
    return OK;
}
int nvmlEventSetCreate(void **set) { *set = &events; return OK; }
int nvmlEventSetFree(void *set) { return OK; }
int nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *types) { *types = 0x8; return OK; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) { return types == 0x8 ? OK : NOT_SUPPORTED; }
int nvmlEventSetWait_v2(void *set, event *found, unsigned milliseconds)
{
    static int happened;
    if (happened++) {
        usleep(milliseconds * 1000);
        return TIMEOUT;
    }
    *found = (event){&gpu, 0x8, 79, 0xFFFFFFFF, 0xFFFFFFFF};
    return OK;
}
