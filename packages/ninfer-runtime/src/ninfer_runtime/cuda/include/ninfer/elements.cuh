// Elements of tensors as floats: fp32 or bf16 in memory, several of them with one access.
#pragma once
#include "ninfer/prelude.cuh"

namespace ninfer {

typedef long long i64;

struct bf16 {
  u16 bits;
};

NINFER_DEVICE float to_float(float x) { return x; }
NINFER_DEVICE float to_float(bf16 x) { return bf16_to_float(x.bits); }

template <class T>
NINFER_DEVICE T from_float(float x) {
  if constexpr (sizeof(T) == 2)
    return T{float_to_bf16(x)};
  else
    return x;
}

// V elements that lie together, up to 16 bytes of them in one access.
template <class T, int V>
struct alignas(V * sizeof(T) < 16 ? V * sizeof(T) : 16) Pack {
  T element[V];

  NINFER_DEVICE float operator[](int i) const { return to_float(element[i]); }
  NINFER_DEVICE void set(int i, float x) { element[i] = from_float<T>(x); }
};

template <int V, class T>
NINFER_DEVICE Pack<T, V> load_pack(const T* p) {
  return *reinterpret_cast<const Pack<T, V>*>(p);
}

template <int V, class T>
NINFER_DEVICE void store_pack(T* p, const Pack<T, V>& pack) {
  *reinterpret_cast<Pack<T, V>*>(p) = pack;
}

// Where the rows of a tensor begin: row r is row r % inner of group r / inner; strides in elements.
// A tensor of heads that are cut out of wider rows needs both levels.
template <class T>
struct Rows {
  T* data;
  i64 outer_stride, inner_stride;

  NINFER_DEVICE T* row(u32 r, u32 inner) const {
    return data + (r / inner) * outer_stride + (r % inner) * inner_stride;
  }
};

// Within a few units of the last place of fp32; what they divide by may be infinite.
NINFER_DEVICE float sigmoid(float x) { return __fdividef(1.f, 1.f + __expf(-x)); }
NINFER_DEVICE float silu(float x) { return __fdividef(x, 1.f + __expf(-x)); }

}  // namespace ninfer
