// assertion.h: what a failed assert does.
#pragma once

#include <stdio.h>

#include "mscclgo/emu/runtime.h"

namespace mscclgo {
namespace emu {

// failAssertion ends the kernel with the text and place of an assertion.
[[noreturn]] __attribute__((noinline, cold)) inline void failAssertion(const char* condition,
                                                                       const char* file, int line,
                                                                       const char* function) {
  char text[384];
  snprintf(text, sizeof(text), "%s:%d: %s: assertion `%s' failed", file, line, function, condition);
  fail(text, nullptr);
}

}  // namespace emu
}  // namespace mscclgo
