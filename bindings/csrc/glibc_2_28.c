// Functions of newer versions of glibc than 2.28, for code that was compiled with their headers. Only manylinux.py links
// this file.

#define _GNU_SOURCE
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>

// The version of struct stat.
#ifdef __x86_64__
#define STAT_VERSION 1
#else
#define STAT_VERSION 0
#endif

int __fxstat(int version, int file, struct stat* status);
int __lxstat(int version, const char* path, struct stat* status);
int __xstat(int version, const char* path, struct stat* status);

int fstat(int file, struct stat* status) {
  return __fxstat(STAT_VERSION, file, status);
}

int lstat(const char* path, struct stat* status) {
  return __lxstat(STAT_VERSION, path, status);
}

int stat(const char* path, struct stat* status) {
  return __xstat(STAT_VERSION, path, status);
}

// If it is not 0, libstdc++ leaves out atomic operations, because the process has only one thread.
char __libc_single_threaded = 0;

// libstdc++ waits until a time of CLOCK_MONOTONIC; condition variables of glibc 2.28 have CLOCK_REALTIME.
int pthread_cond_clockwait(
    pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const struct timespec* deadline) {
  const long second = 1000000000;
  struct timespec now, until;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &until);
  long nanoseconds = until.tv_nsec + deadline->tv_nsec - now.tv_nsec;
  until.tv_sec += deadline->tv_sec - now.tv_sec + (nanoseconds >= second) - (nanoseconds < 0);
  until.tv_nsec = nanoseconds + (nanoseconds < 0 ? second : 0) - (nanoseconds >= second ? second : 0);
  return pthread_cond_timedwait(condition, mutex, &until);
}
