// fiber.h: stacks that take turns on one OS thread.
#pragma once

#include <stddef.h>

// A fiber that is not running is its stack pointer.
typedef void* fiber;

// fiber_switch saves the running fiber in *from and continues with to. It returns when
// another fiber switches back.
void fiber_switch(fiber* from, fiber to);

// fiber_make returns a fiber that will call entry(argument) on the stack that ends at
// top, which is aligned to 16. entry must not return.
fiber fiber_make(void* top, void (*entry)(void*), void* argument);
