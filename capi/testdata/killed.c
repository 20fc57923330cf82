// Two ranks of a group, of which rank 0 ends without leaving it, while a child that it has forked lives:
// killed CHILD END HEARTBEAT. The other prints the error that it gets.
#define _GNU_SOURCE
#include <mscclgo.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void ok(mscclgo_status status) {
  if (status) fprintf(stderr, "%s\n", mscclgo_error_text()), exit(2);
}

// stay is what the child does: it escapes its process group, and keeps what descriptors it has.
static void stay(void) {
  signal(SIGTERM, SIG_DFL);
  setsid();
  alarm(120);
  for (;;) pause();
}

int main(int count, char** arguments) {
  if (count != 4) return 2;
  const char *child = arguments[1], *end = arguments[2];
  mscclgo_group_options options = {
      .device = "emu", .timeout_ms = 60000, .heartbeat_timeout_ms = atoi(arguments[3])};
  mscclgo_group g;
  signal(SIGTERM, SIG_IGN);  // the launcher's, once a rank has ended
  ok(mscclgo_group_join(&options, &g));
  ok(mscclgo_group_barrier(g, -1));
  if (!strcmp(getenv("RANK"), "0")) {
    // A raw clone runs no handlers of fork, so that the child keeps all descriptors.
    long pid = !strcmp(child, "fork") ? fork() : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) stay();
    printf("child %ld\n", pid);
    fflush(stdout);
    signal(SIGTERM, SIG_DFL);
    if (!strcmp(end, "exit")) exit(0);
    raise(!strcmp(end, "kill") ? SIGKILL : SIGTERM);
  }
  mscclgo_status status = mscclgo_group_barrier(g, -1);
  printf("%s: %s\n", mscclgo_status_name(status), status ? mscclgo_error_text() : "");
  ok(mscclgo_group_destroy(g));
  return status != MSCCLGO_OK;
}
