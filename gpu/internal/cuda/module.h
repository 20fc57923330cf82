// Modules, their symbols and their kernels.
#ifndef MSCCLGO_CUDA_MODULE_H
#define MSCCLGO_CUDA_MODULE_H

#include "context.h"

// module_load loads an image that ends in a zero byte. The errors of the driver's
// compiler are written to log.
static inline status module_load(cuda_context* c, const void* image, char* log, size_t log_size,
                                 CUmodule* module) {
  ENTER_UNSAFE(c);
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, (void*)(uintptr_t)log_size};
  return CALL(c->api, cuModuleLoadDataEx, module, image, 2, options, values);
}

static inline status module_unload(cuda_context* c, CUmodule module) {
  ENTER_UNSAFE(c);
  return CALL(c->api, cuModuleUnload, module);
}

static inline status module_symbol(cuda_context* c, CUmodule module, const char* name, CUdeviceptr* ptr,
                                   size_t* size) {
  ENTER(c);
  return CALL(c->api, cuModuleGetGlobal_v2, ptr, size, module, name);
}

static inline status module_count(cuda_context* c, CUmodule module, unsigned int* kernels) {
  ENTER(c);
  return CALL(c->api, cuModuleGetFunctionCount, kernels, module);
}

// module_names returns the names of a module's first kernels, which are valid as long
// as the module.
static inline status module_names(cuda_context* c, CUmodule module, CUfunction* functions, const char** names,
                                  unsigned int kernels) {
  ENTER(c);
  TRY(CALL(c->api, cuModuleEnumerateFunctions, functions, kernels, module));
  for (unsigned int i = 0; i < kernels; i++) TRY(CALL(c->api, cuFuncGetName, &names[i], functions[i]));
  return CUDA_SUCCESS;
}

// module_load_kernels loads the code of a module's first kernels, which waits for
// running kernels. It does nothing if the driver has loaded them with the module.
static inline status module_load_kernels(cuda_context* c, CUmodule module, CUfunction* functions,
                                         unsigned int kernels) {
  ENTER_UNSAFE(c);
  TRY(CALL(c->api, cuModuleEnumerateFunctions, functions, kernels, module));
  for (unsigned int i = 0; i < kernels; i++) TRY(CALL(c->api, cuFuncLoad, functions[i]));
  return CUDA_SUCCESS;
}

static inline status module_kernel(cuda_context* c, CUmodule module, const char* name, CUfunction* kernel) {
  ENTER(c);
  return CALL(c->api, cuModuleGetFunction, kernel, module, name);
}

typedef struct {
  size_t offset, size;
} parameter;

// kernel_parameter returns the place of an argument, or CUDA_ERROR_INVALID_VALUE for
// the index after the last.
static inline status kernel_parameter(cuda_context* c, CUfunction kernel, size_t index, parameter* p) {
  ENTER(c);
  return CALL(c->api, cuFuncGetParamInfo, kernel, index, &p->offset, &p->size);
}

// kernel_architecture returns what the kernel was compiled for, such as 90 for sm_90 and
// compute_90, however new the device is that the driver has compiled it for.
static inline status kernel_architecture(cuda_context* c, CUfunction kernel, int* version) {
  ENTER(c);
  return CALL(c->api, cuFuncGetAttribute, version, CU_FUNC_ATTRIBUTE_PTX_VERSION, kernel);
}

typedef struct {
  int max_threads, static_shared, max_dynamic_shared, registers, local_bytes;
} kernel_facts;

static inline status kernel_query(cuda_context* c, CUfunction kernel, kernel_facts* f) {
  ENTER(c);
  TRY(CALL(c->api, cuFuncGetAttribute, &f->max_threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel));
  TRY(CALL(c->api, cuFuncGetAttribute, &f->static_shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel));
  TRY(CALL(c->api, cuFuncGetAttribute, &f->max_dynamic_shared,
           CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel));
  TRY(CALL(c->api, cuFuncGetAttribute, &f->registers, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel));
  return CALL(c->api, cuFuncGetAttribute, &f->local_bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, kernel);
}

static inline status kernel_set_max_dynamic_shared(cuda_context* c, CUfunction kernel, int bytes) {
  ENTER(c);
  return CALL(c->api, cuFuncSetAttribute, kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes);
}

// kernel_resident counts the blocks that fit on a multiprocessor: none where a block has more
// threads than the kernel's launch bounds, to which the driver's count does not look.
static inline status kernel_resident(cuda_context* c, CUfunction kernel, int threads, size_t dynamic_shared,
                                     int* blocks) {
  ENTER(c);
  int most;
  TRY(CALL(c->api, cuFuncGetAttribute, &most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel));
  *blocks = 0;
  if (threads > most) return 0;
  return CALL(c->api, cuOccupancyMaxActiveBlocksPerMultiprocessor, blocks, kernel, threads, dynamic_shared);
}

#endif
