// Device memory, pinned host memory, and both ways to share with a process.
#ifndef MSCCLGO_CUDA_MEMORY_H
#define MSCCLGO_CUDA_MEMORY_H

#include <string.h>

#include "device.h"

static inline status memory_info(const mscclgo_cuda* api, CUcontext ctx, size_t* free, size_t* total) {
  ENTER(api, ctx);
  return CALL(api, cuMemGetInfo_v2, free, total);
}

static inline status memory_range(const mscclgo_cuda* api, CUcontext ctx, CUdeviceptr ptr, CUdeviceptr* base,
                                  size_t* size) {
  ENTER(api, ctx);
  return CALL(api, cuMemGetAddressRange_v2, base, size, ptr);
}

// virtual_map gives handle an address that device may read and write.
static inline status virtual_map(const mscclgo_cuda* api, CUdevice device,
                                 CUmemGenericAllocationHandle handle, size_t size, CUdeviceptr* ptr) {
  TRY(CALL(api, cuMemAddressReserve, ptr, size, 0, 0, 0));
  status rc = CALL(api, cuMemMap, *ptr, size, 0, handle, 0);
  if (!rc) {
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    rc = CALL(api, cuMemSetAccess, *ptr, size, &access, 1);
    if (!rc) return rc;
    CALL(api, cuMemUnmap, *ptr, size);
  }
  CALL(api, cuMemAddressFree, *ptr, size);
  return rc;
}

// virtual_create makes memory that virtual_export can share. size is a
// multiple of the granularity.
static inline status virtual_create(const mscclgo_cuda* api, CUcontext ctx, CUdevice device, int rdma,
                                    size_t size, CUmemGenericAllocationHandle* handle, CUdeviceptr* ptr) {
  ENTER(api, ctx);
  CUmemAllocationProp prop = shareable(device, rdma);
  TRY(CALL(api, cuMemCreate, handle, size, &prop, 0));
  status rc = virtual_map(api, device, *handle, size, ptr);
  if (rc) CALL(api, cuMemRelease, *handle);
  return rc;
}

static inline status virtual_export(const mscclgo_cuda* api, CUcontext ctx,
                                    CUmemGenericAllocationHandle handle, int* fd) {
  ENTER(api, ctx);
  return CALL(api, cuMemExportToShareableHandle, fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

static inline status virtual_import(const mscclgo_cuda* api, CUcontext ctx, CUdevice device, int fd,
                                    size_t size, CUmemGenericAllocationHandle* handle, CUdeviceptr* ptr) {
  ENTER(api, ctx);
  TRY(CALL(api, cuMemImportFromShareableHandle, handle, (void*)(uintptr_t)fd,
           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  status rc = virtual_map(api, device, *handle, size, ptr);
  if (rc) CALL(api, cuMemRelease, *handle);
  return rc;
}

// virtual_free undoes virtual_create or virtual_import as far as it can, and
// gives the first failure.
static inline status virtual_free(const mscclgo_cuda* api, CUcontext ctx, CUmemGenericAllocationHandle handle,
                                  CUdeviceptr ptr, size_t size) {
  ENTER(api, ctx);
  status unmapped = CALL(api, cuMemUnmap, ptr, size);
  status freed = CALL(api, cuMemAddressFree, ptr, size);
  status released = CALL(api, cuMemRelease, handle);
  return unmapped ? unmapped : freed ? freed : released;
}

// memory_reach lets device, whose context is ctx, use the allocation around
// ptr, which another device of this process owns. It finds out which kind of
// memory that is by asking for its handle: only virtual memory has one. What
// was granted to other devices stays granted, and what the device has already is
// not asked for again. Callers take turns: two at a time the driver confuses, and
// one of them gets CUDA_ERROR_ALREADY_MAPPED (seen: 580).
static inline status memory_reach(const mscclgo_cuda* api, CUcontext ctx, CUdevice device, CUcontext owner,
                                  CUdeviceptr ptr) {
  ENTER(api, owner);
  CUdeviceptr base;
  size_t size;
  TRY(CALL(api, cuMemGetAddressRange_v2, &base, &size, ptr));
  CUmemGenericAllocationHandle handle;
  if (CALL(api, cuMemRetainAllocationHandle, &handle, (void*)(uintptr_t)base) != CUDA_SUCCESS)
    return context_reach(api, ctx, owner);
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  unsigned long long has = 0;
  status rc = CALL(api, cuMemGetAccess, &has, &access.location, base);
  if (rc == CUDA_SUCCESS && has != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    rc = CALL(api, cuMemSetAccess, base, size, &access, 1);
  CALL(api, cuMemRelease, handle);
  return rc;
}

static inline status plain_create(const mscclgo_cuda* api, CUcontext ctx, size_t size, CUdeviceptr* ptr) {
  ENTER(api, ctx);
  return CALL(api, cuMemAlloc_v2, ptr, size);
}

static inline status plain_free(const mscclgo_cuda* api, CUcontext ctx, CUdeviceptr ptr) {
  ENTER(api, ctx);
  return CALL(api, cuMemFree_v2, ptr);
}

static inline status host_create(const mscclgo_cuda* api, CUcontext ctx, size_t size, void** host,
                                 CUdeviceptr* ptr) {
  ENTER(api, ctx);
  TRY(CALL(api, cuMemHostAlloc, host, size, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  status rc = CALL(api, cuMemHostGetDevicePointer_v2, ptr, *host, 0);
  if (rc)
    CALL(api, cuMemFreeHost, *host);
  else
    memset(*host, 0, size);
  return rc;
}

static inline status host_free(const mscclgo_cuda* api, CUcontext ctx, void* host) {
  ENTER(api, ctx);
  return CALL(api, cuMemFreeHost, host);
}

// dmabuf_export gives a dma-buf of whole pages of device memory.
static inline status dmabuf_export(const mscclgo_cuda* api, CUcontext ctx, CUdeviceptr ptr, size_t size,
                                   int* fd) {
  ENTER(api, ctx);
  return CALL(api, cuMemGetHandleForAddressRange, fd, ptr, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
}

// ipc_handle names the allocation around ptr.
static inline status ipc_handle(const mscclgo_cuda* api, CUcontext ctx, CUdeviceptr ptr,
                                CUipcMemHandle* handle, size_t* offset) {
  ENTER(api, ctx);
  CUdeviceptr base;
  TRY(CALL(api, cuMemGetAddressRange_v2, &base, NULL, ptr));
  *offset = ptr - base;
  return CALL(api, cuIpcGetMemHandle, handle, base);
}

static inline status ipc_open(const mscclgo_cuda* api, CUcontext ctx, const CUipcMemHandle* handle,
                              CUdeviceptr* ptr, size_t* size) {
  ENTER(api, ctx);
  TRY(CALL(api, cuIpcOpenMemHandle_v2, ptr, *handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  CUdeviceptr base;
  status rc = CALL(api, cuMemGetAddressRange_v2, &base, size, *ptr);
  if (rc)
    CALL(api, cuIpcCloseMemHandle, *ptr);
  else
    *size -= *ptr - base;
  return rc;
}

static inline status ipc_close(const mscclgo_cuda* api, CUcontext ctx, CUdeviceptr ptr) {
  ENTER(api, ctx);
  return CALL(api, cuIpcCloseMemHandle, ptr);
}

#endif
