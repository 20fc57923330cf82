# An all-reduce of this program's own, kernel and host: python -m mscclgo demo -n 4
import numpy

import mscclgo

SOURCE = """
#include <mscclgo/memory_channel.cuh>

extern "C" __global__ void allReduce(const mscclgo::MemoryChannelHandle* peers, uint32_t ranks, float* sum,
                                     uint64_t count) {
  bool ok = true;
  if (threadIdx.x < ranks) {  // My data is ready; is theirs?
    peers[threadIdx.x].signal();
    ok = peers[threadIdx.x].wait() == mscclgo::WaitResult::Done;
  }
  if (!mscclgo::blockAll(ok)) return;  // A wait failed; the host learns of it.
  for (uint64_t i = threadIdx.x; i < count; i += blockDim.x) {
    float s = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) s += peers[rank].read<float>(i);
    sum[i] = s;
  }
  __syncthreads();
  if (threadIdx.x < ranks) {  // Nobody changes its data before all have read.
    peers[threadIdx.x].signal();
    peers[threadIdx.x].wait();
  }
}
"""

with mscclgo.init() as group:
    values = [numpy.random.default_rng(rank).integers(100, size=10000).astype("float32") for rank in range(group.size)]
    data = group.array(values[group.rank])
    output = group.empty(data.shape)
    peers = group.memory_channels(data)
    kernel = mscclgo.compile(SOURCE, "allreduce.cu").allReduce
    group.max_blocks(kernel, 256)
    kernel[1, 256](None, peers, group.size, output, data.size)
    group.synchronize()
    numpy.testing.assert_array_equal(output.numpy(), sum(values))
    mscclgo.all_reduce(data)  # the same by the library's collective
    group.synchronize()
    numpy.testing.assert_array_equal(data.numpy(), sum(values))
    print(f"rank {group.rank} of {group.size}: all {data.size} sums are right")
    group.barrier()
