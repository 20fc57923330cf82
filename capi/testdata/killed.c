// A rank of a group of which one ends without leaving it, while a child that it has forked lives:
// killed WHERE CHILD END HEARTBEAT [ID]. The other rank prints the error that it gets.
#define _GNU_SOURCE
#include <mscclgo.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *child, *end;

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

static void leave(void) {
  // A raw clone runs no handlers of fork, so that the child keeps all descriptors.
  long pid = !strcmp(child, "fork") ? fork() : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (pid == 0) stay();
  printf("child %ld\n", pid);
  fflush(stdout);
  signal(SIGTERM, SIG_DFL);
  if (!strcmp(end, "exit")) exit(0);
  raise(!strcmp(end, "kill") ? SIGKILL : SIGTERM);
}

// leave_once_joined does so when the rank has listened for a while, as it does for others while it waits for
// them at the rendezvous.
static void* leave_once_joined(void* unused) {
  (void)unused;
  for (int fd = 0;; fd = (fd + 1) % 64) {
    int listens = 0, domain = 0;
    socklen_t bytes = sizeof(int);
    getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes);
    getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes);
    if (listens && domain != AF_UNIX) break;
    usleep(100);
  }
  sleep(1);
  leave();
  return NULL;
}

// reduce makes an all-reduce, which waits for the other rank.
static mscclgo_status reduce(mscclgo_group g, mscclgo_stream s, mscclgo_buffer b) {
  void* at;
  ok(mscclgo_buffer_pointer(b, &at));
  ok(mscclgo_all_reduce(g, s, at, at, 1, MSCCLGO_I32, MSCCLGO_SUM));
  return mscclgo_group_synchronize(g, s, -1);
}

int main(int count, char** arguments) {
  if (count < 5) return 2;
  const char* where = arguments[1];
  child = arguments[2], end = arguments[3];
  mscclgo_group_options options = {
      .device = "emu", .timeout_ms = 60000, .heartbeat_timeout_ms = atoi(arguments[4])};
  mscclgo_group g;
  mscclgo_member member = NULL;
  signal(SIGTERM, SIG_IGN);  // the launcher's, once a rank has ended
  if (!strcmp(where, "connecting")) {
    pthread_t thread;
    if (!strcmp(getenv("RANK"), "1")) pthread_create(&thread, NULL, leave_once_joined, NULL);
  }
  if (!strcmp(where, "elastic")) {
    ok(mscclgo_member_create(arguments[5], &options, NULL, &member));
    ok(mscclgo_member_connect(member, -1, &g));
  } else if (mscclgo_group_join(&options, &g)) {
    printf("%s\n", mscclgo_error_text());
    return 1;
  }
  mscclgo_device device;
  mscclgo_stream stream;
  mscclgo_buffer buffer;
  int rank, size;
  ok(mscclgo_group_rank(g, &rank));
  ok(mscclgo_group_device(g, &device));
  ok(mscclgo_stream_create(device, &stream));
  ok(mscclgo_buffer_create(device, sizeof(int), &buffer));
  if (!strcmp(where, "collective")) ok(reduce(g, stream, buffer));
  ok(mscclgo_group_barrier(g, -1));
  if (rank == 0) leave();
  mscclgo_status status =
      !strcmp(where, "collective") ? reduce(g, stream, buffer) : mscclgo_group_barrier(g, -1);
  printf("%s: %s\n", mscclgo_status_name(status), status ? mscclgo_error_text() : "");
  if (member) {
    ok(mscclgo_member_reform(member, g, -1));
    ok(mscclgo_group_barrier(g, -1));
    ok(mscclgo_group_size(g, &size));
    printf("went on as %d\n", size);
    ok(mscclgo_member_destroy(member));
  }
  ok(mscclgo_stream_destroy(stream));
  ok(mscclgo_buffer_destroy(buffer));
  ok(mscclgo_group_destroy(g));
  return status != MSCCLGO_OK;
}
