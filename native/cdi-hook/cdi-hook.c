/* plugwright-cdi-hook: completes the mounts of a CDI spec in a container, for hosts without NVIDIA's hook program.
 *
 *   plugwright-cdi-hook create-symlinks --link TARGET::PATH ...
 *   plugwright-cdi-hook update-ldcache --folder DIRECTORY ...
 *
 * The container runtime calls it as root before the container starts (OCI hook createContainer), with the container's
 * state on standard input. The image is not to be trusted: its links may lead anywhere, its programs are not run. So the
 * program first makes the container's files its root in a mount namespace of its own, where nothing else can be reached,
 * and then runs the host's ldconfig, opened before, which must be linked statically: another would load the image's
 * libraries.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LARGEST (4 << 20)
#define DROP_IN "/etc/ld.so.conf.d/00-plugwright.conf"
#define WHOLE_CONFIG "/etc/ld.so.conf.plugwright"

static const char *const ldconfigs[] = {"/sbin/ldconfig.real", "/sbin/ldconfig", "/usr/sbin/ldconfig", NULL};
/* Those of any distribution: the host's ldconfig knows only those of its own. */
static const char *const system_directories[] = {
    "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
    "/lib64", "/usr/lib64", "/lib", "/usr/lib", NULL};

static void fail(const char *format, ...) {
    int error = errno;
    va_list arguments;
    va_start(arguments, format);
    fputs("plugwright-cdi-hook: ", stderr);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    if (error)
        fprintf(stderr, ": %s", strerror(error));
    fputc('\n', stderr);
    exit(1);
}

/* --- JSON: the value of a key of an object, found without building a tree --- */

static const char *skip_space(const char *at) { return at + strspn(at, " \t\r\n"); }

static const char *skip_string(const char *at) {
    for (at++; *at && *at != '"'; at++)
        if (*at == '\\' && at[1])
            at++;
    return *at ? at + 1 : at;
}

static const char *skip_value(const char *at) {
    int depth = 0;
    do {
        at = skip_space(at);
        if (*at == '"')
            at = skip_string(at);
        else if (*at == '{' || *at == '[')
            depth++, at++;
        else if (*at == '}' || *at == ']')
            depth--, at++;
        else if (*at == ',' || *at == ':')
            at++;
        else if (*at)
            at += strcspn(at, ",]} \t\r\n");
    } while (*at && depth > 0);
    return at;
}

static const char *value_of(const char *object, const char *key) {
    const char *at = object ? skip_space(object) : "";
    if (*at != '{')
        return NULL;
    at = skip_space(at + 1);
    while (*at == '"') {
        const char *name = at + 1, *value;
        at = skip_string(at);
        size_t length = (size_t)(at - name - 1);
        at = skip_space(at);
        if (*at != ':')
            return NULL;
        value = skip_space(at + 1);
        if (length == strlen(key) && !strncmp(name, key, length))
            return value;
        at = skip_space(skip_value(value));
        if (*at != ',')
            return NULL;
        at = skip_space(at + 1);
    }
    return NULL;
}

/* A copy of a string without escapes, which no path of a runtime needs; NULL for anything else. */
static char *plain_string(const char *value) {
    if (!value || *value != '"')
        return NULL;
    size_t length = strcspn(++value, "\"\\");
    return value[length] == '"' ? strndup(value, length) : NULL;
}

static char *read_all(int file) {
    char *content = malloc(LARGEST + 1);
    size_t size = 0;
    ssize_t more;
    while (content && size < LARGEST && (more = read(file, content + size, LARGEST - size)) > 0)
        size += (size_t)more;
    if (content)
        content[size] = 0;
    return content;
}

/* --- the container's files as the root --- */

static char *container_root(void) {
    char *state = read_all(STDIN_FILENO), *bundle = plain_string(value_of(state, "bundle")), *path = NULL, *joined;
    char config[PATH_MAX];
    errno = 0;
    if (!bundle || *bundle != '/')
        fail("the state on standard input must have the path of a bundle");
    if ((path = plain_string(value_of(state, "root"))) && *path == '/') /* some runtimes say it here */
        return path;
    snprintf(config, sizeof config, "%s/config.json", bundle);
    int file = open(config, O_RDONLY | O_CLOEXEC);
    if (file >= 0)
        path = plain_string(value_of(value_of(read_all(file), "root"), "path"));
    if (path && *path == '/')
        return path;
    if (asprintf(&joined, "%s/%s", bundle, path ? path : "rootfs") < 0)
        fail("no memory");
    return joined;
}

static void enter(const char *root) {
    struct stat own, other;
    if (stat("/", &own) || stat(root, &other))
        fail("the container's root %s", root);
    errno = 0;
    if (own.st_dev == other.st_dev && own.st_ino == other.st_ino)
        fail("the container's root must not be the host's");
    if (unshare(CLONE_NEWNS) || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL))
        fail("a mount namespace");
    if (mount(root, root, NULL, MS_BIND | MS_REC, NULL) || chdir(root))
        fail("the container's root %s", root);
    /* The old root is mounted on top of the new root, and disappears with the unmount. */
    if (syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
        fail("change of the root to %s", root);
    /* Links of /proc lead to the files of other processes, whose root may be the host's. */
    while (!umount2("/proc", MNT_DETACH | UMOUNT_NOFOLLOW))
        ;
}

/* --- create-symlinks --- */

static void make_directories(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0755) && errno != EEXIST)
            fail("directory %s", path);
        *slash = '/';
    }
}

static void make_link(char *link) {
    char found[PATH_MAX], *path = strstr(link, "::");
    errno = 0;
    if (!path || path[2] != '/')
        fail("a link must look like TARGET::/PATH, got %s", link);
    *path = 0, path += 2;
    make_directories(path);
    ssize_t length = readlink(path, found, sizeof found - 1);
    if (length >= 0 && (size_t)length == strlen(link) && !memcmp(found, link, (size_t)length))
        return;
    if ((unlink(path) && errno != ENOENT) || symlink(link, path))
        fail("link %s", path);
}

/* --- update-ldcache --- */

static int is_static(int file) {
    ElfW(Ehdr) header;
    if (pread(file, &header, sizeof header, 0) != sizeof header || memcmp(header.e_ident, ELFMAG, SELFMAG))
        return 0;
    for (unsigned number = 0; number < header.e_phnum; number++) {
        ElfW(Phdr) part;
        off_t place = (off_t)(header.e_phoff + number * sizeof part);
        if (pread(file, &part, sizeof part, place) != sizeof part || part.p_type == PT_INTERP)
            return 0;
    }
    return 1;
}

static int open_ldconfig(void) {
    for (const char *const *path = ldconfigs; *path; path++) {
        int file = open(*path, O_RDONLY | O_CLOEXEC);
        if (file >= 0 && is_static(file))
            return file;
        if (file >= 0)
            close(file);
    }
    return -1;
}

static FILE *replace_file(const char *path) {
    unlink(path);
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    FILE *stream = file < 0 ? NULL : fdopen(file, "w");
    if (!stream || fchmod(file, 0644))
        fail("%s", path);
    return stream;
}

static void write_configs(char **folders) {
    char drop_in[] = DROP_IN;
    make_directories(drop_in);
    FILE *file = replace_file(DROP_IN);
    for (char **folder = folders; *folder; folder++)
        fprintf(file, "%s\n", *folder);
    if (fclose(file))
        fail("%s", DROP_IN);
    file = replace_file(WHOLE_CONFIG);
    fprintf(file, "include /etc/ld.so.conf\ninclude %s\n", DROP_IN);
    for (const char *const *directory = system_directories; *directory; directory++)
        if (!access(*directory, F_OK))
            fprintf(file, "%s\n", *directory);
    if (fclose(file))
        fail("%s", WHOLE_CONFIG);
}

static void update_cache(int ldconfig, char **folders) {
    char *const arguments[] = {"ldconfig", "-f", WHOLE_CONFIG, "-C", "/etc/ld.so.cache", NULL};
    char *const environment[] = {NULL};
    int status = -1;
    write_configs(folders);
    pid_t child = fork();
    if (!child) {
        syscall(SYS_execveat, ldconfig, "", arguments, environment, AT_EMPTY_PATH);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0)
        fail("ldconfig");
    unlink(WHOLE_CONFIG);
    errno = 0;
    if (status)
        fail("ldconfig of the host ended with status %d", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
}

int main(int count, char **words) {
    int links = count > 1 && !strcmp(words[1], "create-symlinks");
    if (!links && (count < 2 || strcmp(words[1], "update-ldcache"))) {
        fputs("usage: plugwright-cdi-hook create-symlinks --link TARGET::PATH... | update-ldcache --folder PATH...\n",
              stderr);
        return 2;
    }
    char **values = calloc((size_t)count, sizeof *values);
    size_t number = 0;
    for (int place = 2; place + 1 < count && values; place += 2) {
        if (strcmp(words[place], links ? "--link" : "--folder"))
            fail("unknown option %s", words[place]);
        values[number++] = words[place + 1];
    }
    int ldconfig = links ? -1 : open_ldconfig();
    errno = 0;
    if (!links && ldconfig < 0)
        fail("the host has no ldconfig that is linked statically");
    umask(022);
    enter(container_root());
    if (!links)
        update_cache(ldconfig, values);
    for (size_t place = 0; links && place < number; place++)
        make_link(values[place]);
    return 0;
}
