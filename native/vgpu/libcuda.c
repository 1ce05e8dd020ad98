/* A libcuda.so.1 that counts the memory of a container's processes and refuses what is beyond their share.

   The driver's own library is a dependency of this one, so every function that is not here is found there by the loader
   itself: unknown ones, future ones, and those that launch kernels, at no cost. What is here counts, then calls the
   driver's function of the same name. cuGetProcAddress, through which the CUDA runtime asks for functions, is answered by
   the driver; where it answers with a function that is here, ours is returned instead.

   Memory is counted before the driver is asked for it, and given back after the driver has freed it. */
#define _GNU_SOURCE
#include "cuda.h"
#include "share.h"
#include "table.h"

#include <pthread.h>
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

/* --- the driver's functions --- */

#define HOOKS(X) \
    X(cuInit) X(cuGetProcAddress) X(cuGetProcAddress_v2) X(cuMemGetInfo_v2) X(cuDeviceTotalMem_v2) \
    X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxRelease_v2) \
    X(cuDevicePrimaryCtxReset) X(cuDevicePrimaryCtxReset_v2) \
    X(cuCtxCreate) X(cuCtxCreate_v2) X(cuCtxCreate_v3) X(cuCtxCreate_v4) X(cuCtxDestroy) X(cuCtxDestroy_v2) \
    X(cuMemAlloc_v2) X(cuMemAllocPitch_v2) X(cuMemAllocManaged) X(cuMemFree_v2) \
    X(cuArrayCreate_v2) X(cuArray3DCreate_v2) X(cuMipmappedArrayCreate) X(cuArrayDestroy) X(cuMipmappedArrayDestroy) \
    X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemRetainAllocationHandle) \
    X(cuMemPoolCreate) X(cuMemPoolDestroy) X(cuMemPoolTrimTo) X(cuMemPoolImportFromShareableHandle) \
    X(cuMemAllocAsync) X(cuMemAllocAsync_ptsz) X(cuMemAllocFromPoolAsync) X(cuMemAllocFromPoolAsync_ptsz) \
    X(cuMemFreeAsync) X(cuMemFreeAsync_ptsz) \
    X(cuStreamSynchronize) X(cuStreamSynchronize_ptsz) X(cuEventSynchronize) X(cuCtxSynchronize) X(cuCtxSynchronize_v2) \
    X(cuGraphAddMemAllocNode) X(cuGraphAddNode) X(cuGraphAddNode_v2) X(cuGraphInstantiate) X(cuGraphInstantiate_v2) \
    X(cuGraphInstantiateWithFlags) X(cuGraphInstantiateWithParams) X(cuGraphInstantiateWithParams_ptsz) \
    X(cuGraphDestroy) X(cuGraphExecDestroy) \
    X(cuIpcOpenMemHandle) X(cuIpcOpenMemHandle_v2) X(cuMemImportFromShareableHandle) X(cuImportExternalMemory)
#define CALLED(X) \
    X(cuCtxGetDevice) X(cuCtxGetCurrent) X(cuDeviceGetUuid) X(cuDeviceGetUuid_v2) X(cuDevicePrimaryCtxGetState) \
    X(cuDeviceGetMemPool) X(cuDeviceGetDefaultMemPool) X(cuDeviceGetCount) X(cuMemPoolGetAttribute) \
    X(cuStreamIsCapturing) X(cuStreamIsCapturing_ptsz) X(cuStreamGetCaptureInfo_v2) X(cuStreamGetCaptureInfo_v2_ptsz) \
    X(cuDeviceGetGraphMemAttribute) X(cuDeviceGraphMemTrim)

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
int cuDeviceGraphMemTrim(int device);
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

/* --- what this process holds --- */

enum { POINTERS, ARRAYS, HANDLES, MAPPINGS, CONTEXTS, GRAPHS, POOLS, KINDS };
static struct table tables[KINDS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int reclaim(void);

static int is_exceeded(int gpu, uint64_t pending);
static void look(void);
static void give(int gpu, uint64_t bytes) { share_correct(gpu, -(int64_t)bytes); }

static int take(int gpu, uint64_t bytes)
{
    if (gpu == NO_CONTEXT)
        return 1;
    look();
    if (!share_take(gpu, bytes) && !(reclaim() && share_take(gpu, bytes)))
        return 0;
    if (!is_exceeded(gpu, bytes))
        return 1;
    give(gpu, bytes);
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

static int freed(int result, int kind, uint64_t key, struct entry facts)
{
    if (!facts.key)
        return result;
    if (result)
        remember(kind, key, facts);
    else
        give(facts.gpu, facts.bytes);
    return result;
}

/* The driver maps what is larger than its pages of 2 MiB in whole ones; smaller pieces share a page. */
static uint64_t rounded(uint64_t bytes)
{
    uint64_t unit = bytes > MIB ? 2 * MIB : 512;
    return bytes > UINT64_MAX - unit ? bytes : (bytes + unit - 1) / unit * unit;
}

/* Counts what the driver is about to give; `call` sets `where`. */
#define COUNTED(kind, size, where, call) \
    ({ \
        int gpu_ = current_gpu(), result_ = OUT_OF_MEMORY; \
        uint64_t bytes_ = (size); \
        handle context_ = 0; \
        if (take(gpu_, bytes_)) { \
            result_ = (call); \
            if (result_) { \
                give(gpu_, bytes_); \
            } else if (gpu_ >= 0) { \
                REAL(cuCtxGetCurrent)(&context_); \
                remember(kind, *(where), (struct entry){.bytes = bytes_, .gpu = gpu_, .context = context_}); \
            } \
        } \
        result_; \
    })

HOOK(int, cuMemAlloc_v2, ptr *pointer, size_t bytes)
{
    return COUNTED(POINTERS, rounded(bytes), pointer, REAL(cuMemAlloc_v2)(pointer, bytes));
}

HOOK(int, cuMemAllocPitch_v2, ptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    uint64_t bytes;
    if (width > UINT64_MAX / 2 || __builtin_mul_overflow((width + 511) & ~(size_t)511, height, &bytes))
        return OUT_OF_MEMORY;
    return COUNTED(POINTERS, rounded(bytes), pointer, REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element));
}

HOOK(int, cuMemAllocManaged, ptr *pointer, size_t bytes, unsigned flags)
{
    return COUNTED(POINTERS, rounded(bytes), pointer, REAL(cuMemAllocManaged)(pointer, bytes, flags));
}

static void settle_pools(void);

HOOK(int, cuMemFree_v2, ptr pointer)
{
    struct entry facts = forget(POINTERS, pointer);
    int result = freed(REAL(cuMemFree_v2)(pointer), POINTERS, pointer, facts);
    if (!facts.key)
        settle_pools(); /* memory of a pool may be freed so, too */
    return result;
}

/* --- arrays --- */

/* The driver lays arrays out in blocks: up to 512 bytes wide, 128 rows high and 32 planes deep, less for smaller ones. */
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
    return rounded(total);
}

HOOK(int, cuArrayCreate_v2, handle *array, const struct array *facts)
{
    struct array3d flat = {facts->width, facts->height, 0, facts->format, facts->channels, 0};
    return COUNTED(ARRAYS, array_bytes(&flat, 1), array, REAL(cuArrayCreate_v2)(array, facts));
}

HOOK(int, cuArray3DCreate_v2, handle *array, const struct array3d *facts)
{
    return COUNTED(ARRAYS, array_bytes(facts, 1), array, REAL(cuArray3DCreate_v2)(array, facts));
}

HOOK(int, cuMipmappedArrayCreate, handle *array, const struct array3d *facts, unsigned levels)
{
    return COUNTED(ARRAYS, array_bytes(facts, levels), array, REAL(cuMipmappedArrayCreate)(array, facts, levels));
}

HOOK(int, cuArrayDestroy, handle array)
{
    struct entry facts = forget(ARRAYS, array);
    return freed(REAL(cuArrayDestroy)(array), ARRAYS, array, facts);
}

HOOK(int, cuMipmappedArrayDestroy, handle array)
{
    struct entry facts = forget(ARRAYS, array);
    return freed(REAL(cuMipmappedArrayDestroy)(array), ARRAYS, array, facts);
}

/* --- physical memory that is mapped by the program: it lives until handle and mappings are gone --- */

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
    give(facts.gpu, facts.bytes);
}

HOOK(int, cuMemCreate, handle *allocation, size_t bytes, const struct allocation *facts, unsigned long long flags)
{
    int gpu = facts && facts->location.type == DEVICE ? gpu_of(facts->location.id) : NO_CONTEXT;
    if (!take(gpu, bytes))
        return OUT_OF_MEMORY;
    int result = REAL(cuMemCreate)(allocation, bytes, facts, flags);
    if (result)
        give(gpu, bytes);
    else if (gpu >= 0)
        remember(HANDLES, *allocation, (struct entry){.bytes = bytes, .gpu = gpu, .references = 1});
    return result;
}

HOOK(int, cuMemRelease, handle allocation)
{
    int result = REAL(cuMemRelease)(allocation);
    if (!result)
        refer(allocation, -1);
    return result;
}

HOOK(int, cuMemMap, ptr pointer, size_t bytes, size_t offset, handle allocation, unsigned long long flags)
{
    int result = REAL(cuMemMap)(pointer, bytes, offset, allocation, flags);
    if (!result) {
        refer(allocation, 1);
        remember(MAPPINGS, pointer, (struct entry){.bytes = bytes, .context = allocation});
    }
    return result;
}

HOOK(int, cuMemUnmap, ptr pointer, size_t bytes)
{
    int result = REAL(cuMemUnmap)(pointer, bytes);
    for (ptr end = pointer + bytes; !result && pointer < end;) { /* several mappings, one after the other */
        struct entry mapping = forget(MAPPINGS, pointer);
        if (!mapping.key)
            break;
        refer(mapping.context, -1);
        pointer += mapping.bytes;
    }
    return result;
}

HOOK(int, cuMemRetainAllocationHandle, handle *allocation, void *pointer)
{
    int result = REAL(cuMemRetainAllocationHandle)(allocation, pointer);
    if (!result)
        refer(*allocation, 1);
    return result;
}

/* --- pools: counted is what a pool reserves, in use or not --- */

static int imported;
static pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;
static const uint64_t POOL_STEP = 32 * MIB; /* by which the driver enlarges a pool */
static int pools_changed; /* memory went back to a pool, which releases it when its stream has come so far */

static uint64_t pool_attribute(handle pool, int attribute)
{
    uint64_t bytes = 0;
    return REAL(cuMemPoolGetAttribute)(pool, attribute, &bytes) ? 0 : bytes;
}

/* An unknown pool is taken for one of the current GPU. */
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

static int reclaim(void)
{
    if (pthread_mutex_trylock(&pool_mutex))
        return 0; /* another thread, or this one, is at it */
    int any = tables[POOLS].filled > 0;
    if (any)
        trim_all();
    pthread_mutex_unlock(&pool_mutex);
    return any;
}

struct async { /* the functions of one kind of default stream */
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

/* With the pool's growth counted if it fits; `*counted` is then what the pool counts for. */
static int make_room(struct entry *pool, uint64_t bytes, uint64_t *counted, handle stream, const struct async *calls)
{
    for (int attempt = 0; attempt < 2; attempt++) {
        settle_pool(pool, pool->bytes);
        uint64_t more = growth(pool, bytes);
        *counted = pool->bytes + more;
        if (!more || share_take(pool->gpu, more))
            return 1;
        if (!attempt) {
            calls->synchronize(stream); /* frees that it has still before it */
            trim_all();
        }
    }
    return 0;
}

static int graph_take(handle graph, int gpu, uint64_t bytes);
static void graph_give(handle graph, int gpu, uint64_t bytes);

#define FROM_POOL(where, pool, size, stream, calls, call) \
    ({ \
        int result_ = OUT_OF_MEMORY, capturing_ = 0; \
        uint64_t counted_; \
        if (!(calls)->is_capturing(stream, &capturing_) && capturing_) { \
            handle graph_ = 0; \
            int gpu_ = current_gpu(); \
            (calls)->capture_info(stream, &capturing_, NULL, &graph_, NULL, NULL); \
            if (graph_take(graph_, gpu_, rounded(size)) && (result_ = (call))) \
                graph_give(graph_, gpu_, rounded(size)); \
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
    })

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
        int result = freed(REAL(cuMemFreeAsync##suffix)(pointer, stream), POINTERS, pointer, facts); \
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

static void add_pool(handle pool, int gpu)
{
    pthread_mutex_lock(&pool_mutex);
    struct entry *entry = table_put(&tables[POOLS], pool);
    if (entry)
        *entry = (struct entry){.key = pool, .gpu = gpu};
    pthread_mutex_unlock(&pool_mutex);
}

HOOK(int, cuMemPoolCreate, handle *pool, const struct pool_properties *facts)
{
    int result = REAL(cuMemPoolCreate)(pool, facts);
    if (!result)
        add_pool(*pool, facts->location.type == DEVICE ? gpu_of(facts->location.id) : NO_CONTEXT);
    return result;
}

HOOK(int, cuMemPoolImportFromShareableHandle, handle *pool, void *shared, int type, unsigned long long flags)
{
    int result = REAL(cuMemPoolImportFromShareableHandle)(pool, shared, type, flags);
    if (!result)
        imported = 1, add_pool(*pool, NO_CONTEXT); /* counted where it comes from */
    return result;
}

HOOK(int, cuMemPoolDestroy, handle pool)
{
    int result = REAL(cuMemPoolDestroy)(pool);
    pthread_mutex_lock(&pool_mutex);
    struct entry *entry = result ? NULL : table_find(&tables[POOLS], pool);
    if (entry) {
        give(entry->gpu, entry->bytes);
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

/* --- memory nodes of graphs: counted with their graph from the node on, then with its instance --- */

static uint64_t graph_bytes[GPUS], graph_beyond[GPUS]; /* counted by nodes, and what the driver has beyond */

/* The driver keeps the memory of graphs for their next launch; without instances it is given back. */
static void settle_graphs(int gpu)
{
    uint64_t reserved = 0;
    REAL(cuDeviceGraphMemTrim)(device_of[gpu]);
    if (REAL(cuDeviceGetGraphMemAttribute)(device_of[gpu], GRAPH_RESERVED, &reserved))
        return;
    pthread_mutex_lock(&mutex);
    uint64_t beyond = reserved > graph_bytes[gpu] ? reserved - graph_bytes[gpu] : 0;
    share_correct(gpu, (int64_t)(beyond - graph_beyond[gpu]));
    graph_beyond[gpu] = beyond;
    pthread_mutex_unlock(&mutex);
}

/* `references` of a graph's entry: whether it is counted now. */
static int graph_take(handle graph, int gpu, uint64_t bytes)
{
    if (gpu < 0)
        return gpu == NO_CONTEXT;
    if (!take(gpu, bytes))
        return 0;
    pthread_mutex_lock(&mutex);
    struct entry *entry = table_put(&tables[GRAPHS], graph + (unsigned)gpu);
    if (entry) {
        entry->bytes += bytes;
        entry->gpu = gpu;
        entry->references = 1;
    }
    graph_bytes[gpu] += bytes;
    pthread_mutex_unlock(&mutex);
    return 1;
}

static void graph_give(handle graph, int gpu, uint64_t bytes)
{
    if (gpu < 0)
        return;
    pthread_mutex_lock(&mutex);
    struct entry *entry = table_find(&tables[GRAPHS], graph + (unsigned)gpu);
    if (entry)
        entry->bytes -= bytes;
    graph_bytes[gpu] -= bytes;
    pthread_mutex_unlock(&mutex);
    give(gpu, bytes);
}

/* A graph that was instantiated before, and its instance destroyed, takes its memory again. */
static int graph_begin(handle graph)
{
    for (int gpu = 0; gpu < GPUS; gpu++) {
        struct entry entry = forget(GRAPHS, graph + (unsigned)gpu);
        if (!entry.key)
            continue;
        if (!entry.references && !take(gpu, entry.bytes)) {
            remember(GRAPHS, graph + (unsigned)gpu, entry);
            return 0;
        }
        if (!entry.references)
            __atomic_fetch_add(&graph_bytes[gpu], entry.bytes, __ATOMIC_RELAXED);
        entry.references = 1;
        remember(GRAPHS, graph + (unsigned)gpu, entry);
    }
    return 1;
}

static int graph_end(int result, handle graph, const handle *instance)
{
    for (int gpu = 0; gpu < GPUS && !result; gpu++) {
        struct entry entry = forget(GRAPHS, graph + (unsigned)gpu);
        if (!entry.key)
            continue;
        remember(GRAPHS, *instance + (unsigned)gpu, entry);
        entry.references = 0;
        remember(GRAPHS, graph + (unsigned)gpu, entry);
    }
    return result;
}

static int graph_gone(int result, handle graph)
{
    for (int gpu = 0; gpu < GPUS && !result; gpu++) {
        struct entry entry = forget(GRAPHS, graph + (unsigned)gpu);
        if (!entry.references)
            continue;
        __atomic_fetch_sub(&graph_bytes[gpu], entry.bytes, __ATOMIC_RELAXED);
        give(gpu, entry.bytes);
        settle_graphs(gpu);
    }
    return result;
}

#define WITH_NODE(graph, facts, call) \
    ({ \
        int result_ = OUT_OF_MEMORY, gpu_ = gpu_of((facts)->pool.location.id); \
        if (graph_take(graph, gpu_, rounded((facts)->bytes)) && (result_ = (call))) \
            graph_give(graph, gpu_, rounded((facts)->bytes)); \
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
        if (!graph_begin(graph)) \
            return OUT_OF_MEMORY; \
        return graph_end(REAL(name)(instance, graph, EXPAND given), graph, instance); \
    }
INSTANTIATE(cuGraphInstantiate, (handle *node, char *text, size_t size), (node, text, size))
INSTANTIATE(cuGraphInstantiate_v2, (handle *node, char *text, size_t size), (node, text, size))
INSTANTIATE(cuGraphInstantiateWithFlags, (unsigned long long flags), (flags))
INSTANTIATE(cuGraphInstantiateWithParams, (void *facts), (facts))
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, (void *facts), (facts))

HOOK(int, cuGraphDestroy, handle graph) { return graph_gone(REAL(cuGraphDestroy)(graph), graph); }
HOOK(int, cuGraphExecDestroy, handle instance) { return graph_gone(REAL(cuGraphExecDestroy)(instance), instance); }

/* --- what the driver takes for itself: contexts, and the code of kernels --- */

struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; }; /* nvmlProcessInfo_t */
enum { KERNEL = 8, NEAR = 512, IMPLAUSIBLE = 2048 }; /* MiB: the kernel's own for a context; little; too much */
enum { SOON = 100, SELDOM = 10000 };                  /* milliseconds */

/* What NVML says that this process uses of the GPU, 0 where it does not say. */
static uint64_t measured(int device)
{
    static const char library[] = "libnvidia-ml.so.1"; /* ours: were the driver's loaded first, programs would get that */
    static pthread_mutex_t measuring = PTHREAD_MUTEX_INITIALIZER;
    static struct process found[PROCESSES];
    static int owner; /* the process that has begun to use NVML */
    int (*init)(void) = share_driver(library, "nvmlInit_v2");
    int (*by_pci)(const char *, void **) = share_driver(library, "nvmlDeviceGetHandleByPciBusId_v2");
    int (*list)(void *, unsigned *, struct process *) = share_driver(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    int (*pci)(char *, int, int) = share_driver(ROOT "/vgpu/driver/libcuda.so.1", "cuDeviceGetPCIBusId");
    char bus[32];
    void *gpu;
    unsigned count = PROCESSES;
    uint64_t used = 0;
    if (!init || !by_pci || !list || !pci || pthread_mutex_trylock(&measuring))
        return 0;
    if (owner != getpid() && !init())
        owner = getpid();
    if (owner == getpid() && !pci(bus, sizeof bus, device) && !by_pci(bus, &gpu) && !list(gpu, &count, found))
        for (unsigned number = 0; number < count; number++)
            if (found[number].pid == (unsigned)owner && found[number].used < UINT64_MAX / 2)
                used += found[number].used;
    pthread_mutex_unlock(&measuring);
    return used ? used + KERNEL * MIB : 0;
}

static uint64_t uncounted[GPUS]; /* what was found at the last look, and is counted since */
static int imported;             /* whether this process has memory of another one: NVML does not tell them apart */

/* Counts what the driver took for the code of kernels, which no call asks for; whether there was something new. `pending`
   is counted and not yet allocated. */
static int recount(int gpu, uint64_t pending)
{
    uint64_t real = imported ? 0 : measured(device_of[gpu]), before = uncounted[gpu], counted = share_held(gpu) - pending;
    if (real <= counted || real - counted > IMPLAUSIBLE * MIB) /* so much more: another process, of another namespace */
        return 0;
    uncounted[gpu] = before + (real - counted);
    share_correct(gpu, (int64_t)(real - counted));
    return 1;
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
    pause = gpu >= 0 && recount(gpu, 0) ? SOON : pause * 2 > SELDOM ? SELDOM : pause * 2;
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

#define IMPORT(name, declared, given) \
    HOOK(int, name, EXPAND declared) \
    { \
        imported = 1; \
        return REAL(name)(EXPAND given); \
    }
IMPORT(cuIpcOpenMemHandle, (ptr *pointer, struct ipc memory, unsigned flags), (pointer, memory, flags))
IMPORT(cuIpcOpenMemHandle_v2, (ptr *pointer, struct ipc memory, unsigned flags), (pointer, memory, flags))
IMPORT(cuMemImportFromShareableHandle, (handle *allocation, void *shared, int type), (allocation, shared, type))
IMPORT(cuImportExternalMemory, (handle *memory, const void *facts), (memory, facts))

/* --- contexts: their own memory, and what is gone with them --- */

enum { USUAL_CONTEXT = 512 }; /* MiB, where it cannot be measured */

static uint64_t context_bytes(int gpu)
{
    uint64_t known = share_context(gpu);
    return known ? known : USUAL_CONTEXT * MIB;
}

/* Counts a context that the driver has made, for which `bytes` are already counted; 0 if it is too large. */
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
    if (known || !is_first || share_context(gpu))
        return 1;
    uint64_t real = measured(device);
    if (!real)
        real = bytes;
    share_set_context(gpu, real);
    remember(CONTEXTS, context, (struct entry){.bytes = real, .gpu = gpu, .references = primary});
    share_correct(gpu, (int64_t)(real - bytes));
    return !share_exceeded(gpu);
}

static void drop_context(handle context)
{
    struct entry facts = forget(CONTEXTS, context);
    if (!facts.key)
        return;
    uint64_t bytes[GPUS] = {[0] = 0};
    bytes[facts.gpu] = facts.bytes;
    pthread_mutex_lock(&mutex);
    for (int kind = POINTERS; kind <= ARRAYS; kind++)
        for (uint64_t index = 0; index < tables[kind].size; index++) {
            struct entry *entry = &tables[kind].entries[index];
            if (entry->key > 1 && entry->context == context) {
                bytes[entry->gpu] += entry->bytes;
                table_remove(entry);
            }
        }
    pthread_mutex_unlock(&mutex);
    bytes[facts.gpu] += __atomic_exchange_n(&uncounted[facts.gpu], 0, __ATOMIC_RELAXED);
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
    if (!REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) && active)
        return REAL(cuDevicePrimaryCtxRetain)(context, device);
    uint64_t bytes = context_bytes(gpu);
    if (!take(gpu, bytes))
        return OUT_OF_MEMORY;
    int result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    if (result) {
        give(gpu, bytes);
    } else if (!add_context(*context, device, bytes, device + 1)) {
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

/* --- what a program is told --- */

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
    mutex = pool_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    memset(tables, 0, sizeof tables); /* not freed: another thread may have been in them */
    memset(graph_bytes, 0, sizeof graph_bytes);
    memset(graph_beyond, 0, sizeof graph_beyond);
    memset(uncounted, 0, sizeof uncounted);
    pools_changed = imported = 0;
}

HOOK(int, cuInit, unsigned flags)
{
    return share_open() ? REAL(cuInit)(flags) : OPERATING_SYSTEM;
}

#define NAME(name) #name,
#define ADDRESS(name) (void *)name,
static void *const hooks[] = {HOOKS(ADDRESS)};

static void resolve(void)
{
    static const char *const names[] = {HOOKS(NAME) CALLED(NAME)};
    for (int number = 0; number < FUNCTION_COUNT; number++)
        driver[number] = share_driver(ROOT "/vgpu/driver/libcuda.so.1", names[number]);
    pthread_atfork(NULL, NULL, forget_all);
}

/* Ours for the driver's, whichever name and version led to it. */
static void replace(void **found)
{
    for (int number = 0; number < HOOK_COUNT && *found; number++)
        if (driver[number] == *found) {
            *found = hooks[number];
            return;
        }
}

HOOK(int, cuGetProcAddress, const char *name, void **found, int version, uint64_t flags)
{
    int result = REAL(cuGetProcAddress)(name, found, version, flags);
    if (!result && found)
        replace(found);
    return result;
}

HOOK(int, cuGetProcAddress_v2, const char *name, void **found, int version, uint64_t flags, void *status)
{
    int result = REAL(cuGetProcAddress_v2)(name, found, version, flags, status);
    if (!result && found)
        replace(found);
    return result;
}
