// An all-reduce of this program's own, in C: every rank puts its numbers into each peer's
// inbox by a memory channel, and adds what has come. Then the same by the library's
// collective, captured in a graph. Start it with "mscclgo run -n 4 ./allreduce".
#include <mscclgo.h>

#include <stdio.h>
#include <stdlib.h>

#define COUNT 1000
#define CHECK(call) check((call), #call, __LINE__)

static void check(mscclgo_status status, const char* call, int line) {
  if (status == MSCCLGO_OK) return;
  fprintf(stderr, "line %d: %s: %s\n", line, call, mscclgo_error_text());
  exit(1);
}

static const char source[] =
    "#include <mscclgo/memory_channel.cuh>\n"
    "using namespace mscclgo;\n"
    "extern \"C\" __global__ void allReduce(const MemoryChannelHandle* channels, uint32_t ranks, uint32_t "
    "rank,\n"
    "                                     const float* inbox, float* data, uint64_t count) {\n"
    "  for (uint32_t i = 0; i < ranks; ++i)\n"
    "    channels[i].put(rank * count * 4, 0, count * 4, threadIdx.x, blockDim.x);\n"
    "  __syncthreads();\n"
    "  bool ok = true;\n"
    "  if (threadIdx.x < ranks) {\n"
    "    channels[threadIdx.x].signal();\n"
    "    ok = channels[threadIdx.x].wait() == WaitResult::Done;\n"
    "  }\n"
    "  if (!blockAll(ok)) return;\n"
    "  for (uint64_t i = threadIdx.x; i < count; i += blockDim.x) {\n"
    "    float sum = 0;\n"
    "    for (uint32_t r = 0; r < ranks; ++r) sum += inbox[r * count + i];\n"
    "    data[i] = sum;\n"
    "  }\n"
    "}\n";

int main(void) {
  CHECK(mscclgo_check_version(MSCCLGO_VERSION));
  mscclgo_group group;
  CHECK(mscclgo_group_join(NULL, &group));
  int rank, size;
  CHECK(mscclgo_group_rank(group, &rank));
  CHECK(mscclgo_group_size(group, &size));
  mscclgo_device device;
  CHECK(mscclgo_group_device(group, &device));

  mscclgo_buffer data, inbox;
  mscclgo_memory_channels channels;
  CHECK(mscclgo_buffer_create(device, COUNT * sizeof(float), &data));
  CHECK(mscclgo_buffer_create(device, (uint64_t)size * COUNT * sizeof(float), &inbox));
  mscclgo_channel_options options = {.inbox = inbox, .name = "inbox"};
  CHECK(mscclgo_memory_channels_create(group, data, &options, &channels));

  // The members are the kernel's parameters.
  struct {
    void* channels;
    uint32_t ranks, rank;
    void *inbox, *data;
    uint64_t count;
  } parameters = {.ranks = (uint32_t)size, .rank = (uint32_t)rank, .count = COUNT};
  CHECK(mscclgo_memory_channels_handles(channels, &parameters.channels));
  CHECK(mscclgo_buffer_pointer(inbox, &parameters.inbox));
  CHECK(mscclgo_buffer_pointer(data, &parameters.data));

  mscclgo_module module;
  mscclgo_kernel kernel;
  mscclgo_stream stream;
  CHECK(mscclgo_module_compile(device, "allreduce.cu", source, NULL, &module));
  CHECK(mscclgo_module_kernel(module, "allReduce", &kernel));
  CHECK(mscclgo_stream_create(device, &stream));
  int blocks;
  CHECK(mscclgo_group_max_blocks(group, kernel, 64, 0, &blocks));

  float numbers[COUNT];
  for (int i = 0; i < COUNT; i++) numbers[i] = (float)(rank + i);
  CHECK(mscclgo_copy_in(data, 0, numbers, sizeof numbers));
  CHECK(mscclgo_group_barrier(group, -1));
  mscclgo_launch_config config = {.grid = {1}, .block = {64}};
  CHECK(mscclgo_kernel_launch(kernel, stream, &config, &parameters, sizeof parameters));

  mscclgo_graph graph;
  CHECK(mscclgo_stream_begin_capture(stream));
  CHECK(mscclgo_all_reduce(group, stream, parameters.data, parameters.data, COUNT, MSCCLGO_F32, MSCCLGO_AVG));
  CHECK(mscclgo_stream_end_capture(stream, &graph));
  CHECK(mscclgo_graph_launch(graph, stream));
  CHECK(mscclgo_group_synchronize(group, stream, -1));

  CHECK(mscclgo_copy_out(numbers, data, 0, sizeof numbers));
  for (int i = 0; i < COUNT; i++) {
    float want = (float)(size * i + size * (size - 1) / 2);
    if (numbers[i] == want) continue;
    fprintf(stderr, "rank %d: number %d is %g, want %g\n", rank, i, (double)numbers[i], (double)want);
    return 1;
  }
  printf("rank %d of %d: all %d sums are right\n", rank, size, COUNT);
  CHECK(mscclgo_group_barrier(group, -1));
  CHECK(mscclgo_group_destroy(group));
  return 0;
}
