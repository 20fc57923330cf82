// Device memory, pinned host memory, and both ways to share with a process.
#ifndef MSCCLGO_CUDA_MEMORY_H
#define MSCCLGO_CUDA_MEMORY_H

#include <stdbool.h>
#include <string.h>

#include "context.h"
#include "device.h"

static inline status memory_info(cuda_context* c, size_t* free, size_t* total) {
  ENTER(c);
  return CALL(c->api, cuMemGetInfo_v2, free, total);
}

// memory_extent is a range of device memory, or why it is not known.
typedef struct {
  status rc;
  CUdeviceptr base;
  size_t size;
} memory_extent;

static inline status memory_find(cuda_context* c, CUdeviceptr ptr, size_t size, memory_extent* m) {
  ENTER(c);
  TRY(CALL(c->api, cuMemGetAddressRange_v2, &m->base, &m->size, ptr));
  CUdeviceptr reserved = 0, next, start;
  if (m->base + m->size - ptr >= size ||
      CALL(c->api, cuPointerGetAttribute, &reserved, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, m->base))
    return 0;
  size_t more;
  while (m->base + m->size - ptr < size &&
         !CALL(c->api, cuMemGetAddressRange_v2, &next, &more, m->base + m->size) &&
         !CALL(c->api, cuPointerGetAttribute, &start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, next) &&
         start == reserved && next == m->base + m->size)
    m->size += more;
  return 0;
}

// memory_range returns the allocation around ptr. Virtual memory may consist of mappings
// in a row, as PyTorch's expandable segments do: the mappings that hold the size bytes from ptr
// count as one, if they are in one reserved range.
static inline memory_extent memory_range(cuda_context* c, CUdeviceptr ptr, size_t size) {
  memory_extent m = {0};
  m.rc = memory_find(c, ptr, size, &m);
  return m;
}

// memory_kind is what memory is that cannot be shared.
typedef enum { MEMORY_OTHER, MEMORY_OF_POOL, MEMORY_MANAGED, MEMORY_VIRTUAL } memory_kind;

static inline CUmemoryPool memory_pool(const mscclgo_cuda* api, CUdeviceptr ptr) {
  CUmemoryPool pool = NULL;
  return CALL(api, cuPointerGetAttribute, &pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr) ? NULL : pool;
}

static inline memory_kind memory_kind_of(cuda_context* c, CUdeviceptr ptr) {
  if (CALL(c->api, cuCtxSetCurrent, c->handle)) return MEMORY_OTHER;
  if (memory_pool(c->api, ptr)) return MEMORY_OF_POOL;
  unsigned managed = 0;  // the driver may write one byte, or four
  if (!CALL(c->api, cuPointerGetAttribute, &managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr) && managed)
    return MEMORY_MANAGED;
  CUmemGenericAllocationHandle handle;
  if (CALL(c->api, cuMemRetainAllocationHandle, &handle, (void*)(uintptr_t)ptr)) return MEMORY_OTHER;
  CALL(c->api, cuMemRelease, handle);
  return MEMORY_VIRTUAL;
}

// memory_export exports the virtual memory at ptr. It fails with CUDA_ERROR_NOT_SUPPORTED
// if that is not one piece of size bytes, or was not made to be exported.
static inline status memory_export(cuda_context* c, CUdeviceptr ptr, size_t size, int* fd) {
  ENTER_UNSAFE(c);
  CUdeviceptr base;
  size_t all;
  TRY(CALL(c->api, cuMemGetAddressRange_v2, &base, &all, ptr));
  CUmemGenericAllocationHandle handle;
  if (base != ptr || all != size || CALL(c->api, cuMemRetainAllocationHandle, &handle, (void*)(uintptr_t)ptr))
    return CUDA_ERROR_NOT_SUPPORTED;
  status rc =
      CALL(c->api, cuMemExportToShareableHandle, fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  CALL(c->api, cuMemRelease, handle);
  return rc ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

// virtual_place maps handle at ptr, which is reserved, for the device to read and write.
// The context is current.
static inline status virtual_place(cuda_context* c, CUmemGenericAllocationHandle handle, size_t size,
                                   CUdeviceptr ptr) {
  TRY(CALL(c->api, cuMemMap, ptr, size, 0, handle, 0));
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, c->device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  status rc = CALL(c->api, cuMemSetAccess, ptr, size, &access, 1);
  if (rc) CALL(c->api, cuMemUnmap, ptr, size);
  return rc;
}

// virtual_map maps handle at an address where the device may read and write. The
// context is current.
static inline status virtual_map(cuda_context* c, CUmemGenericAllocationHandle handle, size_t size,
                                 CUdeviceptr* ptr) {
  TRY(CALL(c->api, cuMemAddressReserve, ptr, size, 0, 0, 0));
  status rc = virtual_place(c, handle, size, *ptr);
  if (rc) CALL(c->api, cuMemAddressFree, *ptr, size);
  return rc;
}

// virtual_swap maps fresh at ptr in place of *handle, and releases that. If it fails it
// releases fresh, and *handle is mapped as it was if the driver permits. The context is
// current.
static inline status virtual_swap(cuda_context* c, CUmemGenericAllocationHandle* handle,
                                  CUmemGenericAllocationHandle fresh, CUdeviceptr ptr, size_t size) {
  status rc = CALL(c->api, cuMemUnmap, ptr, size);
  if (!rc) {
    rc = virtual_place(c, fresh, size, ptr);
    if (rc) virtual_place(c, *handle, size, ptr);
  }
  CUmemGenericAllocationHandle old = *handle;
  if (!rc) *handle = fresh;
  CALL(c->api, cuMemRelease, rc ? fresh : old);
  return rc;
}

// virtual_create allocates memory that virtual_export can share. size is a multiple of
// the granularity.
static inline status virtual_create(cuda_context* c, int rdma, size_t size,
                                    CUmemGenericAllocationHandle* handle, CUdeviceptr* ptr) {
  ENTER_UNSAFE(c);
  CUmemAllocationProp prop = shareable(c->device, rdma);
  TRY(CALL(c->api, cuMemCreate, handle, size, &prop, 0));
  status rc = virtual_map(c, *handle, size, ptr);
  if (rc) CALL(c->api, cuMemRelease, *handle);
  return rc;
}

// virtual_renew replaces memory of virtual_create by new memory at its address.
static inline status virtual_renew(cuda_context* c, int rdma, size_t size,
                                   CUmemGenericAllocationHandle* handle, CUdeviceptr ptr) {
  ENTER_UNSAFE(c);
  CUmemAllocationProp prop = shareable(c->device, rdma);
  CUmemGenericAllocationHandle fresh;
  TRY(CALL(c->api, cuMemCreate, &fresh, size, &prop, 0));
  return virtual_swap(c, handle, fresh, ptr, size);
}

// virtual_remap replaces memory of virtual_import by another descriptor's.
static inline status virtual_remap(cuda_context* c, int fd, size_t size, CUmemGenericAllocationHandle* handle,
                                   CUdeviceptr ptr) {
  ENTER_UNSAFE(c);
  CUmemGenericAllocationHandle fresh;
  TRY(CALL(c->api, cuMemImportFromShareableHandle, &fresh, (void*)(uintptr_t)fd,
           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  return virtual_swap(c, handle, fresh, ptr, size);
}

static inline status virtual_export(cuda_context* c, CUmemGenericAllocationHandle handle, int* fd) {
  ENTER_UNSAFE(c);
  return CALL(c->api, cuMemExportToShareableHandle, fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

static inline status virtual_import(cuda_context* c, int fd, size_t size,
                                    CUmemGenericAllocationHandle* handle, CUdeviceptr* ptr) {
  ENTER_UNSAFE(c);
  TRY(CALL(c->api, cuMemImportFromShareableHandle, handle, (void*)(uintptr_t)fd,
           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  status rc = virtual_map(c, *handle, size, ptr);
  if (rc) CALL(c->api, cuMemRelease, *handle);
  return rc;
}

// virtual_free undoes virtual_create or virtual_import as far as possible and returns
// the first failure.
static inline status virtual_free(cuda_context* c, CUmemGenericAllocationHandle handle, CUdeviceptr ptr,
                                  size_t size) {
  ENTER_UNSAFE(c);
  status unmapped = CALL(c->api, cuMemUnmap, ptr, size);
  status freed = CALL(c->api, cuMemAddressFree, ptr, size);
  status released = CALL(c->api, cuMemRelease, handle);
  return unmapped ? unmapped : freed ? freed : released;
}

// context_reach lets a context access all memory of cuMemAlloc (cudaMalloc) of a peer.
static inline status context_reach(cuda_context* c, const cuda_context* peer) {
  ENTER_UNSAFE(c);
  status rc = CALL(c->api, cuCtxEnablePeerAccess, peer->handle, 0);
  return rc == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? CUDA_SUCCESS : rc;
}

// mapping_reach lets a context's device access the mapping or allocation around ptr, and
// returns its end. Only virtual memory has a handle, which tells it from memory of
// cuMemAlloc; memory of a pool has the pool's access. Access that other devices have is
// kept. The owner's context is current.
static inline status mapping_reach(cuda_context* c, const cuda_context* owner, CUdeviceptr ptr,
                                   CUdeviceptr* end) {
  CUdeviceptr base;
  size_t size;
  TRY(CALL(c->api, cuMemGetAddressRange_v2, &base, &size, ptr));
  *end = base + size;
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, c->device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemoryPool pool = memory_pool(c->api, ptr);
  if (pool) return CALL(c->api, cuMemPoolSetAccess, pool, &access, 1);
  CUmemGenericAllocationHandle handle;
  if (CALL(c->api, cuMemRetainAllocationHandle, &handle, (void*)(uintptr_t)base) != CUDA_SUCCESS)
    return context_reach(c, owner);
  unsigned long long has = 0;
  status rc = CALL(c->api, cuMemGetAccess, &has, &access.location, base);
  if (rc == CUDA_SUCCESS && has != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    rc = CALL(c->api, cuMemSetAccess, base, size, &access, 1);
  CALL(c->api, cuMemRelease, handle);
  return rc;
}

// memory_reach lets a context's device access size bytes at ptr, which another device of
// this process owns. One thread at a time may call this: of two, one gets
// CUDA_ERROR_ALREADY_MAPPED (seen: 580).
static inline status memory_reach(cuda_context* c, const cuda_context* owner, CUdeviceptr ptr, size_t size) {
  CUdeviceptr end = ptr;
  do {
    ENTER_UNSAFE(owner);  // context_reach leaves the other one
    TRY(mapping_reach(c, owner, end, &end));
  } while (end - ptr < size);
  return CUDA_SUCCESS;
}

static inline status plain_create(cuda_context* c, size_t size, CUdeviceptr* ptr) {
  ENTER_UNSAFE(c);
  return CALL(c->api, cuMemAlloc_v2, ptr, size);
}

static inline status plain_free(cuda_context* c, CUdeviceptr ptr) {
  ENTER_UNSAFE(c);
  return CALL(c->api, cuMemFree_v2, ptr);
}

static inline status host_create(cuda_context* c, size_t size, void** host, CUdeviceptr* ptr) {
  ENTER_UNSAFE(c);
  TRY(CALL(c->api, cuMemHostAlloc, host, size, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  status rc = CALL(c->api, cuMemHostGetDevicePointer_v2, ptr, *host, 0);
  if (rc)
    CALL(c->api, cuMemFreeHost, *host);
  else
    memset(*host, 0, size);
  return rc;
}

// host_register pins memory of the host, whole pages, unless other code has. Then pinned is
// false.
static inline status host_register(cuda_context* c, void* host, size_t size, bool* pinned) {
  ENTER_UNSAFE(c);
  status rc = CALL(c->api, cuMemHostRegister_v2, host, size,
                   CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  *pinned = rc == CUDA_SUCCESS;
  if (rc == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) return CUDA_SUCCESS;
  // What the driver allocated pinned is refused like memory that cannot be pinned.
  CUdeviceptr ptr;
  if (rc == CUDA_ERROR_INVALID_VALUE && !CALL(c->api, cuMemHostGetDevicePointer_v2, &ptr, host, 0))
    return CUDA_SUCCESS;
  return rc;
}

static inline status host_unregister(cuda_context* c, void* host) {
  ENTER_UNSAFE(c);
  return CALL(c->api, cuMemHostUnregister, host);
}

// host_pointer returns the address at which kernels reach pinned memory of the host.
static inline status host_pointer(cuda_context* c, void* host, CUdeviceptr* ptr) {
  ENTER(c);
  return CALL(c->api, cuMemHostGetDevicePointer_v2, ptr, host, 0);
}

static inline void* host_address(uintptr_t address) { return (void*)address; }

// dmabuf_export exports whole pages of device memory as a dma-buf.
static inline status dmabuf_export(cuda_context* c, CUdeviceptr ptr, size_t size, int* fd) {
  ENTER_UNSAFE(c);
  return CALL(c->api, cuMemGetHandleForAddressRange, fd, ptr, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
}

// ipc_handle returns the handle of the allocation around ptr, and ptr's offset in it.
static inline status ipc_handle(cuda_context* c, CUdeviceptr ptr, CUipcMemHandle* handle, size_t* offset) {
  ENTER_UNSAFE(c);
  CUdeviceptr base;
  TRY(CALL(c->api, cuMemGetAddressRange_v2, &base, NULL, ptr));
  *offset = ptr - base;
  return CALL(c->api, cuIpcGetMemHandle, handle, base);
}

static inline status ipc_open(cuda_context* c, const CUipcMemHandle* handle, CUdeviceptr* ptr, size_t* size) {
  ENTER_UNSAFE(c);
  TRY(CALL(c->api, cuIpcOpenMemHandle_v2, ptr, *handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  CUdeviceptr base;
  status rc = CALL(c->api, cuMemGetAddressRange_v2, &base, size, *ptr);
  if (rc)
    CALL(c->api, cuIpcCloseMemHandle, *ptr);
  else
    *size -= *ptr - base;
  return rc;
}

static inline status ipc_close(cuda_context* c, CUdeviceptr ptr) {
  ENTER_UNSAFE(c);
  return CALL(c->api, cuIpcCloseMemHandle, ptr);
}

#endif
