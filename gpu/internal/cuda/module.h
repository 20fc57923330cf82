// Modules, their symbols and their kernels.
#ifndef MSCCLGO_CUDA_MODULE_H
#define MSCCLGO_CUDA_MODULE_H

#include "api.h"

// module_load loads an image that ends in a zero byte. What the driver's
// compiler has to say against it goes to log.
static inline status module_load(const mscclgo_cuda* api, CUcontext ctx, const void* image, char* log,
                                 size_t log_size, CUmodule* module) {
  ENTER(api, ctx);
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, (void*)(uintptr_t)log_size};
  return CALL(api, cuModuleLoadDataEx, module, image, 2, options, values);
}

static inline status module_unload(const mscclgo_cuda* api, CUcontext ctx, CUmodule module) {
  ENTER(api, ctx);
  return CALL(api, cuModuleUnload, module);
}

static inline status module_symbol(const mscclgo_cuda* api, CUcontext ctx, CUmodule module, const char* name,
                                   CUdeviceptr* ptr, size_t* size) {
  ENTER(api, ctx);
  return CALL(api, cuModuleGetGlobal_v2, ptr, size, module, name);
}

static inline status module_count(const mscclgo_cuda* api, CUcontext ctx, CUmodule module,
                                  unsigned int* kernels) {
  ENTER(api, ctx);
  return CALL(api, cuModuleGetFunctionCount, kernels, module);
}

// module_names gives the names of a module's first kernels. They live as long
// as the module.
static inline status module_names(const mscclgo_cuda* api, CUcontext ctx, CUmodule module,
                                  CUfunction* functions, const char** names, unsigned int kernels) {
  ENTER(api, ctx);
  TRY(CALL(api, cuModuleEnumerateFunctions, functions, kernels, module));
  for (unsigned int i = 0; i < kernels; i++) TRY(CALL(api, cuFuncGetName, &names[i], functions[i]));
  return CUDA_SUCCESS;
}

// module_load_kernels loads the code of a module's first kernels, which waits
// for kernels that run. It has no work to do where the driver loads eagerly.
static inline status module_load_kernels(const mscclgo_cuda* api, CUcontext ctx, CUmodule module,
                                         CUfunction* functions, unsigned int kernels) {
  ENTER(api, ctx);
  TRY(CALL(api, cuModuleEnumerateFunctions, functions, kernels, module));
  for (unsigned int i = 0; i < kernels; i++) TRY(CALL(api, cuFuncLoad, functions[i]));
  return CUDA_SUCCESS;
}

static inline status module_kernel(const mscclgo_cuda* api, CUcontext ctx, CUmodule module, const char* name,
                                   CUfunction* kernel) {
  ENTER(api, ctx);
  return CALL(api, cuModuleGetFunction, kernel, module, name);
}

typedef struct {
  size_t offset, size;
} parameter;

// kernel_parameter says where an argument lies. One past the last gives
// CUDA_ERROR_INVALID_VALUE.
static inline status kernel_parameter(const mscclgo_cuda* api, CUcontext ctx, CUfunction kernel, size_t index,
                                      parameter* p) {
  ENTER(api, ctx);
  return CALL(api, cuFuncGetParamInfo, kernel, index, &p->offset, &p->size);
}

typedef struct {
  int max_threads, static_shared, max_dynamic_shared, registers, local_bytes;
} kernel_facts;

static inline status kernel_query(const mscclgo_cuda* api, CUcontext ctx, CUfunction kernel,
                                  kernel_facts* f) {
  ENTER(api, ctx);
  TRY(CALL(api, cuFuncGetAttribute, &f->max_threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel));
  TRY(CALL(api, cuFuncGetAttribute, &f->static_shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel));
  TRY(CALL(api, cuFuncGetAttribute, &f->max_dynamic_shared, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
           kernel));
  TRY(CALL(api, cuFuncGetAttribute, &f->registers, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel));
  return CALL(api, cuFuncGetAttribute, &f->local_bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, kernel);
}

static inline status kernel_set_max_dynamic_shared(const mscclgo_cuda* api, CUcontext ctx, CUfunction kernel,
                                                   int bytes) {
  ENTER(api, ctx);
  return CALL(api, cuFuncSetAttribute, kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes);
}

static inline status kernel_resident(const mscclgo_cuda* api, CUcontext ctx, CUfunction kernel, int threads,
                                     size_t dynamic_shared, int* blocks) {
  ENTER(api, ctx);
  return CALL(api, cuOccupancyMaxActiveBlocksPerMultiprocessor, blocks, kernel, threads, dynamic_shared);
}

#endif
