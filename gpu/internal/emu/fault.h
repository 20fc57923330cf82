// fault.h: a fault of a kernel, such as an access to memory that is not mapped, fails the
// kernel and not the process.
#pragma once

// fault_setup prepares the process, once; fault_enter and fault_leave prepare an OS
// thread that runs blocks. Faults of other code are handled as before.
void fault_setup(void);
void fault_enter(void);
void fault_leave(void);

// fault_catch makes a fault of the calling OS thread continue in recover(argument, text),
// on the stack whose top is *top at that time. recover must not return. A null recover
// ends this.
void fault_catch(void (*recover)(void* argument, const char* text), void* argument, void* const* top);
