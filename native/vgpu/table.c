#include "table.h"

#include <stddef.h>
#include <stdlib.h>

static struct entry *place(const struct table *table, uint64_t key)
{
    uint64_t index = key * 0x9E3779B97F4A7C15u >> 20 & (table->size - 1);
    while (table->entries[index].key && table->entries[index].key != key)
        index = (index + 1) & (table->size - 1);
    return &table->entries[index];
}

static int grow(struct table *table)
{
    uint64_t live = 0;
    for (uint64_t index = 0; index < table->size; index++)
        live += table->entries[index].key > 1;
    struct table larger = {.size = 1024, .filled = live};
    while (larger.size < live * 4)
        larger.size *= 2;
    if (!(larger.entries = calloc(larger.size, sizeof *larger.entries)))
        return 0;
    for (uint64_t index = 0; index < table->size; index++)
        if (table->entries[index].key > 1)
            *place(&larger, table->entries[index].key) = table->entries[index];
    free(table->entries);
    *table = larger;
    return 1;
}

struct entry *table_find(const struct table *table, uint64_t key)
{
    if (!table->size || key <= 1)
        return NULL;
    struct entry *found = place(table, key);
    return found->key ? found : NULL;
}

struct entry *table_put(struct table *table, uint64_t key)
{
    if (key <= 1 || (table->filled * 2 >= table->size && !grow(table)))
        return NULL;
    struct entry *found = place(table, key);
    if (!found->key) {
        table->filled++;
        *found = (struct entry){.key = key};
    }
    return found;
}

void table_remove(struct entry *entry)
{
    *entry = (struct entry){.key = 1};
}
