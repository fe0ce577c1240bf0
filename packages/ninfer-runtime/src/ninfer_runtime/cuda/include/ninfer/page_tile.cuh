// Tiles of keys or values for prefill: rows of 256 f16 or bf16 elements in shared memory, as
// mma.sync and wgmma read them alike, filled from the rows of a page.
#pragma once
#include "ninfer/kv_rows.cuh"
#include "ninfer/prelude.cuh"

namespace ninfer {

constexpr int ROW_BYTES = HEAD_DIM * 2;

// Place of the chunk of 8 elements `chunk` of a row. A tile of ROWS rows is four panels of 64
// elements, a panel rows of 128 bytes whose chunks are spread over the banks.
template <int ROWS>
NINFER_DEVICE u32 chunk_offset(int row, int chunk) {
  return chunk / 8 * (ROWS * 128) + row * 128 + ((chunk ^ row) & 7) * 16;
}

// Not known to be the same in every turn of a loop: what is computed from it stays in the loop,
// where registers are scarcer than instructions.
NINFER_DEVICE u32 opaque(u32 x) {
  asm volatile("" : "+r"(x));
  return x;
}

NINFER_DEVICE void store_shared_16(u32 a, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(a), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

// Begins to copy 16 bytes, or to write zeros if `num_bytes` is 0.
NINFER_DEVICE void copy_chunk(u32 target, const void* source, int num_bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
               "r"(num_bytes)
               : "memory");
}

// What expansion to f16 leaves out of every value: the exponent of nvfp4 codes.
template <int C>
NINFER_DEVICE constexpr float tile_factor() {
  return C == ROWS_NVFP4 ? 16384.f : 1.f;
}

// The codes and the scale of 8 neighbouring elements of a row; lane l of a warp holds elements 8l
// to 8l+7. Of nvfp4 codes there is one word.
template <int C>
struct ChunkCodes {
  uint2 codes;
  u32 scale;

  // From a row in global or shared memory.
  template <class Load>
  NINFER_DEVICE void load(const Load& from, int lane) {
    if constexpr (C == ROWS_NVFP4) {
      codes.x = from.word(lane * 4);
      scale = from.scale_byte(lane / 2);
    } else {
      codes = from.words(lane * 8);
      scale = from.scale_half(C == ROWS_INT8 ? lane / 8 * 2 : 0);
    }
  }

  NINFER_DEVICE void clear() {
    codes = make_uint2(0, 0);
    scale = 0;
  }

  // The values, `tile_factor` times as small, each times its scale and rounded once.
  NINFER_DEVICE uint4 expand() const {
    u32 pair[4];
    if constexpr (C == ROWS_NVFP4) {
      u32 e[4];
#pragma unroll
      for (int i = 0; i < 4; i++) e[i] = expand_e2m1_pair(codes.x, i);
#pragma unroll
      for (int i = 0; i < 4; i++)
        pair[i] = __byte_perm(e[i % 2 * 2], e[i % 2 * 2 + 1], i < 2 ? 0x5410 : 0x7632);
    } else {
#pragma unroll
      for (int i = 0; i < 2; i++)
        expand_key_step<C>(make_uint4(codes.x, codes.y, 0, 0), i, pair + 2 * i);
    }
    const u32 wide = C == ROWS_NVFP4 ? e4m3_scales_to_f16x2((u16)(scale * 0x101))
                                     : __byte_perm(scale, 0, 0x1010);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      // Small as the conversion leaves them, products with scales would lose bits.
      if (C == ROWS_FP8 && !NINFER_HAS_E4M3_CONVERSION) pair[i] = mul_f16x2(pair[i], 0x5c005c00u);
      pair[i] = mul_f16x2(pair[i], wide);
    }
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
  }
};

// A coded row in global memory.
struct GlobalRow {
  const u8 *codes, *scales;

  NINFER_DEVICE u32 word(int at) const {
    u32 v;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(codes + at));
    return v;
  }
  NINFER_DEVICE uint2 words(int at) const {
    uint2 v;
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(codes + at));
    return v;
  }
  NINFER_DEVICE u32 scale_byte(int at) const {
    u32 v;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(scales + at));
    return v;
  }
  NINFER_DEVICE u32 scale_half(int at) const {
    u16 v;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(scales + at));
    return v;
  }
};

// The same in shared memory.
struct SharedRow {
  u32 codes, scales;

  NINFER_DEVICE u32 word(int at) const { return load_shared_4(codes + at); }
  NINFER_DEVICE uint2 words(int at) const { return load_shared_8(codes + at); }
  NINFER_DEVICE u32 scale_byte(int at) const { return *(const u8*)shared_pointer(scales + at); }
  NINFER_DEVICE u32 scale_half(int at) const { return *(const u16*)shared_pointer(scales + at); }
};

// Fills tiles of KEYS rows with all WARPS warps of a block: `start` begins to read and `finish`
// leaves the rows in shared memory. Between them lies the time that reading takes.
template <int C, int KEYS, int WARPS>
struct TileLoader {
  static constexpr bool COPIED = C <= ROWS_FP16;
  static constexpr int ROWS = KEYS / WARPS;  // of a warp
  ChunkCodes<C> chunks[COPIED ? 1 : ROWS];

  // Rows from `valid` on become zeros: what lies in memory there may be anything.
  NINFER_DEVICE void start(u32 tile, const u8* codes, const u8* scales, i64 row, int valid,
                           int warp, int lane) {
    using Shape = RowShape<C>;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      const int r = warp + i * WARPS;
      const u8* source = codes + (row + r) * Shape::CODE_BYTES;
      if constexpr (COPIED) {
        copy_chunk(tile + chunk_offset<KEYS>(r, lane), source + lane * 16, r < valid ? 16 : 0);
      } else {
        if (r < valid)
          chunks[i].load(GlobalRow{source, scales + (row + r) * Shape::SCALE_BYTES}, lane);
        else
          chunks[i].clear();
      }
    }
    if constexpr (COPIED) asm volatile("cp.async.commit_group;" ::: "memory");
  }

  NINFER_DEVICE void finish(u32 tile, int warp, int lane) {
    if constexpr (COPIED) {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    } else {
#pragma unroll
      for (int i = 0; i < ROWS; i++)
        store_shared_16(tile + chunk_offset<KEYS>(warp + i * WARPS, lane), chunks[i].expand());
    }
  }
};

}  // namespace ninfer
