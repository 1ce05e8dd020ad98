/* As much of the CUDA driver's interface as the proxy touches, written from its documentation. */
#ifndef CUDA_H
#define CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t ptr;    /* CUdeviceptr */
typedef uint64_t handle; /* CUcontext, CUstream, CUarray, CUmemoryPool, CUgraph, CUmemGenericAllocationHandle … */

enum {
    SUCCESS = 0,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEINITIALIZED = 4,
    INVALID_DEVICE = 101,
    OPERATING_SYSTEM = 304,
    NOT_SUPPORTED = 801,
};

struct location { int type, id; };
enum { HOST = 2, DEVICE = 1 };
enum { MANAGED = 2 }; /* CUmemAllocationType */

struct allocation { /* CUmemAllocationProp */
    int type, handle_types;
    struct location location;
};

struct pool_properties { /* CUmemPoolProps */
    int type, handle_types;
    struct location location;
    void *security;
    size_t max_size;
    unsigned char reserved[56];
};

enum { POOL_RESERVED = 5, POOL_USED = 7 }; /* CUmemPool_attribute */
enum { GRAPH_RESERVED = 2 };               /* CUgraphMem_attribute */
enum { STACK_SIZE = 0, FIFO_SIZE = 1, HEAP_SIZE = 2 }; /* CUlimit */
enum { LOCAL_BYTES = 3 };                  /* CUfunction_attribute */
enum { MULTIPROCESSORS = 16, THREADS_OF_ONE = 39 }; /* CUdevice_attribute */
enum { DESCRIPTOR = 1 };                   /* CUmemAllocationHandleType: a POSIX file descriptor */

struct memory_node { /* CUDA_MEM_ALLOC_NODE_PARAMS */
    struct pool_properties pool;
    const void *access;
    size_t access_count, bytes;
    ptr pointer;
};

struct node { /* CUgraphNodeParams */
    int type, reserved[3];
    struct memory_node memory;
};
enum { MEMORY_NODE = 10 };

struct array { /* CUDA_ARRAY_DESCRIPTOR */
    size_t width, height;
    unsigned format, channels;
};

struct array3d { /* CUDA_ARRAY3D_DESCRIPTOR */
    size_t width, height, depth;
    unsigned format, channels, flags;
};
enum { SPARSE = 0x40, DEFERRED = 0x80 }; /* arrays without memory of their own */

struct tile { /* CUarrayMapInfo: a part of a sparse array */
    int array_type;
    handle array;
    int part_type;
    union {
        unsigned level[8]; /* level, layer, offset and extent */
        struct { unsigned layer; unsigned long long offset, size; } tail;
    } part;
    int operation, handle_type;
    handle allocation;
    unsigned long long offset;
    unsigned devices, flags, reserved[2];
};
enum { TAIL = 1 };              /* CUarraySparseSubresourceType */
enum { MAP_TILE = 1 };          /* CUmemOperationType */

struct ipc { char bytes[64]; }; /* CUipcMemHandle */

struct external { /* CUDA_EXTERNAL_MEMORY_HANDLE_DESC */
    int type;
    union { int descriptor; void *pointers[2]; } handle;
    unsigned long long size;
};

#endif
