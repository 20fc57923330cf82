// fault.h: what a kernel does that the processor refuses, such as an access to an
// address where nothing is, fails the kernel and not the process.
#pragma once

// fault_setup prepares the process, once, and fault_enter and fault_leave an OS
// thread that runs blocks. Faults of all other code go where they went before.
void fault_setup(void);
void fault_enter(void);
void fault_leave(void);

// While recover is not null, a fault of the calling OS thread goes on in
// recover(argument, text) on the stack whose top is *top then; recover does not
// return.
void fault_catch(void (*recover)(void* argument, const char* text), void* argument, void* const* top);
