// Arrays as tensors of DLPack, which frameworks take.
#include "_fast.h"

// DLManagedTensor and DLManagedTensorVersioned of DLPack.
typedef struct managed {
  dl_tensor tensor;
  void* context;
  void (*release)(struct managed* m);
} managed;

typedef struct managed_versioned {
  struct {
    uint32_t major, minor;
  } version;
  void* context;
  void (*release)(struct managed_versioned* m);
  uint64_t flags;
  dl_tensor tensor;
} managed_versioned;

// exported is what a capsule holds, and then who takes it, until they release it.
typedef struct {
  union {
    managed old;
    managed_versioned now;
  } as;
  PyObject* owner;    // of the memory
  int64_t extents[];  // the shape, and then the strides
} exported;

// release lets go of the owner. Any thread may call it, also when Python has ended.
static void release(exported* e) {
  if (Py_IsInitialized()) {
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(e->owner);
    PyGILState_Release(state);
  }
  free(e);
}
static void release_old(managed* m) { release(m->context); }
static void release_now(managed_versioned* m) { release(m->context); }

static const char name_old[] = "dltensor", name_now[] = "dltensor_versioned";

// unused is the destructor of a capsule. Who has taken its tensor has renamed it.
static void unused(PyObject* capsule) {
  const char* name = PyCapsule_IsValid(capsule, name_old)   ? name_old
                     : PyCapsule_IsValid(capsule, name_now) ? name_now
                                                            : NULL;
  if (!name) return;
  void* m = PyCapsule_GetPointer(capsule, name);
  release(name == name_old ? ((managed*)m)->context : ((managed_versioned*)m)->context);
}

PyObject* export_tensor(PyObject* self, PyObject* args) {
  (void)self;
  PyObject *owner, *shape;
  unsigned long long address;
  int kind, number, code, bits, versioned;
  if (!PyArg_ParseTuple(args, "OKiiiiO!p", &owner, &address, &kind, &number, &code, &bits, &PyTuple_Type,
                        &shape, &versioned))
    return NULL;
  Py_ssize_t n = PyTuple_Size(shape);
  exported* e = calloc(1, sizeof *e + 2 * (size_t)n * sizeof *e->extents);
  if (!e) return PyErr_NoMemory();
  uint64_t stride = 1;  // which may overflow where there are no elements
  for (Py_ssize_t i = n - 1; i >= 0; i--) {
    e->extents[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
    if (PyErr_Occurred()) {
      free(e);
      return NULL;
    }
    e->extents[n + i] = (int64_t)stride;
    stride *= (uint64_t)e->extents[i];
  }
  dl_tensor* t = versioned ? &e->as.now.tensor : &e->as.old.tensor;
  *t = (dl_tensor){.data = (void*)(uintptr_t)address,
                   .device_type = kind,
                   .device_id = number,
                   .dimensions = (int32_t)n,
                   .code = (uint8_t)code,
                   .bits = (uint8_t)bits,
                   .lanes = 1,
                   .shape = e->extents,
                   .strides = e->extents + n};
  if (versioned) {
    e->as.now.version.major = DL_MAJOR, e->as.now.version.minor = DL_MINOR;
    e->as.now.context = e, e->as.now.release = release_now;
  } else {
    e->as.old.context = e, e->as.old.release = release_old;
  }
  PyObject* capsule = PyCapsule_New(&e->as, versioned ? name_now : name_old, unused);
  if (!capsule) {
    free(e);
    return NULL;
  }
  e->owner = owner;
  Py_INCREF(owner);
  return capsule;
}
