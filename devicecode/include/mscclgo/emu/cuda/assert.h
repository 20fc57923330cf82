// assert.h: a failed assertion ends the kernel, not the process. As in C, each inclusion
// looks at NDEBUG again.
#include "mscclgo/emu/assertion.h"

#undef assert
#if defined(NDEBUG)
#define assert(condition) (static_cast<void>(0))
#else
#define assert(condition)       \
  (static_cast<bool>(condition) \
       ? static_cast<void>(0)   \
       : ::mscclgo::emu::failAssertion(#condition, __FILE__, __LINE__, __PRETTY_FUNCTION__))
#endif
