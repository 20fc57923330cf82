// memory.h: what streams and the host do to memory by address. Go does not
// follow addresses that are numbers; C does.
#pragma once

#include <stdint.h>

void memory_copy(uint64_t dst, uint64_t src, uint64_t n);
void memory_fill(uint64_t dst, int value, uint64_t n);

// memory_write64 stores a value after all that the calling thread did before.
void memory_write64(uint64_t dst, uint64_t value);

// memory_wait64 polls the 8 bytes at src for some microseconds and says whether
// they are equal to value, or with at_least not before it in the circle of
// numbers. What happens after a 1 is ordered behind what made it so.
int memory_wait64(uint64_t src, uint64_t value, int at_least);

// The same with a side in Go's memory.
void memory_to_host(void* dst, uint64_t src, uint64_t n);
void memory_from_host(uint64_t dst, const void* src, uint64_t n);
