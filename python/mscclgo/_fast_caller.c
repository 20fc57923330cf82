// The calls of a group on tensors: collectives, messages, and what kernels take.
#include "_fast.h"

word stream_handle(PyObject* stream) {
  PyObject* capture = PyObject_GetAttr(stream, name_capture);
  PyObject* number = capture == Py_None ? PyObject_GetAttr(stream, name_handle) : NULL;
  word handle = number ? PyLong_AsUnsignedLongLong(number) : 0;
  Py_XDECREF(capture);
  Py_XDECREF(number);
  if (PyErr_Occurred()) {
    PyErr_Clear();
    return 0;
  }
  return handle;
}

PyObject* current(caller* c, const dl_exchange* of) {
  void* stream = NULL;
  if (of->current_stream(DL_CUDA, c->number, &stream)) {
    PyErr_Clear();
    return NULL;
  }
  if (c->last_stream && stream == c->last) return c->last_stream;
  if (!c->streams) return NULL;  // cleared
  PyObject* key = PyLong_FromVoidPtr(stream);
  PyObject* found = key ? PyDict_GetItemWithError(c->streams, key) : NULL;  // borrowed
  Py_XDECREF(key);
  PyErr_Clear();
  if (!found) return NULL;
  PyObject* before = c->last_stream;
  Py_INCREF(found);
  c->last = stream;
  c->last_stream = found;
  Py_XDECREF(before);
  return found;
}

bool keep(PyObject* stream, PyObject* objects) {
  PyObject* kept = PyObject_GetAttr(stream, name_kept);  // each time, as Stream makes others
  Py_ssize_t count = kept ? PyList_Size(kept) : -1;
  bool right = count >= 0 && !PyList_SetSlice(kept, count, count, objects);
  Py_XDECREF(kept);
  if (!right || count < LOOK) return right;
  PyObject* nothing = PyTuple_New(0);
  PyObject* looked = nothing ? PyObject_CallMethodObjArgs(stream, name_keep, nothing, NULL) : NULL;
  Py_XDECREF(nothing);
  Py_XDECREF(looked);
  return looked != NULL;
}

// key_of returns a number for a collective's function, count, type and the arguments behind them. Where two
// have the same, the first call of the second waits where no signal ends it: no more than that.
static word key_of(word function, word elements, word type, const word* more, Py_ssize_t count) {
  word key = (function * 31 + elements) * 31 + type;
  for (Py_ssize_t i = 0; i < count; i++) key = key * 31 + more[i];
  key = (key + 1) * 0x9E3779B97F4A7C15;
  return key ^ key >> 32;
}

// meet(function, elements, type, more) says that such a collective was made, so that collect makes others.
static PyObject* caller_meet(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  word all[3], more[2];
  PyObject* last[2];
  if (count != 4 || !PyTuple_Check(args[3]) || PyTuple_Size(args[3]) > 2) {
    PyErr_SetString(PyExc_TypeError, "meet takes a function, a count, a type and more");
    return NULL;
  }
  Py_ssize_t n = PyTuple_Size(args[3]);
  for (Py_ssize_t i = 0; i < n; i++) last[i] = PyTuple_GetItem(args[3], i);
  if (!words(args, 3, all) || !words(last, n, more)) return NULL;
  word key = key_of(all[0], all[1], all[2], more, n);
  ((caller*)self)->met[key % KNOWN] = key;
  Py_RETURN_NONE;
}

// renew(ranks) says that the group is another one, of so many ranks, in which no call was made.
static PyObject* caller_renew(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  caller* c = (caller*)self;
  long ranks = count == 1 ? PyLong_AsLong(args[0]) : -1;
  if (PyErr_Occurred()) return NULL;
  if (ranks < 1 || ranks > INT32_MAX) {
    PyErr_SetString(PyExc_ValueError, "renew takes a number of ranks");
    return NULL;
  }
  c->ranks = (int)ranks;
  memset(c->met, 0, sizeof c->met);
  Py_RETURN_NONE;
}

// collect(function, stream, output, input, parts, more) makes a collective, and returns the status: -1 if
// it did nothing. The arguments are as of Group._collect; the stream is a Stream or None.
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

  if (output != Py_None && !find_elements(c, output, true, &to)) return not_simple();
  if (input == output)
    from = to;
  else if (input != Py_None && !find_elements(c, input, false, &from))
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
  if (stream == Py_None && one->exchange) stream = current(c, one->exchange);
  if (!stream || Py_TYPE(stream) != own_stream || !(all[1] = stream_handle(stream))) return not_simple();
  all[2] = to.address;
  all[3] = from.address;
  all[4] = each;
  bool vouched = (output == Py_None || to.vouched) && (input == Py_None || from.vouched);
  all[5] = (word)(one->type | (vouched ? VOUCHED : 0));
  Py_ssize_t more = PyTuple_Size(args[5]);
  if (more > 2) return not_simple();
  PyObject* last[2];
  for (Py_ssize_t i = 0; i < more; i++) last[i] = PyTuple_GetItem(args[5], i);
  word function = PyLong_AsUnsignedLongLong(args[0]);
  if (!words(last, more, all + 6) || PyErr_Occurred()) return NULL;
  word key = key_of(function, each, (word)one->type, all + 6, more);
  if (c->met[key % KNOWN] != key) return not_simple();
  int status = invoke(function, all, 6 + more);
  if (!status && (to.own || from.own)) {
    PyObject* held =
        PyTuple_Pack(2, to.own ? output : Py_None, from.own && input != output ? input : Py_None);
    bool kept = held && keep(stream, held);
    Py_XDECREF(held);
    if (!kept) return NULL;
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
  if (Py_TYPE(args[0]) == own_array || !find((caller*)self, args[0], &p) || !(types >> p.type & 1))
    Py_RETURN_NONE;
  return PyLong_FromUnsignedLongLong(p.address);
}

// peer_of returns the number of a rank, if it is an int and there is one.
static bool peer_of(const caller* c, PyObject* given, int* peer) {
  if (!PyLong_CheckExact(given)) return false;
  int over;
  long number = PyLong_AsLongAndOverflow(given, &over);
  *peer = (int)number;
  return !over && number >= 0 && number < c->ranks;
}

// message is mscclgo_message.
typedef struct {
  word stream, buffer, count;
  int32_t type, peer, direction, padding;
} message;

// add(packed, tensors, held, stream, direction, tensor, peer) appends a message to the list packed, the
// tensor to the list tensors, and if it is an Array to the list held, and returns whether it did.
static PyObject* caller_add(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  caller* c = (caller*)self;
  if (count != 7 || !PyList_Check(args[0]) || !PyList_Check(args[1]) || !PyList_Check(args[2])) {
    PyErr_SetString(PyExc_TypeError,
                    "add takes three lists, a stream's handle, a direction, a tensor and a peer");
    return NULL;
  }
  message m = {.stream = PyLong_AsUnsignedLongLong(args[3]), .direction = (int32_t)PyLong_AsLong(args[4])};
  if (PyErr_Occurred()) return NULL;
  place p;
  if (!peer_of(c, args[6], &m.peer) || !find_elements(c, args[5], m.direction == 1, &p)) Py_RETURN_FALSE;
  m.buffer = p.address;
  m.count = p.elements;
  m.type = p.type | (p.vouched ? VOUCHED : 0);
  PyObject* packed = PyBytes_FromStringAndSize((const char*)&m, sizeof m);
  bool added = packed && !PyList_Append(args[1], args[5]) && !(p.own && PyList_Append(args[2], args[5])) &&
               !PyList_Append(args[0], packed);
  Py_XDECREF(packed);
  if (!added) return NULL;
  Py_RETURN_TRUE;
}

// transfer(function, stream, written, tensor, peer) makes one send or receive, and returns the status, as
// collect does.
static PyObject* caller_transfer(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  caller* c = (caller*)self;
  if (count != 5) {
    PyErr_SetString(PyExc_TypeError,
                    "transfer takes a function, a stream, whether it is written, a tensor and a peer");
    return NULL;
  }
  word function = PyLong_AsUnsignedLongLong(args[0]);
  int written = PyObject_IsTrue(args[2]), peer;
  if (PyErr_Occurred()) return NULL;
  PyObject *stream = args[1], *tensor = args[3];
  place p;
  if (!peer_of(c, args[4], &peer) || !find_elements(c, tensor, written, &p)) return not_simple();
  if (stream == Py_None && p.exchange) stream = current(c, p.exchange);
  word all[] = {c->group, 0, p.address, p.elements, (word)(p.type | (p.vouched ? VOUCHED : 0)), (word)peer};
  if (!stream || Py_TYPE(stream) != own_stream || !(all[1] = stream_handle(stream))) return not_simple();
  Py_INCREF(stream);  // another thread may come to another stream meanwhile
  int status = invoke(function, all, 6);
  bool right = true;
  if (!status && p.own) {
    PyObject* held = PyTuple_Pack(1, tensor);
    right = held && keep(stream, held);
    Py_XDECREF(held);
  }
  Py_DECREF(stream);
  return right ? PyLong_FromLong(status) : NULL;
}

static PyObject* caller_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  (void)keywords;
  unsigned long long group, device;
  int number, ranks;
  PyObject* streams;
  if (!PyArg_ParseTuple(args, "KKiiO!", &group, &device, &number, &ranks, &PyDict_Type, &streams))
    return NULL;
  allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  caller* c = (caller*)allocate(type, 0);
  if (!c) return NULL;
  c->group = group;
  c->device = device;
  c->number = number;
  c->ranks = ranks;
  c->streams = streams;
  Py_INCREF(streams);
  return (PyObject*)c;
}

// The streams refer to their group, and that to its caller.
static int caller_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(((caller*)self)->streams);
  Py_VISIT(((caller*)self)->last_stream);
  return 0;
}

static int caller_clear(PyObject* self) {
  Py_CLEAR(((caller*)self)->streams);
  Py_CLEAR(((caller*)self)->last_stream);
  return 0;
}

static void caller_free(PyObject* self) {
  PyObject_GC_UnTrack(self);
  caller_clear(self);
  free_object(self);
}

static PyMethodDef caller_methods[] = {
    {"meet", (PyCFunction)(void (*)(void))caller_meet, METH_FASTCALL, NULL},
    {"renew", (PyCFunction)(void (*)(void))caller_renew, METH_FASTCALL, NULL},
    {"collect", (PyCFunction)(void (*)(void))caller_collect, METH_FASTCALL, NULL},
    {"address", (PyCFunction)(void (*)(void))caller_address, METH_FASTCALL, NULL},
    {"add", (PyCFunction)(void (*)(void))caller_add, METH_FASTCALL, NULL},
    {"transfer", (PyCFunction)(void (*)(void))caller_transfer, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot caller_slots[] = {
    {Py_tp_new, caller_new},     {Py_tp_dealloc, caller_free},    {Py_tp_traverse, caller_traverse},
    {Py_tp_clear, caller_clear}, {Py_tp_methods, caller_methods}, {0, NULL},
};
PyType_Spec caller_spec = {"mscclgo._fast.Caller", sizeof(caller), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                           caller_slots};
