// X(function, parameters): what is used of libnccl. Each returns an int, 0 for
// success. Included several times.
#ifdef NCCL_FUNCTIONS
X(ncclGetVersion, (int*))
X(ncclGetUniqueId, (unique_id*))
X(ncclCommInitRank, (void**, int, unique_id, int))
X(ncclCommDestroy, (void*))
X(ncclCommAbort, (void*))
X(ncclAllReduce, (const void*, void*, size_t, int, int, void*, void*))
X(ncclAllGather, (const void*, void*, size_t, int, void*, void*))
X(ncclReduceScatter, (const void*, void*, size_t, int, int, void*, void*))
X(ncclReduce, (const void*, void*, size_t, int, int, int, void*, void*))
X(ncclBroadcast, (const void*, void*, size_t, int, int, void*, void*))
X(ncclSend, (const void*, size_t, int, int, void*, void*))
X(ncclRecv, (void*, size_t, int, int, void*, void*))
X(ncclGroupStart, (void))
X(ncclGroupEnd, (void))
#endif
// Not in every version.
#ifdef NCCL_LATER_FUNCTIONS
X(ncclCommInitRankConfig, (void**, int, unique_id, int, config*))
X(ncclMemAlloc, (void**, size_t))
X(ncclMemFree, (void*))
X(ncclCommWindowRegister, (void*, void*, size_t, void**, int))
X(ncclCommWindowDeregister, (void*, void*))
X(ncclAlltoAll, (const void*, void*, size_t, int, void*, void*))
#endif
