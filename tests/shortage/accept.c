/* A C library's accept and open for LD_PRELOAD, as on a machine that has run out of file handles: while
 * the file that SHORT names exists, accept fails, and /proc/sys/fs/file-nr is read from that file. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *shortage(void)
{
    const char *path = getenv("SHORT");
    return path && access(path, F_OK) == 0 ? path : NULL;
}

int accept4(int server, struct sockaddr *address, socklen_t *size, int flags)
{
    if (shortage()) {
        errno = ENFILE;
        return -1;
    }
    return syscall(SYS_accept4, server, address, size, flags);
}

int accept(int server, struct sockaddr *address, socklen_t *size)
{
    return accept4(server, address, size, 0);
}

static int opened(const char *path, int flags, va_list more)
{
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;
    if (strcmp(path, "/proc/sys/fs/file-nr") == 0 && shortage())
        path = shortage();
    return syscall(SYS_openat, AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    int file = opened(path, flags, more);
    va_end(more);
    return file;
}

int open64(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    int file = opened(path, flags, more);
    va_end(more);
    return file;
}
