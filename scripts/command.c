// The command mscclgo, which is in the library. LIBRARY is its file's name.
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char** words) {
  void* library = dlopen(LIBRARY, RTLD_NOW);
  int (*command)(int, char**) = library ? (int (*)(int, char**))dlsym(library, "mscclgo_command") : NULL;
  if (!command) {
    fprintf(stderr, "mscclgo: load the library: %s; install the package anew\n", dlerror());
    return 1;
  }
  return command(count, words);
}
