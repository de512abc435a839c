/* A file layer that fails on purpose, between every library of a process and the system (LD_PRELOAD).
 *
 * It counts the calls that make, write, flush or rename files below one folder, and spoils one of them or all from one
 * on. It does nothing until it is asked to (faults_arm). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OFF, COUNT, FULL, BROKEN, SHORT };
enum { WRITES, OTHER };

static char folder[4096];
static size_t folder_length;
static int mode;
static long victim, counted;

void faults_arm(const char *below, int how, long at) {
  snprintf(folder, sizeof folder, "%s", below);
  folder_length = strlen(folder);
  counted = 0;
  victim = at;
  mode = how;
}

long faults_count(void) { return counted; }

static int below(const char *path) { return !strncmp(path, folder, folder_length); }

static int below_handle(int handle) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  return below(path);
}

static int below_at(int handle, const char *path) {
  char here[4096];
  if (path[0] == '/') return below(path);
  if (handle != AT_FDCWD) return below_handle(handle);
  return getcwd(here, sizeof here) && below(here);
}

/* What becomes of a call: 0 goes on, 1 writes half, -1 fails with errno set. */
static int fate(int kind) {
  long number = __sync_add_and_fetch(&counted, 1);
  switch (mode) {
  case FULL:
    if (number < victim || kind != WRITES) return 0;
    errno = ENOSPC;
    return -1;
  case BROKEN:
    if (number != victim) return 0;
    errno = EIO;
    return -1;
  case SHORT:
    return number == victim && kind == WRITES;
  default:
    return 0;
  }
}

#define NEXT(name) \
  static __typeof__(&name) next; \
  if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define SPOIL(where, kind, failed) \
  int saved = errno; \
  int spoilt = mode && (where) ? fate(kind) : 0; \
  if (spoilt < 0) return failed; \
  errno = saved

ssize_t write(int handle, const void *data, size_t size) {
  NEXT(write);
  SPOIL(below_handle(handle), WRITES, -1);
  return next(handle, data, spoilt && size > 1 ? size / 2 : size);
}

ssize_t pwrite(int handle, const void *data, size_t size, off_t at) {
  NEXT(pwrite);
  SPOIL(below_handle(handle), WRITES, -1);
  return next(handle, data, spoilt && size > 1 ? size / 2 : size, at);
}

ssize_t pwrite64(int handle, const void *data, size_t size, off64_t at) {
  NEXT(pwrite64);
  SPOIL(below_handle(handle), WRITES, -1);
  return next(handle, data, spoilt && size > 1 ? size / 2 : size, at);
}

ssize_t writev(int handle, const struct iovec *parts, int number) {
  NEXT(writev);
  SPOIL(below_handle(handle), WRITES, -1);
  return next(handle, parts, spoilt && number > 1 ? 1 : number);
}

#define OPENED(name, directory, call) \
  mode_t rights = 0; \
  if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) { \
    va_list more; \
    va_start(more, flags); \
    rights = va_arg(more, mode_t); \
    va_end(more); \
  } \
  NEXT(name); \
  SPOIL((flags & O_CREAT) && below_at(directory, path), WRITES, -1); \
  return call

int open(const char *path, int flags, ...) { OPENED(open, AT_FDCWD, next(path, flags, rights)); }
int open64(const char *path, int flags, ...) { OPENED(open64, AT_FDCWD, next(path, flags, rights)); }
int openat(int at, const char *path, int flags, ...) { OPENED(openat, at, next(at, path, flags, rights)); }
int openat64(int at, const char *path, int flags, ...) { OPENED(openat64, at, next(at, path, flags, rights)); }

int mkdir(const char *path, mode_t rights) {
  NEXT(mkdir);
  SPOIL(below_at(AT_FDCWD, path), WRITES, -1);
  return next(path, rights);
}

int ftruncate(int handle, off_t size) {
  NEXT(ftruncate);
  SPOIL(below_handle(handle), WRITES, -1);
  return next(handle, size);
}

int ftruncate64(int handle, off64_t size) {
  NEXT(ftruncate64);
  SPOIL(below_handle(handle), WRITES, -1);
  return next(handle, size);
}

int fsync(int handle) {
  NEXT(fsync);
  SPOIL(below_handle(handle), OTHER, -1);
  return next(handle);
}

int fdatasync(int handle) {
  NEXT(fdatasync);
  SPOIL(below_handle(handle), OTHER, -1);
  return next(handle);
}

int rename(const char *from, const char *to) {
  NEXT(rename);
  SPOIL(below_at(AT_FDCWD, to), OTHER, -1);
  return next(from, to);
}

int renameat(int from_at, const char *from, int to_at, const char *to) {
  NEXT(renameat);
  SPOIL(below_at(to_at, to), OTHER, -1);
  return next(from_at, from, to_at, to);
}

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
  NEXT(renameat2);
  SPOIL(below_at(to_at, to), OTHER, -1);
  return next(from_at, from, to_at, to, flags);
}
