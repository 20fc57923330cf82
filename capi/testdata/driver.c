// A driver without a GPU behind it, whose threads have a current context.
#define cuCtxSetCurrent set_of_the_plain_driver
#include "../../gpu/internal/cuda/testdata/driver.c"
#undef cuCtxSetCurrent

static __thread void* current;
static int sets;

int cuCtxSetCurrent(void* context) { return current = context, sets++, 0; }
int cuCtxGetCurrent(void** context) { return *context = current, 0; }
int test_sets(void) { return sets; }
