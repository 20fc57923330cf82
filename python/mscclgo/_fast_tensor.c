// What a tensor is: where its elements are, of which type, and how many.
#include "_fast.h"

// The types of tensors that are known, by learn. What is no type of these may mean something else by its
// elements, as subclasses may.
static struct {
  PyTypeObject* type;
  const dl_exchange* exchange;  // NULL for types that have CUDA's array interface alone
} known[8];
static int types_known;

// array_place is what an Array has in _place; see _array.py.
typedef struct {
  uint64_t device, address, elements;
  int32_t type;
} __attribute__((packed)) array_place;

// The types of numbers: their kinds in the letters of array interfaces, or 0, and in DLPack's codes.
static const struct {
  char letter;
  uint8_t code;
  int bytes, type;
} numbers[] = {{'f', 2, 4, 0},  {'f', 2, 2, 1},   {0, 4, 2, 2},     {'f', 2, 8, 3},   {'i', 0, 4, 4},
               {'i', 0, 8, 5},  {'u', 1, 1, 6},   {0, 10, 1, 7},    {0, 12, 1, 8},    {'b', 6, 1, BOOL},
               {'i', 0, 1, I8}, {'i', 0, 2, I16}, {'u', 1, 2, U16}, {'u', 1, 4, U32}, {'u', 1, 8, U64}};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static int type_of(const dl_tensor* t) {
  for (int i = 0; i < NUMBERS; i++)
    if (numbers[i].code == t->code && numbers[i].bytes * 8 == t->bits) return numbers[i].type;
  return OTHER;
}

static int type_named(Py_UCS4 letter, int bytes) {
  for (int i = 0; i < NUMBERS; i++)
    if (letter && (Py_UCS4)numbers[i].letter == letter && numbers[i].bytes == bytes) return numbers[i].type;
  return OTHER;
}

static bool find_array(const caller* c, PyObject* array, place* p) {
  PyObject* at = PyObject_GetAttr(array, name_place);
  array_place a;
  bool there = at && PyBytes_Check(at) && PyBytes_Size(at) == sizeof a;
  if (there) memcpy(&a, PyBytes_AsString(at), sizeof a);
  Py_XDECREF(at);
  if (!at) PyErr_Clear();
  if (!there || a.device != c->device) return false;
  *p = (place){.address = a.address, .elements = a.elements, .type = a.type, .own = true, .vouched = true};
  return true;
}

// is_negated reports whether a tensor's elements are yet to be negated, as the imaginary parts of PyTorch's
// conjugated numbers are. DLPack does not tell. Several imaginary parts are not contiguous, so only tensors
// of one element are asked. A tensor that cannot tell is left to the code in Python too.
static bool is_negated(PyObject* tensor) {
  PyObject* negated = PyObject_CallMethodObjArgs(tensor, name_is_neg, NULL);
  bool is = negated != Py_False;
  Py_XDECREF(negated);
  PyErr_Clear();
  return is;
}

// A view of PyTorch's whose memory was freed has its offset for an address. GPUs have theirs above this; if
// one has not, the code in Python looks and takes it.
#define LOWEST ((uintptr_t)1 << 32)

static bool find_dlpack(const caller* c, PyObject* tensor, const dl_exchange* exchange, place* p) {
  dl_tensor t;
  if (exchange->view(tensor, &t)) {
    PyErr_Clear();
    return false;
  }
  if (t.device_type != DL_CUDA || t.device_id != c->number || t.lanes != 1 || t.bits % 8) return false;
  if (t.code == DL_COMPLEX) return false;  // it may be yet to be conjugated
  int64_t count = 1;
  for (int d = t.dimensions - 1; d >= 0; d--) {
    if (t.strides && t.shape[d] != 1 && t.strides[d] != count) return false;
    count *= t.shape[d];
  }
  if (count == 1 && is_negated(tensor)) return false;
  *p = (place){.address = (uintptr_t)t.data + t.byte_offset,
               .elements = (uint64_t)count,
               .type = type_of(&t),
               .vouched = true,
               .exchange = exchange};
  return (uintptr_t)t.data >= LOWEST || count == 0;
}

// number returns an item of a tuple, an int, or -1 with or without an exception.
static long long number(PyObject* tuple, Py_ssize_t i) {
  PyObject* item = PyTuple_GetItem(tuple, i);
  return item ? PyLong_AsLongLong(item) : -1;
}

// read_interface reads a dictionary of CUDA's array interface, which does not tell the device.
static bool read_interface(PyObject* dict, place* p) {
  PyObject* shape = PyDict_GetItemString(dict, "shape");  // all borrowed
  PyObject* strides = PyDict_GetItemString(dict, "strides");
  PyObject* name = PyDict_GetItemString(dict, "typestr");
  PyObject* data = PyDict_GetItemString(dict, "data");
  PyObject* mask = PyDict_GetItemString(dict, "mask");
  if ((mask && mask != Py_None) || !shape || !PyTuple_Check(shape) || !name || !PyUnicode_Check(name) ||
      !data || !PyTuple_Check(data) || PyTuple_Size(data) != 2)
    return false;
  Py_ssize_t dimensions = PyTuple_Size(shape);
  if (strides == Py_None) strides = NULL;
  if (strides && (!PyTuple_Check(strides) || PyTuple_Size(strides) != dimensions)) return false;
  if (PyUnicode_GetLength(name) != 3) return false;
  Py_UCS4 order = PyUnicode_ReadChar(name, 0), kind = PyUnicode_ReadChar(name, 1),
          size = PyUnicode_ReadChar(name, 2);
  if (size < '1' || size > '9' || (order == '>' && size > '1')) return false;
  int item = (int)(size - '0');

  long long count = 1;
  for (Py_ssize_t d = dimensions - 1; d >= 0; d--) {
    long long extent = number(shape, d);
    if (extent < 1 || extent > INT64_MAX / 8 / count) return false;  // what is empty is not called often
    if (strides && extent != 1 && number(strides, d) != count * item) return false;
    count *= extent;
  }
  uint64_t address = PyLong_AsUnsignedLongLong(PyTuple_GetItem(data, 0));
  int read_only = PyObject_IsTrue(PyTuple_GetItem(data, 1));
  if (PyErr_Occurred() || !address) return false;
  *p = (place){.address = address,
               .elements = (uint64_t)count,
               .type = type_named(kind, item),
               .read_only = read_only != 0};
  return true;
}

static bool find_interface(PyObject* tensor, place* p) {
  PyObject* dict = PyObject_GetAttr(tensor, name_interface);
  bool found = dict && PyDict_Check(dict) && read_interface(dict, p);
  Py_XDECREF(dict);
  PyErr_Clear();
  return found;
}

bool find(const caller* c, PyObject* tensor, place* p) {
  PyTypeObject* type = Py_TYPE(tensor);
  if (type == own_array) return find_array(c, tensor, p);
  for (int i = 0; i < types_known; i++)
    if (known[i].type == type)
      return known[i].exchange ? find_dlpack(c, tensor, known[i].exchange, p)
                               : c->number >= 0 && find_interface(tensor, p);
  return false;
}

bool find_elements(const caller* c, PyObject* tensor, bool written, place* p) {
  return find(c, tensor, p) && p->type < TYPES && !(written && p->read_only);
}

PyObject* learn_type(PyObject* self, PyObject* args) {
  (void)self;
  PyObject *type, *capsule;
  if (!PyArg_ParseTuple(args, "O!O", &PyType_Type, &type, &capsule)) return NULL;
  const dl_exchange* exchange = NULL;
  if (capsule != Py_None && !(exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api"))) return NULL;
  for (int i = 0; i < types_known; i++)
    if (known[i].type == (PyTypeObject*)type) Py_RETURN_TRUE;
  if (types_known == sizeof known / sizeof *known ||
      (exchange && (exchange->major != DL_MAJOR || exchange->minor < DL_MINOR || !exchange->view ||
                    !exchange->current_stream)))
    Py_RETURN_FALSE;
  Py_INCREF(type);
  Py_INCREF(capsule);  // for as long as the process lives
  known[types_known].type = (PyTypeObject*)type;
  known[types_known++].exchange = exchange;
  Py_RETURN_TRUE;
}
