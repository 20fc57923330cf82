#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "process.h"

static const char* polled;  // the file that tells what Go's runtime polls, or NULL

void capi_polls(const char* file) { polled = file; }

// number returns what follows a name in a line, and false if it is not there.
static bool number(const char* line, const char* name, int base, unsigned long* value) {
  const char* at = strstr(line, name);
  if (at) *value = strtoul(at + strlen(name), NULL, base);
  return at != NULL;
}

// close_one closes the descriptor of a line of proc(5)'s fdinfo of an epoll instance, unless it is
// another file here: its number was used again while the process forked.
static void close_one(const char* line) {
  unsigned long fd, inode;
  struct stat is;
  if (number(line, "tfd:", 10, &fd) && number(line, " ino:", 16, &inode) && fstat((int)fd, &is) == 0 &&
      is.st_ino == inode)
    close((int)fd);
}

// capi_close_polled calls only what may be called in the child of a process with threads.
void capi_close_polled(void) {
  int file = polled ? open(polled, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  char line[256], text[1024];
  size_t length = 0;
  for (ssize_t n; (n = read(file, text, sizeof text)) > 0;) {
    for (ssize_t i = 0; i < n; i++) {
      if (text[i] != '\n') {
        if (length < sizeof line - 1) line[length++] = text[i];
        continue;
      }
      line[length] = 0;
      length = 0;
      close_one(line);
    }
  }
  close(file);
}
