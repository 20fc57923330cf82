// A group in C++ whose ranks are threads of one process: each sends its numbers to the next
// by a port channel, and all gather them by the library's collective.
#include <mscclgo.h>

#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

void check(mscclgo_status status) {
  if (status != MSCCLGO_OK) throw std::runtime_error(mscclgo_error_text());
}

// Handle destroys an object when it goes out of scope.
template <class T, mscclgo_status (*destroy)(T)>
class Handle {
 public:
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (handle != nullptr) destroy(handle);
  }
  operator T() const { return handle; }
  T* operator&() { return &handle; }

 private:
  T handle = nullptr;
};

using Group = Handle<mscclgo_group, mscclgo_group_destroy>;
using Rendezvous = Handle<mscclgo_rendezvous, mscclgo_rendezvous_destroy>;

constexpr char source[] = R"(
#include <mscclgo/port_channel.cuh>
using namespace mscclgo;
extern "C" __global__ void pass(const PortChannelHandle* next, const PortChannelHandle* previous,
                                uint64_t bytes) {
  if (threadIdx.x != 0) return;
  next->putWithSignal(bytes, 0, bytes);
  previous->wait();
}
)";

constexpr std::uint64_t count = 300;

void run(const std::string& id, int rank, int size) {
  mscclgo_group_options options{};
  options.local_rank = rank;
  Group group;
  check(mscclgo_group_connect(id.c_str(), rank, size, &options, &group));
  mscclgo_device device;
  check(mscclgo_group_device(group, &device));

  // The first half goes out, the second comes in. What is made of the group goes with it.
  constexpr std::uint64_t bytes = count * sizeof(std::int64_t);
  mscclgo_buffer buffer, all;
  check(mscclgo_buffer_create(device, 2 * bytes, &buffer));
  check(mscclgo_buffer_create(device, static_cast<std::uint64_t>(size) * bytes, &all));
  mscclgo_proxy proxy;
  mscclgo_port_channels ports;
  check(mscclgo_proxy_create(group, &proxy));
  check(mscclgo_port_channels_create(group, proxy, buffer, nullptr, &ports));
  struct {
    void *next, *previous;
    std::uint64_t bytes;
  } parameters{nullptr, nullptr, bytes};
  check(mscclgo_port_channels_handle(ports, 0, (rank + 1) % size, &parameters.next));
  check(mscclgo_port_channels_handle(ports, 0, (rank + size - 1) % size, &parameters.previous));

  mscclgo_module module;
  mscclgo_kernel kernel;
  mscclgo_stream stream;
  check(mscclgo_module_compile(device, "pass.cu", source, nullptr, &module));
  check(mscclgo_module_kernel(module, "pass", &kernel));
  check(mscclgo_stream_create(device, &stream));
  int blocks;
  check(mscclgo_group_max_blocks(group, kernel, 1, 0, &blocks));

  std::vector<std::int64_t> numbers(count);
  for (std::uint64_t i = 0; i < count; i++) numbers[i] = 1000 * rank + static_cast<std::int64_t>(i);
  check(mscclgo_copy_in(buffer, 0, numbers.data(), bytes));
  check(mscclgo_group_barrier(group, -1));
  mscclgo_launch_config config{};
  check(mscclgo_kernel_launch(kernel, stream, &config, &parameters, sizeof parameters));
  void *from, *to;
  mscclgo_buffer arrived;
  check(mscclgo_buffer_slice(buffer, bytes, bytes, &arrived));
  check(mscclgo_buffer_pointer(arrived, &from));
  check(mscclgo_buffer_pointer(all, &to));
  check(mscclgo_all_gather(group, stream, to, from, count, MSCCLGO_I64));
  check(mscclgo_group_synchronize(group, stream, -1));

  std::vector<std::int64_t> got(static_cast<std::size_t>(size) * count);
  check(mscclgo_copy_out(got.data(), all, 0, got.size() * sizeof got[0]));
  for (std::size_t i = 0; i < got.size(); i++) {
    const auto sender = (static_cast<int>(i / count) + size - 1) % size;
    const auto want = 1000 * sender + static_cast<std::int64_t>(i % count);
    if (got[i] != want)
      throw std::runtime_error("number " + std::to_string(i) + " is " + std::to_string(got[i]));
  }
  check(mscclgo_group_barrier(group, -1));
}

}  // namespace

int main() try {
  check(mscclgo_check_version(MSCCLGO_VERSION));
  Rendezvous rendezvous;
  check(mscclgo_rendezvous_create("127.0.0.1:0", &rendezvous));
  char id[MSCCLGO_ID_BYTES];
  check(mscclgo_rendezvous_id(rendezvous, id, sizeof id));
  constexpr int ranks = 3;
  std::vector<std::thread> threads;
  std::vector<std::string> failures(ranks);
  for (int rank = 0; rank < ranks; rank++) {
    threads.emplace_back([&, rank] {
      try {
        run(id, rank, ranks);
      } catch (const std::exception& e) {
        failures[rank] = e.what();
      }
    });
  }
  for (auto& t : threads) t.join();
  for (int rank = 0; rank < ranks; rank++)
    if (!failures[rank].empty())
      throw std::runtime_error("rank " + std::to_string(rank) + ": " + failures[rank]);
  std::printf("%d ranks: all numbers are right\n", ranks);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
