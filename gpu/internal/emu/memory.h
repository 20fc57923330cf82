// memory.h: operations of streams and the host on memory by address, which Go cannot
// access through numbers. They return false if the memory is not mapped (any more).
#pragma once

#include <stdbool.h>
#include <stdint.h>

bool memory_copy(uint64_t dst, uint64_t src, uint64_t n);
bool memory_fill(uint64_t dst, int value, uint64_t n);

// memory_write64 stores a value with release semantics.
bool memory_write64(uint64_t dst, uint64_t value);

// memory_add64 adds to a word, and memory_exchange64 replaces it and returns what it was.
// Each is one atomic operation, which acquires and releases.
bool memory_add64(uint64_t dst, uint64_t value);
bool memory_exchange64(uint64_t dst, uint64_t value, uint64_t* old);

typedef enum { MEMORY_REACHED, MEMORY_NOT_YET, MEMORY_FAULT } memory_waited;

// memory_wait64 polls the 8 bytes at src for some microseconds, until they equal value
// or, without equal, are not less than it as a signed difference. What follows
// MEMORY_REACHED is ordered after the store that made it so.
memory_waited memory_wait64(uint64_t src, uint64_t value, bool equal);

// memory_to_host and memory_from_host copy between device memory and Go's.
bool memory_to_host(void* dst, uint64_t src, uint64_t n);
bool memory_from_host(uint64_t dst, const void* src, uint64_t n);
