/* A libcuda.so.1 to count the memory of a container's processes and refuse memory beyond their share.

   The driver's own library is a dependency of this one, so every function that is not here is found there by the loader
   itself: unknown ones, future ones, and those that launch kernels, at no cost. What is here counts, then calls the
   driver's function of the same name. cuGetProcAddress, through which the CUDA runtime asks for functions, is answered by
   the driver; where it answers with a function that is here, ours is returned instead.

   Memory is counted before the driver is asked for it, and given back after the driver has freed it. What the driver takes
   without being asked is found by NVML's count of this process, never by that of the whole GPU: a neighbour's memory is
   none of ours. */
#define _GNU_SOURCE
#include "cuda.h"
#include "image.h"
#include "share.h"
#include "table.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef ROOT
#define ROOT "/usr/local/plugwright"
#endif
#define EXPORT __attribute__((visibility("default")))
#define MIB ((uint64_t)1 << 20)
OLDEST(pthread_mutex_trylock);
OLDEST(pthread_once);
OLDEST(dlopen);
OLDEST(dlsym);
OLDEST(dladdr);

/* --- the driver's functions --- */

#define HOOKS(X) \
    X(cuInit) X(cuGetProcAddress) X(cuGetProcAddress_v2) X(cuMemGetInfo_v2) X(cuDeviceTotalMem_v2) \
    X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxRelease_v2) \
    X(cuDevicePrimaryCtxReset) X(cuDevicePrimaryCtxReset_v2) \
    X(cuCtxCreate) X(cuCtxCreate_v2) X(cuCtxCreate_v3) X(cuCtxCreate_v4) X(cuCtxDestroy) X(cuCtxDestroy_v2) \
    X(cuMemAlloc_v2) X(cuMemAllocPitch_v2) X(cuMemAllocManaged) X(cuMemFree_v2) \
    X(cuArrayCreate_v2) X(cuArray3DCreate_v2) X(cuMipmappedArrayCreate) X(cuArrayDestroy) X(cuMipmappedArrayDestroy) \
    X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemRetainAllocationHandle) \
    X(cuMemMapArrayAsync) X(cuMemMapArrayAsync_ptsz) \
    X(cuMemPoolCreate) X(cuMemPoolDestroy) X(cuMemPoolTrimTo) X(cuMemPoolImportFromShareableHandle) \
    X(cuMemAllocAsync) X(cuMemAllocAsync_ptsz) X(cuMemAllocFromPoolAsync) X(cuMemAllocFromPoolAsync_ptsz) \
    X(cuMemFreeAsync) X(cuMemFreeAsync_ptsz) \
    X(cuStreamSynchronize) X(cuStreamSynchronize_ptsz) X(cuEventSynchronize) X(cuCtxSynchronize) X(cuCtxSynchronize_v2) \
    X(cuGraphAddMemAllocNode) X(cuGraphAddNode) X(cuGraphAddNode_v2) X(cuGraphInstantiate) X(cuGraphInstantiate_v2) \
    X(cuGraphInstantiateWithFlags) X(cuGraphInstantiateWithParams) X(cuGraphInstantiateWithParams_ptsz) \
    X(cuGraphDestroy) X(cuGraphExecDestroy) X(cuGraphLaunch) X(cuGraphLaunch_ptsz) X(cuGraphUpload) X(cuGraphUpload_ptsz) \
    X(cuDeviceGraphMemTrim) X(cuCtxSetLimit) \
    X(cuModuleLoad) X(cuModuleLoadData) X(cuModuleLoadDataEx) X(cuModuleLoadFatBinary) X(cuModuleUnload) \
    X(cuModuleGetFunction) X(cuModuleEnumerateFunctions) X(cuModuleGetGlobal) X(cuModuleGetGlobal_v2) \
    X(cuLibraryGetKernel) X(cuLibraryEnumerateKernels) X(cuLibraryGetModule) X(cuLibraryGetGlobal) \
    X(cuLibraryGetManaged) X(cuLibraryUnload) X(cuLibraryLoadData) X(cuLibraryLoadFromFile) X(cuKernelGetFunction) \
    X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle) X(cuMemPoolExportToShareableHandle) \
    X(cuMemGetDefaultMemPool) X(cuMemGetMemPool) \
    X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle) X(cuIpcOpenMemHandle_v2) X(cuIpcCloseMemHandle) \
    X(cuImportExternalMemory) X(cuDestroyExternalMemory)
#define CALLED(X) \
    X(cuCtxGetDevice) X(cuCtxGetCurrent) X(cuDeviceGetUuid) X(cuDeviceGetUuid_v2) X(cuDevicePrimaryCtxGetState) \
    X(cuDeviceGetMemPool) X(cuDeviceGetDefaultMemPool) X(cuDeviceGetCount) X(cuMemPoolGetAttribute) \
    X(cuStreamIsCapturing) X(cuStreamIsCapturing_ptsz) X(cuStreamGetCaptureInfo_v2) X(cuStreamGetCaptureInfo_v2_ptsz) \
    X(cuDeviceGetGraphMemAttribute) X(cuDeviceGetAttribute) X(cuCtxGetLimit) X(cuFuncGetAttribute) \
    X(cuKernelGetAttribute) X(cuCtxPushCurrent_v2) X(cuCtxPopCurrent_v2) X(cuMemGetAddressRange_v2) X(cuMemGetAllocationPropertiesFromHandle)

int cuCtxGetDevice(int *device);
int cuCtxGetCurrent(handle *context);
int cuDeviceGetUuid(unsigned char *uuid, int device);
int cuDeviceGetUuid_v2(unsigned char *uuid, int device);
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active);
int cuDeviceGetMemPool(handle *pool, int device);
int cuDeviceGetDefaultMemPool(handle *pool, int device);
int cuDeviceGetCount(int *count);
int cuMemPoolGetAttribute(handle pool, int attribute, void *value);
int cuStreamIsCapturing(handle stream, int *status);
int cuStreamIsCapturing_ptsz(handle stream, int *status);
int cuStreamGetCaptureInfo_v2(handle stream, int *status, uint64_t *id, handle *graph, void *nodes, size_t *count);
int cuStreamGetCaptureInfo_v2_ptsz(handle stream, int *status, uint64_t *id, handle *graph, void *nodes, size_t *count);
int cuDeviceGetGraphMemAttribute(int device, int attribute, void *value);
int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuCtxGetLimit(size_t *value, int limit);
int cuFuncGetAttribute(int *value, int attribute, handle function);
int cuKernelGetAttribute(int *value, int attribute, handle kernel, int device);
int cuCtxPushCurrent_v2(handle context);
int cuCtxPopCurrent_v2(handle *context);
int cuMemGetAddressRange_v2(ptr *base, size_t *bytes, ptr pointer);
int cuMemGetAllocationPropertiesFromHandle(struct allocation *facts, handle allocation);
EXPORT int cuDeviceGraphMemTrim(int device);
EXPORT int cuDevicePrimaryCtxRetain(handle *context, int device);
EXPORT int cuDevicePrimaryCtxRelease_v2(int device);
EXPORT int cuCtxSetLimit(int limit, size_t value);
EXPORT int cuIpcCloseMemHandle(ptr pointer);
EXPORT int cuDestroyExternalMemory(handle memory);
EXPORT int cuModuleUnload(handle module);
EXPORT int cuLibraryGetModule(handle *module, handle library);
EXPORT int cuMemPoolTrimTo(handle pool, size_t bytes);
EXPORT int cuGetProcAddress(const char *name, void **found, int version, uint64_t flags);
EXPORT int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, void *status);

#define HOOK(result, name, ...) EXPORT result name(__VA_ARGS__); EXPORT result name(__VA_ARGS__)
#define EXPAND(...) __VA_ARGS__
#define NUMBER(name) AT_##name,
enum { HOOKS(NUMBER) HOOK_COUNT, FIRST_CALLED = HOOK_COUNT - 1, CALLED(NUMBER) FUNCTION_COUNT };
static void *driver[FUNCTION_COUNT];

static int missing(void) { return NOT_SUPPORTED; }

static void resolve(void);
static void *function(int number)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, resolve);
    return driver[number] ? driver[number] : (void *)missing;
}
#define REAL(name) ((__typeof__(name) *)function(AT_##name))

/* --- devices --- */

enum { DEVICES = 64, NOBODYS = -1, NO_CONTEXT = -2 };
static int device_of[GPUS];

static int gpu_of(int device)
{
    static int known[DEVICES]; /* 0: not yet asked, else the number and 2 */
    unsigned char uuid[16];
    if (device < 0 || device >= DEVICES)
        return NOBODYS;
    int gpu = __atomic_load_n(&known[device], __ATOMIC_RELAXED) - 2;
    if (gpu > -2)
        return gpu;
    /* The second version gives a MIG device its own UUID. */
    int result = REAL(cuDeviceGetUuid_v2)(uuid, device);
    if (result == NOT_SUPPORTED)
        result = REAL(cuDeviceGetUuid)(uuid, device);
    if (result) /* before cuInit, at the end of the process, or no device: the driver shall say so itself */
        return result == NOT_INITIALIZED || result == DEINITIALIZED || result == INVALID_DEVICE ? NO_CONTEXT : NOBODYS;
    gpu = share_gpu(uuid, device);
    if (gpu >= 0)
        __atomic_store_n(&device_of[gpu], device, __ATOMIC_RELAXED);
    __atomic_store_n(&known[device], gpu + 2, __ATOMIC_RELAXED);
    return gpu;
}

static int current_gpu(void)
{
    int device;
    return REAL(cuCtxGetDevice)(&device) ? NO_CONTEXT : gpu_of(device);
}

/* --- the memory of this process --- */

enum { POINTERS, ARRAYS, PAGES, HANDLES, MAPPINGS, TILES, CONTEXTS, GRAPHS, INSTANCES, CAPTURED, POOLS, IMPORTS, LIBRARIES, UNLOADED, WAITING, KINDS };
enum { SMALL = 1, UNSEEN = 2, FOREIGN = 4 }; /* flags: a part of a page; not in NVML's count; of another process */
static struct table tables[KINDS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, pool_mutex = PTHREAD_MUTEX_INITIALIZER; /* of POOLS */

static pthread_mutex_t *guard(int kind) { return kind == POOLS ? &pool_mutex : &mutex; }
static int reclaim(void);

static int is_exceeded(int gpu, uint64_t pending);
static void look(void);
static int recount(int gpu, uint64_t pending);
static void give(int gpu, uint64_t bytes) { share_correct(gpu, -(int64_t)bytes); }

/* Allocations and releases in progress: NVML's count and ours differ for a moment. */
static int changing;
static uint64_t generation;
static __thread int depth;

#define CHANGING(call) \
    ({ \
        depth++; \
        __atomic_add_fetch(&changing, 1, __ATOMIC_SEQ_CST); \
        __typeof__(call) changed_ = (call); \
        __atomic_add_fetch(&generation, 1, __ATOMIC_SEQ_CST); \
        __atomic_sub_fetch(&changing, 1, __ATOMIC_SEQ_CST); \
        depth--; \
        changed_; \
    })

static uint64_t unseen[GPUS]; /* counted, but not in NVML's count of this process: managed memory */

static int take(int gpu, uint64_t bytes)
{
    if (gpu == NO_CONTEXT)
        return 1;
    look();
    if (!share_take(gpu, bytes) && !(reclaim() && share_take(gpu, bytes)) &&
        !(recount(gpu, 0) < 0 && share_take(gpu, bytes))) { /* the driver has released memory of its own */
        share_refused(gpu);
        return 0;
    }
    if (!is_exceeded(gpu, bytes))
        return 1;
    give(gpu, bytes);
    share_refused(gpu);
    return 0;
}

static void remember(int kind, uint64_t key, struct entry facts)
{
    pthread_mutex_lock(&mutex);
    struct entry *entry = table_put(&tables[kind], key);
    if (entry) {
        facts.key = key;
        *entry = facts;
    }
    pthread_mutex_unlock(&mutex);
}

/* The entry is taken out before the driver frees: another thread may get the same address at once. */
static struct entry forget(int kind, uint64_t key)
{
    struct entry facts = {.gpu = NOBODYS};
    pthread_mutex_lock(&mutex);
    struct entry *entry = table_find(&tables[kind], key);
    if (entry) {
        facts = *entry;
        table_remove(entry);
    }
    pthread_mutex_unlock(&mutex);
    return facts;
}

static void given_back(struct entry facts, uint64_t key);

static int freed(int result, int kind, uint64_t key, struct entry facts)
{
    if (!facts.key)
        return result;
    if (result)
        remember(kind, key, facts);
    else
        given_back(facts, key);
    return result;
}

/* The driver's pages: pieces larger than half a page have whole pages, smaller pieces share a page. */
static const uint64_t PAGE = 2 * MIB;

static uint64_t rounded(uint64_t bytes)
{
    return bytes > UINT64_MAX - PAGE ? bytes : (bytes + PAGE - 1) / PAGE * PAGE;
}

/* Of arrays, whose place in a page is not known: as if every page had pieces of this size alone. */
static uint64_t rounded_array(uint64_t bytes)
{
    return bytes > MIB || !bytes ? rounded(bytes) : PAGE / (PAGE / ((bytes + 511) / 512 * 512));
}

/* A small piece is where the driver has put it: its page counts until its last piece is free. */
static void put_on_page(ptr pointer, struct entry facts)
{
    pthread_mutex_lock(&mutex);
    struct entry *page = table_put(&tables[PAGES], pointer / PAGE);
    int shared = page && page->references;
    if (page) {
        page->gpu = facts.gpu;
        page->references++;
    }
    pthread_mutex_unlock(&mutex);
    if (!shared)
        return;
    give(facts.gpu, PAGE);
    if (facts.flags & UNSEEN)
        __atomic_sub_fetch(&unseen[facts.gpu], PAGE, __ATOMIC_RELAXED);
}

static int leaves_page(ptr pointer)
{
    pthread_mutex_lock(&mutex);
    struct entry *page = table_find(&tables[PAGES], pointer / PAGE);
    int last = page && !--page->references;
    if (last)
        table_remove(page);
    pthread_mutex_unlock(&mutex);
    return last;
}

static void given_back(struct entry facts, uint64_t key)
{
    uint64_t bytes = facts.flags & SMALL ? leaves_page(key) ? PAGE : 0 : facts.bytes;
    if (facts.record)
        share_leave(facts.record - 1);
    if (facts.gpu >= 0 && facts.flags & UNSEEN)
        __atomic_sub_fetch(&unseen[facts.gpu], bytes, __ATOMIC_RELAXED);
    give(facts.gpu, bytes);
}

static void counted(int kind, uint64_t key, struct entry facts)
{
    REAL(cuCtxGetCurrent)(&facts.context);
    if (facts.flags & UNSEEN)
        __atomic_add_fetch(&unseen[facts.gpu], facts.bytes, __ATOMIC_RELAXED);
    if (facts.flags & SMALL)
        put_on_page(key, facts);
    remember(kind, key, facts);
}

/* Counts an allocation before the driver makes it; `call` sets `where`. */
#define COUNTED(kind, size, more, where, call) \
    CHANGING(({ \
        int gpu_ = current_gpu(), result_ = OUT_OF_MEMORY; \
        uint64_t bytes_ = (size); \
        if (take(gpu_, bytes_)) { \
            result_ = (call); \
            if (result_) \
                give(gpu_, bytes_); \
            else if (gpu_ >= 0) \
                counted(kind, *(where), (struct entry){.bytes = bytes_, .gpu = gpu_, .flags = (more)}); \
        } \
        result_; \
    }))

static unsigned small(uint64_t bytes) { return bytes <= MIB ? SMALL : 0; }

HOOK(int, cuMemAlloc_v2, ptr *pointer, size_t bytes)
{
    return COUNTED(POINTERS, rounded(bytes), small(bytes), pointer, REAL(cuMemAlloc_v2)(pointer, bytes));
}

HOOK(int, cuMemAllocPitch_v2, ptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    uint64_t bytes;
    if (width > UINT64_MAX / 2 || __builtin_mul_overflow((width + 511) & ~(size_t)511, height, &bytes))
        return OUT_OF_MEMORY;
    return COUNTED(POINTERS, rounded(bytes), small(bytes), pointer,
                   REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element));
}

HOOK(int, cuMemAllocManaged, ptr *pointer, size_t bytes, unsigned flags)
{
    return COUNTED(POINTERS, rounded(bytes), small(bytes) | UNSEEN, pointer, REAL(cuMemAllocManaged)(pointer, bytes, flags));
}

static void settle_pools(void);

HOOK(int, cuMemFree_v2, ptr pointer)
{
    struct entry facts = forget(POINTERS, pointer);
    int result = CHANGING(freed(REAL(cuMemFree_v2)(pointer), POINTERS, pointer, facts));
    if (!facts.key)
        settle_pools(); /* memory of a pool may be freed so, too */
    return result;
}

/* --- arrays --- */

/* The driver lays arrays out in blocks: up to 512 bytes wide, 128 rows high and 32 planes deep, less for smaller arrays. */
static uint64_t in_blocks(uint64_t length, uint64_t largest)
{
    uint64_t block = 1;
    while (block < length && block < largest)
        block *= 2;
    return length > UINT64_MAX - block ? length : (length + block - 1) / block * block;
}

static uint64_t array_bytes(const struct array3d *array, unsigned levels)
{
    static const unsigned char sizes[] = {[1] = 1, [2] = 2, [3] = 4, [8] = 1, [9] = 2, [10] = 4, [16] = 2, [32] = 4};
    uint64_t texel = array->format < sizeof sizes ? sizes[array->format] : 0, total = 0, plane, volume;
    texel = texel ? texel * array->channels : 16; /* no format has more */
    uint64_t width = array->width, height = array->height ? array->height : 1, depth = array->depth ? array->depth : 1;
    if (array->flags & (SPARSE | DEFERRED))
        return 0;
    for (unsigned level = 0; level < (levels ? levels : 1); level++) {
        uint64_t planes = array->flags & 1 ? depth : in_blocks(depth, 32);
        if (__builtin_mul_overflow(in_blocks(width * texel, 512), in_blocks(height, 128), &plane) ||
            __builtin_mul_overflow(plane, planes, &volume))
            return UINT64_MAX / 2;
        total += volume;
        width = width > 1 ? width / 2 : 1;
        height = height > 1 ? height / 2 : 1;
        depth = depth > 1 && !(array->flags & 1) ? depth / 2 : depth; /* layers do not shrink */
    }
    return rounded_array(total);
}

HOOK(int, cuArrayCreate_v2, handle *array, const struct array *facts)
{
    struct array3d flat = {facts->width, facts->height, 0, facts->format, facts->channels, 0};
    return COUNTED(ARRAYS, array_bytes(&flat, 1), 0, array, REAL(cuArrayCreate_v2)(array, facts));
}

HOOK(int, cuArray3DCreate_v2, handle *array, const struct array3d *facts)
{
    return COUNTED(ARRAYS, array_bytes(facts, 1), 0, array, REAL(cuArray3DCreate_v2)(array, facts));
}

HOOK(int, cuMipmappedArrayCreate, handle *array, const struct array3d *facts, unsigned levels)
{
    return COUNTED(ARRAYS, array_bytes(facts, levels), 0, array, REAL(cuMipmappedArrayCreate)(array, facts, levels));
}

static void unmap_tiles(handle array);

static int destroyed(int result, handle array, struct entry facts)
{
    if (!result)
        unmap_tiles(array);
    return freed(result, ARRAYS, array, facts);
}

HOOK(int, cuArrayDestroy, handle array)
{
    struct entry facts = forget(ARRAYS, array);
    return CHANGING(destroyed(REAL(cuArrayDestroy)(array), array, facts));
}

HOOK(int, cuMipmappedArrayDestroy, handle array)
{
    struct entry facts = forget(ARRAYS, array);
    return CHANGING(destroyed(REAL(cuMipmappedArrayDestroy)(array), array, facts));
}

/* --- physical memory mapped by the program: it lives until its handle and mappings are released --- */

static uint64_t imported[GPUS]; /* other processes' memory held by this process: in NVML's count once they have released it */

static void refer(handle allocation, int change)
{
    struct entry facts = {.gpu = NOBODYS};
    pthread_mutex_lock(&mutex);
    struct entry *entry = table_find(&tables[HANDLES], allocation);
    if (entry && !(entry->references += change)) {
        facts = *entry;
        table_remove(entry);
    }
    pthread_mutex_unlock(&mutex);
    if (facts.gpu >= 0 && facts.flags & FOREIGN && facts.record)
        __atomic_sub_fetch(&imported[facts.gpu], share_recorded(facts.record - 1), __ATOMIC_RELAXED);
    given_back(facts, allocation);
}

HOOK(int, cuMemCreate, handle *allocation, size_t bytes, const struct allocation *facts, unsigned long long flags)
{
    int gpu = facts && facts->location.type == DEVICE ? gpu_of(facts->location.id) : NO_CONTEXT;
    return CHANGING(({
        int result = take(gpu, bytes) ? REAL(cuMemCreate)(allocation, bytes, facts, flags) : -1;
        if (result > 0)
            give(gpu, bytes);
        else if (!result && gpu >= 0)
            remember(HANDLES, *allocation, (struct entry){.bytes = bytes, .gpu = gpu, .references = 1});
        result < 0 ? OUT_OF_MEMORY : result;
    }));
}

HOOK(int, cuMemRelease, handle allocation)
{
    return CHANGING(({
        int result = REAL(cuMemRelease)(allocation);
        if (!result)
            refer(allocation, -1);
        result;
    }));
}

/* Counts memory of another container, whose size shows when it is mapped; 0 if it does not fit. */
static int count_mapping(handle allocation, uint64_t bytes)
{
    pthread_mutex_lock(&mutex);
    struct entry *entry = table_find(&tables[HANDLES], allocation);
    struct entry facts = entry ? *entry : (struct entry){.gpu = NOBODYS};
    pthread_mutex_unlock(&mutex);
    if (!(facts.flags & FOREIGN) || facts.record || facts.gpu < 0 || bytes <= facts.bytes)
        return 1;
    if (!take(facts.gpu, bytes - facts.bytes))
        return 0;
    pthread_mutex_lock(&mutex);
    entry = table_find(&tables[HANDLES], allocation);
    if (entry)
        entry->bytes = bytes;
    pthread_mutex_unlock(&mutex);
    return 1;
}

HOOK(int, cuMemMap, ptr pointer, size_t bytes, size_t offset, handle allocation, unsigned long long flags)
{
    if (!count_mapping(allocation, offset + bytes))
        return OUT_OF_MEMORY;
    int result = REAL(cuMemMap)(pointer, bytes, offset, allocation, flags);
    if (!result) {
        refer(allocation, 1);
        remember(MAPPINGS, pointer, (struct entry){.bytes = bytes, .context = allocation});
    }
    return result;
}

HOOK(int, cuMemUnmap, ptr pointer, size_t bytes)
{
    return CHANGING(({
        int result = REAL(cuMemUnmap)(pointer, bytes);
        for (ptr end = pointer + bytes; !result && pointer < end;) { /* several mappings, one after the other */
            struct entry mapping = forget(MAPPINGS, pointer);
            if (!mapping.key)
                break;
            refer(mapping.context, -1);
            pointer += mapping.bytes;
        }
        result;
    }));
}

/* Tiles of sparse arrays keep their allocation, too, until they are unmapped or their array is destroyed. An entry has the
   array as its context, and the allocation in place of bytes. */
static uint64_t tile_key(const struct tile *tile)
{
    uint64_t tail[] = {tile->part.tail.layer, tile->part.tail.offset, tile->part.tail.size};
    uint64_t key = tile->array ^ (uint64_t)tile->part_type << 56;
    for (int number = 0; number < (tile->part_type == TAIL ? 3 : 8); number++)
        key = (key ^ (tile->part_type == TAIL ? tail[number] : tile->part.level[number])) * 0x100000001B3u;
    return key | 2; /* 0 and 1 are no keys */
}

static void unmap_tile(uint64_t key)
{
    struct entry known = forget(TILES, key);
    if (known.key)
        refer(known.bytes, -1);
}

static void unmap_tiles(handle array)
{
    for (uint64_t index = 0, size = 1; index < size; index++) {
        pthread_mutex_lock(&mutex);
        size = tables[TILES].size;
        const struct entry *entry = index < size ? &tables[TILES].entries[index] : NULL;
        uint64_t key = entry && entry->context == array ? entry->key : 0;
        pthread_mutex_unlock(&mutex);
        unmap_tile(key);
    }
}

/* Before the driver maps: another thread may release the allocation at once. */
static void refer_all(const struct tile *tiles, unsigned count, int change)
{
    for (unsigned number = 0; tiles && number < count; number++)
        if (tiles[number].operation == MAP_TILE)
            refer(tiles[number].allocation, change);
}

static int mapped_tiles(int result, const struct tile *tiles, unsigned count)
{
    if (result)
        refer_all(tiles, count, -1);
    for (unsigned number = 0; number < count && !result; number++) {
        const struct tile *tile = &tiles[number];
        uint64_t key = tile_key(tile);
        unmap_tile(key);
        if (tile->operation == MAP_TILE)
            remember(TILES, key, (struct entry){.bytes = tile->allocation, .context = tile->array});
    }
    return result;
}

HOOK(int, cuMemMapArrayAsync, struct tile *tiles, unsigned count, handle stream)
{
    refer_all(tiles, count, 1);
    return CHANGING(mapped_tiles(REAL(cuMemMapArrayAsync)(tiles, count, stream), tiles, count));
}

HOOK(int, cuMemMapArrayAsync_ptsz, struct tile *tiles, unsigned count, handle stream)
{
    refer_all(tiles, count, 1);
    return CHANGING(mapped_tiles(REAL(cuMemMapArrayAsync_ptsz)(tiles, count, stream), tiles, count));
}

HOOK(int, cuMemRetainAllocationHandle, handle *allocation, void *pointer)
{
    int result = REAL(cuMemRetainAllocationHandle)(allocation, pointer);
    if (!result)
        refer(*allocation, 1);
    return result;
}

/* --- memory possibly held by other processes --- */

static const char UNWATCHED[] = "cannot be exported: nothing would count it once this process has ended";

/* The record of an allocation of ours, new or known; -1 if there is no room for one. `bytes` of those that are not ours. */
static int record_of(int kind, uint64_t key, uint64_t id)
{
    pthread_mutex_lock(guard(kind));
    struct entry *entry = table_find(&tables[kind], key);
    int number = entry && entry->record ? entry->record - 1 : -1;
    struct entry facts = entry ? *entry : (struct entry){.gpu = NOBODYS};
    pthread_mutex_unlock(guard(kind));
    if (number >= 0 || facts.gpu < 0)
        return number;
    number = share_record(facts.gpu, id, facts.bytes);
    pthread_mutex_lock(guard(kind));
    entry = table_find(&tables[kind], key);
    if (entry && number >= 0)
        entry->record = number + 1;
    pthread_mutex_unlock(guard(kind));
    return number;
}

static int is_counted(int kind, uint64_t key)
{
    pthread_mutex_lock(guard(kind));
    struct entry *entry = table_find(&tables[kind], key);
    int found = entry && entry->gpu >= 0;
    pthread_mutex_unlock(guard(kind));
    return found;
}

/* Only descriptors can be followed: an allocation exported otherwise may outlive everything we see. */
static int exported(int result, int kind, uint64_t key, void *shared, int type)
{
    if (result || !is_counted(kind, key))
        return result;
    int record = type == DESCRIPTOR ? record_of(kind, key, 0) : -1;
    if (record >= 0 && share_watch(record, *(int *)shared))
        return result;
    if (type == DESCRIPTOR)
        close(*(int *)shared);
    share_say("memory of a GPU", UNWATCHED);
    return NOT_SUPPORTED;
}

HOOK(int, cuMemExportToShareableHandle, void *shared, handle allocation, int type, unsigned long long flags)
{
    return exported(REAL(cuMemExportToShareableHandle)(shared, allocation, type, flags), HANDLES, allocation, shared, type);
}

HOOK(int, cuMemImportFromShareableHandle, handle *allocation, void *shared, int type)
{
    union { struct allocation begin; char whole[128]; } facts = {{0}};
    int record = type == DESCRIPTOR ? share_join(0, (int)(intptr_t)shared) : -1;
    int result = REAL(cuMemImportFromShareableHandle)(allocation, shared, type);
    if (result) {
        share_leave(record);
        return result;
    }
    int known = REAL(cuMemGetAllocationPropertiesFromHandle)(&facts.begin, *allocation);
    struct location where = facts.begin.location;
    int gpu = known || where.type != DEVICE ? current_gpu() : gpu_of(where.id);
    if (gpu < 0)
        return result;
    if (record >= 0)
        __atomic_add_fetch(&imported[gpu], share_recorded(record), __ATOMIC_RELAXED);
    remember(HANDLES, *allocation, (struct entry){.gpu = gpu, .references = 1, .record = record + 1, .flags = FOREIGN});
    return result;
}

static uint64_t checksum(const struct ipc *memory)
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (unsigned index = 0; index < sizeof memory->bytes; index++)
        hash = (hash ^ (unsigned char)memory->bytes[index]) * 0x100000001B3u;
    return hash | 2;
}

HOOK(int, cuIpcGetMemHandle, struct ipc *memory, ptr pointer)
{
    ptr base = pointer;
    size_t bytes;
    int result = REAL(cuIpcGetMemHandle)(memory, pointer);
    REAL(cuMemGetAddressRange_v2)(&base, &bytes, pointer);
    if (result || !is_counted(POINTERS, base) || record_of(POINTERS, base, checksum(memory)) >= 0)
        return result;
    share_say("memory of a GPU", UNWATCHED);
    return NOT_SUPPORTED;
}

/* Opened memory is its owner's, and counts here if the owner is in another container. */
static int opened(int result, const ptr *pointer, const struct ipc *memory)
{
    ptr base;
    size_t bytes = 0;
    int gpu = current_gpu();
    if (result || gpu < 0)
        return result;
    pthread_mutex_lock(&mutex);
    struct entry *entry = table_find(&tables[IMPORTS], *pointer);
    if (entry)
        entry->references++;
    pthread_mutex_unlock(&mutex);
    if (entry)
        return result;
    REAL(cuMemGetAddressRange_v2)(&base, &bytes, *pointer);
    int record = share_join(checksum(memory), -1);
    struct entry facts = {.gpu = gpu, .references = 1, .record = record + 1, .bytes = record < 0 ? rounded(bytes) : 0};
    if (!take(gpu, facts.bytes)) {
        REAL(cuIpcCloseMemHandle)(*pointer);
        return OUT_OF_MEMORY;
    }
    __atomic_add_fetch(&imported[gpu], record < 0 ? 0 : share_recorded(record), __ATOMIC_RELAXED);
    remember(IMPORTS, *pointer, facts);
    return result;
}

HOOK(int, cuIpcOpenMemHandle_v2, ptr *pointer, struct ipc memory, unsigned flags)
{
    return opened(REAL(cuIpcOpenMemHandle_v2)(pointer, memory, flags), pointer, &memory);
}

HOOK(int, cuIpcOpenMemHandle, ptr *pointer, struct ipc memory, unsigned flags)
{
    return opened(REAL(cuIpcOpenMemHandle)(pointer, memory, flags), pointer, &memory);
}

HOOK(int, cuIpcCloseMemHandle, ptr pointer)
{
    struct entry facts = forget(IMPORTS, pointer);
    int result = REAL(cuIpcCloseMemHandle)(pointer);
    if (!facts.key)
        return result;
    if (result || --facts.references) {
        remember(IMPORTS, pointer, facts);
        return result;
    }
    if (facts.record)
        __atomic_sub_fetch(&imported[facts.gpu], share_recorded(facts.record - 1), __ATOMIC_RELAXED);
    given_back(facts, pointer);
    return result;
}

HOOK(int, cuImportExternalMemory, handle *memory, const struct external *facts)
{
    return COUNTED(IMPORTS, rounded(facts->size), UNSEEN, memory, REAL(cuImportExternalMemory)(memory, facts));
}

HOOK(int, cuDestroyExternalMemory, handle memory)
{
    struct entry facts = forget(IMPORTS, memory);
    return CHANGING(freed(REAL(cuDestroyExternalMemory)(memory), IMPORTS, memory, facts));
}

/* --- pools: their reserved memory counts, in use or not --- */

static const uint64_t POOL_STEP = 32 * MIB; /* by which the driver enlarges a pool */
static int pools_changed; /* memory went back to a pool, which releases it when its stream has come so far */

static uint64_t pool_attribute(handle pool, int attribute)
{
    uint64_t bytes = 0;
    return REAL(cuMemPoolGetAttribute)(pool, attribute, &bytes) ? 0 : bytes;
}

/* An unknown pool is assumed to be the current GPU's. */
static struct entry *find_pool(handle pool)
{
    struct entry *entry = table_find(&tables[POOLS], pool);
    if (entry)
        return entry;
    int gpu = current_gpu(), count = 0;
    handle other;
    REAL(cuDeviceGetCount)(&count);
    for (int device = 0; device < count; device++)
        if (!REAL(cuDeviceGetDefaultMemPool)(&other, device) && other == pool)
            gpu = gpu_of(device);
    entry = table_put(&tables[POOLS], pool);
    if (entry)
        *entry = (struct entry){.key = pool, .gpu = gpu};
    return entry;
}

static void settle_pool(struct entry *pool, uint64_t counted)
{
    uint64_t reserved = pool->gpu >= 0 ? pool_attribute(pool->key, POOL_RESERVED) : 0;
    if (pool->gpu >= 0 && pool->flags & UNSEEN)
        __atomic_add_fetch(&unseen[pool->gpu], reserved - pool->bytes, __ATOMIC_RELAXED);
    if (pool->record)
        share_resize(pool->record - 1, reserved);
    share_correct(pool->gpu, (int64_t)(reserved - counted));
    pool->bytes = reserved;
}

static void settle_all(void)
{
    for (uint64_t index = 0; index < tables[POOLS].size; index++)
        if (tables[POOLS].entries[index].key > 1)
            settle_pool(&tables[POOLS].entries[index], tables[POOLS].entries[index].bytes);
}

static void settle_pools(void)
{
    pthread_mutex_lock(&pool_mutex);
    __atomic_store_n(&pools_changed, 0, __ATOMIC_RELAXED);
    settle_all();
    pthread_mutex_unlock(&pool_mutex);
}

/* Unused memory of this process's pools, as the driver itself would give it back before it refuses. */
static void trim_all(void)
{
    for (uint64_t index = 0; index < tables[POOLS].size; index++)
        if (tables[POOLS].entries[index].key > 1 && tables[POOLS].entries[index].bytes)
            REAL(cuMemPoolTrimTo)(tables[POOLS].entries[index].key, 0);
    settle_all();
}

static int reclaim_graphs(void);

static int reclaim(void)
{
    int any = reclaim_graphs();
    if (pthread_mutex_trylock(&pool_mutex))
        return any; /* another thread, or this thread, is doing it */
    if (tables[POOLS].filled)
        trim_all();
    any |= tables[POOLS].filled > 0;
    pthread_mutex_unlock(&pool_mutex);
    return any;
}

struct async { /* the functions for one kind of default stream */
    __typeof__(cuStreamIsCapturing) *is_capturing;
    __typeof__(cuStreamGetCaptureInfo_v2) *capture_info;
    int (*synchronize)(handle stream);
    int (*free)(ptr pointer, handle stream);
};

static uint64_t growth(const struct entry *pool, uint64_t bytes)
{
    if (pool->gpu < 0 || bytes <= pool->bytes - pool_attribute(pool->key, POOL_USED))
        return 0;
    return bytes > UINT64_MAX / 2 ? bytes : (bytes + POOL_STEP - 1) / POOL_STEP * POOL_STEP;
}

/* With the pool's growth counted if it fits; `*counted` is then the pool's count. */
static int make_room(struct entry *pool, uint64_t bytes, uint64_t *counted, handle stream, const struct async *calls)
{
    for (int attempt = 0; attempt < 2; attempt++) {
        settle_pool(pool, pool->bytes);
        uint64_t more = growth(pool, bytes);
        *counted = pool->bytes + more;
        if (!more || share_take(pool->gpu, more))
            return 1;
        if (!attempt) {
            calls->synchronize(stream); /* it may still have to free memory */
            trim_all();
        }
    }
    return 0;
}

static void captured_alloc(handle graph, handle stream, ptr pointer, uint64_t bytes);
static void captured_free(ptr pointer);

#define FROM_POOL(where, pool, size, stream, calls, call) \
    CHANGING(({ \
        int result_ = OUT_OF_MEMORY, capturing_ = 0; \
        uint64_t counted_; \
        if (!(calls)->is_capturing(stream, &capturing_) && capturing_) { \
            handle graph_ = 0; \
            (calls)->capture_info(stream, &capturing_, NULL, &graph_, NULL, NULL); \
            if (!(result_ = (call))) \
                captured_alloc(graph_, stream, *(where), size); \
        } else { \
            pthread_mutex_lock(&pool_mutex); \
            struct entry *entry_ = find_pool(pool); \
            if (entry_ && make_room(entry_, size, &counted_, stream, calls)) { \
                result_ = (call); \
                settle_pool(entry_, counted_); \
                if (!result_ && entry_->gpu >= 0 && is_exceeded(entry_->gpu, 0)) { \
                    (calls)->free(*(where), stream); /* the pool grew by more than was asked for */ \
                    (calls)->synchronize(stream); \
                    trim_all(); \
                    result_ = OUT_OF_MEMORY; \
                } \
            } \
            pthread_mutex_unlock(&pool_mutex); \
        } \
        result_; \
    }))

static handle current_pool(void)
{
    int device;
    handle pool = 0;
    if (!REAL(cuCtxGetDevice)(&device))
        REAL(cuDeviceGetMemPool)(&pool, device);
    return pool;
}

#define ASYNC(suffix) \
    HOOK(int, cuMemFreeAsync##suffix, ptr pointer, handle stream) \
    { \
        struct entry facts = forget(POINTERS, pointer); /* any memory may be freed so */ \
        captured_free(pointer); \
        int result = CHANGING(freed(REAL(cuMemFreeAsync##suffix)(pointer, stream), POINTERS, pointer, facts)); \
        __atomic_store_n(&pools_changed, 1, __ATOMIC_RELAXED); \
        return result; \
    } \
    HOOK(int, cuStreamSynchronize##suffix, handle stream) \
    { \
        int result = REAL(cuStreamSynchronize##suffix)(stream); \
        look(); \
        if (__atomic_load_n(&pools_changed, __ATOMIC_RELAXED)) \
            settle_pools(); \
        return result; \
    } \
    static struct async async##suffix(void) \
    { \
        return (struct async){REAL(cuStreamIsCapturing##suffix), REAL(cuStreamGetCaptureInfo_v2##suffix), \
                              REAL(cuStreamSynchronize##suffix), REAL(cuMemFreeAsync##suffix)}; \
    } \
    HOOK(int, cuMemAllocAsync##suffix, ptr *pointer, size_t bytes, handle stream) \
    { \
        struct async calls = async##suffix(); \
        handle pool = current_pool(); \
        if (!pool) \
            return REAL(cuMemAllocAsync##suffix)(pointer, bytes, stream); /* no context, or a driver without pools */ \
        return FROM_POOL(pointer, pool, bytes, stream, &calls, REAL(cuMemAllocAsync##suffix)(pointer, bytes, stream)); \
    } \
    HOOK(int, cuMemAllocFromPoolAsync##suffix, ptr *pointer, size_t bytes, handle pool, handle stream) \
    { \
        struct async calls = async##suffix(); \
        return FROM_POOL(pointer, pool, bytes, stream, &calls, \
                         REAL(cuMemAllocFromPoolAsync##suffix)(pointer, bytes, pool, stream)); \
    }
ASYNC()
ASYNC(_ptsz)

HOOK(int, cuEventSynchronize, handle event)
{
    int result = REAL(cuEventSynchronize)(event);
    look();
    if (__atomic_load_n(&pools_changed, __ATOMIC_RELAXED))
        settle_pools();
    return result;
}

HOOK(int, cuCtxSynchronize, void)
{
    int result = REAL(cuCtxSynchronize)();
    look();
    if (__atomic_load_n(&pools_changed, __ATOMIC_RELAXED))
        settle_pools();
    return result;
}

HOOK(int, cuCtxSynchronize_v2, handle context)
{
    int result = REAL(cuCtxSynchronize_v2)(context);
    look();
    if (__atomic_load_n(&pools_changed, __ATOMIC_RELAXED))
        settle_pools();
    return result;
}

static void add_pool(handle pool, struct entry facts)
{
    pthread_mutex_lock(&pool_mutex);
    struct entry *entry = table_find(&tables[POOLS], pool);
    if (!entry && (entry = table_put(&tables[POOLS], pool))) {
        facts.key = pool;
        *entry = facts;
    }
    pthread_mutex_unlock(&pool_mutex);
}

/* Managed memory counts for its device, or for the current device, wherever it is. */
static struct entry pool_facts(int type, const struct location *location)
{
    int gpu = location->type == DEVICE ? gpu_of(location->id) : type == MANAGED ? current_gpu() : NO_CONTEXT;
    return (struct entry){.gpu = gpu, .flags = type == MANAGED ? UNSEEN : 0};
}

HOOK(int, cuMemGetDefaultMemPool, handle *pool, struct location *location, int type)
{
    int result = REAL(cuMemGetDefaultMemPool)(pool, location, type);
    if (!result)
        add_pool(*pool, pool_facts(type, location));
    return result;
}

HOOK(int, cuMemGetMemPool, handle *pool, struct location *location, int type)
{
    int result = REAL(cuMemGetMemPool)(pool, location, type);
    if (!result)
        add_pool(*pool, pool_facts(type, location));
    return result;
}

HOOK(int, cuMemPoolExportToShareableHandle, void *shared, handle pool, int type, unsigned long long flags)
{
    settle_pools();
    return exported(REAL(cuMemPoolExportToShareableHandle)(shared, pool, type, flags), POOLS, pool, shared, type);
}

HOOK(int, cuMemPoolCreate, handle *pool, const struct pool_properties *facts)
{
    int result = REAL(cuMemPoolCreate)(pool, facts);
    if (!result)
        add_pool(*pool, pool_facts(facts->type, &facts->location));
    return result;
}

HOOK(int, cuMemPoolImportFromShareableHandle, handle *pool, void *shared, int type, unsigned long long flags)
{
    int record = type == DESCRIPTOR ? share_join(0, (int)(intptr_t)shared) : -1;
    int result = REAL(cuMemPoolImportFromShareableHandle)(pool, shared, type, flags);
    if (result)
        share_leave(record);
    else /* counted where it comes from, also when that has ended */
        add_pool(*pool, (struct entry){.gpu = NO_CONTEXT, .record = record + 1});
    return result;
}

HOOK(int, cuMemPoolDestroy, handle pool)
{
    int result = REAL(cuMemPoolDestroy)(pool);
    pthread_mutex_lock(&pool_mutex);
    struct entry *entry = result ? NULL : table_find(&tables[POOLS], pool);
    if (entry) {
        given_back(*entry, 0);
        table_remove(entry);
    }
    pthread_mutex_unlock(&pool_mutex);
    return result;
}

HOOK(int, cuMemPoolTrimTo, handle pool, size_t bytes)
{
    int result = REAL(cuMemPoolTrimTo)(pool, bytes);
    settle_pools();
    return result;
}

/* --- memory nodes of graphs: the driver takes their memory at the first launch, and keeps it for the next ones.
   GRAPHS and INSTANCES have what a launch needs at most, for each GPU; CAPTURED what each stream has allocated --- */

static uint64_t graph_counted[GPUS];
static int unlaunched; /* instances whose memory the driver has yet to allocate: without them a launch costs nothing */
static pthread_mutex_t graph_mutex = PTHREAD_MUTEX_INITIALIZER;

/* With `graph_mutex`: counts the driver's present memory for graphs; `taken` is already counted. */
static void settle_graphs(int gpu, uint64_t taken)
{
    uint64_t reserved = graph_counted[gpu];
    REAL(cuDeviceGetGraphMemAttribute)(device_of[gpu], GRAPH_RESERVED, &reserved);
    share_correct(gpu, (int64_t)(reserved - graph_counted[gpu] - taken));
    graph_counted[gpu] = reserved;
}

/* With `graph_mutex`: returns memory unused by running graphs; every instance allocates its memory again. */
static void trim_graphs(int gpu)
{
    REAL(cuDeviceGraphMemTrim)(device_of[gpu]);
    settle_graphs(gpu, 0);
    pthread_mutex_lock(&mutex);
    for (uint64_t index = 0; index < tables[INSTANCES].size; index++) {
        struct entry *entry = &tables[INSTANCES].entries[index];
        if (entry->key > 1 && entry->references) {
            entry->references = 0;
            __atomic_add_fetch(&unlaunched, 1, __ATOMIC_RELAXED);
        }
    }
    pthread_mutex_unlock(&mutex);
}

static int reclaim_graphs(void)
{
    int any = 0;
    if (pthread_mutex_trylock(&graph_mutex))
        return 0;
    for (int gpu = 0; gpu < GPUS; gpu++)
        if (graph_counted[gpu]) {
            trim_graphs(gpu);
            any = 1;
        }
    pthread_mutex_unlock(&graph_mutex);
    return any;
}

static void graph_needs(handle graph, int gpu, uint64_t bytes)
{
    if (gpu < 0)
        return;
    pthread_mutex_lock(&mutex);
    struct entry *entry = table_put(&tables[GRAPHS], graph + (unsigned)gpu);
    if (entry) {
        entry->bytes += bytes;
        entry->gpu = gpu;
    }
    pthread_mutex_unlock(&mutex);
}

/* Successive allocations and releases of one captured stream share memory: the peak counts. */
static void captured_alloc(handle graph, handle stream, ptr pointer, uint64_t bytes)
{
    handle branch = graph * 31 + stream * 0x9E3779B97F4A7C15u;
    uint64_t more = 0;
    pthread_mutex_lock(&mutex);
    struct entry *entry = table_put(&tables[CAPTURED], branch);
    if (entry) { /* context: what is allocated now; bytes: at most */
        entry->context += rounded(bytes);
        more = entry->context > entry->bytes ? entry->context - entry->bytes : 0;
        entry->bytes += more;
    }
    entry = table_put(&tables[CAPTURED], pointer);
    if (entry)
        entry->bytes = rounded(bytes), entry->context = branch;
    pthread_mutex_unlock(&mutex);
    graph_needs(graph, current_gpu(), more);
}

static void captured_free(ptr pointer)
{
    pthread_mutex_lock(&mutex);
    struct entry *entry = table_find(&tables[CAPTURED], pointer), *branch;
    if (entry && (branch = table_find(&tables[CAPTURED], entry->context)))
        branch->context -= entry->bytes;
    if (entry)
        table_remove(entry);
    pthread_mutex_unlock(&mutex);
}

static int instantiated(int result, handle graph, const handle *instance)
{
    for (int gpu = 0; gpu < GPUS && !result; gpu++) {
        struct entry entry = forget(GRAPHS, graph + (unsigned)gpu);
        if (!entry.key)
            continue;
        remember(GRAPHS, graph + (unsigned)gpu, entry);
        remember(INSTANCES, *instance + (unsigned)gpu, entry);
        __atomic_add_fetch(&unlaunched, 1, __ATOMIC_RELAXED);
    }
    return result;
}

/* With `graph_mutex`. */
static int graph_take(int gpu, uint64_t bytes)
{
    if (take(gpu, bytes))
        return 1;
    trim_graphs(gpu);
    return take(gpu, bytes);
}

/* Counts the possible memory of a launch of the instance, in `taken`; 0 if it does not fit. */
static int graph_begins(handle instance, uint64_t *taken)
{
    for (int gpu = 0; gpu < GPUS; gpu++) {
        pthread_mutex_lock(&mutex);
        struct entry *entry = table_find(&tables[INSTANCES], instance + (unsigned)gpu);
        uint64_t bytes = entry && !entry->references ? (entry->bytes + POOL_STEP - 1) / POOL_STEP * POOL_STEP : 0;
        pthread_mutex_unlock(&mutex);
        if (bytes && !graph_take(gpu, bytes)) {
            while (gpu-- > 0)
                give(gpu, taken[gpu]);
            return 0;
        }
        taken[gpu] = bytes;
    }
    return 1;
}

static void graph_began(handle instance, const uint64_t *taken, int result)
{
    for (int gpu = 0; gpu < GPUS; gpu++) {
        if (!taken[gpu])
            continue;
        settle_graphs(gpu, taken[gpu]);
        pthread_mutex_lock(&mutex);
        struct entry *entry = table_find(&tables[INSTANCES], instance + (unsigned)gpu);
        if (entry && !entry->references && !result) {
            entry->references = 1;
            __atomic_sub_fetch(&unlaunched, 1, __ATOMIC_RELAXED);
        }
        pthread_mutex_unlock(&mutex);
    }
}

#define LAUNCH(name) \
    HOOK(int, name, handle instance, handle stream) \
    { \
        uint64_t taken[GPUS] = {0}; \
        if (!__atomic_load_n(&unlaunched, __ATOMIC_RELAXED)) \
            return REAL(name)(instance, stream); \
        pthread_mutex_lock(&graph_mutex); \
        int result = OUT_OF_MEMORY; \
        if (graph_begins(instance, taken)) { \
            result = CHANGING(REAL(name)(instance, stream)); \
            graph_began(instance, taken, result); \
        } \
        pthread_mutex_unlock(&graph_mutex); \
        return result; \
    }
LAUNCH(cuGraphLaunch)
LAUNCH(cuGraphLaunch_ptsz)
LAUNCH(cuGraphUpload)
LAUNCH(cuGraphUpload_ptsz)

HOOK(int, cuDeviceGraphMemTrim, int device)
{
    int result = REAL(cuDeviceGraphMemTrim)(device), gpu = gpu_of(device);
    if (gpu < 0)
        return result;
    pthread_mutex_lock(&graph_mutex);
    trim_graphs(gpu);
    pthread_mutex_unlock(&graph_mutex);
    return result;
}

#define WITH_NODE(graph, facts, call) \
    ({ \
        int result_ = (call); \
        if (!result_) \
            graph_needs(graph, gpu_of((facts)->pool.location.id), rounded((facts)->bytes)); \
        result_; \
    })

HOOK(int, cuGraphAddMemAllocNode, handle *node, handle graph, const handle *before, size_t count, struct memory_node *facts)
{
    return WITH_NODE(graph, facts, REAL(cuGraphAddMemAllocNode)(node, graph, before, count, facts));
}

HOOK(int, cuGraphAddNode, handle *node, handle graph, const handle *before, size_t count, struct node *facts)
{
    if (facts->type != MEMORY_NODE)
        return REAL(cuGraphAddNode)(node, graph, before, count, facts);
    return WITH_NODE(graph, &facts->memory, REAL(cuGraphAddNode)(node, graph, before, count, facts));
}

HOOK(int, cuGraphAddNode_v2, handle *node, handle graph, const handle *before, const void *edges, size_t count,
     struct node *facts)
{
    if (facts->type != MEMORY_NODE)
        return REAL(cuGraphAddNode_v2)(node, graph, before, edges, count, facts);
    return WITH_NODE(graph, &facts->memory, REAL(cuGraphAddNode_v2)(node, graph, before, edges, count, facts));
}

#define INSTANTIATE(name, declared, given) \
    HOOK(int, name, handle *instance, handle graph, EXPAND declared) \
    { \
        return instantiated(REAL(name)(instance, graph, EXPAND given), graph, instance); \
    }
INSTANTIATE(cuGraphInstantiate, (handle *node, char *text, size_t size), (node, text, size))
INSTANTIATE(cuGraphInstantiate_v2, (handle *node, char *text, size_t size), (node, text, size))
INSTANTIATE(cuGraphInstantiateWithFlags, (unsigned long long flags), (flags))
INSTANTIATE(cuGraphInstantiateWithParams, (void *facts), (facts))
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, (void *facts), (facts))

HOOK(int, cuGraphDestroy, handle graph)
{
    int result = REAL(cuGraphDestroy)(graph);
    for (int gpu = 0; gpu < GPUS && !result; gpu++)
        forget(GRAPHS, graph + (unsigned)gpu);
    return result;
}

HOOK(int, cuGraphExecDestroy, handle instance)
{
    int result = REAL(cuGraphExecDestroy)(instance);
    for (int gpu = 0; gpu < GPUS && !result; gpu++) {
        struct entry entry = forget(INSTANCES, instance + (unsigned)gpu);
        if (!entry.key)
            continue;
        if (!entry.references)
            __atomic_sub_fetch(&unlaunched, 1, __ATOMIC_RELAXED);
        pthread_mutex_lock(&graph_mutex);
        trim_graphs(gpu);
        pthread_mutex_unlock(&graph_mutex);
    }
    return result;
}

/* --- the driver's own memory: contexts, stacks, the heap, modules --- */

struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; }; /* nvmlProcessInfo_t */
enum { KERNEL = 8, NEAR = 512 };      /* MiB: the kernel's own for a context; little */
enum { SOON = 100, SELDOM = 10000 };  /* milliseconds */

/* NVML's count of this process on the GPU, 0 if unknown. */
static uint64_t measured(int device)
{
    static const char library[] = "libnvidia-ml.so.1"; /* ours: were the driver's loaded first, programs would get that */
    static pthread_mutex_t measuring = PTHREAD_MUTEX_INITIALIZER;
    static struct process found[PROCESSES];
    static int owner; /* the process using NVML */
    static int (*init)(void), (*by_pci)(const char *, void **), (*pci)(char *, int, int);
    static int (*list)(void *, unsigned *, struct process *);
    char bus[32];
    void *gpu;
    unsigned count = PROCESSES;
    uint64_t used = 0;
    pthread_mutex_lock(&measuring);
    if (!list) {
        init = share_driver(library, "nvmlInit_v2");
        by_pci = share_driver(library, "nvmlDeviceGetHandleByPciBusId_v2");
        pci = share_driver(ROOT "/vgpu/driver/libcuda.so.1", "cuDeviceGetPCIBusId");
        list = share_driver(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    }
    if (init && owner != getpid() && !init())
        owner = getpid();
    if (list && by_pci && pci && owner == getpid() && !pci(bus, sizeof bus, device) && !by_pci(bus, &gpu) &&
        !list(gpu, &count, found))
        for (unsigned number = 0; number < count; number++)
            if (found[number].pid == (unsigned)owner && found[number].used < UINT64_MAX / 2)
                used += found[number].used;
    pthread_mutex_unlock(&measuring);
    return used ? used + KERNEL * MIB : 0;
}

static uint64_t uncounted[GPUS];       /* what the driver was found to have taken, and is counted since */
enum { HEAP, FIFO, LOCAL, PROMISES };
static uint64_t promised[PROMISES][GPUS]; /* counted, and to be taken by the driver at a launch */
static int is_mine[GPUS];              /* NVML listed this process only when it had a context: it is no namesake */

/* The measured memory matches a promise: the driver has kept it. */
static uint64_t kept(int gpu, uint64_t found)
{
    for (int choice = (1 << PROMISES) - 1; choice > 0; choice--) {
        uint64_t chosen = 0;
        for (int which = 0; which < PROMISES; which++)
            chosen += choice >> which & 1 ? promised[which][gpu] : 0;
        if (!chosen || found < chosen / 4 * 3)
            continue;
        for (int which = 0; which < PROMISES; which++)
            promised[which][gpu] = choice >> which & 1 ? 0 : promised[which][gpu];
        return chosen;
    }
    return 0;
}

/* Counts what the driver took without being asked: 1 if it was more than known, -1 if it was less, else 0. `pending` is
   counted and not yet allocated. */
static int recount(int gpu, uint64_t pending)
{
    if (gpu < 0 || !__atomic_load_n(&is_mine[gpu], __ATOMIC_RELAXED))
        return 0;
    uint64_t before = __atomic_load_n(&generation, __ATOMIC_SEQ_CST);
    int others = __atomic_load_n(&changing, __ATOMIC_SEQ_CST) - depth;
    uint64_t real = measured(device_of[gpu]), counted = share_held(gpu) - pending - unseen[gpu];
    counted -= promised[HEAP][gpu] + promised[FIFO][gpu] + promised[LOCAL][gpu];
    if (!real || (int64_t)counted < 0)
        return 0;
    int is_quiet = !others && before == __atomic_load_n(&generation, __ATOMIC_SEQ_CST);
    if (real > counted + imported[gpu]) {
        uint64_t more = real - counted - imported[gpu];
        if (!is_quiet && more > 2 * PAGE) /* perhaps another thread's: asked again soon */
            return 1;
        uint64_t promise = kept(gpu, more);
        uncounted[gpu] += more;
        share_correct(gpu, (int64_t)(more - promise));
        return 1;
    }
    uint64_t less = real + PAGE < counted ? counted - real : 0;
    less = less < uncounted[gpu] ? less : uncounted[gpu];
    if (!less || !is_quiet || imported[gpu])
        return 0;
    uncounted[gpu] -= less;
    share_correct(gpu, -(int64_t)less);
    return -1;
}

static uint64_t milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* At allocations and synchronizations, from ten times a second when something changes down to once in ten seconds. */
static void look(void)
{
    static uint64_t next, pause = SOON;
    uint64_t now = milliseconds();
    if (now < __atomic_load_n(&next, __ATOMIC_RELAXED))
        return;
    __atomic_store_n(&next, now + SELDOM, __ATOMIC_RELAXED); /* other threads go on */
    int gpu = current_gpu();
    pause = gpu >= 0 && recount(gpu, 0) > 0 ? SOON : pause * 2 > SELDOM ? SELDOM : pause * 2;
    __atomic_store_n(&next, now + pause, __ATOMIC_RELAXED);
}

/* Whether the share is exceeded, with a look where there is little left. */
static int is_exceeded(int gpu, uint64_t pending)
{
    static uint64_t last[GPUS];
    if (gpu < 0 || share_left(gpu) >= NEAR * MIB)
        return 0;
    uint64_t now = milliseconds();
    if (now - __atomic_exchange_n(&last[gpu], now, __ATOMIC_RELAXED) >= SOON)
        recount(gpu, pending);
    return share_exceeded(gpu);
}

/* --- stacks: one for each concurrent thread of a GPU, as large as the limit or the largest kernel requires --- */

enum { DEFAULT_STACK = 1024 }; /* part of a context */
static uint64_t stack_limit[GPUS], largest_local, local_counted[GPUS];

static uint64_t local_bytes(int gpu, uint64_t of_thread)
{
    int processors = 0, threads = 0;
    REAL(cuDeviceGetAttribute)(&processors, MULTIPROCESSORS, device_of[gpu]);
    REAL(cuDeviceGetAttribute)(&threads, THREADS_OF_ONE, device_of[gpu]);
    uint64_t bytes = of_thread > DEFAULT_STACK ? (of_thread - DEFAULT_STACK) * (uint64_t)processors * (uint64_t)threads : 0;
    return rounded(bytes);
}

/* Counts the stacks of a GPU again; memory added by a later launch is promised. 0 if they do not fit. */
static int count_stacks(int gpu, uint64_t limit, uint64_t local, int at_launch)
{
    static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&counting);
    uint64_t need = local_bytes(gpu, limit > local ? limit : local), now = local_counted[gpu];
    int fits = need <= now || take(gpu, need - now);
    if (fits) {
        if (need < now)
            give(gpu, now - need);
        else if (at_launch)
            promised[LOCAL][gpu] += need - now;
        local_counted[gpu] = need;
        stack_limit[gpu] = limit;
        largest_local = local > largest_local ? local : largest_local;
    }
    pthread_mutex_unlock(&counting);
    return fits;
}

/* A program has asked for a kernel, which it will launch: 0 if its stacks do not fit. */
static int kernel_fits(uint64_t local)
{
    int gpu = local > DEFAULT_STACK ? current_gpu() : NO_CONTEXT;
    if (gpu < 0 || local <= largest_local)
        return 1;
    return count_stacks(gpu, stack_limit[gpu], local, 1);
}

static uint64_t heap_counted[LOCAL][GPUS]; /* and that of the FIFO */

/* The heap of kernels, and the FIFO of their printf, are taken with the first launch that needs them, and cannot be changed
   after that. */
static int set_heap(int gpu, int which, uint64_t bytes)
{
    int limit = which == HEAP ? HEAP_SIZE : FIFO_SIZE;
    uint64_t now = heap_counted[which][gpu], need = bytes > UINT64_MAX / 2 ? bytes : rounded(bytes) + 2 * PAGE;
    if (which == FIFO && bytes <= MIB) /* the default, which is part of what NVML shows */
        need = 0;
    if (need > now && !take(gpu, need - now))
        return OUT_OF_MEMORY;
    int result = REAL(cuCtxSetLimit)(limit, bytes);
    if (result) {
        give(gpu, need > now ? need - now : 0);
        return result;
    }
    uint64_t less = need < now ? now - need : 0, *promise = &promised[which][gpu];
    give(gpu, less);
    *promise = need > now ? *promise + need - now : *promise - (less < *promise ? less : *promise);
    heap_counted[which][gpu] = need;
    return result;
}

HOOK(int, cuCtxSetLimit, int limit, size_t value)
{
    int gpu = current_gpu();
    if (gpu < 0 || (limit != STACK_SIZE && limit != HEAP_SIZE && limit != FIFO_SIZE))
        return REAL(cuCtxSetLimit)(limit, value);
    if (limit != STACK_SIZE)
        return set_heap(gpu, limit == HEAP_SIZE ? HEAP : FIFO, value);
    uint64_t before = stack_limit[gpu];
    return CHANGING(({
        int result = OUT_OF_MEMORY;
        if (value < (size_t)1 << 32 && count_stacks(gpu, value, largest_local, 0) && (result = REAL(cuCtxSetLimit)(limit, value)))
            count_stacks(gpu, before, largest_local, 0);
        result;
    }));
}

/* --- modules: their variables and their code, which NVML's count shows after they are loaded --- */

/* Whether all fits after the driver has taken memory for itself. */
static int still_fits(void)
{
    int gpu = current_gpu();
    recount(gpu, 0);
    if (gpu < 0 || share_left(gpu) || !share_exceeded(gpu))
        return 1;
    share_refused(gpu);
    return 0;
}

static int loaded(int result, const handle *module)
{
    if (result || still_fits())
        return result;
    cuModuleUnload(*module);
    return OUT_OF_MEMORY;
}

/* Loads an image with this many bytes of variables, if they fit: afterwards they are in NVML's count. */
#define LOADED(bytes, call) \
    CHANGING(({ \
        int gpu_ = current_gpu(), result_ = OUT_OF_MEMORY; \
        uint64_t size_ = gpu_ < 0 ? 0 : (bytes); \
        if (!size_ || take(gpu_, size_)) { \
            result_ = (call); \
            if (size_) \
                give(gpu_, size_); \
        } \
        result_; \
    }))

#define LOAD(name, read, declared, given) \
    HOOK(int, name, handle *module, EXPAND declared) \
    { \
        return loaded(LOADED(read(image), REAL(name)(module, EXPAND given)), module); \
    }
LOAD(cuModuleLoad, image_file_variables, (const char *image), (image))
LOAD(cuModuleLoadData, image_variables, (const void *image), (image))
LOAD(cuModuleLoadDataEx, image_variables, (const void *image, unsigned count, int *options, void **values),
     (image, count, options, values))
LOAD(cuModuleLoadFatBinary, image_variables, (const void *image), (image))

/* Takes an entry of a context out of a table; in WAITING the library has the place of the context. */
static struct entry first_of(int kind, handle context);

/* A library is loaded into a context later, unless the program wants it now: its size is remembered. */
static uint64_t now(uint64_t bytes)
{
    const char *loading = getenv("CUDA_MODULE_LOADING");
    return loading && !strcmp(loading, "EAGER") ? bytes : 0;
}

static int made(int result, const handle *library, uint64_t bytes)
{
    if (!result && bytes)
        remember(UNLOADED, *library, (struct entry){.gpu = NOBODYS, .bytes = bytes});
    return result;
}

HOOK(int, cuLibraryLoadData, handle *library, const void *code, int *options, void **values, unsigned count,
     int *library_options, void **library_values, unsigned library_count)
{
    uint64_t bytes = image_variables(code);
    return made(LOADED(now(bytes), REAL(cuLibraryLoadData)(library, code, options, values, count, library_options,
                                                      library_values, library_count)), library, bytes);
}

HOOK(int, cuLibraryLoadFromFile, handle *library, const char *path, int *options, void **values, unsigned count,
     int *library_options, void **library_values, unsigned library_count)
{
    uint64_t bytes = image_file_variables(path);
    return made(LOADED(now(bytes), REAL(cuLibraryLoadFromFile)(library, path, options, values, count, library_options,
                                                          library_values, library_count)), library, bytes);
}

HOOK(int, cuModuleUnload, handle module)
{
    int result = REAL(cuModuleUnload)(module);
    recount(current_gpu(), 0);
    return result;
}

HOOK(int, cuLibraryUnload, handle library)
{
    forget(LIBRARIES, library);
    forget(UNLOADED, library);
    while (first_of(WAITING, library).key)
        continue;
    int result = REAL(cuLibraryUnload)(library);
    recount(current_gpu(), 0);
    return result;
}

static uint64_t function_local(handle kernel)
{
    int bytes = 0;
    return REAL(cuFuncGetAttribute)(&bytes, LOCAL_BYTES, kernel) || bytes < 0 ? 0 : (uint64_t)bytes;
}

static uint64_t kernel_local(handle kernel)
{
    int bytes = 0, device = 0;
    if (REAL(cuCtxGetDevice)(&device) || REAL(cuKernelGetAttribute)(&bytes, LOCAL_BYTES, kernel, device))
        return 0;
    return bytes < 0 ? 0 : (uint64_t)bytes;
}

static uint64_t variables_of(handle library)
{
    pthread_mutex_lock(&mutex);
    const struct entry *entry = table_find(&tables[UNLOADED], library);
    uint64_t bytes = entry ? entry->bytes : 0;
    pthread_mutex_unlock(&mutex);
    return bytes;
}

/* A library is loaded into a context by the first launch of its kernels: here it is loaded before, and counted. */
static int library_fits(handle library)
{
    handle module;
    pthread_mutex_lock(&mutex);
    int known = table_find(&tables[LIBRARIES], library) != NULL;
    pthread_mutex_unlock(&mutex);
    if (known || current_gpu() < 0)
        return 1;
    if (LOADED(variables_of(library), REAL(cuLibraryGetModule)(&module, library)) == OUT_OF_MEMORY || !still_fits())
        return 0;
    remember(LIBRARIES, library, (struct entry){.gpu = NOBODYS});
    return 1;
}

/* Before a loading call: 0 if its variables do not fit. */
static int may_load(handle library) { return !variables_of(library) || library_fits(library); }

/* The CUDA runtime asks for a program's first kernel before its thread has a context: kernel and library wait for one. */
static struct entry waiting_kernel(void)
{
    struct entry found = {.gpu = NOBODYS};
    pthread_mutex_lock(&mutex);
    for (uint64_t index = 0; index < tables[WAITING].size && !found.key; index++)
        if (tables[WAITING].entries[index].key > 1)
            found = tables[WAITING].entries[index];
    pthread_mutex_unlock(&mutex);
    return found;
}

/* Checks the waiting kernels of a context: 0 if a kernel does not fit, which continues to wait. */
static int waiting_fit(handle context)
{
    struct entry kernel = waiting_kernel();
    if (!kernel.key || REAL(cuCtxPushCurrent_v2)(context))
        return 1;
    for (; kernel.key; kernel = waiting_kernel()) {
        if (!library_fits(kernel.context) || !kernel_fits(kernel_local(kernel.key)))
            break;
        forget(WAITING, kernel.key);
    }
    handle popped;
    REAL(cuCtxPopCurrent_v2)(&popped);
    return !kernel.key;
}

/* A kernel that is handed out without a context is checked in the contexts that the devices have, or in the next one. */
static int fits_later(handle kernel, handle library)
{
    int count = 0, fits = 1;
    remember(WAITING, kernel, (struct entry){.gpu = NOBODYS, .context = library});
    if (REAL(cuDeviceGetCount)(&count))
        return 1;
    for (int device = 0; device < count && fits; device++) {
        unsigned flags;
        int active = 0;
        handle context;
        if (REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) || !active || REAL(cuDevicePrimaryCtxRetain)(&context, device))
            continue;
        fits = waiting_fit(context);
        REAL(cuDevicePrimaryCtxRelease_v2)(device);
    }
    return fits;
}

static int library_kernel_fits(handle kernel, handle library)
{
    if (current_gpu() == NO_CONTEXT)
        return fits_later(kernel, library);
    return library_fits(library) && kernel_fits(kernel_local(kernel));
}

HOOK(int, cuModuleGetFunction, handle *kernel, handle module, const char *name)
{
    int result = REAL(cuModuleGetFunction)(kernel, module, name);
    return result || kernel_fits(function_local(*kernel)) ? result : OUT_OF_MEMORY;
}

HOOK(int, cuModuleEnumerateFunctions, handle *functions, unsigned count, handle module)
{
    int result = REAL(cuModuleEnumerateFunctions)(functions, count, module);
    for (unsigned number = 0; number < count && !result; number++)
        if (functions[number] && !kernel_fits(function_local(functions[number])))
            return OUT_OF_MEMORY;
    return result;
}

HOOK(int, cuLibraryGetKernel, handle *kernel, handle library, const char *name)
{
    int result = REAL(cuLibraryGetKernel)(kernel, library, name);
    return result || library_kernel_fits(*kernel, library) ? result : OUT_OF_MEMORY;
}

HOOK(int, cuLibraryEnumerateKernels, handle *kernels, unsigned count, handle library)
{
    int result = REAL(cuLibraryEnumerateKernels)(kernels, count, library);
    for (unsigned number = 0; number < count && !result; number++)
        if (kernels[number] && !library_kernel_fits(kernels[number], library))
            return OUT_OF_MEMORY;
    return result || current_gpu() == NO_CONTEXT || library_fits(library) ? result : OUT_OF_MEMORY;
}

HOOK(int, cuKernelGetFunction, handle *found, handle kernel)
{
    int result = REAL(cuKernelGetFunction)(found, kernel);
    return result || (kernel_fits(kernel_local(kernel)) && still_fits()) ? result : OUT_OF_MEMORY;
}

HOOK(int, cuLibraryGetModule, handle *module, handle library)
{
    int result = may_load(library) ? REAL(cuLibraryGetModule)(module, library) : OUT_OF_MEMORY;
    return result || still_fits() ? result : OUT_OF_MEMORY;
}

#define VARIABLE(name, owner, fits) \
    HOOK(int, name, ptr *pointer, size_t *bytes, handle owner, const char *variable) \
    { \
        int result = (fits) ? REAL(name)(pointer, bytes, owner, variable) : OUT_OF_MEMORY; \
        return result || still_fits() ? result : OUT_OF_MEMORY; \
    }
VARIABLE(cuModuleGetGlobal, module, 1)
VARIABLE(cuModuleGetGlobal_v2, module, 1)
VARIABLE(cuLibraryGetGlobal, library, may_load(library))
VARIABLE(cuLibraryGetManaged, library, may_load(library))

/* --- contexts: their own memory, and memory released with them --- */

enum { USUAL_CONTEXT = 512 }; /* MiB, where it cannot be measured */

static uint64_t context_bytes(int gpu)
{
    uint64_t known = share_context(gpu);
    return known ? known : USUAL_CONTEXT * MIB;
}

static int is_namesake[GPUS];

/* Before the first context: if NVML lists this process id already, it is a process of another PID namespace. */
static void meet(int gpu)
{
    if (gpu >= 0 && !__atomic_load_n(&is_mine[gpu], __ATOMIC_RELAXED))
        is_namesake[gpu] = measured(device_of[gpu]) > 0;
}

static int may_be_mine(int gpu) { return !is_namesake[gpu]; }

/* Counts a context made by the driver, with `bytes` already counted; 0 if it is too large. */
static int add_context(handle context, int device, uint64_t bytes, int32_t primary)
{
    int gpu = gpu_of(device), is_first = 1;
    if (gpu < 0)
        return 1;
    pthread_mutex_lock(&mutex);
    int known = table_find(&tables[CONTEXTS], context) != NULL;
    for (uint64_t index = 0; index < tables[CONTEXTS].size; index++)
        is_first &= tables[CONTEXTS].entries[index].key <= 1 || tables[CONTEXTS].entries[index].gpu != gpu;
    struct entry *entry = known ? NULL : table_put(&tables[CONTEXTS], context);
    if (entry)
        *entry = (struct entry){.key = context, .bytes = bytes, .gpu = gpu, .references = primary};
    pthread_mutex_unlock(&mutex);
    if (known) /* another thread was faster */
        give(gpu, bytes);
    if (!known && is_first && may_be_mine(gpu))
        __atomic_store_n(&is_mine[gpu], measured(device) > 0, __ATOMIC_RELAXED);
    if (!known && largest_local > DEFAULT_STACK && !count_stacks(gpu, stack_limit[gpu], largest_local, 1))
        return 0;
    if (known || !is_first || share_context(gpu))
        return 1;
    uint64_t real = __atomic_load_n(&is_mine[gpu], __ATOMIC_RELAXED) ? measured(device) : 0;
    if (!real)
        real = bytes;
    share_set_context(gpu, real);
    remember(CONTEXTS, context, (struct entry){.bytes = real, .gpu = gpu, .references = primary});
    share_correct(gpu, (int64_t)(real - bytes));
    return !share_exceeded(gpu);
}

static struct entry first_of(int kind, handle context)
{
    struct entry facts = {.gpu = NOBODYS};
    pthread_mutex_lock(&mutex);
    for (uint64_t index = 0; index < tables[kind].size && !facts.key; index++) {
        struct entry *entry = &tables[kind].entries[index];
        if (entry->key > 1 && entry->context == context) {
            facts = *entry;
            table_remove(entry);
        }
    }
    pthread_mutex_unlock(&mutex);
    return facts;
}

static void drop_context(handle context)
{
    struct entry facts = forget(CONTEXTS, context);
    if (!facts.key)
        return;
    uint64_t bytes[GPUS] = {[0] = 0};
    bytes[facts.gpu] = facts.bytes;
    for (int kind = POINTERS; kind <= ARRAYS; kind++) {
        struct entry gone;
        while ((gone = first_of(kind, context)).key) {
            if (kind == ARRAYS)
                unmap_tiles(gone.key);
            given_back(gone, gone.key);
        }
    }
    bytes[facts.gpu] += __atomic_exchange_n(&uncounted[facts.gpu], 0, __ATOMIC_RELAXED);
    bytes[facts.gpu] += local_counted[facts.gpu] + heap_counted[HEAP][facts.gpu] + heap_counted[FIFO][facts.gpu];
    local_counted[facts.gpu] = heap_counted[HEAP][facts.gpu] = heap_counted[FIFO][facts.gpu] = stack_limit[facts.gpu] = 0;
    for (int which = 0; which < PROMISES; which++)
        promised[which][facts.gpu] = 0;
    for (int gpu = 0; gpu < GPUS; gpu++)
        give(gpu, bytes[gpu]);
    settle_pools();
}

static void drop_primary(int device)
{
    unsigned flags;
    int active = 1;
    handle context = 0;
    if (REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) || active)
        return;
    pthread_mutex_lock(&mutex);
    for (uint64_t index = 0; index < tables[CONTEXTS].size; index++)
        if (tables[CONTEXTS].entries[index].key > 1 && tables[CONTEXTS].entries[index].references == device + 1)
            context = tables[CONTEXTS].entries[index].key;
    pthread_mutex_unlock(&mutex);
    drop_context(context);
}

HOOK(int, cuDevicePrimaryCtxRelease_v2, int device)
{
    int result = REAL(cuDevicePrimaryCtxRelease_v2)(device);
    drop_primary(device);
    return result;
}

HOOK(int, cuDevicePrimaryCtxRelease, int device)
{
    int result = REAL(cuDevicePrimaryCtxRelease)(device);
    drop_primary(device);
    return result;
}

HOOK(int, cuDevicePrimaryCtxReset_v2, int device)
{
    int result = REAL(cuDevicePrimaryCtxReset_v2)(device);
    drop_primary(device);
    return result;
}

HOOK(int, cuDevicePrimaryCtxReset, int device)
{
    int result = REAL(cuDevicePrimaryCtxReset)(device);
    drop_primary(device);
    return result;
}

HOOK(int, cuDevicePrimaryCtxRetain, handle *context, int device)
{
    unsigned flags;
    int active = 0, gpu = gpu_of(device);
    if (!REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) && active) {
        int again = REAL(cuDevicePrimaryCtxRetain)(context, device);
        if (again || waiting_fit(*context))
            return again;
        cuDevicePrimaryCtxRelease_v2(device);
        return OUT_OF_MEMORY;
    }
    uint64_t bytes = context_bytes(gpu);
    meet(gpu);
    if (!take(gpu, bytes))
        return OUT_OF_MEMORY;
    int result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    if (result) {
        give(gpu, bytes);
    } else if (!add_context(*context, device, bytes, device + 1) || !waiting_fit(*context)) {
        cuDevicePrimaryCtxRelease_v2(device);
        return OUT_OF_MEMORY;
    }
    return result;
}

HOOK(int, cuCtxDestroy_v2, handle context)
{
    int result = REAL(cuCtxDestroy_v2)(context);
    if (!result)
        drop_context(context);
    return result;
}

HOOK(int, cuCtxDestroy, handle context)
{
    int result = REAL(cuCtxDestroy)(context);
    if (!result)
        drop_context(context);
    return result;
}

#define CREATE(name, declared, given) \
    HOOK(int, name, handle *context, EXPAND declared) \
    { \
        int gpu = gpu_of(device); \
        uint64_t bytes = context_bytes(gpu); \
        meet(gpu); \
        if (!take(gpu, bytes)) \
            return OUT_OF_MEMORY; \
        int result = REAL(name)(context, EXPAND given); \
        if (result) { \
            give(gpu, bytes); \
        } else if (!add_context(*context, device, bytes, 0)) { \
            cuCtxDestroy_v2(*context); \
            return OUT_OF_MEMORY; \
        } \
        return result; \
    }
CREATE(cuCtxCreate, (unsigned flags, int device), (flags, device))
CREATE(cuCtxCreate_v2, (unsigned flags, int device), (flags, device))
CREATE(cuCtxCreate_v3, (void *affinity, int count, unsigned flags, int device), (affinity, count, flags, device))
CREATE(cuCtxCreate_v4, (void *facts, unsigned flags, int device), (facts, flags, device))

/* --- the values reported to programs --- */

HOOK(int, cuMemGetInfo_v2, size_t *left, size_t *total)
{
    int result = REAL(cuMemGetInfo_v2)(left, total), gpu = current_gpu();
    if (result || gpu == NO_CONTEXT)
        return result;
    settle_pools();
    uint64_t limit = share_limit(gpu), used = share_used(gpu), rest = limit > used ? limit - used : 0;
    if (total && *total > limit)
        *total = limit;
    if (left && *left > rest)
        *left = rest;
    return result;
}

HOOK(int, cuDeviceTotalMem_v2, size_t *total, int device)
{
    int result = REAL(cuDeviceTotalMem_v2)(total, device);
    if (!result && *total > share_limit(gpu_of(device)))
        *total = share_limit(gpu_of(device));
    return result;
}

/* --- start --- */

static void forget_all(void)
{
    mutex = pool_mutex = graph_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    memset(tables, 0, sizeof tables); /* not freed: another thread may have been in them */
    memset(graph_counted, 0, sizeof graph_counted);
    memset(uncounted, 0, sizeof uncounted);
    memset(unseen, 0, sizeof unseen);
    memset(imported, 0, sizeof imported);
    memset(promised, 0, sizeof promised);
    memset(local_counted, 0, sizeof local_counted);
    memset(heap_counted, 0, sizeof heap_counted);
    memset(stack_limit, 0, sizeof stack_limit);
    memset(is_mine, 0, sizeof is_mine);
    pools_changed = unlaunched = changing = depth = 0;
    largest_local = 0;
}

HOOK(int, cuInit, unsigned flags)
{
    return share_open() ? REAL(cuInit)(flags) : OPERATING_SYSTEM;
}

#define NAME(name) #name,
#define ADDRESS(name) (void *)name,
static void *const hooks[] = {HOOKS(ADDRESS)};

static const void *base_of_driver(void)
{
    Dl_info facts = {0};
    return dladdr(driver[AT_cuInit], &facts) ? facts.dli_fbase : NULL;
}

static void resolve(void)
{
    static const char *const names[] = {HOOKS(NAME) CALLED(NAME)};
    for (int number = 0; number < FUNCTION_COUNT; number++)
        driver[number] = share_driver(ROOT "/vgpu/driver/libcuda.so.1", names[number]);
    pthread_atfork(NULL, NULL, forget_all);
}

/* Ours for the driver's, whichever name and version led to it. */
static int replace(void **found)
{
    for (int number = 0; number < HOOK_COUNT && *found; number++)
        if (driver[number] == *found || hooks[number] == *found) {
            *found = hooks[number];
            return 1;
        }
    return !*found;
}

/* A tool may have put a function of its own in the place of the driver's: the function that the driver exports under this
   name, or under the name with a version, decides then. */
static void replace_by_name(const char *name, void **found)
{
    static const char *const names[] = {HOOKS(NAME)};
    size_t length = name ? strlen(name) : 0;
    Dl_info owner;
    if (replace(found) || !length || !dladdr(*found, &owner) || owner.dli_fbase == base_of_driver())
        return; /* the driver's own functions are known by their addresses: another version of a function is not ours */
    for (int number = HOOK_COUNT - 1; number >= 0; number--)
        if (!strncmp(names[number], name, length) && driver[number] && (!names[number][length] || (names[number][length] == '_' && names[number][length + 1] == 'v'))) {
            *found = hooks[number];
            return;
        }
}

HOOK(int, cuGetProcAddress, const char *name, void **found, int version, uint64_t flags)
{
    int result = REAL(cuGetProcAddress)(name, found, version, flags);
    if (!result && found)
        replace_by_name(name, found);
    return result;
}

HOOK(int, cuGetProcAddress_v2, const char *name, void **found, int version, uint64_t flags, void *status)
{
    int result = REAL(cuGetProcAddress_v2)(name, found, version, flags, status);
    if (!result && found)
        replace_by_name(name, found);
    return result;
}

/* A tool that answers for libcuda.so.1 itself, as Nsight Compute does, calls the driver without us. What it answers with
   cannot be limited, so it finds no GPU: cuInit fails. */
__attribute__((constructor)) static void check_who_answers(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), *found = library ? dlsym(library, "cuInit") : NULL;
    Dl_info owner = {0}, own = {0};
    if (!found || found == (void *)cuInit || !dladdr(found, &owner) || !dladdr((void *)cuInit, &own))
        return;
    if (owner.dli_fbase == own.dli_fbase)
        return;
    share_say(owner.dli_fname, "answers for libcuda.so.1, and would pass the limits by: no GPU can be used");
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
}
