/* Images as programs give them to the driver, without their length: they are read as far as their own headers say, as the
   driver does. Compressed parts of a fat binary are not read. */
#define _GNU_SOURCE
#include "image.h"

#include <elf.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WRAPPER = 0x466243B1, FAT_BINARY = (int)0xBA55ED50, PTX = 1, CUBIN = 2 };
enum { MOST_LINKED = 4096 };
enum { COMPRESSED = 0x2000 | 0x8000 }; /* LZ4, zstd */

struct wrapper { uint32_t magic, version; const void *image; const void *const *linked; }; /* of version 2: ends with NULL */
struct fat_binary { uint32_t magic; uint16_t version, header; uint64_t bytes; };
struct part {
    uint16_t kind, version;
    uint32_t header;
    uint64_t bytes;
    uint32_t compressed, options;
    uint16_t minor, major;
    uint32_t architecture, name, name_length;
    uint64_t flags;
};

static int is_within(uint64_t offset, uint64_t bytes, uint64_t limit) { return offset <= limit && bytes <= limit - offset; }

/* The variables in a section, together: nvcc writes the size of a section of 4 GiB and more without its upper half. */
static uint64_t elf_symbols(const unsigned char *image, uint64_t limit, int section)
{
    const Elf64_Ehdr *header = (const void *)image;
    const Elf64_Shdr *sections = (const void *)(image + header->e_shoff);
    uint64_t total = 0;
    for (int number = 0; number < header->e_shnum; number++) {
        if (sections[number].sh_type != SHT_SYMTAB || !is_within(sections[number].sh_offset, sections[number].sh_size, limit))
            continue;
        const unsigned char *at = image + sections[number].sh_offset;
        for (uint64_t left = sections[number].sh_size / sizeof(Elf64_Sym); left; left--, at += sizeof(Elf64_Sym)) {
            Elf64_Sym symbol;
            memcpy(&symbol, at, sizeof symbol);
            if (ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT && symbol.st_shndx == section &&
                __builtin_add_overflow(total, symbol.st_size, &total))
                return UINT64_MAX;
        }
    }
    return total;
}

/* `limit` is the length of the image, UINT64_MAX if only the driver knows it. */
static uint64_t elf_variables(const unsigned char *image, uint64_t limit)
{
    static const char *const names[] = {".nv.global", ".nv.global.init"};
    const Elf64_Ehdr *header = (const void *)image;
    uint64_t total = 0;
    if (!is_within(0, sizeof *header, limit) || header->e_ident[EI_CLASS] != ELFCLASS64 ||
        header->e_shentsize != sizeof(Elf64_Shdr) || header->e_shstrndx >= header->e_shnum ||
        !is_within(header->e_shoff, header->e_shnum * sizeof(Elf64_Shdr), limit))
        return 0;
    const Elf64_Shdr *sections = (const void *)(image + header->e_shoff), *texts = &sections[header->e_shstrndx];
    if (!is_within(texts->sh_offset, texts->sh_size, limit))
        return 0;
    for (int number = 0; number < header->e_shnum; number++)
        for (int name = 0; name < 2; name++)
            if (is_within(sections[number].sh_name, strlen(names[name]) + 1, texts->sh_size) &&
                !strcmp((const char *)image + texts->sh_offset + sections[number].sh_name, names[name])) {
                uint64_t symbols = elf_symbols(image, limit, number), bytes = sections[number].sh_size;
                if (__builtin_add_overflow(total, symbols > bytes ? symbols : bytes, &total))
                    return UINT64_MAX;
            }
    return total;
}

static int is_space(char letter) { return letter == ' ' || letter == '\t' || letter == '\n' || letter == '\r'; }

/* The next word of PTX: up to a blank, with `;`, `[`, `]`, `=`, `,`, `{`, `}`, `(` and `)` as words; its length in `length`. */
static const char *word(const char *text, size_t *length)
{
    for (;;) {
        while (is_space(*text))
            text++;
        if (text[0] != '/' || (text[1] != '/' && text[1] != '*'))
            break;
        const char *end = text[1] == '/' ? strchr(text, '\n') : strstr(text + 2, "*/");
        text = end ? end + (text[1] == '*' ? 2 : 1) : text + strlen(text);
    }
    *length = *text && strchr(";[]=,{}()", *text) ? 1 : strcspn(text, " \t\r\n;[]=,{}()");
    return text;
}

static int is_word(const char *text, size_t length, const char *other)
{
    return strlen(other) == length && !memcmp(text, other, length);
}

static uint64_t number(const char *text, size_t length)
{
    uint64_t value = 0;
    for (size_t place = 0; place < length; place++)
        if (text[place] < '0' || text[place] > '9' || __builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (uint64_t)(text[place] - '0'), &value))
            return 0;
    return value;
}

/* Bytes of a type, such as .b8 or .f64, and of the elements of .v2 and .v4; 0 for another word. */
static uint64_t type_bytes(const char *text, size_t length)
{
    if (length < 3 || text[0] != '.' || !strchr("bsuf", text[1]))
        return 0;
    uint64_t bits = number(text + 2, length - 2);
    return bits >= 8 && bits <= 128 ? bits / 8 : 0;
}

/* Variables of the global space, visible to other modules: the compiler may omit others. */
static uint64_t ptx_variables(const char *text)
{
    uint64_t total = 0, bytes = 0, elements = 1;
    int is_visible = 0, is_global = 0, brackets = 0, has_ended = 0;
    size_t length;
    for (text = word(text, &length); length; text = word(text + length, &length)) {
        if (is_word(text, length, ";") || is_word(text, length, "{") || is_word(text, length, "}") || is_word(text, length, ")")) {
            uint64_t size = 0;
            if (is_visible && is_global && !__builtin_mul_overflow(bytes, elements, &size) &&
                __builtin_add_overflow(total, size, &total))
                return UINT64_MAX;
            is_visible = is_global = brackets = has_ended = 0;
            bytes = 0, elements = 1;
        } else if (is_word(text, length, ".visible")) {
            is_visible = 1;
        } else if (is_word(text, length, ".global")) {
            is_global = 1;
        } else if (is_word(text, length, "=")) { /* its initial value */
            has_ended = 1;
        } else if (!has_ended && is_global && is_word(text, length, ".v2")) {
            elements *= 2;
        } else if (!has_ended && is_global && is_word(text, length, ".v4")) {
            elements *= 4;
        } else if (!has_ended && is_global && type_bytes(text, length)) {
            bytes = type_bytes(text, length);
        } else if (!has_ended && is_global && is_word(text, length, "[")) {
            brackets = 1;
        } else if (brackets && is_word(text, length, "]")) {
            brackets = 0;
        } else if (brackets && __builtin_mul_overflow(elements, number(text, length), &elements)) {
            return UINT64_MAX;
        }
    }
    return total;
}

/* One of the parts is loaded: they are of one source, and differ in the architecture. The smallest cubin that can be read
   counts, then the smallest PTX, which is for GPUs without a cubin. */
static uint64_t fat_variables(const unsigned char *image)
{
    const struct fat_binary *fat = (const void *)image;
    uint64_t found[3] = {[PTX] = UINT64_MAX, [CUBIN] = UINT64_MAX};
    const unsigned char *at = image + fat->header, *end = at + fat->bytes;
    while ((size_t)(end - at) >= sizeof(struct part)) {
        const struct part *part = (const void *)at;
        if (part->header < sizeof *part || part->header > (size_t)(end - at) || part->bytes > (size_t)(end - at) - part->header)
            return 0;
        const unsigned char *content = at + part->header;
        uint64_t bytes = 0;
        int is_read = (part->kind == PTX || part->kind == CUBIN) && !(part->flags & COMPRESSED);
        if (is_read) {
            if (part->kind == CUBIN && part->bytes > sizeof(Elf64_Ehdr) && !memcmp(content, ELFMAG, SELFMAG))
                bytes = elf_variables(content, part->bytes);
            if (part->kind == PTX && part->bytes && memchr(content, 0, part->bytes))
                bytes = ptx_variables((const char *)content);
        }
        if (is_read)
            found[part->kind] = bytes < found[part->kind] ? bytes : found[part->kind];
        at = content + part->bytes;
    }
    uint64_t least = found[CUBIN] != UINT64_MAX ? found[CUBIN] : found[PTX];
    return least == UINT64_MAX ? 0 : least;
}

/* The binary of the device linker is almost empty if nothing was left to link: then those that were linked are loaded. */
static uint64_t wrapper_variables(const struct wrapper *wrapper)
{
    uint64_t own = image_variables(wrapper->image), together = 0;
    for (int number = 0; wrapper->version == 2 && wrapper->linked && wrapper->linked[number] && number < MOST_LINKED; number++)
        if (__builtin_add_overflow(together, image_variables(wrapper->linked[number]), &together))
            return UINT64_MAX;
    return own > together ? own : together;
}

uint64_t image_variables(const void *image)
{
    uint32_t magic;
    if (!image || !*(const char *)image)
        return 0;
    memcpy(&magic, image, sizeof magic);
    if (magic == WRAPPER)
        return wrapper_variables(image);
    if ((int)magic == FAT_BINARY)
        return fat_variables(image);
    if (!memcmp(image, ELFMAG, SELFMAG))
        return elf_variables(image, UINT64_MAX);
    const char *text = image;
    return is_space(*text) || *text == '.' || *text == '/' ? ptx_variables(text) : 0;
}

uint64_t image_file_variables(const char *path)
{
    int descriptor = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    off_t length = descriptor < 0 ? 0 : lseek(descriptor, 0, SEEK_END);
    uint64_t bytes = 0;
    /* A page more, which is zero: the end of a text. */
    void *image = length > (off_t)sizeof(Elf64_Ehdr)
                      ? mmap(NULL, (size_t)length + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                      : MAP_FAILED;
    if (image != MAP_FAILED) {
        off_t done = 0;
        for (ssize_t part = 1; part > 0 && done < length; done += part > 0 ? part : 0)
            part = pread(descriptor, (char *)image + done, (size_t)(length - done), done);
        if (done == length)
            bytes = image_variables(image);
        munmap(image, (size_t)length + 4096);
    }
    if (descriptor >= 0)
        close(descriptor);
    return bytes;
}
