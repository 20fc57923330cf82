// The calls that programs make most often, without what ctypes takes for each argument and Python for
// each attribute of a tensor. What is not simple is left to the package's code in Python, which also
// makes the errors: this module is never needed, and the package works without it.
//
// It is of CPython's stable ABI: one file for all versions from 3.9 on.
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifndef METH_FASTCALL  // of the limited API from 3.10 on, and the same before
#define METH_FASTCALL 0x0080
#endif

// A tensor, and the functions that a framework offers for its tensors, of DLPack 1.3.
enum { DL_CUDA = 2, DL_MAJOR = 1, DL_MINOR = 3 };

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

// The types of tensors that are known, by learn.
static struct {
  PyTypeObject* type;
  const dl_exchange* exchange;
} known[8];
static int types_known;

static PyTypeObject* own_type;     // the package's Array
static PyTypeObject* stream_type;  // the package's Stream
static PyObject *name_place, *name_handle, *name_keep;

// array_place is what an Array has in _place; see _array.py.
typedef struct {
  uint64_t device, address, elements;
  int32_t type;
} __attribute__((packed)) array_place;

// place is where the elements of a tensor are.
typedef struct {
  uint64_t address, elements;
  int type;  // of mscclgo_type
  bool own;  // of an Array, which the stream keeps
  const dl_exchange* exchange;
} place;

// MSCCLGO_VOUCHED of mscclgo.h.
enum { VOUCHED = 1 << 16, TYPES = 9 };

// caller makes the calls of a group.
typedef struct {
  PyObject_HEAD uint64_t group, device;
  int number;         // of its GPU, or -1
  PyObject* streams;  // a dict: the group's Streams of other code, by their handles
  // The stream that was current last, and its Stream's handle. The library gives no handle twice.
  void* last;
  uint64_t last_handle;
} caller;

static int type_of(const dl_tensor* t) {
  switch (t->code << 8 | t->bits) {
    case 2 << 8 | 32:
      return 0;
    case 2 << 8 | 16:
      return 1;
    case 4 << 8 | 16:
      return 2;
    case 2 << 8 | 64:
      return 3;
    case 0 << 8 | 32:
      return 4;
    case 0 << 8 | 64:
      return 5;
    case 1 << 8 | 8:
      return 6;
    case 10 << 8 | 8:
      return 7;
    case 12 << 8 | 8:
      return 8;
  }
  return -1;
}

// find finds a tensor of the group's device of a type of elements, or returns false, without an exception.
static bool find(const caller* c, PyObject* tensor, place* p) {
  PyTypeObject* type = Py_TYPE(tensor);
  if (type == own_type) {
    PyObject* at = PyObject_GetAttr(tensor, name_place);
    array_place a;
    bool there = at && PyBytes_Check(at) && PyBytes_Size(at) == sizeof a;
    if (there) memcpy(&a, PyBytes_AsString(at), sizeof a);
    Py_XDECREF(at);
    if (!at) PyErr_Clear();
    if (!there || a.device != c->device) return false;
    *p = (place){a.address, a.elements, a.type, true, NULL};
    return true;
  }
  for (int i = 0; i < types_known; i++) {
    if (known[i].type != type) continue;
    dl_tensor t;
    if (known[i].exchange->view(tensor, &t)) {
      PyErr_Clear();
      return false;
    }
    if (t.device_type != DL_CUDA || t.device_id != c->number || t.lanes != 1) return false;
    int64_t count = 1;
    for (int d = t.dimensions - 1; d >= 0; d--) {
      if (t.strides && t.shape[d] != 1 && t.strides[d] != count) return false;
      count *= t.shape[d];
    }
    *p = (place){(uintptr_t)t.data + t.byte_offset, (uint64_t)count, type_of(&t), false, known[i].exchange};
    return p->type >= 0 && (t.data || count == 0);
  }
  return false;
}

// attribute_handle returns the number in an object's _handle, or 0.
static uint64_t attribute_handle(PyObject* of) {
  PyObject* number = PyObject_GetAttr(of, name_handle);
  uint64_t handle = number ? PyLong_AsUnsignedLongLong(number) : 0;
  Py_XDECREF(number);
  if (PyErr_Occurred()) {
    PyErr_Clear();
    return 0;
  }
  return handle;
}

// current returns the handle of the Stream of the framework's current stream, or 0 if there is no Stream yet.
static uint64_t current(caller* c, const dl_exchange* of) {
  void* stream = NULL;
  if (of->current_stream(DL_CUDA, c->number, &stream)) {
    PyErr_Clear();
    return 0;
  }
  if (c->last_handle && stream == c->last) return c->last_handle;
  if (!c->streams) return 0;  // cleared
  PyObject* key = PyLong_FromVoidPtr(stream);
  PyObject* found = key ? PyDict_GetItemWithError(c->streams, key) : NULL;  // borrowed
  uint64_t handle = found ? attribute_handle(found) : 0;
  Py_XDECREF(key);
  PyErr_Clear();
  if (handle) {
    c->last = stream;
    c->last_handle = handle;
  }
  return handle;
}

typedef uint64_t word;

// invoke calls a function of the library, whose arguments are integers and pointers, while other threads
// may run.
static int invoke(word function, const word* a, Py_ssize_t count) {
  void (*f)(void) = (void (*)(void))(uintptr_t)function;
  int status = -1;
  PyThreadState* state = PyEval_SaveThread();
  switch (count) {
    case 1:
      status = ((int (*)(word))f)(a[0]);
      break;
    case 2:
      status = ((int (*)(word, word))f)(a[0], a[1]);
      break;
    case 3:
      status = ((int (*)(word, word, word))f)(a[0], a[1], a[2]);
      break;
    case 4:
      status = ((int (*)(word, word, word, word))f)(a[0], a[1], a[2], a[3]);
      break;
    case 5:
      status = ((int (*)(word, word, word, word, word))f)(a[0], a[1], a[2], a[3], a[4]);
      break;
    case 6:
      status = ((int (*)(word, word, word, word, word, word))f)(a[0], a[1], a[2], a[3], a[4], a[5]);
      break;
    case 7:
      status =
          ((int (*)(word, word, word, word, word, word, word))f)(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
      break;
    case 8:
      status = ((int (*)(word, word, word, word, word, word, word, word))f)(a[0], a[1], a[2], a[3], a[4],
                                                                            a[5], a[6], a[7]);
      break;
  }
  PyEval_RestoreThread(state);
  return status;
}

// words converts arguments, which are ints, bytes or None. Negative ints are those of C.
static bool words(PyObject* const* args, Py_ssize_t count, word* to) {
  for (Py_ssize_t i = 0; i < count; i++) {
    if (args[i] == Py_None)
      to[i] = 0;
    else if (PyBytes_Check(args[i]))
      to[i] = (uintptr_t)PyBytes_AsString(args[i]);
    else {
      to[i] = PyLong_AsUnsignedLongLongMask(args[i]);
      if (to[i] == (word)-1 && PyErr_Occurred()) return false;
    }
  }
  return true;
}

enum { MOST = 8 };  // arguments of a function of the library

static PyObject* fast_call(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  (void)self;
  word all[MOST + 1];
  if (count < 2 || count > MOST + 1) {
    PyErr_SetString(PyExc_TypeError, "call takes the address of a function and 1 to 8 arguments");
    return NULL;
  }
  if (!words(args, count, all)) return NULL;
  return PyLong_FromLong(invoke(all[0], all + 1, count - 1));
}

static PyObject* not_simple(void) { return PyLong_FromLong(-1); }

// collect(function, stream, output, input, parts, more) makes a collective, and returns the status: -1 if
// it did nothing. The arguments are those of Group._collect; the stream is a Stream or None.
static PyObject* caller_collect(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  caller* c = (caller*)self;
  if (count != 6 || !PyTuple_Check(args[4]) || PyTuple_Size(args[4]) != 2 || !PyTuple_Check(args[5])) {
    PyErr_SetString(PyExc_TypeError,
                    "collect takes a function, a stream, an output, an input, parts and more");
    return NULL;
  }
  PyObject *stream = args[1], *output = args[2], *input = args[3];
  place to = {0}, from = {0};
  uint64_t parts[2], each;
  for (int i = 0; i < 2; i++) parts[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(args[4], i));
  if (PyErr_Occurred()) return NULL;

  if (output != Py_None && !find(c, output, &to)) return not_simple();
  if (input == output)
    from = to;
  else if (input != Py_None && !find(c, input, &from))
    return not_simple();
  const place* one = output != Py_None ? &to : &from;
  each = one->elements;
  if (output != Py_None && input != Py_None) {
    if (to.type != from.type) return not_simple();
    if (input != output && to.elements * parts[1] != from.elements * parts[0]) return not_simple();
  }
  uint64_t divisor = one == &to ? parts[0] : parts[1];
  if ((output == Py_None && input == Py_None) || divisor == 0 || each % divisor) return not_simple();
  each /= divisor;

  word all[MOST] = {c->group};
  if (Py_TYPE(stream) == stream_type)
    all[1] = attribute_handle(stream);
  else if (stream == Py_None && one->exchange && !to.own && !from.own)
    all[1] = current(c, one->exchange);
  if (!all[1]) return not_simple();
  all[2] = to.address;
  all[3] = from.address;
  all[4] = each;
  all[5] = (word)(one->type | VOUCHED);
  Py_ssize_t more = PyTuple_Size(args[5]);
  if (more > 2) return not_simple();
  PyObject* last[2];
  for (Py_ssize_t i = 0; i < more; i++) last[i] = PyTuple_GetItem(args[5], i);
  word function = PyLong_AsUnsignedLongLong(args[0]);
  if (!words(last, more, all + 6) || PyErr_Occurred()) return NULL;
  int status = invoke(function, all, 6 + more);
  if (!status && (to.own || from.own)) {
    PyObject* held =
        PyTuple_Pack(2, to.own ? output : Py_None, from.own && input != output ? input : Py_None);
    PyObject* kept = held ? PyObject_CallMethodObjArgs(stream, name_keep, held, NULL) : NULL;
    Py_XDECREF(held);
    if (!kept) return NULL;
    Py_DECREF(kept);
  }
  return PyLong_FromLong(status);
}

// address(tensor, types) returns the address of a tensor whose type of elements is in a set of bits, or None.
static PyObject* caller_address(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  place p;
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "address takes a tensor and types");
    return NULL;
  }
  unsigned long types = PyLong_AsUnsignedLong(args[1]);
  if (PyErr_Occurred()) return NULL;
  if (Py_TYPE(args[0]) == own_type || !find((caller*)self, args[0], &p) || !(types >> p.type & 1))
    Py_RETURN_NONE;
  return PyLong_FromUnsignedLongLong(p.address);
}

// place(tensor) returns the address, the number of elements, the number of their type and whether the tensor
// is an Array, or None.
static PyObject* caller_place(PyObject* self, PyObject* tensor) {
  place p;
  if (!find((caller*)self, tensor, &p)) Py_RETURN_NONE;
  return Py_BuildValue("(KKiO)", (unsigned long long)p.address, (unsigned long long)p.elements,
                       p.type | VOUCHED, p.own ? Py_True : Py_False);
}

static PyObject* caller_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  (void)keywords;
  unsigned long long group, device;
  int number;
  PyObject* streams;
  if (!PyArg_ParseTuple(args, "KKiO!", &group, &device, &number, &PyDict_Type, &streams)) return NULL;
  allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  caller* c = (caller*)allocate(type, 0);
  if (!c) return NULL;
  c->group = group;
  c->device = device;
  c->number = number;
  c->streams = streams;
  Py_INCREF(streams);
  return (PyObject*)c;
}

// The streams refer to their group, and that to its caller.
static int caller_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(((caller*)self)->streams);
  return 0;
}

static int caller_clear(PyObject* self) {
  Py_CLEAR(((caller*)self)->streams);
  return 0;
}

static void caller_free(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  caller_clear(self);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(self);
  Py_DECREF(type);
}

static PyMethodDef caller_methods[] = {
    {"collect", (PyCFunction)(void (*)(void))caller_collect, METH_FASTCALL, NULL},
    {"address", (PyCFunction)(void (*)(void))caller_address, METH_FASTCALL, NULL},
    {"place", caller_place, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot caller_slots[] = {
    {Py_tp_new, caller_new},     {Py_tp_dealloc, caller_free},    {Py_tp_traverse, caller_traverse},
    {Py_tp_clear, caller_clear}, {Py_tp_methods, caller_methods}, {0, NULL},
};
static PyType_Spec caller_spec = {"mscclgo._fast.Caller", sizeof(caller), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, caller_slots};

// learn(type, capsule) makes a type of tensors known, with what it has as __dlpack_c_exchange_api__.
static PyObject* fast_learn(PyObject* self, PyObject* args) {
  (void)self;
  PyObject *type, *capsule;
  if (!PyArg_ParseTuple(args, "O!O", &PyType_Type, &type, &capsule)) return NULL;
  const dl_exchange* exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  if (!exchange) return NULL;
  for (int i = 0; i < types_known; i++)
    if (known[i].type == (PyTypeObject*)type) Py_RETURN_TRUE;
  if (exchange->major != DL_MAJOR || exchange->minor < DL_MINOR || !exchange->view ||
      !exchange->current_stream || types_known == sizeof known / sizeof *known)
    Py_RETURN_FALSE;
  Py_INCREF(type);
  Py_INCREF(capsule);  // for as long as the process lives
  known[types_known].type = (PyTypeObject*)type;
  known[types_known++].exchange = exchange;
  Py_RETURN_TRUE;
}

// own(Array, Stream) tells the package's own types.
static PyObject* fast_own(PyObject* self, PyObject* args) {
  (void)self;
  PyObject *array, *stream;
  if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &array, &PyType_Type, &stream)) return NULL;
  Py_INCREF(array);
  Py_INCREF(stream);
  own_type = (PyTypeObject*)array;
  stream_type = (PyTypeObject*)stream;
  Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"call", (PyCFunction)(void (*)(void))fast_call, METH_FASTCALL, NULL},
    {"learn", fast_learn, METH_VARARGS, NULL},
    {"own", fast_own, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "mscclgo._fast", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__fast(void) {
  name_place = PyUnicode_InternFromString("_place");
  name_handle = PyUnicode_InternFromString("_handle");
  name_keep = PyUnicode_InternFromString("keep");
  PyObject* made = PyModule_Create(&module);
  PyObject* type = made ? PyType_FromSpec(&caller_spec) : NULL;
  if (!type || PyModule_AddObject(made, "Caller", type)) return NULL;
  return made;
}
