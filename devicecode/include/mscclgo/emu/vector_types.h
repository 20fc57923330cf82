// vector_types.h: CUDA's short vectors, with its names, sizes and alignments
// (CUDA C++ Programming Guide, "Built-in Vector Types").
#pragma once

#define MSCCLGO_EMU_VECTORS(type, name, align1, align2, align4)                                 \
  struct __attribute__((aligned(align1))) name##1 {                                             \
    type x;                                                                                     \
  };                                                                                            \
  struct __attribute__((aligned(align2))) name##2 {                                             \
    type x, y;                                                                                  \
  };                                                                                            \
  struct __attribute__((aligned(align1))) name##3 {                                             \
    type x, y, z;                                                                               \
  };                                                                                            \
  struct __attribute__((aligned(align4))) name##4 {                                             \
    type x, y, z, w;                                                                            \
  };                                                                                            \
  inline constexpr name##1 make_##name##1(type x) { return name##1 {x}; }                       \
  inline constexpr name##2 make_##name##2(type x, type y) { return name##2 {x, y}; }            \
  inline constexpr name##3 make_##name##3(type x, type y, type z) { return name##3 {x, y, z}; } \
  inline constexpr name##4 make_##name##4(type x, type y, type z, type w) { return name##4 {x, y, z, w}; }

MSCCLGO_EMU_VECTORS(signed char, char, 1, 2, 4)
MSCCLGO_EMU_VECTORS(unsigned char, uchar, 1, 2, 4)
MSCCLGO_EMU_VECTORS(short, short, 2, 4, 8)
MSCCLGO_EMU_VECTORS(unsigned short, ushort, 2, 4, 8)
MSCCLGO_EMU_VECTORS(int, int, 4, 8, 16)
MSCCLGO_EMU_VECTORS(unsigned int, uint, 4, 8, 16)
MSCCLGO_EMU_VECTORS(long, long, sizeof(long), 2 * sizeof(long), 16)
MSCCLGO_EMU_VECTORS(unsigned long, ulong, sizeof(long), 2 * sizeof(long), 16)
MSCCLGO_EMU_VECTORS(long long, longlong, 8, 16, 16)
MSCCLGO_EMU_VECTORS(unsigned long long, ulonglong, 8, 16, 16)
MSCCLGO_EMU_VECTORS(float, float, 4, 8, 16)
MSCCLGO_EMU_VECTORS(double, double, 8, 16, 16)

#undef MSCCLGO_EMU_VECTORS

// dim3 is the size of a grid or of a block.
struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1) : x(vx), y(vy), z(vz) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return uint3{x, y, z}; }
};
