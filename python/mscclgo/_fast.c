// The module; see _fast.h.
#include "_fast.h"

PyTypeObject *own_array, *own_stream, *own_memory_channels, *own_port_channels, *own_group, *own_peer_memory,
    *caller_type;
PyObject *name_place, *name_handle, *name_kept, *name_keep, *name_bytes, *name_interface, *name_is_neg,
    *name_capture;

int invoke(word function, const word* a, Py_ssize_t count) {
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

bool words(PyObject* const* args, Py_ssize_t count, word* to) {
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

PyObject* not_simple(void) { return PyLong_FromLong(-1); }

void free_object(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(self);
  Py_DECREF(type);
}

// call(function, argument, ...) calls a function of the library and returns its status.
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

// own(Array, Stream, MemoryChannels, PortChannels, Group, PeerMemory) tells the package's own types.
static PyObject* fast_own(PyObject* self, PyObject* args) {
  (void)self;
  PyTypeObject** all[] = {&own_array,         &own_stream, &own_memory_channels,
                          &own_port_channels, &own_group,  &own_peer_memory};
  enum { COUNT = sizeof all / sizeof *all };
  if (PyTuple_Size(args) != COUNT) return PyErr_Format(PyExc_TypeError, "own takes %d types", COUNT);
  for (int i = 0; i < COUNT; i++) {
    PyObject* type = PyTuple_GetItem(args, i);
    if (!PyType_Check(type)) return PyErr_Format(PyExc_TypeError, "own takes %d types", COUNT);
    Py_INCREF(type);
    *all[i] = (PyTypeObject*)type;
  }
  Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"call", (PyCFunction)(void (*)(void))fast_call, METH_FASTCALL, NULL},
    // learn(type, capsule) makes a type of tensors known, with what it has as __dlpack_c_exchange_api__, or
    // with None by its __cuda_array_interface__.
    {"learn", learn_type, METH_VARARGS, NULL},
    {"own", fast_own, METH_VARARGS, NULL},
    // export(owner, address, kind, number, code, bits, shape, versioned) returns a capsule of DLPack, of a
    // tensor that holds its owner. kind and number are of the device, and code and bits of the elements, in
    // DLPack's numbers.
    {"export", export_tensor, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "mscclgo._fast", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__fast(void) {
  name_place = PyUnicode_InternFromString("_place");
  name_handle = PyUnicode_InternFromString("_handle");
  name_kept = PyUnicode_InternFromString("_kept");
  name_keep = PyUnicode_InternFromString("keep");
  name_bytes = PyUnicode_InternFromString("_bytes");
  name_interface = PyUnicode_InternFromString("__cuda_array_interface__");
  name_is_neg = PyUnicode_InternFromString("is_neg");
  name_capture = PyUnicode_InternFromString("_capture");
  PyObject* made = PyModule_Create(&module);
  PyObject* callers = made ? PyType_FromSpec(&caller_spec) : NULL;
  PyObject* kernels = callers ? PyType_FromSpec(&kernel_spec) : NULL;
  if (!kernels || PyModule_AddObject(made, "Caller", callers) || PyModule_AddObject(made, "Kernel", kernels))
    return NULL;
  Py_INCREF(callers);
  caller_type = (PyTypeObject*)callers;
  return made;
}
