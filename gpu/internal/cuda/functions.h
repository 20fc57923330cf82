// The one list of the driver's functions that this package calls:
// X(symbol, CUDA version that introduced it, parameters). Symbols are the exact names
// of the ABI, versions included: libcuda.so.1 never drops one, and a bare name such as
// cuMemAlloc is an older function than the one that today's headers map it to. All
// return CUresult.
//
// There is no include guard: define X, then include this.
X(cuInit, 2000, (unsigned int))
X(cuDriverGetVersion, 2020, (int*))
X(cuGetErrorName, 6000, (CUresult, const char**))
X(cuGetErrorString, 6000, (CUresult, const char**))

X(cuDeviceGet, 2000, (CUdevice*, int))
X(cuDeviceGetCount, 2000, (int*))
X(cuDeviceGetName, 2000, (char*, int, CUdevice))
X(cuDeviceGetUuid, 9020, (CUuuid*, CUdevice))
X(cuDeviceGetUuid_v2, 11040, (CUuuid*, CUdevice))
X(cuDeviceGetAttribute, 2000, (int*, CUdevice_attribute, CUdevice))
X(cuDeviceGetPCIBusId, 4010, (char*, int, CUdevice))
X(cuDeviceTotalMem_v2, 3020, (size_t*, CUdevice))
X(cuDeviceCanAccessPeer, 4000, (int*, CUdevice, CUdevice))
X(cuDeviceGetP2PAttribute, 8000, (int*, CUdevice_P2PAttribute, CUdevice, CUdevice))
X(cuDevicePrimaryCtxRetain, 7000, (CUcontext*, CUdevice))
X(cuDevicePrimaryCtxRelease_v2, 11000, (CUdevice))
X(cuCtxSetCurrent, 4000, (CUcontext))
X(cuCtxGetDevice, 2000, (CUdevice*))
X(cuCtxEnablePeerAccess, 4000, (CUcontext, unsigned int))

X(cuMemGetInfo_v2, 3020, (size_t*, size_t*))
X(cuMemAlloc_v2, 3020, (CUdeviceptr*, size_t))
X(cuMemFree_v2, 3020, (CUdeviceptr))
X(cuMemGetAddressRange_v2, 3020, (CUdeviceptr*, size_t*, CUdeviceptr))
X(cuMemHostAlloc, 2020, (void**, size_t, unsigned int))
X(cuMemHostGetDevicePointer_v2, 3020, (CUdeviceptr*, void*, unsigned int))
X(cuMemFreeHost, 2000, (void*))
X(cuMemHostRegister_v2, 6050, (void*, size_t, unsigned int))
X(cuMemHostUnregister, 4000, (void*))
X(cuPointerGetAttribute, 4000, (void*, CUpointer_attribute, CUdeviceptr))
X(cuMemPoolSetAccess, 11020, (CUmemoryPool, const CUmemAccessDesc*, size_t))
X(cuMemGetAllocationGranularity, 10020,
  (size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags))
X(cuMemCreate, 10020, (CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, unsigned long long))
X(cuMemRelease, 10020, (CUmemGenericAllocationHandle))
X(cuMemAddressReserve, 10020, (CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long))
X(cuMemAddressFree, 10020, (CUdeviceptr, size_t))
X(cuMemMap, 10020, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))
X(cuMemUnmap, 10020, (CUdeviceptr, size_t))
X(cuMemSetAccess, 10020, (CUdeviceptr, size_t, const CUmemAccessDesc*, size_t))
X(cuMemGetAccess, 10020, (unsigned long long*, const CUmemLocation*, CUdeviceptr))
X(cuMemRetainAllocationHandle, 11000, (CUmemGenericAllocationHandle*, void*))
X(cuMemExportToShareableHandle, 10020,
  (void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long))
X(cuMemImportFromShareableHandle, 10020, (CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType))
X(cuMemGetHandleForAddressRange, 11070,
  (void*, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long))
X(cuIpcGetMemHandle, 4010, (CUipcMemHandle*, CUdeviceptr))
X(cuIpcOpenMemHandle_v2, 11000, (CUdeviceptr*, CUipcMemHandle, unsigned int))
X(cuIpcCloseMemHandle, 4010, (CUdeviceptr))

X(cuStreamCreate, 2000, (CUstream*, unsigned int))
X(cuStreamDestroy_v2, 4000, (CUstream))
X(cuStreamGetCtx, 9020, (CUstream, CUcontext*))
X(cuStreamQuery, 2000, (CUstream))
X(cuStreamSynchronize, 2000, (CUstream))
X(cuStreamWaitEvent, 3020, (CUstream, CUevent, unsigned int))
X(cuStreamWriteValue64_v2, 11070, (CUstream, CUdeviceptr, cuuint64_t, unsigned int))
X(cuStreamWaitValue64_v2, 11070, (CUstream, CUdeviceptr, cuuint64_t, unsigned int))
X(cuMemcpyAsync, 4000, (CUdeviceptr, CUdeviceptr, size_t, CUstream))
X(cuMemsetD8Async, 3020, (CUdeviceptr, unsigned char, size_t, CUstream))
X(cuEventCreate, 2000, (CUevent*, unsigned int))
X(cuEventDestroy_v2, 4000, (CUevent))
X(cuEventRecord, 2000, (CUevent, CUstream))
X(cuEventQuery, 2000, (CUevent))
X(cuEventElapsedTime, 2000, (float*, CUevent, CUevent))

X(cuStreamBeginCapture_v2, 10010, (CUstream, CUstreamCaptureMode))
X(cuThreadExchangeStreamCaptureMode, 10010, (CUstreamCaptureMode*))
X(cuStreamIsCapturing, 10000, (CUstream, CUstreamCaptureStatus*))
X(cuStreamGetCaptureInfo_v3, 12030,
  (CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*, const CUgraphNode**, const CUgraphEdgeData**,
   size_t*))
X(cuStreamEndCapture, 10000, (CUstream, CUgraph*))
X(cuGraphInstantiateWithFlags, 11040, (CUgraphExec*, CUgraph, unsigned long long))
X(cuGraphAddEventRecordNode, 11010, (CUgraphNode*, CUgraph, const CUgraphNode*, size_t, CUevent))
X(cuGraphAddDependencies_v2, 12030,
  (CUgraph, const CUgraphNode*, const CUgraphNode*, const CUgraphEdgeData*, size_t))
X(cuGraphRemoveDependencies_v2, 12030,
  (CUgraph, const CUgraphNode*, const CUgraphNode*, const CUgraphEdgeData*, size_t))
X(cuGraphNodeGetDependencies_v2, 12030, (CUgraphNode, CUgraphNode*, CUgraphEdgeData*, size_t*))
X(cuGraphDestroy, 10000, (CUgraph))
X(cuGraphExecDestroy, 10000, (CUgraphExec))
X(cuGraphLaunch, 10000, (CUgraphExec, CUstream))

X(cuModuleLoadDataEx, 2010, (CUmodule*, const void*, unsigned int, CUjit_option*, void**))
X(cuModuleUnload, 2000, (CUmodule))
X(cuModuleGetFunction, 2000, (CUfunction*, CUmodule, const char*))
X(cuModuleGetGlobal_v2, 3020, (CUdeviceptr*, size_t*, CUmodule, const char*))
X(cuModuleGetFunctionCount, 12040, (unsigned int*, CUmodule))
X(cuModuleEnumerateFunctions, 12040, (CUfunction*, unsigned int, CUmodule))
X(cuFuncGetName, 12030, (const char**, CUfunction))
X(cuFuncLoad, 12040, (CUfunction))
X(cuFuncGetParamInfo, 12040, (CUfunction, size_t, size_t*, size_t*))
X(cuFuncGetAttribute, 2020, (int*, CUfunction_attribute, CUfunction))
X(cuFuncSetAttribute, 9000, (CUfunction, CUfunction_attribute, int))
X(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, (int*, CUfunction, int, size_t))
X(cuLaunchKernel, 4000,
  (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
   unsigned int, CUstream, void**, void**))
X(cuLaunchKernelEx, 11060, (const CUlaunchConfig*, CUfunction, void**, void**))
