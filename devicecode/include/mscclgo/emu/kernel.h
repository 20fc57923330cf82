// kernel.h: what the device knows of a kernel. The Go side puts a constant of
// Kernel<&k>::entry after the body of each extern "C" kernel k, and a pointer to it into
// the section mscclgo_emu_kernels.
#pragma once

#include "mscclgo/emu/abi.h"
#include "mscclgo/emu/runtime.h"

namespace mscclgo {
namespace emu {

template <unsigned... I>
struct Indices {};
template <unsigned N, unsigned... I>
struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <unsigned... I>
struct MakeIndices<0, I...> {
  using type = Indices<I...>;
};

// Places are the offsets and sizes of parameters in a C struct with the same members, as
// CUDA passes them.
template <unsigned N>
struct Places {
  mscclgo_emu_param at[N ? N : 1];
  uint32_t bytes;
};

// layout returns the places of parameters of these types.
template <class... P>
constexpr Places<sizeof...(P)> layout() {
  Places<sizeof...(P)> r{};
  uint32_t offset = 0;
  unsigned i = 0;
  const mscclgo_emu_param each[] = {{sizeof(P), alignof(P)}..., {0, 1}};
  for (; i < sizeof...(P); i++) {
    const uint32_t size = each[i].offset, align = each[i].size;
    offset = (offset + align - 1) / align * align;
    r.at[i] = mscclgo_emu_param{offset, size};
    offset += size;
  }
  r.bytes = offset;
  return r;
}

// Kernel calls a function with arguments in a launch's bytes.
template <auto function>
struct Kernel;

template <class... P, void (*function)(P...)>
struct Kernel<function> {
  static constexpr unsigned count = sizeof...(P);
  static constexpr Places<count> places = layout<P...>();
  static_assert(places.bytes <= MSCCLGO_EMU_ARGUMENT_BYTES, "a kernel takes at most 4096 bytes of arguments");

  template <unsigned... I>
  static void call([[maybe_unused]] const char* arguments, Indices<I...>) {
    function(*reinterpret_cast<const P*>(arguments + places.at[I].offset)...);
  }
  static void invoke(const void* arguments) {
    call(static_cast<const char*>(arguments), typename MakeIndices<count>::type());
  }
  static constexpr mscclgo_emu_kernel entry(const char* name, uint32_t maxThreads) {
    return mscclgo_emu_kernel{name, invoke, places.at, count, places.bytes, maxThreads};
  }
};

// DynamicShared converts to a reference to the block's dynamic shared memory, as any type.
struct DynamicShared {
  template <class T>
  operator T&() const {
    return *reinterpret_cast<T*>(self()->block->dynamic);
  }
};

// launchBounds takes what __launch_bounds__ does and returns the size of a block, or 0.
constexpr uint32_t launchBounds() { return 0; }
template <class... T>
constexpr uint32_t launchBounds(uint32_t threads, T...) {
  return threads;
}

}  // namespace emu
}  // namespace mscclgo
