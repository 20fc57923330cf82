// What the sources of _fast share: the calls that programs make most often, without what ctypes takes for
// each argument and Python for each attribute of a tensor. What is not simple is left to the package's code
// in Python, which also makes the errors: the package works without this module, but for export_tensor.
//
// It is of CPython's stable ABI: one file for all versions from 3.9 on.
#ifndef MSCCLGO_FAST_H
#define MSCCLGO_FAST_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef METH_FASTCALL  // of the limited API from 3.10 on, and the same before
#define METH_FASTCALL 0x0080
#endif

// A tensor, and the functions that a framework offers for its tensors, of DLPack 1.3.
enum { DL_CUDA = 2, DL_COMPLEX = 5, DL_MAJOR = 1, DL_MINOR = 3 };

typedef struct {
  void* data;
  int32_t device_type, device_id;
  int32_t dimensions;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} dl_tensor;

typedef struct {
  uint32_t major, minor;
  const void* older;
  void *allocate, *export, *import;
  int (*view)(void* tensor, dl_tensor* view);
  int (*current_stream)(int32_t device_type, int32_t device_id, void** stream);
} dl_exchange;

// The types of elements: mscclgo_type's, and the others of BITS in _memory.py, which only kernels
// take.
enum { TYPES = 9, BOOL = 9, I8, I16, U16, U32, U64, OTHER = 31 };

// MSCCLGO_VOUCHED of mscclgo.h.
enum { VOUCHED = 1 << 16 };

// place is where the elements of a tensor are.
typedef struct {
  uint64_t address, elements;
  int type;
  bool own;        // of an Array, which the stream keeps
  bool vouched;    // it is of the group's device
  bool read_only;  // its owner says so
  const dl_exchange* exchange;
} place;

typedef uint64_t word;

enum { KNOWN = 512 };

// caller makes the calls of a group.
typedef struct {
  PyObject_HEAD word group, device;
  int number;         // of its GPU, or -1
  int ranks;          // of the group
  PyObject* streams;  // a dict: the group's Streams of other code, by their handles
  // The stream that was current last, and its Stream. The library gives no handle twice.
  void* last;
  PyObject* last_stream;
  word met[KNOWN];  // keys of collectives that wait for no other rank any more, by their last bits
} caller;

// The package's own types, and the names of attributes.
extern PyTypeObject *own_array, *own_stream, *own_memory_channels, *own_port_channels, *own_group,
    *own_peer_memory;
extern PyObject *name_place, *name_handle, *name_kept, *name_keep, *name_bytes, *name_interface, *name_is_neg,
    *name_capture;

// find finds a tensor of the group's device, or returns false, without an exception. The type of elements may
// be one that only kernels take.
bool find(const caller* c, PyObject* tensor, place* p);

// find_elements is find for tensors of a type that the library takes. One that is written is not read-only.
bool find_elements(const caller* c, PyObject* tensor, bool written, place* p);

// export_tensor is export of the module.
PyObject* export_tensor(PyObject* self, PyObject* args);

// learn_type is learn of the module.
PyObject* learn_type(PyObject* self, PyObject* args);

// stream_handle returns the handle of a Stream, or 0. One that captures is left to the code in Python, which
// has the graph keep more than calls do: see Stream.keep_for.
word stream_handle(PyObject* stream);

// current returns the Stream of a framework's current stream, borrowed, or NULL if there is no Stream yet.
PyObject* current(caller* c, const dl_exchange* of);

// keep has a stream keep objects, a list or a tuple, until its work is done. It does so also where it raises
// what Python's code for a signal does: no such runs before.
enum { LOOK = 1024 };  // of _look in _stream.py: with fewer, Stream.keep does no more than that
bool keep(PyObject* stream, PyObject* objects);

// invoke calls a function of the library, whose arguments are integers and pointers, while other threads may
// run.
enum { MOST = 8 };  // arguments of a function of the library
int invoke(word function, const word* a, Py_ssize_t count);

// not_simple is the status of a call that did nothing, and is for the code in Python.
PyObject* not_simple(void);

// words converts arguments, which are ints, bytes or None. Negative ints are as C's.
bool words(PyObject* const* args, Py_ssize_t count, word* to);

// free_object frees the memory of an object, and its reference to its type.
void free_object(PyObject* self);

extern PyType_Spec caller_spec, kernel_spec;
extern PyTypeObject* caller_type;

#endif  // MSCCLGO_FAST_H
