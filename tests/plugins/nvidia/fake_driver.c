/* A driver with two GPUs of 16 GiB, as libcuda.so.1 and libnvidia-ml.so.1, for testing the vGPU limiter without a GPU.
   The file FAKE_GPU is the GPUs' memory: it knows what every process holds, forgets processes that have died, and
   remembers the most that was ever held at once. It behaves as an H200 with driver 580 was seen to behave: a context takes
   CONTEXT; small pieces share pages of 2 MiB; stacks are as large as the limit or the largest kernel that was launched
   needs; heap and printf FIFO are taken by the first launch that uses them, variables when their module is loaded, the memory of graphs
   when they are launched; exported memory lives while a process or a descriptor has it; NVML counts neither managed memory
   nor what is exported for the process. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef uint64_t u64;
enum { GPUS = 2, PROCESSES = 256, PIECES = 100000, OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NO_CONTEXT = 201 };
static const u64 TOTAL = 16ull << 30, CONTEXT = 300ull << 20, PAGE = 2ull << 20;

enum { EXPORTED = 64, HOLDERS = 8 };
static struct gpus {
    struct { u64 pid, namespace, used[GPUS], unseen[GPUS]; } process[PROCESSES];
    u64 peak[GPUS];
    struct { u64 bytes, gpu, is_file, holder[HOLDERS]; } exported[EXPORTED];
} *gpus;
static struct piece { u64 key, bytes, pool; int gpu, references, context, managed, exported; } pieces[PIECES];
static struct { u64 reserved, used; int gpu, managed; } pools[64] = {{0, 0, 0}, {0, 0, 1}};
static struct { u64 now, peak; int gpu; } graphs[256];
static u64 graph_reserved[GPUS], graph_used[GPUS], next = 0x10000000, stack = 1024, stacks = 1024, heap = 8 << 20, fifo = 1 << 20;
static int has_heap, has_fifo;
static u64 namespace;
static int file = -1, owner, pool_count = GPUS, graph_count, primary[GPUS], contexts[GPUS], current = -1, capturing;

/* A descriptor of the allocation exists: it has a lock on a byte of its own. */
static struct flock byte_of(int id) { return (struct flock){.l_type = F_WRLCK, .l_start = (3ll << 61) + id, .l_len = 1}; }
static int is_exported(int id)
{
    struct flock range = byte_of(id);
    int control = open(getenv("FAKE_CONTROL"), O_RDWR);
    fcntl(control, F_OFD_GETLK, &range);
    close(control);
    return gpus->exported[id].is_file && range.l_type != F_UNLCK;
}
static u64 exported_bytes(int gpu)
{
    u64 total = 0;
    for (int id = 0; id < EXPORTED; id++) {
        int alive = 0;
        for (int i = 0; i < HOLDERS; i++) {
            u64 *pid = &gpus->exported[id].holder[i];
            if (*pid && kill(*pid, 0) && errno == ESRCH)
                *pid = 0;
            alive |= *pid != 0;
        }
        if (gpus->exported[id].bytes && !alive && !is_exported(id))
            gpus->exported[id].bytes = 0;
        total += gpus->exported[id].gpu == gpu ? gpus->exported[id].bytes : 0;
    }
    return total;
}
static void hold(int id, int change)
{
    for (int i = 0; i < HOLDERS; i++)
        if (gpus->exported[id].holder[i] == (u64)(change > 0 ? 0 : getpid())) {
            gpus->exported[id].holder[i] = change > 0 ? getpid() : 0;
            return;
        }
}

static int is_own(int i) { return gpus->process[i].pid == (u64)owner && gpus->process[i].namespace == namespace; }

static u64 reserve(int gpu, int64_t bytes) /* on the GPU; 0 if it is full */
{
    if (owner != getpid()) { /* also after fork, which shares descriptions of open files */
        struct stat status = {0};
        stat("/proc/self/ns/pid", &status);
        namespace = status.st_ino;
        owner = getpid();
        file = open(getenv("FAKE_GPU"), O_RDWR | O_CREAT, 0666);
        if (ftruncate(file, sizeof *gpus))
            abort();
        gpus = mmap(NULL, sizeof *gpus, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    flock(file, LOCK_EX);
    u64 total = exported_bytes(gpu), *own = NULL;
    for (int i = 0; i < PROCESSES; i++)
        if (gpus->process[i].namespace == namespace && kill(gpus->process[i].pid, 0) && errno == ESRCH)
            memset(&gpus->process[i], 0, sizeof gpus->process[i]);
        else
            total += gpus->process[i].used[gpu];
    for (int i = 0; i < PROCESSES && !own; i++)
        if (is_own(i))
            own = gpus->process[i].used;
    for (int i = 0; i < PROCESSES && !own; i++)
        if (!gpus->process[i].pid) {
            gpus->process[i].pid = owner;
            gpus->process[i].namespace = namespace;
            own = gpus->process[i].used;
        }
    int fits = total + bytes <= TOTAL;
    if (fits) {
        own[gpu] += bytes;
        if (total + bytes > gpus->peak[gpu])
            gpus->peak[gpu] = total + bytes;
    }
    flock(file, LOCK_UN);
    return fits;
}

static u64 unseen(int gpu, int64_t bytes)
{
    for (int i = 0; i < PROCESSES; i++)
        if (is_own(i))
            gpus->process[i].unseen[gpu] += bytes;
    return 1;
}

static u64 whole(u64 bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

static struct piece *find(u64 key)
{
    for (int i = 0; i < PIECES; i++)
        if (pieces[i].key == key)
            return &pieces[i];
    return NULL;
}

/* Where small pieces are put: pages with room, each with the place of its next piece. */
static struct { u64 start, next; int gpu, pieces; } pages[20000];
static int place(u64 *key, u64 bytes, int gpu)
{
    bytes = (bytes + 511) / 512 * 512;
    for (int i = 0; i < 20000; i++)
        if (pages[i].pieces && pages[i].gpu == gpu && pages[i].next + bytes <= pages[i].start + PAGE) {
            *key = pages[i].next, pages[i].next += bytes, pages[i].pieces++;
            return OK;
        }
    for (int i = 0; i < 20000; i++)
        if (!pages[i].pieces) {
            if (!reserve(gpu, PAGE))
                return OUT_OF_MEMORY;
            *key = pages[i].start = next, pages[i].next = next + bytes, pages[i].gpu = gpu, pages[i].pieces = 1;
            next += PAGE;
            return OK;
        }
    return OUT_OF_MEMORY;
}

static int give_kind(u64 *key, u64 bytes, int gpu, int managed)
{
    struct piece *piece = find(0);
    int small = bytes <= PAGE / 2 && !managed, result = OK;
    if (!bytes || gpu < 0)
        return gpu < 0 ? NO_CONTEXT : INVALID;
    if (!piece)
        return OUT_OF_MEMORY;
    if (small) {
        if ((result = place(key, bytes, gpu)))
            return result;
    } else {
        bytes = whole(bytes);
        if (!reserve(gpu, bytes))
            return OUT_OF_MEMORY;
        *key = next;
        next += bytes;
    }
    *piece = (struct piece){.key = *key, .bytes = bytes, .gpu = gpu, .references = 1, .context = current, .pool = (u64)-1};
    if ((piece->managed = managed))
        unseen(gpu, bytes);
    return OK;
}
static int give(u64 *key, u64 bytes, int gpu) { return give_kind(key, bytes, gpu, 0); }

static int take(u64 key)
{
    struct piece *piece = key ? find(key) : NULL;
    if (!piece)
        return INVALID;
    if (piece->pool != (u64)-1) {
        pools[piece->pool].used -= piece->bytes;
    } else if (piece->exported) {
        hold(piece->exported - 1, -1);
        reserve(piece->gpu, 0);
    } else if (piece->bytes <= PAGE / 2) {
        for (int i = 0; i < 20000; i++)
            if (pages[i].pieces && key >= pages[i].start && key < pages[i].start + PAGE && !--pages[i].pieces)
                reserve(piece->gpu, -(int64_t)PAGE);
    } else {
        reserve(piece->gpu, -(int64_t)piece->bytes);
        if (piece->managed)
            unseen(piece->gpu, -(int64_t)piece->bytes);
    }
    piece->key = 0;
    return OK;
}

int cuInit(unsigned flags) { return OK; }
int cuLoadKernels(size_t bytes) { return reserve(current, bytes) ? OK : OUT_OF_MEMORY; } /* as a launch may: code takes memory */
int cuFutureFunction(void) { return 4242; }
int cuDeviceGetCount(int *count) { *count = GPUS; return OK; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal < GPUS ? OK : 101; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { memset(uuid, 0x11 * (device + 1), 16); return OK; }
int cuDeviceGetPCIBusId(char *text, int size, int device) { snprintf(text, size, "%d", device); return OK; }
int cuDeviceTotalMem_v2(size_t *total, int device) { *total = TOTAL; return OK; }
int cuMemGetInfo_v2(size_t *left, size_t *total)
{
    if (current < 0)
        return NO_CONTEXT;
    reserve(current, 0);
    *total = *left = TOTAL;
    for (int i = 0; i < PROCESSES; i++)
        *left -= gpus->process[i].used[current];
    return OK;
}

/* contexts: the handle of GPU n's primary one is n + 100 */
int cuCtxGetDevice(int *device) { *device = current; return current < 0 ? NO_CONTEXT : OK; }
int cuCtxGetCurrent(u64 *context) { *context = current < 0 ? 0 : 100 + current; return OK; }
int cuCtxSetCurrent(u64 context) { current = context ? (int)context - 100 : -1; return OK; }
static int pushed[8], depth;
int cuCtxPushCurrent_v2(u64 context) { pushed[depth++] = current; return cuCtxSetCurrent(context); }
int cuCtxPopCurrent_v2(u64 *context)
{
    *context = 100 + current;
    current = pushed[--depth];
    return OK;
}
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *active = primary[device] > 0; return OK; }
int cuDevicePrimaryCtxRetain(u64 *context, int device)
{
    if (!primary[device] && !reserve(device, CONTEXT))
        return OUT_OF_MEMORY;
    primary[device]++;
    *context = 100 + device;
    return OK;
}
int cuDevicePrimaryCtxRelease_v2(int device)
{
    if (--primary[device])
        return OK;
    for (int i = 0; i < PIECES; i++)
        if (pieces[i].key && pieces[i].context == device && pieces[i].pool == (u64)-1)
            take(pieces[i].key);
    return !reserve(device, -(int64_t)CONTEXT);
}
int cuDevicePrimaryCtxReset_v2(int device) { primary[device] = 1; return cuDevicePrimaryCtxRelease_v2(device); }

/* memory */
int cuMemAlloc_v2(u64 *pointer, size_t bytes) { return give(pointer, bytes, current); }
int cuMemAllocManaged(u64 *pointer, size_t bytes, unsigned flags) { return give_kind(pointer, bytes, current, 1); }
int cuMemAllocPitch_v2(u64 *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    *pitch = (width + 511) / 512 * 512;
    return give(pointer, *pitch * height, current);
}
int cuMemFreeAsync(u64 pointer, u64 stream);
int cuMemFree_v2(u64 pointer) { return cuMemFreeAsync(pointer, 0); }
struct array { size_t width, height; unsigned format, channels; };
struct array3d { size_t width, height, depth; unsigned format, channels, flags; };
int cuArrayCreate_v2(u64 *array, struct array *a) { return give(array, a->width * a->height * a->channels * 4, current); }
enum { SPARSE = 0x40 };
int cuArray3DCreate_v2(u64 *array, struct array3d *a)
{
    if (a->flags & SPARSE) { /* without memory: its tiles are mapped */
        *array = next, next += PAGE;
        return OK;
    }
    return give(array, a->width * a->height * a->depth * a->channels * 4, current);
}
int cuMipmappedArrayCreate(u64 *array, struct array3d *a, unsigned levels)
{
    u64 bytes = 0;
    for (unsigned level = 0; level < levels; level++)
        bytes += (a->width >> level) * (a->height >> level) * a->channels * 4;
    return give(array, bytes, current);
}
static void unmap_tiles(u64 array);
int cuArrayDestroy(u64 array) { unmap_tiles(array); return find(array) ? take(array) : OK; }
int cuMipmappedArrayDestroy(u64 array) { return take(array); }

/* physical memory and its mappings; an address is mapped to one allocation */
struct allocation { int type, handle_types, location, id; };
int cuMemCreate(u64 *allocation, size_t bytes, struct allocation *facts, u64 flags)
{
    return facts->location == 1 ? give(allocation, bytes, facts->id) : (*allocation = 7, OK);
}
static struct { u64 pointer, allocation, bytes; } mappings[64];
static int unrefer(u64 key)
{
    struct piece *piece = find(key);
    return !piece ? OK : --piece->references ? OK : take(key);
}
int cuMemAddressReserve(u64 *pointer, size_t bytes, size_t alignment, u64 wish, u64 flags) { *pointer = next; next += whole(bytes); return OK; }
int cuMemRelease(u64 allocation) { return unrefer(allocation); }
int cuMemMap(u64 pointer, size_t bytes, size_t offset, u64 allocation, u64 flags)
{
    find(allocation)->references++;
    for (int i = 0; i < 64; i++)
        if (!mappings[i].bytes) {
            mappings[i].pointer = pointer, mappings[i].allocation = allocation, mappings[i].bytes = bytes;
            return OK;
        }
    return INVALID;
}
int cuMemUnmap(u64 pointer, size_t bytes)
{
    for (int i = 0; i < 64; i++)
        if (mappings[i].bytes && mappings[i].pointer >= pointer && mappings[i].pointer < pointer + bytes) {
            mappings[i].bytes = 0;
            unrefer(mappings[i].allocation);
        }
    return OK;
}
/* tiles of sparse arrays: its first row stands for its place */
struct tile { int array_type; u64 array; int part_type; _Alignas(8) unsigned part[8]; int operation, handle_type; u64 allocation, offset; unsigned more[4]; };
static struct { u64 array, allocation; unsigned at; } tiles[64];
static void unmap_tile(int i) { u64 allocation = tiles[i].allocation; tiles[i].array = 0; unrefer(allocation); }
static void unmap_tiles(u64 array)
{
    for (int i = 0; i < 64; i++)
        if (tiles[i].array == array)
            unmap_tile(i);
}
int cuMemMapArrayAsync(struct tile *list, unsigned count, u64 stream)
{
    for (unsigned n = 0; n < count; n++) {
        int room = 0;
        for (int i = 0; i < 64; i++)
            if (tiles[i].array == list[n].array && tiles[i].at == list[n].part[3])
                unmap_tile(i);
        while (tiles[room].array)
            room++;
        if (list[n].operation == 1) {
            find(list[n].allocation)->references++;
            tiles[room].array = list[n].array, tiles[room].allocation = list[n].allocation, tiles[room].at = list[n].part[3];
        }
    }
    return OK;
}
int cuMemMapArrayAsync_ptsz(struct tile *list, unsigned count, u64 stream) { return cuMemMapArrayAsync(list, count, stream); }
int cuMemRetainAllocationHandle(u64 *allocation, u64 pointer)
{
    for (int i = 0; i < 64; i++)
        if (mappings[i].bytes && mappings[i].pointer == pointer) {
            find(*allocation = mappings[i].allocation)->references++;
            return OK;
        }
    return INVALID;
}

/* pools: the handle of pool n is n + 500; what is freed stays reserved until it is trimmed */
struct properties { int type, handle_types, location, id; };
int cuDeviceGetDefaultMemPool(u64 *pool, int device) { *pool = 500 + device; return OK; }
int cuDeviceGetMemPool(u64 *pool, int device) { return cuDeviceGetDefaultMemPool(pool, device); }
int cuMemPoolCreate(u64 *pool, struct properties *p)
{
    pools[pool_count].gpu = p->id, pools[pool_count].managed = p->type == 2;
    *pool = 500 + pool_count++;
    return OK;
}
int cuMemPoolGetAttribute(u64 pool, int attribute, u64 *value)
{
    *value = attribute == 5 ? pools[pool - 500].reserved : pools[pool - 500].used;
    return attribute == 5 || attribute == 7 ? OK : INVALID;
}
int cuMemPoolTrimTo(u64 pool, size_t bytes)
{
    u64 keep = whole(pools[pool - 500].used > bytes ? pools[pool - 500].used : bytes);
    if (keep < pools[pool - 500].reserved) {
        reserve(pools[pool - 500].gpu, (int64_t)(keep - pools[pool - 500].reserved));
        if (pools[pool - 500].managed)
            unseen(pools[pool - 500].gpu, (int64_t)(keep - pools[pool - 500].reserved));
        pools[pool - 500].reserved = keep;
    }
    return OK;
}
int cuMemPoolDestroy(u64 pool) { return !reserve(pools[pool - 500].gpu, -(int64_t)pools[pool - 500].reserved); }
int cuMemAllocFromPoolAsync(u64 *pointer, size_t bytes, u64 pool, u64 stream)
{
    struct piece *piece = find(0);
    pool -= 500;
    if (capturing) {
        graphs[capturing].now += whole(bytes), graphs[capturing].gpu = current;
        if (graphs[capturing].now > graphs[capturing].peak)
            graphs[capturing].peak = graphs[capturing].now;
        *piece = (struct piece){.key = *pointer = next, .bytes = bytes, .gpu = current, .pool = (u64)-2};
        next += whole(bytes);
        return OK;
    }
    u64 grown = whole(pools[pool].used + bytes);
    if (grown > pools[pool].reserved) {
        if (!reserve(pools[pool].gpu, (int64_t)(grown - pools[pool].reserved)))
            return OUT_OF_MEMORY;
        if (pools[pool].managed)
            unseen(pools[pool].gpu, (int64_t)(grown - pools[pool].reserved));
        pools[pool].reserved = grown;
    }
    pools[pool].used += bytes;
    *piece = (struct piece){.key = *pointer = next, .bytes = bytes, .gpu = pools[pool].gpu, .pool = pool};
    next += whole(bytes);
    return OK;
}
int cuMemAllocAsync(u64 *pointer, size_t bytes, u64 stream) { return cuMemAllocFromPoolAsync(pointer, bytes, 500 + current, stream); }
int cuMemAllocAsync_ptsz(u64 *pointer, size_t bytes, u64 stream) { return cuMemAllocAsync(pointer, bytes, stream); }
int cuMemFreeAsync(u64 pointer, u64 stream)
{
    struct piece *piece = find(pointer);
    if (!piece || piece->pool != (u64)-2)
        return take(pointer);
    *(capturing ? &graphs[capturing].now : &graph_used[piece->gpu]) -= whole(piece->bytes);
    piece->key = 0;
    return OK;
}
int cuMemFreeAsync_ptsz(u64 pointer, u64 stream) { return take(pointer); }
int cuStreamSynchronize(u64 stream) { return OK; }
int cuStreamSynchronize_ptsz(u64 stream) { return OK; }
int cuCtxSynchronize(void) { return OK; }

/* graphs: the handle of graph n is 1600 + 16 n, of its instance 32000 + 16 n; a launch takes what instances share */
int cuGraphCreate(u64 *graph, unsigned flags) { *graph = 1600 + 16 * ++graph_count; return OK; }
int cuStreamBeginCapture(u64 stream) { capturing = ++graph_count; return OK; }
int cuStreamBeginCapture_v2(u64 stream, int mode) { return cuStreamBeginCapture(stream); }
int cuStreamEndCapture(u64 stream, u64 *graph) { *graph = 1600 + 16 * capturing; capturing = 0; return OK; }
int cuStreamIsCapturing(u64 stream, int *status) { *status = capturing > 0; return OK; }
int cuStreamIsCapturing_ptsz(u64 stream, int *status) { *status = capturing > 0; return OK; }
int cuStreamGetCaptureInfo_v2(u64 stream, int *status, u64 *id, u64 *graph, void *nodes, size_t *count)
{
    *graph = 1600 + 16 * capturing;
    return OK;
}
struct node { int type, handle_types, location, id; char more[72]; void *access; size_t count, bytes; u64 pointer; };
int cuGraphAddMemAllocNode(u64 *node, u64 graph, u64 *before, size_t count, struct node *facts)
{
    u64 bytes = whole(facts->bytes);
    int number = (graph - 1600) / 16;
    graphs[number].peak += bytes, graphs[number].now += bytes, graphs[number].gpu = facts->id;
    *find(0) = (struct piece){.key = facts->pointer = next, .bytes = bytes, .gpu = facts->id, .pool = (u64)-2};
    next += bytes;
    return OK;
}
int cuGraphInstantiateWithFlags(u64 *instance, u64 graph, u64 flags) { *instance = 32000 + graph - 1600; return OK; }
int cuGraphLaunch(u64 instance, u64 stream)
{
    int number = (instance - 32000) / 16, gpu = graphs[number].gpu;
    u64 need = graph_used[gpu] + graphs[number].peak, more = need > graph_reserved[gpu] ? need - graph_reserved[gpu] : 0;
    if (!reserve(gpu, more))
        return OUT_OF_MEMORY;
    graph_reserved[gpu] += more;
    graph_used[gpu] += graphs[number].now;
    return OK;
}
int cuGraphExecDestroy(u64 instance) { return OK; }
int cuGraphDestroy(u64 graph) { return OK; }
int cuDeviceGraphMemTrim(int device)
{
    reserve(device, (int64_t)(graph_used[device] - graph_reserved[device]));
    graph_reserved[device] = graph_used[device];
    return OK;
}
int cuDeviceGetGraphMemAttribute(int device, int attribute, u64 *value) { *value = graph_reserved[device]; return OK; }

/* modules: text in PTX, of which the sizes of variables and of local memory are read; a handle is its number and one */
static struct { u64 variables, local; int uses_heap, prints, is_loaded; } modules[16];
static int module_count;
enum { THREADS = 1024, PROCESSORS = 8 };
static u64 size_after(const char *text, const char *space)
{
    u64 total = 0;
    while ((text = strstr(text, space))) {
        const char *bracket = strchr(text, '['), *end = strchr(text, ';');
        if (bracket && bracket < end)
            total += strtoull(bracket + 1, NULL, 10);
        text++;
    }
    return total;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 16 ? PROCESSORS : THREADS; return OK; }
int cuLibraryLoadData(u64 *library, const char *image)
{
    modules[module_count].variables = whole(size_after(image, ".global"));
    modules[module_count].local = size_after(image, ".local");
    modules[module_count].uses_heap = strstr(image, "malloc") != NULL;
    modules[module_count].prints = strstr(image, "vprintf") != NULL;
    *library = ++module_count;
    return OK;
}
int cuLibraryGetModule(u64 *module, u64 library)
{
    *module = library--;
    if (!modules[library].is_loaded && !reserve(current, modules[library].variables))
        return OUT_OF_MEMORY;
    modules[library].is_loaded = 1;
    return OK;
}
int cuModuleLoadData(u64 *module, const char *image) { cuLibraryLoadData(module, image); return cuLibraryGetModule(module, *module); }
int cuModuleUnload(u64 module)
{
    modules[module - 1].is_loaded = 0;
    return !reserve(current, -(int64_t)modules[module - 1].variables);
}
int cuModuleGetFunction(u64 *kernel, u64 module, const char *name) { *kernel = module; return OK; }
int cuLibraryGetKernel(u64 *kernel, u64 library, const char *name) { *kernel = library; return OK; }
int cuFuncGetAttribute(int *value, int attribute, u64 kernel) { *value = modules[kernel - 1].local; return OK; }
int cuKernelGetAttribute(int *value, int attribute, u64 kernel, int device) { return cuFuncGetAttribute(value, attribute, kernel); }
static int resize(u64 bytes)
{
    int fits = reserve(current, (int64_t)(bytes - stacks) * THREADS * PROCESSORS);
    stacks = fits ? bytes : stacks;
    return fits ? OK : OUT_OF_MEMORY;
}
int cuCtxSetLimit(int limit, size_t value)
{
    if (limit == 2)
        return has_heap ? INVALID : (heap = value, OK);
    if (limit == 1)
        return has_fifo ? INVALID : (fifo = value, OK);
    return limit ? OK : resize(stack = value);
}
int cuLaunchKernel(u64 kernel, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned shared, u64 stream, void **arguments, void **more)
{
    u64 module;
    if (cuLibraryGetModule(&module, kernel) || (modules[kernel - 1].uses_heap && !has_heap && !(has_heap = reserve(current, heap))))
        return OUT_OF_MEMORY;
    if (modules[kernel - 1].prints && !has_fifo && !(has_fifo = reserve(current, fifo)))
        return OUT_OF_MEMORY;
    return modules[kernel - 1].local > stacks ? resize(modules[kernel - 1].local) : OK;
}

/* memory of other processes */
static int export(struct piece *piece, int is_file)
{
    for (int id = 0; id < EXPORTED && !piece->exported; id++)
        if (!gpus->exported[id].bytes) {
            gpus->exported[id].gpu = piece->gpu, gpus->exported[id].is_file = is_file;
            hold(id, 1);
            reserve(piece->gpu, -(int64_t)piece->bytes);
            gpus->exported[id].bytes = piece->bytes;
            piece->exported = id + 1;
        }
    return piece->exported - 1;
}
int cuMemExportToShareableHandle(int *descriptor, u64 allocation, int type, u64 flags)
{
    struct flock range = byte_of(export(find(allocation), 1));
    *descriptor = open(getenv("FAKE_CONTROL"), O_RDWR);
    return fcntl(*descriptor, F_OFD_SETLK, &range) < 0;
}
static int import(u64 *key, int id, int gpu)
{
    struct piece *piece = find(0);
    *piece = (struct piece){.key = *key = next, .bytes = gpus->exported[id].bytes, .gpu = gpu, .references = 1, .context = -1, .pool = (u64)-1, .exported = id + 1};
    next += whole(piece->bytes);
    hold(id, 1);
    return OK;
}
int cuMemImportFromShareableHandle(u64 *allocation, u64 descriptor, int type)
{
    reserve(0, 0);
    for (int id = 0; id < EXPORTED; id++) {
        struct flock range = byte_of(id);
        if (gpus->exported[id].bytes && is_exported(id) && !fcntl(descriptor, F_OFD_GETLK, &range) && range.l_type == F_UNLCK)
            return import(allocation, id, gpus->exported[id].gpu);
    }
    return INVALID;
}
int cuMemGetAllocationPropertiesFromHandle(struct allocation *facts, u64 allocation)
{
    *facts = (struct allocation){1, 1, 1, find(allocation)->gpu};
    return OK;
}
struct ipc { char bytes[64]; };
int cuMemGetAddressRange_v2(u64 *base, size_t *bytes, u64 pointer) { *base = pointer; *bytes = find(pointer) ? find(pointer)->bytes : 0; return OK; }
int cuIpcGetMemHandle(struct ipc *memory, u64 pointer)
{
    memset(memory, 0, sizeof *memory);
    memory->bytes[0] = export(find(pointer), 0);
    return OK;
}
int cuIpcOpenMemHandle_v2(u64 *pointer, struct ipc memory, unsigned flags) { reserve(0, 0); return import(pointer, memory.bytes[0], 0); }
int cuIpcCloseMemHandle(u64 pointer) { return take(pointer); }

/* a tool's function in the place of ours, as FAKE_TOOL names one: any function that is not the driver's will do */
static void *interposed(const char *name, void *own)
{
    return getenv("FAKE_TOOL") && !strcmp(name, getenv("FAKE_TOOL")) ? (void *)strlen : own;
}

/* as the driver: by name without version, and by whether the default stream is each thread's own */
int cuGetProcAddress_v2(const char *name, void **found, int version, u64 flags, int *status)
{
    struct { const char *name; void *function, *per_thread; } known[] = {
        {"cuInit", cuInit, cuInit},
        {"cuMemAlloc", cuMemAlloc_v2, cuMemAlloc_v2},
        {"cuMemAllocAsync", cuMemAllocAsync, cuMemAllocAsync_ptsz},
        {"cuDeviceTotalMem", cuDeviceTotalMem_v2, cuDeviceTotalMem_v2},
        {"cuFutureFunction", cuFutureFunction, cuFutureFunction},
        {"cuMemFree", interposed("cuMemFree", cuMemFree_v2), interposed("cuMemFree", cuMemFree_v2)},
        {"cuGetProcAddress", cuGetProcAddress_v2, cuGetProcAddress_v2},
    };
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i].name)) {
            *found = flags & 2 ? known[i].per_thread : known[i].function;
            return OK;
        }
    *found = NULL;
    return 500;
}
int cuGetProcAddress(const char *name, void **found, int version, u64 flags) { return cuGetProcAddress_v2(name, found, version, flags, NULL); }

/* NVML: a handle is the number and one */
struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
struct memory { unsigned long long total, left, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, left, used; };
int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(u64)(index + 1); return OK; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) { *device = (void *)(u64)(atoi(bus) + 1); return OK; }
int nvmlDeviceGetIndex(void *device, unsigned *index) { *index = (u64)device - 1; return OK; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size)
{
    int n = (int)(u64)device * 1111;
    snprintf(text, size, "GPU-%d%d-%d-%d-%d-%d%d%d", n, n, n, n, n, n, n, n);
    return OK;
}
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) { *memory = (struct memory){TOTAL, TOTAL, 0}; return OK; }
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory)
{
    *memory = (struct memory_v2){memory->version, TOTAL, 1 << 20, TOTAL - (1 << 20), 0};
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *found)
{
    u64 used = 0;
    reserve(0, 0);
    for (int i = 0; i < PROCESSES; i++)
        if (is_own(i))
            used = gpus->process[i].used[(u64)device - 1] - gpus->process[i].unseen[(u64)device - 1];
    *found = (struct process){getpid(), used, 0, 0};
    *count = 1;
    return OK;
}
