// history.h: what the last writes to a count have released, by its cell. The caller holds the cell's lock.
#ifndef MSCCLGO_RACE_HISTORY_H
#define MSCCLGO_RACE_HISTORY_H

#include "arena.h"

// history_make has a word's writes be kept from now on, if there is room, and history_expect also what it
// is now, a value of so many bytes.
void history_make(race_cell*);
void history_expect(race_cell*, uint32_t size, uint64_t value);

// history_write notes a write by an actor, which has released what is in the cell now. history_unknown notes
// that somebody else has written, and history_drop that the value is not known.
void history_write(race_cell*, uint32_t size, uint64_t value, uint32_t actor, uint32_t time);
void history_unknown(race_cell*, uint64_t value);
void history_drop(race_cell*);

// history_found returns what a thread learns that has seen what it awaits, at least a value or, with equal,
// that value; or NULL if no such write is known. It may have been overwritten since.
const race_cell* history_found(const race_thread*, const race_cell*, uint64_t awaited, int equal);

// history_await returns what a thread learns that sees a value now and awaits at least another, or NULL if
// it has to wait on.
const race_cell* history_await(const race_thread*, race_cell*, uint32_t size, uint64_t value, uint64_t least);

#endif
