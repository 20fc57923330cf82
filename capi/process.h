// What the library keeps of the process and its threads.
#ifndef MSCCLGO_CAPI_PROCESS_H
#define MSCCLGO_CAPI_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "mscclgo.h"

// capi_enter begins a call, unless it returns false: after a fork. capi_leave makes the CUDA
// context current again that was when the call began.
bool capi_enter(void** context);
void capi_leave(void* context);

// capi_fail is what mscclgo_error_text and its like return on this thread from now on. It
// takes the text, which is from malloc.
void capi_fail(char* text, int rank, int peer);

// capi_environment returns the variables of the process.
char** capi_environment(void);

// capi_keep_limit gives the process the limit of open files back that it had before Go's
// runtime raised it.
int capi_keep_limit(void);

// capi_polls takes the name of the file of /proc that lists the descriptors which Go's runtime polls, and
// capi_close_polled closes these, in a child.
void capi_polls(const char* file);
void capi_close_polled(void);

// capi_log calls f.
void capi_log(mscclgo_log f, uintptr_t user, int level, const char* text);

// capi_handle calls f.
int capi_handle(mscclgo_handler f, uintptr_t user, const mscclgo_trigger* trigger, char* why);

#endif
