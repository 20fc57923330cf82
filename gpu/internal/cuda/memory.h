// Device memory, pinned host memory, and both ways to share with a process.
#ifndef MSCCLGO_CUDA_MEMORY_H
#define MSCCLGO_CUDA_MEMORY_H

#include <string.h>

#include "context.h"
#include "device.h"

static inline status memory_info(cuda_context* c, size_t* free, size_t* total) {
  ENTER(c);
  return CALL(c->api, cuMemGetInfo_v2, free, total);
}

static inline status memory_range(cuda_context* c, CUdeviceptr ptr, CUdeviceptr* base, size_t* size) {
  ENTER(c);
  return CALL(c->api, cuMemGetAddressRange_v2, base, size, ptr);
}

// virtual_map maps handle at an address where the device may read and write. The
// context is current.
static inline status virtual_map(cuda_context* c, CUmemGenericAllocationHandle handle, size_t size,
                                 CUdeviceptr* ptr) {
  TRY(CALL(c->api, cuMemAddressReserve, ptr, size, 0, 0, 0));
  status rc = CALL(c->api, cuMemMap, *ptr, size, 0, handle, 0);
  if (!rc) {
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, c->device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    rc = CALL(c->api, cuMemSetAccess, *ptr, size, &access, 1);
    if (!rc) return rc;
    CALL(c->api, cuMemUnmap, *ptr, size);
  }
  CALL(c->api, cuMemAddressFree, *ptr, size);
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

// memory_reach lets a context's device access the allocation around ptr, which another
// device of this process owns. Only virtual memory has a handle, which tells it from
// memory of cuMemAlloc. Access that other devices have is kept. One thread at a time
// may call this: of two, one gets CUDA_ERROR_ALREADY_MAPPED (seen: 580).
static inline status memory_reach(cuda_context* c, const cuda_context* owner, CUdeviceptr ptr) {
  ENTER_UNSAFE(owner);
  CUdeviceptr base;
  size_t size;
  TRY(CALL(c->api, cuMemGetAddressRange_v2, &base, &size, ptr));
  CUmemGenericAllocationHandle handle;
  if (CALL(c->api, cuMemRetainAllocationHandle, &handle, (void*)(uintptr_t)base) != CUDA_SUCCESS)
    return context_reach(c, owner);
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, c->device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  unsigned long long has = 0;
  status rc = CALL(c->api, cuMemGetAccess, &has, &access.location, base);
  if (rc == CUDA_SUCCESS && has != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    rc = CALL(c->api, cuMemSetAccess, base, size, &access, 1);
  CALL(c->api, cuMemRelease, handle);
  return rc;
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

static inline status host_free(cuda_context* c, void* host) {
  ENTER_UNSAFE(c);
  return CALL(c->api, cuMemFreeHost, host);
}

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
