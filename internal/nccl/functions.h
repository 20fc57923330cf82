// X(function, parameters): what is used of libcuda and of libnccl. Each returns
// an int, 0 for success. Included several times.
#ifdef CUDA_FUNCTIONS
X(cuInit, (unsigned))
X(cuGetErrorName, (int, const char**))
X(cuDeviceGetByPCIBusId, (int*, const char*))
X(cuDevicePrimaryCtxRetain, (void**, int))
X(cuDevicePrimaryCtxRelease_v2, (int))
X(cuCtxSetCurrent, (void*))
X(cuStreamCreate, (void**, unsigned))
X(cuStreamDestroy_v2, (void*))
X(cuStreamQuery, (void*))
X(cuStreamBeginCapture_v2, (void*, int))
X(cuStreamEndCapture, (void*, void**))
X(cuGraphInstantiateWithFlags, (void**, void*, unsigned long long))
X(cuGraphDestroy, (void*))
X(cuGraphExecDestroy, (void*))
X(cuGraphLaunch, (void*, void*))
X(cuEventCreate, (void**, unsigned))
X(cuEventDestroy_v2, (void*))
X(cuEventRecord, (void*, void*))
X(cuEventElapsedTime, (float*, void*, void*))
#endif
#ifdef NCCL_FUNCTIONS
X(ncclGetVersion, (int*))
X(ncclGetUniqueId, (unique_id*))
X(ncclCommInitRank, (void**, int, unique_id, int))
X(ncclCommDestroy, (void*))
X(ncclCommAbort, (void*))
X(ncclAllReduce, (const void*, void*, size_t, int, int, void*, void*))
X(ncclAllGather, (const void*, void*, size_t, int, void*, void*))
X(ncclReduceScatter, (const void*, void*, size_t, int, int, void*, void*))
X(ncclBroadcast, (const void*, void*, size_t, int, int, void*, void*))
X(ncclSend, (const void*, size_t, int, int, void*, void*))
X(ncclRecv, (void*, size_t, int, int, void*, void*))
X(ncclGroupStart, (void))
X(ncclGroupEnd, (void))
#endif
// Not in every version.
#ifdef NCCL_LATER_FUNCTIONS
X(ncclMemAlloc, (void**, size_t))
X(ncclMemFree, (void*))
X(ncclCommWindowRegister, (void*, void*, size_t, void**, int))
X(ncclCommWindowDeregister, (void*, void*))
X(ncclAlltoAll, (const void*, void*, size_t, int, void*, void*))
#endif
