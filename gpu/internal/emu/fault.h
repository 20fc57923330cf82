// fault.h: a fault of a kernel or a copy, such as an access to memory that is not mapped,
// fails what did it and not the process.
#pragma once

#include <stdbool.h>
#include <stdint.h>

// fault_access is an access that faulted.
typedef struct fault_access {
  uint64_t at;  // 0 if it was none
  int kind;     // 1 for a read, 2 for a write, 0 if that is not known
} fault_access;

// fault_setup prepares the process, once; fault_enter and fault_leave prepare an OS
// thread that runs blocks. Faults of other code are handled as before.
void fault_setup(void);
void fault_enter(void);
void fault_leave(void);

// fault_catch makes a fault of the calling OS thread continue in recover(argument, text),
// on the stack whose top is *top at that time. recover must not return. A null recover
// ends this.
void fault_catch(void (*recover)(void* argument, const char* text), void* argument, void* const* top);

// fault_last returns what the calling OS thread's last fault was: the access, behind which
// instruction of code, and where that instruction's function would return to if it calls no other.
fault_access fault_last(uint64_t* code, uint64_t* back);

// fault_try calls f(argument), on any OS thread with a signal stack, such as Go's. It
// returns false if f faults, which it must do only where it holds nothing.
bool fault_try(void (*f)(void*), void* argument);

// fault_guard tells the OS thread's handler of memory that faults behind that many bytes of
// dynamic shared memory, so that it can say so.
void fault_guard(const void* guard, uint64_t bytes, uint32_t dynamic);
