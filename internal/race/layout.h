// layout.h: the memory that the race finder keeps in one arena, a memory file that all
// processes of a run map, each at an address of its own. Everything in it refers to the
// rest by numbers and offsets.
#ifndef MSCCLGO_RACE_LAYOUT_H
#define MSCCLGO_RACE_LAYOUT_H

#include <stdint.h>

// Numbers of the arena. Memory that is never touched costs nothing.
enum {
  RACE_VERSION = 7,
  RACE_INSTANCES = 1 << 22,  // blocks of launches, and operations of streams and hosts
  RACE_STREAMS = 1 << 14,
  RACE_LAUNCHES = 1 << 22,  // of a stream
  RACE_MODULES = 1 << 10,
  RACE_REGIONS = 1 << 16,
  RACE_REPORTS = 1 << 12,    // distinct pairs of places
  RACE_SITES = 1 << 16,      // places of synchronisation
  RACE_SENT = 1 << 14,       // places of what is on its way to a peer
  RACE_HISTORIES = 1 << 16,  // of counts
  RACE_WRITES = 32,          // of a history, the last ones
  RACE_TEXT_BYTES = 1 << 22,
  RACE_CODE_BITS = 22,  // of an offset in a module's code, or in the texts
};

#define RACE_ARENA_BYTES ((uint64_t)9 << 38)
#define RACE_IMAGE_BYTES ((uint64_t)1 << 32)
#define RACE_CLOCK_BYTES ((uint64_t)1 << 34)

// Places of code are module << RACE_CODE_BITS | offset. Module 0 is the text of a line of
// Go, or of what a stream or a host does.
typedef uint32_t race_place;

// What an access is.
enum {
  RACE_READ = 0,
  RACE_WRITE = 1,
  RACE_ATOMIC = 2,
  RACE_SYSTEM = 4,     // of an atomic one: for all devices, and not for the thread's own alone
  RACE_BLOCK = 8,      // of an atomic one: for the thread's block alone
  RACE_CONSTANT = 16,  // of a read: of what nobody writes during the launch
};

// race_instance is one block of a launch, or one operation.
typedef struct {
  uint32_t stream, launch, block;
  uint32_t name;      // text: the kernel's or the operation's
  uint32_t where;     // text: the rank and device
  uint32_t grid[3];   // of the launch; zeros for an operation
  uint32_t shape[3];  // of a block
} race_instance;

// race_slot is one access to some of the 8 bytes of a granule.
typedef struct {
  uint32_t actor;  // instance << 10 | thread
  uint32_t clock;  // of the thread, 0 for an empty slot
  race_place place;
  uint16_t site;  // the thread's last synchronisation
  uint8_t mask;   // bytes
  uint8_t flags;  // RACE_WRITE and so on
} race_slot;

enum { RACE_SLOTS = 4, RACE_LOCKED = 0x80 };

// race_cell is what the last atomic writes to a word have released, by the word's first byte.
typedef struct {
  uint8_t lock, owner;  // owner is the writer's device
  uint16_t history;     // its number, or 0
  uint32_t block;       // the writer's instance, or 0
  uint32_t told[3];     // clocks: for any thread, for those of the writer's device and of its block
  uint32_t fenced[3];   // the same of sequentially consistent fences before the write
  uint32_t value;       // a digest of the value
} race_cell;

// race_past is one write to a count.
typedef struct {
  uint64_t value;
  uint32_t actor, time;  // of the writer; time 0 if it is not known
  race_cell cell;        // what it has released
} race_past;

// race_history has the last writes to a count, from number begin to before number end.
typedef struct {
  uint32_t begin, end, size, unused;  // size in bytes
  race_past writes[RACE_WRITES];
} race_history;

// The shadow of a page is granules of 4 slots, then cells: those of words of 4 and 8 bytes together, as
// others are rarely accessed, so that they take address space only.
enum {
  RACE_PAGE = 4096,
  RACE_SLOT_BYTES = RACE_PAGE / 8 * RACE_SLOTS * (int)sizeof(race_slot),
  RACE_PAGE_SHADOW = RACE_SLOT_BYTES + RACE_PAGE * (int)sizeof(race_cell),
};

// race_region is memory with shadow.
typedef struct {
  uint64_t file[2];  // device and inode of the memory's file, or zeros if only this process has it
  uint64_t size;     // bytes
  uint64_t bytes;    // that were asked for, if the rest is nobody's, else 0
  uint64_t shadow;   // offset in the arena
  uint64_t start;    // of variables: the address of the first byte in their module
  uint32_t module;   // of variables, else 0
  uint32_t name;     // text
  uint32_t pinned;   // 1 for memory of the host
  uint32_t users;    // mappings of it, of all processes; with none it may be taken for other memory
} race_region;

// race_module is an image of code with the debuggers' information.
typedef struct {
  uint64_t digest, offset, size;
} race_module;

// race_site is a place of synchronisation, and what it did: a text.
typedef struct {
  race_place place;
  uint32_t what;
} race_site;

// race_side is one of the two accesses of a report.
typedef struct {
  race_instance instance;
  uint32_t thread;
  race_place place;
  race_site sync;
  uint32_t flags, mask;
} race_side;

// race_report is a pair of accesses that nothing orders.
typedef struct {
  uint32_t ready;
  uint32_t count;  // pairs of accesses at these places
  race_side first, second;
  uint32_t memory;  // text, 0 for memory of a block
  uint32_t module;  // of a variable, else 0
  uint32_t size;    // bytes of the second access
  uint64_t offset;  // in the memory, or in the module
} race_report;

// What was not watched, and why.
enum {
  RACE_LOST_MEMORY = 1,    // the arena was full
  RACE_LOST_LAUNCHES = 2,  // too many blocks, launches or streams
  RACE_LOST_REPORTS = 4,   // too many distinct pairs
  RACE_LOST_CODE = 8,      // a module was not compiled for the finder
  RACE_LOST_CLOCKS = 16,   // the clocks had no room
  RACE_LOST_REGION = 32,   // a region had no room
};

typedef struct {
  uint64_t version;
  uint64_t memory;  // bytes that the arena may take
  uint64_t shadow;  // end of the shadows, an offset
  uint64_t image;   // end of the images
  uint64_t clock;   // end of the clocks, in units of 16 bytes
  uint32_t instances, streams, modules, regions, reports, sites, text, histories;
  uint8_t lock;
  uint32_t hosts;                    // clock: what all hosts know
  uint32_t lost;                     // RACE_LOST_...
  uint32_t full;                     // 1 once the arena takes more than its memory: nothing is watched then
  uint32_t joined;                   // devices that were opened
  uint64_t pairs[2 * RACE_REPORTS];  // the reports' pairs of places, as a hash table
  uint64_t sent[RACE_SENT];          // race_sent's places, by where it goes
  race_report report[RACE_REPORTS];
  race_module module[RACE_MODULES];
  race_region region[RACE_REGIONS];
  race_site site[RACE_SITES];
  char texts[RACE_TEXT_BYTES];
  race_instance instance[RACE_INSTANCES];
  race_history history[RACE_HISTORIES];
} race_arena;

#define RACE_PAGES(bytes) (((bytes) + 0xffff) & ~(uint64_t)0xffff)
#define RACE_IMAGE_START RACE_PAGES(sizeof(race_arena))
#define RACE_CLOCK_START (RACE_IMAGE_START + RACE_IMAGE_BYTES)
#define RACE_SHADOW_START (RACE_CLOCK_START + RACE_CLOCK_BYTES)

#endif
