/* dprintf and its kin: the C library's write to the descriptor without a call that a preloaded library sees. These print into memory first,
 * and write that as the program itself would. In C, for only C takes a list of arguments of any types. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The C library's, which its headers do not declare without _FORTIFY_SOURCE. */
int __vasprintf_chk(char **text, int flag, const char *format, va_list arguments);

static int print(int fd, char *text, int len)
{
    if (len < 0)
        return len;
    for (int done = 0; done < len;) {
        /* This library's. */
        ssize_t wrote = write(fd, text + done, (size_t)(len - done));
        if (wrote < 0) {
            len = -1;
            break;
        }
        done += (int)wrote;
    }
    free(text);
    return len;
}

int netvm_preload_vdprintf(int fd, const char *format, va_list arguments)
{
    char *text = NULL;
    int len = vasprintf(&text, format, arguments);
    return print(fd, text, len);
}

int netvm_preload_dprintf(int fd, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int len = netvm_preload_vdprintf(fd, format, arguments);
    va_end(arguments);
    return len;
}

/* As programs call them that were compiled with _FORTIFY_SOURCE. */
int netvm_preload_vdprintf_chk(int fd, int flag, const char *format, va_list arguments)
{
    char *text = NULL;
    int len = __vasprintf_chk(&text, flag, format, arguments);
    return print(fd, text, len);
}

int netvm_preload_dprintf_chk(int fd, int flag, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int len = netvm_preload_vdprintf_chk(fd, flag, format, arguments);
    va_end(arguments);
    return len;
}
