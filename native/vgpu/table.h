/* What this process has allocated: handles and pointers of the driver, each with what it counts for. Not thread-safe. */
#ifndef TABLE_H
#define TABLE_H

#include <stdint.h>

struct entry {
    uint64_t key; /* 0: free, 1: removed */
    uint64_t bytes;
    uint64_t context; /* that the memory goes with; 0: it stays until it is freed */
    int32_t gpu, references;
    int32_t record; /* of an allocation that other processes may hold, see share.h, and 1; 0: of none */
    uint32_t flags;
};

struct table {
    struct entry *entries;
    uint64_t size, filled; /* filled: with removed ones */
};

struct entry *table_find(const struct table *table, uint64_t key);
/* A new entry or the one there is; NULL without memory. Entries move when another one is put in. */
struct entry *table_put(struct table *table, uint64_t key);
void table_remove(struct entry *entry);

#endif
