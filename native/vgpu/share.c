/* The limits file, HAMi's variables, and the usage file.

   The usage file is mapped by every process of the container. A process owns one slot of it and writes its own numbers
   there, each with one store; a GPU's use is the sum over the slots, and over the records of allocations that have lost
   their owner. Whatever moves from one to the other is added there before it is taken away here, so a process that is
   killed at any instruction leaves too much counted at worst, and only until its slot is swept. What a dead process used
   counts until it has ended altogether: the kernel closes its files, and the driver frees its memory, before that.

   Who is alive is not asked by process id, which means nothing across PID namespaces: a process holds a lock on the byte
   of its slot, and the kernel drops it when no process has the open file any more, by a descriptor or by the mapping. A forked
   child inherits both as it inherits the driver's: the slot of a killed parent counts until the driver lets go of the
   memory, too. The same kind of lock, on byte 0, is the mutex: no death, no reboot and no namespace can leave it taken. */
#define _GNU_SOURCE
#include "share.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
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

enum { MAGIC = 0x70777631, MUTEX = 0, SLOTS = 1 }; /* SLOTS: the lock byte of slot 0 */
enum { FREE = 0, TAKEN = 1 };
/* Milliseconds: after the end of a process; where its end cannot be seen, because it was of another PID namespace; and
   for which an allocation waits for the memory of dying processes at most. */
enum { FREEING = 250, UNSEEN_END = 5000, PATIENCE = 30000 };
enum { EXPORTS = 64 }; /* of one allocation */

struct record {
    uint64_t id;      /* 0: free */
    uint64_t bytes;
    uint64_t token;   /* the first of EXPORTS bytes of CONTROL; each exported descriptor has a lock on one of them */
    int32_t gpu, owner; /* owner: the slot that the bytes are counted in; -1: they are counted here */
    uint32_t exports, unused;
    uint64_t holders[PROCESSES / 64]; /* slots */
};

struct usage {
    uint32_t magic, slots;     /* slots: those that have ever been used */
    uint64_t context[GPUS];
    uint64_t state[PROCESSES]; /* FREE, TAKEN, or when its owner was found dead */
    uint64_t used[GPUS][PROCESSES];
    uint64_t pid[PROCESSES], started[PROCESSES], namespace[PROCESSES]; /* of the owner; 0 where it is not known */
    uint64_t records;          /* those that have ever been used */
    struct record record[RECORDS];
    uint64_t peak[GPUS], refusals[GPUS]; /* for the daemon, which reads them: vgpu_usage.py knows this layout */
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
static uint64_t held[GPUS];        /* this process's use: the content of its slot, once it has a slot */

void share_say(const char *subject, const char *problem)
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

/* One line, `GPU-00000000-1111-2222-3333-444444444444 BYTES`; the next line, or NULL at the end. */
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
        share_say(name, "must be a number with k, m or g, and is ignored");
        return UINT64_MAX;
    }
    return value ? value : UINT64_MAX;
}

static int read_limits(void)
{
    int found = read_file();
    if (found < 0) {
        share_say(ROOT "/vgpu/limits", "cannot be read: no memory of a GPU can be used");
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
        share_say(ROOT "/vgpu/limits", "does not exist, and no variable sets a limit: no memory of a GPU can be used");
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
    if (syscall(SYS_fstat, file, &found) < 0) /* fstat itself is a symbol missing in older C libraries */
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
    else /* without a shared file: counted for this process alone */
        file = (int)syscall(SYS_memfd_create, "plugwright-vgpu", 1u);
    if (file < 0) {
        share_say(path ? path : "memfd_create", "cannot be opened: no memory of a GPU can be used");
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
        share_say("the usage file", "is not ours: no memory of a GPU can be used");
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

/* When a process was started, in the kernel's ticks; 0 if it has ended, also as a zombie without threads. */
static uint64_t start_of(uint64_t pid)
{
    char path[32] = "/proc/", text[512];
    size_t length = 6;
    for (uint64_t digits = 1000000000; digits; digits /= 10)
        if (pid >= digits)
            path[length++] = (char)('0' + pid / digits % 10);
    memcpy(path + length, "/stat", 6);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = descriptor < 0 ? 0 : read(descriptor, text, sizeof text - 1);
    if (descriptor >= 0)
        close(descriptor);
    text[size > 0 ? size : 0] = 0;
    const char *field = strrchr(text, ')');
    uint64_t threads = 0, started = 0;
    char state = field && field[1] ? field[2] : 'X';
    for (int place = 2; field && place < 22; place++) {
        field = strchr(field + 1, ' ');
        if (field && place == 19)
            number(field + 1, &threads);
        if (field && place == 21)
            number(field + 1, &started);
    }
    return (state == 'Z' || state == 'X') && threads <= 1 ? 0 : started;
}

static uint64_t pid_namespace(void)
{
    struct stat found = {0};
    int descriptor = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
    if (descriptor < 0 || syscall(SYS_fstat, descriptor, &found) < 0)
        found.st_ino = 0;
    if (descriptor >= 0)
        close(descriptor);
    return found.st_ino;
}

/* Whether the process whose slot is unlocked is still ending: the kernel frees its memory before its files are closed,
   and the driver may need seconds for them. -1 if that cannot be known. */
static int is_ending(uint32_t process)
{
    static uint64_t own;
    uint64_t pid = usage->pid[process];
    if (!own)
        own = pid_namespace();
    if (!pid || !own || usage->namespace[process] != own)
        return -1;
    if (kill((pid_t)pid, 0) < 0 && errno == ESRCH)
        return 0;
    return start_of(pid) == usage->started[process] && usage->started[process];
}

/* Without locking: whether a descriptor of this allocation exists. */
static int is_exported(const struct record *record)
{
    static int control = -1;
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)record->token, .l_len = EXPORTS};
    if (!record->exports)
        return 0;
    if (control < 0 || fcntl(control, F_GETFD) < 0)
        control = open(CONTROL, O_RDWR | O_CLOEXEC);
    return fcntl(control, F_OFD_GETLK, &range) < 0 || range.l_type != F_UNLCK;
}

static int is_held(const struct record *record)
{
    for (int word = 0; word < PROCESSES / 64; word++)
        if (record->holders[word])
            return 1;
    return is_exported(record);
}

static uint64_t record_count(void)
{
    uint64_t count = __atomic_load_n(&usage->records, __ATOMIC_SEQ_CST);
    return count < RECORDS ? count : RECORDS;
}

/* With the file locked: a slot is empty. Its memory still held by others counts in its record from now on. */
static void leave_records(uint32_t process, int only)
{
    for (uint64_t number = 0; number < record_count(); number++) {
        struct record *record = &usage->record[number];
        if (!record->id || (only >= 0 && (uint64_t)only != number))
            continue;
        record->holders[process / 64] &= ~((uint64_t)1 << process % 64);
        if (record->owner == (int32_t)process)
            __atomic_store_n(&record->owner, is_held(record) ? -1 : -2, __ATOMIC_SEQ_CST);
    }
}

/* With the file locked: forgets allocations without a holder. */
static void sweep_records(void)
{
    for (uint64_t number = 0; number < record_count(); number++)
        if (usage->record[number].id && usage->record[number].owner < 0 && !is_held(&usage->record[number]))
            memset(&usage->record[number], 0, sizeof *usage->record);
}

/* With the file locked: returns the memory of dead processes; whether some of it still has to wait. */
static int sweep(void)
{
    int waits = 0;
    sweep_records();
    for (uint32_t process = 0; process < usage->slots && process < PROCESSES; process++) {
        uint64_t *state = &usage->state[process], now = milliseconds();
        if (*state == FREE || (int)process == slot || lock(F_OFD_GETLK, F_WRLCK, SLOTS + (int)process) != 1)
            continue;
        int ending = is_ending(process);
        if (*state == TAKEN || *state > now || ending > 0) /* a time of before a reboot */
            *state = now;
        if (now - *state < (ending < 0 ? UNSEEN_END : FREEING)) {
            for (int gpu = 0; gpu < GPUS; gpu++)
                waits |= usage->used[gpu][process] > 0;
            continue;
        }
        leave_records(process, -1);
        for (int gpu = 0; gpu < GPUS; gpu++)
            usage->used[gpu][process] = 0;
        *state = FREE;
    }
    return waits;
}

/* With the file locked: the first free slot. */
static int own_slot(void)
{
    sweep();
    for (int candidate = 0; candidate < PROCESSES; candidate++) {
        if (usage->state[candidate] != FREE || lock(F_OFD_SETLK, F_WRLCK, SLOTS + candidate) < 0)
            continue;
        leave_records((uint32_t)candidate, -1);
        usage->pid[candidate] = (uint64_t)getpid();
        usage->started[candidate] = start_of((uint64_t)getpid());
        usage->namespace[candidate] = pid_namespace();
        usage->state[candidate] = TAKEN;
        for (int gpu = 0; gpu < GPUS; gpu++)
            __atomic_store_n(&usage->used[gpu][candidate], held[gpu], __ATOMIC_SEQ_CST);
        if (usage->slots <= (uint32_t)candidate)
            __atomic_store_n(&usage->slots, (uint32_t)candidate + 1, __ATOMIC_SEQ_CST);
        slot = candidate;
        return 1;
    }
    share_say("the usage file", "has no room for another process");
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
    for (uint64_t number = 0; number < record_count(); number++) {
        const struct record *record = &usage->record[number];
        if (record->id && record->gpu == gpu && __atomic_load_n(&record->owner, __ATOMIC_SEQ_CST) == -1)
            total += record->bytes;
    }
    return total;
}

static void add(int gpu, uint64_t bytes)
{
    held[gpu] += bytes;
    __atomic_store_n(&usage->used[gpu][slot], held[gpu], __ATOMIC_SEQ_CST);
}

/* The highest count so far. */
static uint64_t noted(int gpu, uint64_t total)
{
    uint64_t known = __atomic_load_n(&usage->peak[gpu], __ATOMIC_RELAXED);
    while (total > known &&
           !__atomic_compare_exchange_n(&usage->peak[gpu], &known, total, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return total;
}

/* Within the mutex: adds if the sum is within the share then. */
static int try_add(int gpu, uint64_t bytes)
{
    add(gpu, bytes);
    uint64_t total = sum(gpu);
    if (total <= limits.limit[gpu]) {
        noted(gpu, total);
        return 1;
    }
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
    uint64_t until = milliseconds() + PATIENCE;
    for (int attempt = 0; !added && (waits || attempt < 4) && begin(); attempt++) {
        waits = sweep() && milliseconds() < until;
        added = try_add(gpu, bytes);
        end();
        if (waits && !added)
            usleep(10000);
        else if (!added)
            sched_yield(); /* another process may be about to withdraw a failed addition */
    }
    return added;
}

int share_exceeded(int gpu) { return gpu >= 0 && !share_take(gpu, 0); }

void share_refused(int gpu)
{
    if (gpu < 0 || !begin())
        return;
    usage->refusals[gpu]++;
    end();
}

void share_correct(int gpu, int64_t bytes)
{
    if (gpu < 0 || !bytes)
        return;
    enter();
    if (slot >= 0)
        add(gpu, (uint64_t)bytes);
    if (slot >= 0 && bytes > 0)
        noted(gpu, sum(gpu));
    if (slot < 0)
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

/* --- allocations outliving their process --- */

int share_record(int gpu, uint64_t id, uint64_t bytes)
{
    static uint64_t last;
    if (gpu < 0 || !begin())
        return -1;
    sweep_records();
    uint64_t number = 0;
    while (number < RECORDS && usage->record[number].id)
        number++;
    if (number < RECORDS) {
        struct record *record = &usage->record[number];
        last = (last + milliseconds() * 1000003 + (uint64_t)getpid()) * 0x9E3779B97F4A7C15u;
        *record = (struct record){.bytes = bytes, .gpu = gpu, .owner = slot, .token = last >> 3 & ~(uint64_t)(EXPORTS - 1)};
        record->holders[slot / 64] |= (uint64_t)1 << slot % 64;
        __atomic_store_n(&record->id, id ? id : record->token, __ATOMIC_SEQ_CST);
        if (usage->records <= number)
            __atomic_store_n(&usage->records, number + 1, __ATOMIC_SEQ_CST);
    }
    end();
    return number < RECORDS ? (int)number : -1;
}

int share_watch(int number, int descriptor)
{
    struct stat own = {0}, control = {0};
    int known = open(CONTROL, O_RDWR | O_CLOEXEC), watched = 0;
    if (known >= 0 && !syscall(SYS_fstat, descriptor, &own) && !syscall(SYS_fstat, known, &control) &&
        own.st_ino == control.st_ino && own.st_dev == control.st_dev && begin()) {
        struct record *record = &usage->record[number];
        struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
        range.l_start = (off_t)(record->token + record->exports);
        watched = record->exports < EXPORTS && fcntl(descriptor, F_OFD_SETLK, &range) >= 0;
        record->exports += (uint32_t)watched;
        end();
    }
    if (known >= 0)
        close(known);
    return watched;
}

/* A lock blocks every descriptor except its own. */
static int is_of(const struct record *record, int descriptor, int control)
{
    for (uint32_t export = 0; export < record->exports; export++) {
        struct flock others = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1}, own;
        others.l_start = (off_t)(record->token + export);
        own = others;
        if (!fcntl(control, F_OFD_GETLK, &others) && others.l_type != F_UNLCK &&
            !fcntl(descriptor, F_OFD_GETLK, &own) && own.l_type == F_UNLCK)
            return 1;
    }
    return 0;
}

int share_join(uint64_t id, int descriptor)
{
    int joined = -1, control = id ? -1 : open(CONTROL, O_RDWR | O_CLOEXEC);
    if ((id || control >= 0) && begin()) {
        for (uint64_t number = 0; number < record_count() && joined < 0; number++) {
            struct record *record = &usage->record[number];
            if (!record->id || !(id ? record->id == id : is_of(record, descriptor, control)))
                continue;
            record->holders[slot / 64] |= (uint64_t)1 << slot % 64;
            joined = (int)number;
        }
        end();
    }
    if (control >= 0)
        close(control);
    return joined;
}

void share_leave(int record)
{
    if (record < 0 || !begin())
        return;
    leave_records((uint32_t)slot, record);
    sweep_records();
    end();
}

void share_resize(int record, uint64_t bytes)
{
    if (record >= 0 && usage)
        __atomic_store_n(&usage->record[record].bytes, bytes, __ATOMIC_SEQ_CST);
}

uint64_t share_recorded(int record) { return record >= 0 && usage ? usage->record[record].bytes : 0; }

/* --- the driver's functions --- */

static const void *address_in(const struct link_map *library, ElfW(Addr) value)
{
    return (const void *)(value < library->l_addr ? value + library->l_addr : value); /* some loaders leave it relative */
}

static void *symbol(const struct link_map *library, const char *name)
{
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    const uint32_t *hashes = NULL;
    uint32_t hash = 5381;
    for (const ElfW(Dyn) *entry = library->l_ld; entry->d_tag != DT_NULL; entry++)
        switch (entry->d_tag) {
        case DT_SYMTAB: symbols = address_in(library, entry->d_un.d_ptr); break;
        case DT_STRTAB: names = address_in(library, entry->d_un.d_ptr); break;
        case DT_GNU_HASH: hashes = address_in(library, entry->d_un.d_ptr); break;
        }
    if (!symbols || !names || !hashes)
        return NULL;
    for (const unsigned char *letter = (const unsigned char *)name; *letter; letter++)
        hash = hash * 33 + *letter;
    const uint32_t *buckets = hashes + 4 + hashes[2] * (sizeof(ElfW(Addr)) / 4), *chains = buckets + hashes[0];
    uint32_t number = buckets[hash % hashes[0]];
    for (; number >= hashes[1] && number; number++) {
        uint32_t found = chains[number - hashes[1]];
        if ((found | 1) == (hash | 1) && symbols[number].st_shndx && !strcmp(names + symbols[number].st_name, name))
            return (void *)(library->l_addr + symbols[number].st_value);
        if (found & 1)
            break;
    }
    return NULL;
}

void *share_driver(const char *library, const char *function)
{
    void *handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
    void *found = handle ? symbol(handle, function) : NULL;
    return found || !handle ? found : dlsym(handle, function);
}
