// Devices.
#ifndef MSCCLGO_CUDA_DEVICE_H
#define MSCCLGO_CUDA_DEVICE_H

#include "api.h"

static inline status driver_init(const mscclgo_cuda* api, int* version, int* devices) {
  TRY(CALL(api, cuInit, 0));
  TRY(CALL(api, cuDriverGetVersion, version));
  return CALL(api, cuDeviceGetCount, devices);
}

static inline const char* error_name(const mscclgo_cuda* api, status rc) {
  const char* text = NULL;
  CALL(api, cuGetErrorName, (CUresult)rc, &text);
  return text;
}

static inline const char* error_text(const mscclgo_cuda* api, status rc) {
  const char* text = NULL;
  CALL(api, cuGetErrorString, (CUresult)rc, &text);
  return text;
}

typedef struct {
  CUdevice device;
  char name[256];
  char bus_id[32];
  CUuuid uuid;
  size_t memory;
  size_t granularity;  // of virtual memory, 0 if it cannot be shared
  int max_threads_per_block, warp_size, multiprocessors, l2_bytes, max_threads_per_sm, major, minor,
      cooperative, max_shared, virtual_memory, descriptors, max_blocks_per_sm, rdma, stream_memory_ops,
      rdma_ordering;
} device_facts;

static inline CUmemAllocationProp shareable(CUdevice device, int rdma) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
  prop.allocFlags.gpuDirectRDMACapable = (unsigned char)rdma;
  return prop;
}

static inline status device_query(const mscclgo_cuda* api, int ordinal, device_facts* f) {
  TRY(CALL(api, cuDeviceGet, &f->device, ordinal));
  CUdevice d = f->device;
  TRY(CALL(api, cuDeviceGetName, f->name, sizeof f->name, d));
  TRY(CALL(api, cuDeviceGetPCIBusId, f->bus_id, sizeof f->bus_id, d));
  // The second version tells the instances of a partitioned GPU (MIG) apart.
  TRY(api->cuDeviceGetUuid_v2 ? CALL(api, cuDeviceGetUuid_v2, &f->uuid, d)
                              : CALL(api, cuDeviceGetUuid, &f->uuid, d));
  TRY(CALL(api, cuDeviceTotalMem_v2, &f->memory, d));
  const struct {
    int* value;
    CUdevice_attribute attribute;
  } attributes[] = {
      {&f->max_threads_per_block, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
      {&f->warp_size, CU_DEVICE_ATTRIBUTE_WARP_SIZE},
      {&f->multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
      {&f->l2_bytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
      {&f->max_threads_per_sm, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR},
      {&f->major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
      {&f->minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
      {&f->cooperative, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH},
      {&f->max_shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
      {&f->virtual_memory, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
      {&f->descriptors, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED},
      {&f->max_blocks_per_sm, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR},
      {&f->rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED},
      {&f->rdma_ordering, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING},
      {&f->stream_memory_ops, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS},
  };
  for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
    // A driver that does not know the attribute lacks the feature.
    status rc = CALL(api, cuDeviceGetAttribute, attributes[i].value, attributes[i].attribute, d);
    if (rc == CUDA_ERROR_INVALID_VALUE)
      *attributes[i].value = 0;
    else
      TRY(rc);
  }
  if (!f->virtual_memory || !f->descriptors) return CUDA_SUCCESS;
  // The minimum (2 MiB) is as fast as the recommended granularity and wastes less.
  CUmemAllocationProp prop = shareable(d, f->rdma);
  return CALL(api, cuMemGetAllocationGranularity, &f->granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
}

static inline status device_can_access(const mscclgo_cuda* api, CUdevice device, CUdevice peer, int* can) {
  return CALL(api, cuDeviceCanAccessPeer, can, device, peer);
}

static inline status device_can_update(const mscclgo_cuda* api, CUdevice device, CUdevice peer, int* can) {
  return CALL(api, cuDeviceGetP2PAttribute, can, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, device,
              peer);
}

#endif
