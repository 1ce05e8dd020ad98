/* The limits file, HAMi's variables, and the usage file.

   The usage file is mapped by every process of the container. A process owns one slot of it and writes its own numbers
   there, each with one store; a GPU's use is the sum over the slots. Nothing else is kept, so a process that is killed at
   any instruction leaves nothing half written. What a dead process used counts a moment longer: the driver frees it a
   little later.

   Who is alive is not asked by process id, which means nothing across PID namespaces: a process holds a lock on the byte
   of its slot, and the kernel drops it when nobody has the open file any more, by a descriptor or by the mapping. A forked
   child inherits both as it inherits the driver's: the slot of a killed parent counts until the driver lets go of the
   memory, too. The same kind of lock, on byte 0, is the mutex: no death, no reboot and no namespace can leave it taken. */
#define _GNU_SOURCE
#include "share.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef ROOT
#define ROOT "/usr/local/plugwright"
#endif
#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#define F_OFD_SETLKW 38
#endif

OLDEST(dlopen);
OLDEST(dlsym);

enum { MAGIC = 0x70777631, MUTEX = 0, SLOTS = 1, FREEING = 250 }; /* SLOTS: the lock byte of slot 0; milliseconds */
enum { FREE = 0, TAKEN = 1 };

struct usage {
    uint32_t magic, slots;     /* slots: those that have ever been used */
    uint64_t context[GPUS];
    uint64_t state[PROCESSES]; /* FREE, TAKEN, or when its owner was found dead */
    uint64_t used[GPUS][PROCESSES];
};

static struct {
    int state;                     /* 0 not read, 1 good, -1 refused */
    int from_file, count;          /* GPUs in the file */
    unsigned char uuid[GPUS][16];
    uint64_t limit[GPUS];          /* 0 in the file is no share at all; UINT64_MAX where only variables count */
} limits;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct usage *usage;
static int file = -1, slot = -1;
static uint64_t device, inode;
static uint64_t held[GPUS];        /* what this process uses: the content of its slot, once it has one */

static void say(const char *subject, const char *problem)
{
    const char *texts[] = {"plugwright-vgpu: ", subject, ": ", problem, "\n"};
    char line[256];
    size_t length = 0;
    for (unsigned text = 0; text < sizeof texts / sizeof *texts; text++)
        for (const char *from = texts[text]; *from && length < sizeof line; from++)
            line[length++] = *from;
    if (write(2, line, length) < 0)
        return;
}

/* --- limits --- */

/* Decimal digits, and k, m or g in HAMi's way; returns the rest of the text, NULL where there is no number. */
static const char *number(const char *text, uint64_t *value)
{
    const char *start = text;
    uint64_t unit = 1;
    for (*value = 0; *text >= '0' && *text <= '9'; text++)
        if (__builtin_mul_overflow(*value, 10u, value) || __builtin_add_overflow(*value, *text - '0', value))
            return NULL;
    if (text == start)
        return NULL;
    switch (*text | 0x20) {
    case 'k': unit <<= 10; text++; break;
    case 'm': unit <<= 20; text++; break;
    case 'g': unit <<= 30; text++; break;
    }
    return __builtin_mul_overflow(*value, unit, value) ? NULL : text;
}

static int hexadecimal(char letter)
{
    if (letter >= '0' && letter <= '9')
        return letter - '0';
    letter |= 0x20;
    return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

/* One line, `GPU-00000000-1111-2222-3333-444444444444 BYTES`; the next one, or NULL where it is none. */
static const char *line(const char *text, unsigned char *uuid, uint64_t *bytes)
{
    int digits = 0;
    for (text = strchr(text, '-') ? strchr(text, '-') : ""; *text && *text != ' '; text++) {
        int value = hexadecimal(*text);
        if (*text == '-')
            continue;
        if (value < 0 || digits == 32)
            return NULL;
        uuid[digits / 2] = (unsigned char)(digits % 2 ? uuid[digits / 2] | value : value << 4);
        digits++;
    }
    if (digits != 32 || *text != ' ')
        return NULL;
    text = number(text + 1, bytes);
    return text && *text == '\n' ? text + 1 : NULL;
}

static int read_file(void)
{
    char text[GPUS * 80 + 1];
    int descriptor = open(ROOT "/vgpu/limits", O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return errno == ENOENT ? 0 : -1;
    ssize_t length = read(descriptor, text, sizeof text);
    close(descriptor);
    if (length <= 0 || length == sizeof text)
        return -1;
    text[length] = 0;
    for (const char *rest = text; *rest; limits.count++)
        if (limits.count == GPUS || !(rest = line(rest, limits.uuid[limits.count], &limits.limit[limits.count])))
            return -1;
    return 1;
}

/* CUDA_DEVICE_MEMORY_LIMIT_N for GPU N, else CUDA_DEVICE_MEMORY_LIMIT; to HAMi 0 means no limit, and so it does here. */
static uint64_t variable(int gpu)
{
    char name[] = "CUDA_DEVICE_MEMORY_LIMIT_00";
    size_t end = sizeof name - 3;
    uint64_t value;
    if (gpu >= 10)
        name[end++] = (char)('0' + gpu / 10);
    name[end++] = (char)('0' + gpu % 10);
    name[end] = 0;
    const char *text = getenv(name);
    if (!text || !*text) {
        name[sizeof "CUDA_DEVICE_MEMORY_LIMIT" - 1] = 0;
        text = getenv(name);
    }
    if (!text || !*text)
        return UINT64_MAX;
    const char *rest = number(text, &value);
    if (!rest || *rest) {
        say(name, "must be a number with k, m or g, and is ignored");
        return UINT64_MAX;
    }
    return value ? value : UINT64_MAX;
}

static int read_limits(void)
{
    int found = read_file();
    if (found < 0) {
        say(ROOT "/vgpu/limits", "cannot be read: no memory of a GPU can be used");
        return -1;
    }
    limits.from_file = found;
    int any = found;
    for (int gpu = 0; gpu < GPUS; gpu++) {
        uint64_t tighter = variable(gpu);
        if (!found)
            limits.limit[gpu] = UINT64_MAX;
        if (tighter < limits.limit[gpu])
            limits.limit[gpu] = tighter;
        any |= limits.limit[gpu] != UINT64_MAX;
    }
    if (!any)
        say(ROOT "/vgpu/limits", "does not exist, and no variable sets a limit: no memory of a GPU can be used");
    return any ? 1 : -1;
}

int share_open(void)
{
    if (!__atomic_load_n(&limits.state, __ATOMIC_ACQUIRE)) {
        pthread_mutex_lock(&mutex);
        if (!limits.state)
            __atomic_store_n(&limits.state, read_limits(), __ATOMIC_RELEASE);
        pthread_mutex_unlock(&mutex);
    }
    return limits.state > 0;
}

int share_gpu(const unsigned char *uuid, int ordinal)
{
    if (!share_open())
        return -1;
    if (!limits.from_file)
        return ordinal < GPUS ? ordinal : -1;
    for (int gpu = 0; gpu < limits.count; gpu++)
        if (!memcmp(limits.uuid[gpu], uuid, 16))
            return gpu;
    return -1;
}

uint64_t share_limit(int gpu)
{
    return gpu < 0 || !share_open() ? 0 : limits.limit[gpu];
}

/* --- the usage file --- */

static int lock(int command, short type, int byte)
{
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;
    while ((result = fcntl(file, command, &range)) < 0 && errno == EINTR)
        ;
    return result < 0 ? -1 : range.l_type == F_UNLCK;
}

static void identify(uint64_t *on, uint64_t *number)
{
    struct stat found = {0};
    if (syscall(SYS_fstat, file, &found) < 0) /* fstat itself is a symbol that older C libraries do not have */
        found.st_ino = 0;
    *on = found.st_dev;
    *number = found.st_ino;
}

/* A program may have closed every descriptor it did not know, and opened others in their place. The mapping keeps the
   lock of the slot; only the mutex needs a descriptor. */
static int is_open(void)
{
    uint64_t on, number;
    identify(&on, &number);
    return number == inode && on == device;
}

static int open_file(void)
{
    const char *path = limits.from_file ? ROOT "/vgpu/usage" : getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    if (path && *path)
        file = open(path, limits.from_file ? O_RDWR | O_CLOEXEC : O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    else /* nobody to share with: counted for this process alone */
        file = (int)syscall(SYS_memfd_create, "plugwright-vgpu", 1u);
    if (file < 0) {
        say(path ? path : "memfd_create", "cannot be opened: no memory of a GPU can be used");
        return 0;
    }
    identify(&device, &inode);
    return 1;
}

static int map_file(void)
{
    struct usage *mapped = MAP_FAILED;
    if (lseek(file, 0, SEEK_END) >= (off_t)sizeof *usage || !ftruncate(file, sizeof *usage))
        mapped = mmap(NULL, sizeof *usage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED || (mapped->magic && mapped->magic != MAGIC)) {
        say("the usage file", "is not ours: no memory of a GPU can be used");
        return 0;
    }
    mapped->magic = MAGIC;
    usage = mapped;
    return 1;
}

static uint64_t milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000 + 2; /* never FREE or TAKEN */
}

/* With the file locked: gives back what dead processes used; whether some of it still has to wait. */
static int sweep(void)
{
    int waits = 0;
    for (uint32_t process = 0; process < usage->slots && process < PROCESSES; process++) {
        uint64_t *state = &usage->state[process], now = milliseconds();
        if (*state == FREE || (int)process == slot || lock(F_OFD_GETLK, F_WRLCK, SLOTS + (int)process) != 1)
            continue;
        if (*state == TAKEN || *state > now) /* a time of before a reboot */
            *state = now;
        if (now - *state < FREEING) {
            for (int gpu = 0; gpu < GPUS; gpu++)
                waits |= usage->used[gpu][process] > 0;
            continue;
        }
        for (int gpu = 0; gpu < GPUS; gpu++)
            usage->used[gpu][process] = 0;
        *state = FREE;
    }
    return waits;
}

/* With the file locked: the first slot that is free. */
static int own_slot(void)
{
    sweep();
    for (int candidate = 0; candidate < PROCESSES; candidate++) {
        if (usage->state[candidate] != FREE || lock(F_OFD_SETLK, F_WRLCK, SLOTS + candidate) < 0)
            continue;
        usage->state[candidate] = TAKEN;
        for (int gpu = 0; gpu < GPUS; gpu++)
            __atomic_store_n(&usage->used[gpu][candidate], held[gpu], __ATOMIC_SEQ_CST);
        if (usage->slots <= (uint32_t)candidate)
            __atomic_store_n(&usage->slots, (uint32_t)candidate + 1, __ATOMIC_SEQ_CST);
        slot = candidate;
        return 1;
    }
    say("the usage file", "has no room for another process");
    return 0;
}

/* A forked child has its parent's memory neither in its own use nor in its own slot. The descriptor stays open. */
static void forget(void)
{
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    file = slot = -1;
    usage = NULL; /* the mapping stays, too: it is 140 KiB, and a thread of the parent may have been in it */
    memset(held, 0, sizeof held);
}

static void enter(void) { pthread_mutex_lock(&mutex); }
static void leave(void) { pthread_mutex_unlock(&mutex); }

/* Takes both mutexes, with a slot that is ours; 0 with neither if that cannot be had. */
static int begin(void)
{
    static int prepared;
    if (!share_open())
        return 0;
    enter();
    if (!prepared)
        prepared = !pthread_atfork(enter, leave, forget);
    if (file >= 0 && !is_open())
        file = -1;
    if ((file >= 0 || open_file()) && lock(F_OFD_SETLKW, F_WRLCK, MUTEX) >= 0) {
        if ((usage || map_file()) && (slot >= 0 || own_slot()))
            return 1;
        lock(F_OFD_SETLK, F_UNLCK, MUTEX);
    }
    leave();
    return 0;
}

static void end(void)
{
    lock(F_OFD_SETLK, F_UNLCK, MUTEX);
    leave();
}

static uint64_t sum(int gpu)
{
    uint64_t total = 0;
    uint32_t slots = __atomic_load_n(&usage->slots, __ATOMIC_SEQ_CST);
    for (uint32_t process = 0; process < slots && process < PROCESSES; process++)
        if (__builtin_add_overflow(total, __atomic_load_n(&usage->used[gpu][process], __ATOMIC_SEQ_CST), &total))
            return UINT64_MAX;
    return total;
}

static void add(int gpu, uint64_t bytes)
{
    held[gpu] += bytes;
    __atomic_store_n(&usage->used[gpu][slot], held[gpu], __ATOMIC_SEQ_CST);
}

static int fits(int gpu) { return sum(gpu) <= limits.limit[gpu]; }

/* Within the mutex: adds if the sum is within the share then. */
static int try_add(int gpu, uint64_t bytes)
{
    add(gpu, bytes);
    if (fits(gpu))
        return 1;
    add(gpu, -bytes);
    return 0;
}

/* Without the lock on the file. Every process adds first and looks at the sum then, so of two that are too much together
   at least one sees it. */
static int try_add_fast(int gpu, uint64_t bytes)
{
    enter();
    int added = slot >= 0 && try_add(gpu, bytes);
    leave();
    return added;
}

int share_take(int gpu, uint64_t bytes)
{
    if (gpu < 0 || !share_open() || bytes > limits.limit[gpu])
        return 0;
    if (try_add_fast(gpu, bytes))
        return 1;
    int added = 0, waits = 1;
    for (int attempt = 0; !added && (waits || attempt < 4) && begin(); attempt++) {
        waits = sweep();
        added = try_add(gpu, bytes);
        end();
        if (waits && !added)
            usleep(10000);
        else if (!added)
            sched_yield(); /* another process may be about to take back what it has just added in vain */
    }
    return added;
}

int share_exceeded(int gpu) { return gpu >= 0 && !share_take(gpu, 0); }

void share_correct(int gpu, int64_t bytes)
{
    if (gpu < 0 || !bytes)
        return;
    enter();
    if (slot >= 0)
        add(gpu, (uint64_t)bytes);
    else
        held[gpu] += (uint64_t)bytes; /* its slot gets it */
    leave();
}

uint64_t share_used(int gpu)
{
    if (gpu < 0 || !begin())
        return 0;
    sweep();
    uint64_t used = sum(gpu);
    end();
    return used;
}

uint64_t share_held(int gpu)
{
    enter();
    uint64_t bytes = gpu < 0 ? 0 : held[gpu];
    leave();
    return bytes;
}

uint64_t share_left(int gpu)
{
    enter();
    uint64_t used = gpu < 0 || !usage ? 0 : sum(gpu), limit = gpu < 0 ? 0 : limits.limit[gpu];
    leave();
    return limit > used ? limit - used : 0;
}

uint64_t share_context(int gpu)
{
    uint64_t bytes = 0;
    if (gpu >= 0 && begin()) {
        bytes = usage->context[gpu];
        end();
    }
    return bytes;
}

void share_set_context(int gpu, uint64_t bytes)
{
    if (gpu >= 0 && begin()) {
        usage->context[gpu] = bytes;
        end();
    }
}

void *share_driver(const char *library, const char *function)
{
    void *handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
    return handle ? dlsym(handle, function) : NULL;
}
