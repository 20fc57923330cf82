// Launches of kernels: what packs their arguments, by the types of the parameters.
#include "_fast.h"

// What a parameter takes without asking its packer in Python; see Packer.
typedef enum { ASK = 0, SIGNED, UNSIGNED, FLOAT, BOOLEAN, POINTER, STRUCT } how;

// The bits of parameter.types beyond the types of elements.
enum { READ_ONLY = 28, MEMORY_CHANNELS, PORT_CHANNELS };

typedef struct {
  uint32_t offset, bytes;
  how how;
  // Of elements, and of handles of channels, that a pointer takes, and whether it takes what is read-only: a
  // set of bits.
  uint32_t types;
  PyObject* pack;  // of Packer.bytes, for all else
} parameter;

// kernel launches a kernel.
typedef struct {
  PyObject_HEAD caller* caller;
  PyObject* module;  // which the stream keeps
  word function, handle;
  Py_ssize_t count;
  uint32_t bytes;  // of the parameter block
  parameter* parameters;
} kernel;

// found is what is to be known of all arguments.
typedef struct {
  PyObject* held;               // a list: what must live until the kernel is done
  const dl_exchange* exchange;  // of a tensor on the group's GPU, or NULL
} found;

// ask has the packer in Python pack an argument, or raise why it cannot.
static bool ask(const parameter* p, PyObject* argument, unsigned char* to, const found* f) {
  PyObject* packed = PyObject_CallFunctionObjArgs(p->pack, argument, f->held, NULL);
  bool right = packed && PyBytes_Check(packed) && PyBytes_Size(packed) == p->bytes;
  if (right)
    memcpy(to, PyBytes_AsString(packed), p->bytes);
  else if (packed)
    PyErr_SetString(PyExc_TypeError, "a packer gave something else than the parameter's bytes");
  Py_XDECREF(packed);
  return right;
}

static bool pack_number(const parameter* p, PyObject* argument, unsigned char* to) {
  if (!PyLong_CheckExact(argument)) return false;
  int bits = 8 * (int)p->bytes;
  uint64_t value;
  if (p->how == SIGNED) {
    int over;
    long long number = PyLong_AsLongLongAndOverflow(argument, &over);
    if (over || (bits < 64 && (number < -(1LL << (bits - 1)) || number >= 1LL << (bits - 1)))) return false;
    value = (uint64_t)number;
  } else {
    value = PyLong_AsUnsignedLongLong(argument);
    if (value == UINT64_MAX && PyErr_Occurred()) {
      PyErr_Clear();
      return false;
    }
    if (bits < 64 && value >> bits) return false;
  }
  memcpy(to, &value, p->bytes);  // the lowest bytes come first
  return true;
}

static bool pack_float(const parameter* p, PyObject* argument, unsigned char* to) {
  if (!PyFloat_CheckExact(argument)) return false;
  double value = PyFloat_AsDouble(argument);
  if (p->bytes == sizeof value) {
    memcpy(to, &value, sizeof value);
    return true;
  }
  float rounded = (float)value;
  if (__builtin_isinf(rounded) && !__builtin_isinf(value)) return false;  // out of its range
  memcpy(to, &rounded, sizeof rounded);
  return true;
}

// pack_own packs what an object of the package has in _bytes, if they are as many as the parameter has.
static bool pack_own(const parameter* p, PyObject* argument, unsigned char* to) {
  PyObject* has = PyObject_GetAttr(argument, name_bytes);
  bool right = has && PyBytes_Check(has) && PyBytes_Size(has) == p->bytes;
  if (right) memcpy(to, PyBytes_AsString(has), p->bytes);
  Py_XDECREF(has);
  PyErr_Clear();
  return right;
}

// pack_pointer packs the address of a tensor or of channels, and returns -1 with an exception.
static int pack_pointer(const parameter* p, const caller* c, PyObject* argument, unsigned char* to,
                        found* f) {
  if (argument == Py_None) return 1;  // the block is zeroed
  PyTypeObject* type = Py_TYPE(argument);
  if (type == own_memory_channels || type == own_port_channels) {
    if (!(p->types >> (type == own_memory_channels ? MEMORY_CHANNELS : PORT_CHANNELS) & 1)) return 0;
    if (!pack_own(p, argument, to)) return 0;
    return PyList_Append(f->held, argument) ? -1 : 1;
  }
  // Numbers are refused, whatever they have.
  if (PyLong_Check(argument) || PyFloat_Check(argument) || PyBytes_Check(argument)) return 0;
  place found;
  if (!find(c, argument, &found) || !(p->types >> found.type & 1) || (found.own && !found.address)) return 0;
  if (found.read_only && !(p->types >> READ_ONLY & 1)) return 0;
  memcpy(to, &found.address, sizeof found.address);
  if (found.exchange) f->exchange = found.exchange;
  return found.own && PyList_Append(f->held, argument) ? -1 : 1;
}

// pack_struct packs the handle of a group, which lives as long, or of peers' memory, as pack_pointer does.
static int pack_struct(const parameter* p, PyObject* argument, unsigned char* to, const found* f) {
  bool held = Py_TYPE(argument) == own_peer_memory;
  if ((!held && Py_TYPE(argument) != own_group) || !pack_own(p, argument, to)) return 0;
  return held && PyList_Append(f->held, argument) ? -1 : 1;
}

// pack packs an argument. It returns false with an exception, or without one where it leaves that to Python.
static bool pack(const parameter* p, const caller* c, PyObject* argument, unsigned char* to, found* f) {
  int packed = 0;
  switch (p->how) {
    case ASK:
      break;
    case SIGNED:
    case UNSIGNED:
      packed = pack_number(p, argument, to);
      break;
    case FLOAT:
      packed = pack_float(p, argument, to);
      break;
    case BOOLEAN:
      packed = argument == Py_True || argument == Py_False;
      if (packed) *to = argument == Py_True;
      break;
    case POINTER:
      packed = pack_pointer(p, c, argument, to, f);
      break;
    case STRUCT:
      packed = pack_struct(p, argument, to, f);
      break;
  }
  if (packed) return packed > 0;
  // A tensor of the host's, for whose work the code in Python may have to wait.
  if (c->number < 0 && (p->how == POINTER || p->how == ASK)) return false;
  return ask(p, argument, to, f);
}

// run packs the arguments into a block and launches the kernel, and returns as launch does.
static PyObject* run(const kernel* k, word config, PyObject* stream, PyObject* arguments,
                     unsigned char* block, found* f) {
  for (Py_ssize_t i = 0; i < k->count; i++) {
    const parameter* p = &k->parameters[i];
    if (!pack(p, k->caller, PyTuple_GetItem(arguments, i), block + p->offset, f))
      return PyErr_Occurred() ? NULL : not_simple();
  }
  if (stream == Py_None) stream = f->exchange ? current(k->caller, f->exchange) : NULL;
  word handle = stream && Py_TYPE(stream) == own_stream ? stream_handle(stream) : 0;
  if (!handle) return not_simple();
  word all[] = {k->handle, handle, config, k->count ? (uintptr_t)block : 0, k->bytes};
  Py_INCREF(stream);  // another thread may come to another stream meanwhile
  int status = invoke(k->function, all, 5);
  bool right = status || keep(stream, f->held);
  Py_DECREF(stream);
  return right ? PyLong_FromLong(status) : NULL;
}

// launch(config, stream, arguments) queues the kernel, and returns the status: -1 if it did nothing, as
// without a Stream or with another number of arguments. An argument that is wrong raises what its packer
// does.
static PyObject* kernel_launch(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  kernel* k = (kernel*)self;
  if (count != 3 || !PyTuple_Check(args[2])) {
    PyErr_SetString(PyExc_TypeError, "launch takes a configuration, a stream and a tuple of arguments");
    return NULL;
  }
  word config = PyLong_AsUnsignedLongLong(args[0]);
  if (PyErr_Occurred()) return NULL;
  bool may_be_known = args[1] == Py_None && k->caller && k->caller->number >= 0;
  if (!k->caller || PyTuple_Size(args[2]) != k->count || (Py_TYPE(args[1]) != own_stream && !may_be_known))
    return not_simple();
  unsigned char room[1024], *block = k->bytes <= sizeof room ? room : PyMem_Malloc(k->bytes);
  if (!block) return PyErr_NoMemory();
  memset(block, 0, k->bytes);
  found f = {.held = PyList_New(0)};
  PyObject* status = NULL;
  if (f.held && !PyList_Append(f.held, k->module)) status = run(k, config, args[1], args[2], block, &f);
  Py_XDECREF(f.held);
  if (block != room) PyMem_Free(block);
  return status;
}

// read_parameters reads tuples of offset, bytes, how, types and pack.
static bool read_parameters(kernel* k, PyObject* all) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(all); i++) {
    unsigned offset, bytes, how, types;
    PyObject* pack;
    if (!PyArg_ParseTuple(PyTuple_GetItem(all, i), "IIIIO", &offset, &bytes, &how, &types, &pack))
      return false;
    static const uint32_t sizes[][2] = {[SIGNED] = {1, 8},  [UNSIGNED] = {1, 8}, [FLOAT] = {4, 8},
                                        [BOOLEAN] = {1, 1}, [POINTER] = {8, 8},  [STRUCT] = {0, UINT32_MAX}};
    if (how > STRUCT || offset < k->bytes || bytes > UINT32_MAX - offset ||
        (how != ASK && (bytes < sizes[how][0] || bytes > sizes[how][1]))) {
      PyErr_SetString(PyExc_ValueError, "the parameters do not fit");
      return false;
    }
    Py_INCREF(pack);
    k->parameters[k->count++] = (parameter){offset, bytes, how, types, pack};
    k->bytes = offset + bytes;
  }
  return true;
}

static PyObject* kernel_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  (void)keywords;
  PyObject *of, *module, *all;
  unsigned long long function, handle;
  if (!PyArg_ParseTuple(args, "O!OKKO!", caller_type, &of, &module, &function, &handle, &PyTuple_Type, &all))
    return NULL;
  allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  kernel* k = (kernel*)allocate(type, 0);
  if (!k) return NULL;
  Py_INCREF(of);
  Py_INCREF(module);
  k->caller = (caller*)of;
  k->module = module;
  k->function = function;
  k->handle = handle;
  k->parameters = PyMem_Malloc(((size_t)PyTuple_Size(all) + 1) * sizeof *k->parameters);
  if (k->parameters && read_parameters(k, all)) return (PyObject*)k;
  if (!k->parameters) PyErr_NoMemory();
  Py_DECREF(k);
  return NULL;
}

static int kernel_traverse(PyObject* self, visitproc visit, void* arg) {
  kernel* k = (kernel*)self;
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(k->caller);
  Py_VISIT(k->module);
  for (Py_ssize_t i = 0; i < k->count; i++) Py_VISIT(k->parameters[i].pack);
  return 0;
}

static int kernel_clear(PyObject* self) {
  kernel* k = (kernel*)self;
  Py_CLEAR(k->caller);
  Py_CLEAR(k->module);
  while (k->count > 0) {
    k->count--;  // not in Py_CLEAR, which may evaluate its argument twice
    Py_CLEAR(k->parameters[k->count].pack);
  }
  return 0;
}

static void kernel_free(PyObject* self) {
  PyObject_GC_UnTrack(self);
  kernel_clear(self);
  PyMem_Free(((kernel*)self)->parameters);
  free_object(self);
}

static PyMethodDef kernel_methods[] = {
    {"launch", (PyCFunction)(void (*)(void))kernel_launch, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot kernel_slots[] = {
    {Py_tp_new, kernel_new},     {Py_tp_dealloc, kernel_free},    {Py_tp_traverse, kernel_traverse},
    {Py_tp_clear, kernel_clear}, {Py_tp_methods, kernel_methods}, {0, NULL},
};
PyType_Spec kernel_spec = {"mscclgo._fast.Kernel", sizeof(kernel), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                           kernel_slots};
