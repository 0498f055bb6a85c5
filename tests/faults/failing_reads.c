/* Makes open or pread, whichever FAILING_READS_CALL names, an EIO for files below FAILING_READS_IN while the file
   FAILING_READS_IF exists: preloaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int fails(const char *path) {
    const char *folder = getenv("FAILING_READS_IN"), *flag = getenv("FAILING_READS_IF");
    int kept = errno, found = folder && flag && strncmp(path, folder, strlen(folder)) == 0 && access(flag, F_OK) == 0;
    errno = kept;
    return found;
}

static int descriptor_fails(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails(path);
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, #name); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = va_arg(more, mode_t); \
        va_end(more); \
        if (strcmp(getenv("FAILING_READS_CALL"), "open") == 0 && fails(path)) { errno = EIO; return -1; } \
        return real(path, flags, mode); \
    }

OPEN(open)
OPEN(open64)

#define PREAD(name) \
    ssize_t name(int fd, void *data, size_t count, off_t offset) { \
        ssize_t (*real)(int, void *, size_t, off_t) = dlsym(RTLD_NEXT, #name); \
        if (strcmp(getenv("FAILING_READS_CALL"), "pread") == 0 && descriptor_fails(fd)) { errno = EIO; return -1; } \
        return real(fd, data, count, offset); \
    }

PREAD(pread)
PREAD(pread64)
