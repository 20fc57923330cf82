// A program that loads the library, uses it, and gets a signal: signals HOW, which names the
// signal, and says whether the program has handlers from before or after that.
#define _GNU_SOURCE
#include <mscclgo.h>

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define TRUE(condition) hold((condition), #condition, __LINE__)

static void hold(int condition, const char* text, int line) {
  if (condition) return;
  fprintf(stderr, "signals.c:%d: not so: %s\n", line, text);
  exit(1);
}

static void handler(int number) {
  static char text[] = "host: signal 00\n";
  text[13] = (char)('0' + number / 10), text[14] = (char)('0' + number % 10);
  if (write(1, text, sizeof text - 1) < 0 || number != SIGPIPE) _exit(42);
}

static void install(void) {
  struct sigaction a;
  memset(&a, 0, sizeof a);
  a.sa_handler = handler;
  a.sa_flags = SA_ONSTACK;
  sigaction(SIGSEGV, &a, NULL);
  sigaction(SIGPIPE, &a, NULL);
}

int main(int count, char** arguments) {
  const char* how = count > 1 ? arguments[1] : "";
  alarm(120);
  struct rlimit limit = {0, 0}, now;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max / 2;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (strstr(how, "early")) install();
  struct sigaction before[SIGRTMAX + 1], after;
  memset(before, 0, sizeof before);
  for (int i = 1; i <= SIGRTMAX; i++) sigaction(i, NULL, &before[i]);
  void* library = dlopen("libmscclgo.so", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  mscclgo_status (*open)(const char*, mscclgo_device*) =
      (mscclgo_status(*)(const char*, mscclgo_device*))dlsym(library, "mscclgo_device_open");
  mscclgo_device d;
  TRUE(open("emu:0", &d) == MSCCLGO_OK);
  const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGPIPE, SIGURG};
  for (int i = 1; i <= SIGRTMAX; i++) {
    int expected = 0;
    for (size_t j = 0; j < sizeof faults / sizeof *faults; j++) expected |= faults[j] == i;
    if (sigaction(i, NULL, &after)) continue;  // one of the C library's own
    if (expected || after.sa_handler == before[i].sa_handler) continue;
    fprintf(stderr, "signal %d has another handler\n", i);
    return 1;
  }
  getrlimit(RLIMIT_NOFILE, &now);
  TRUE(now.rlim_cur == limit.rlim_cur);
  dlclose(library);
  if (strstr(how, "late")) install();
  if (strstr(how, "pipe")) {
    int ends[2];
    TRUE(pipe(ends) == 0);
    close(ends[0]);
    TRUE(write(ends[1], "x", 1) < 0);
    exit(3);
  }
  if (strstr(how, "fault")) *(volatile int*)8 = 1;
  if (strstr(how, "term")) raise(SIGTERM);
  return 0;
}
