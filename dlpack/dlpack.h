// The ABI of DLPack, as far as tensors are handed over by it
// (https://dmlc.github.io/dlpack/latest/c_api.html).
#ifndef MSCCLGO_DLPACK_H
#define MSCCLGO_DLPACK_H

#include <stdbool.h>
#include <stdint.h>

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13 };
enum { DL_MAJOR = 1, DL_READ_ONLY = 1 };

typedef struct {
  uintptr_t data;  // an address, as it need not be one that Go may hold as a pointer
  struct {
    int32_t kind, number;
  } device;
  int32_t dimensions;
  struct {
    uint8_t code, bits;
    uint16_t lanes;
  } type;
  int64_t* shape;
  int64_t* strides;  // in elements; NULL for a contiguous tensor
  uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed dl_managed;
typedef void (*dl_deleter)(dl_managed*);

// dl_plain is a DLManagedTensor, dl_versioned a DLManagedTensorVersioned. A deleter takes
// the address of the whole.
typedef struct {
  dl_tensor tensor;
  void* context;
  dl_deleter deleter;
} dl_plain;

typedef struct {
  struct {
    uint32_t major, minor;
  } version;
  void* context;
  dl_deleter deleter;
  uint64_t flags;
  dl_tensor tensor;
} dl_versioned;

// dl_place tells where the parts of a managed tensor are.
typedef struct {
  const dl_tensor* tensor;
  dl_deleter* deleter;
  uint64_t flags;
  uint32_t major;
} dl_place;

static inline dl_place dl_find(uintptr_t address, bool versioned) {
  if (!versioned) {
    dl_plain* p = (dl_plain*)address;
    return (dl_place){&p->tensor, &p->deleter, 0, DL_MAJOR};
  }
  dl_versioned* v = (dl_versioned*)address;
  return (dl_place){&v->tensor, &v->deleter, v->flags, v->version.major};
}

// dl_memory makes a pointer of the address of memory of the host.
static inline void* dl_memory(uintptr_t address) { return (void*)address; }

// dl_consumed stands in for the deleter of a tensor that is taken, so that it is not taken,
// or deleted, again.
static void dl_consumed(dl_managed* self) { (void)self; }

static inline bool dl_is_consumed(dl_place place) { return *place.deleter == dl_consumed; }

static inline dl_deleter dl_consume(dl_place place) {
  dl_deleter deleter = *place.deleter;
  *place.deleter = dl_consumed;
  return deleter;
}

// dl_delete ends what dl_consume began.
static inline void dl_delete(uintptr_t address, bool versioned, dl_deleter deleter) {
  *dl_find(address, versioned).deleter = deleter;
  if (deleter) deleter((dl_managed*)address);
}

#endif
