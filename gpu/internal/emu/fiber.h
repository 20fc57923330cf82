// fiber.h: stacks that take turns on one OS thread.
#pragma once

#include <stddef.h>

// A fiber that is not running is its stack pointer.
typedef void* fiber;

// fiber_switch saves the running fiber in *from and goes on with the one in to.
// It returns when something switches back.
void fiber_switch(fiber* from, fiber to);

// fiber_make gives a fiber that will call entry(argument) on the stack that ends
// at top, which is aligned to 16. entry does not return.
fiber fiber_make(void* top, void (*entry)(void*), void* argument);
