/* The container's share of its GPUs: how much it may use, and how much its processes use together.
   A GPU is known by its number here: its line in the limits file, or CUDA's own number where there is no such file. */
#ifndef SHARE_H
#define SHARE_H

#include <stdint.h>

/* An image may have an older C library than the one we are built with: the oldest version of a function is taken. */
#if defined(__x86_64__)
#define OLDEST(function) __asm__(".symver " #function "," #function "@GLIBC_2.2.5")
#elif defined(__aarch64__)
#define OLDEST(function) __asm__(".symver " #function "," #function "@GLIBC_2.17")
#endif

enum { GPUS = 16, PROCESSES = 1024, RECORDS = 1024 };

/* Reads the limits; 0 without trustworthy limits, after one line on stderr. Idempotent. */
int share_open(void);

/* The number of the GPU with this UUID (16 bytes), or of CUDA's `ordinal` without a limits file; -1 for a GPU that is
   not the container's. */
int share_gpu(const unsigned char *uuid, int ordinal);

/* Bytes; 0 for a GPU that is not the container's. */
uint64_t share_limit(int gpu);

/* Bytes used by the living processes of the container. */
uint64_t share_used(int gpu);

/* Bytes used by this process; and the remaining bytes, as long as no process has died. Both cost next to nothing. */
uint64_t share_held(int gpu);
uint64_t share_left(int gpu);

/* Adds to this process's use if it fits into the share; 0 if it does not. */
int share_take(int gpu, uint64_t bytes);

/* Whether the processes use more than the share, which `share_correct` makes possible. */
int share_exceeded(int gpu);

/* A program was refused memory of its share: counted for the daemon. */
void share_refused(int gpu);

/* Corrects the count if the driver took more or less than requested: added even if it does not fit. */
void share_correct(int gpu, int64_t bytes);

/* The measured memory of a context of this GPU, in any process of the container; 0 before a measurement. */
uint64_t share_context(int gpu);
void share_set_context(int gpu, uint64_t bytes);

/* --- allocations that outlive the process that made them ---

   Memory that was exported lives on while another process has it open, or while a descriptor of it exists anywhere. The
   usage file has a record of each such allocation: who holds it, and the bytes that count for the container once its
   owner has let go of it. Until then they count as the owner's. */

/* A record of this process's allocation, under `id` if not 0; -1 if there is no room. */
int share_record(int gpu, uint64_t id, uint64_t bytes);

/* Makes an exported descriptor known: the record lasts while the descriptor is open in any process. 0 if that cannot be
   followed. */
int share_watch(int record, int descriptor);

/* Makes this process a holder of the allocation with this id, or behind this descriptor; -1 where there is no record. */
int share_join(uint64_t id, int descriptor);

/* This process no longer holds the allocation. Called before its owner gives the bytes back. */
void share_leave(int record);

/* The owner's allocation, a pool, has changed its size. */
void share_resize(int record, uint64_t bytes);

/* The bytes of a record. */
uint64_t share_recorded(int record);

/* One line on stderr. */
void share_say(const char *subject, const char *problem);

/* The function of the driver's own library, looked up in its symbol table: a tool that answers dlsym in the driver's
   place is not asked. NULL where the driver does not have it. */
void *share_driver(const char *library, const char *function);

#endif
