// Linear for up to 8 columns: y[T, N] = x[T, K] * weight[N, K]^T.
//
// The warps of a block (of a cluster of blocks, if S > 1) split K of one row tile. Each warp streams
// its records through a ring of its own, so that nothing but the row tile's sum synchronises them.
// The loads of the next row tiles continue meanwhile. Sums are taken in a fixed order.
#include "ninfer/async_copy.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/mma.cuh"
#include "ninfer/prelude.cuh"
#include "ninfer/weight_record.cuh"

extern __shared__ __align__(1024) u8 dynamic_shared[];

namespace ninfer {

constexpr int X_IN_SHARED = 0;  // of the argument XM below; -1: in global memory

// One B fragment of 64 columns of K: two 16-byte words, `half` apart.
NINFER_DEVICE void unpack_x(const uint4& u, const uint4& v, u32* b) {
  b[0] = u.x;
  b[1] = u.y;
  b[2] = u.z;
  b[3] = u.w;
  b[4] = v.x;
  b[5] = v.y;
  b[6] = v.z;
  b[7] = v.w;
}

// F: weight format. XR: rows of x in memory (1, 4 or 8). W: warps. KC, KL: records of a stage and of
// the last stage of a row tile; KL = 0 stands for a last stage of any size. ST: stages. S: blocks
// that split K. MB: blocks that an SM must be able to hold. XM: where x lies while the block works:
// in shared memory, in global memory, or, if positive, in registers (then it is the number of records
// of a warp and row tile).
template <int F, int XR, int W, int KC, int KL, int ST, int S, int MB, int XM>
__global__ __launch_bounds__(W * 32, MB) void linear_skinny_kernel(
    const u8* __restrict__ weight, const u8* x, void* y, const float* __restrict__ row_scale,
    const float* column_scale, int tiles, int rows, int columns, int stride, int records,
    int float_output) {
  constexpr int BYTES = RecordShape<F>::BYTES, STAGE = KC * BYTES, X_RECORD = 128 * XR;
  constexpr bool EVEN = KL > 0;
  const u32 shared = shared_address(dynamic_shared);
  const int lane = threadIdx.x & 31, warp = warp_index();
  const int rank = S > 1 ? cluster_rank() : 0;

  // This warp's records [first, first + count) of every row tile, and those of the whole block.
  constexpr int PARTS = S * W;
  const int part = rank * W + warp;
  const int share = XM > 0 ? XM : records / PARTS;
  const int first = EVEN ? part * share : part * records / PARTS;
  const int count = EVEN ? share : (part + 1) * records / PARTS - first;
  const int block_first = EVEN ? rank * W * share : 0;
  const int block_records = EVEN ? W * share : records;
  const int chunks = (count + KC - 1) / KC;
  const u32 last_bytes = (count - (chunks - 1) * KC) * BYTES;

  // Shared memory: barriers of the rings and of x, rings, x, sums.
  const u32 ring_at = shared + 1024, x_at = ring_at + W * ST * STAGE;
  const u32 x_bytes = XM == X_IN_SHARED ? block_records * X_RECORD : 0;
  const u32 sums_at = x_at + x_bytes;
  const u32 x_shared = x_at + (first - block_first) * X_RECORD;

  const int cluster = blockIdx.x / S, clusters = gridDim.x / S;
  const int my_tiles = (tiles - cluster + clusters - 1) / clusters;
  const u64 tile_bytes = (u64)records * BYTES;
  const int total = my_tiles * chunks;

  WarpRing<ST, STAGE> ring(ring_at + warp * (ST * STAGE), shared + warp * (ST + 1) * 8, lane);
#if NINFER_HAS_BULK_COPY
  const u32 x_barrier = shared + warp * (ST + 1) * 8 + ST * 8;
  if (XM == X_IN_SHARED && lane == 0) {
    barrier_init(x_barrier, 1);
    barrier_init_fence();
  }
#endif
  const u8* source = weight + cluster * tile_bytes + (u64)first * BYTES;
  int issued = 0, issue_chunk = 0;
  auto fill = [&](int stage) {
    const bool more = issued < total;
    const u32 bytes = !more ? 0 : issue_chunk == chunks - 1 ? last_bytes : STAGE;
    ring.fill(stage, source + issue_chunk * STAGE, bytes);
    issued++;
    if (++issue_chunk == chunks) {
      issue_chunk = 0;
      source += tile_bytes * clusters;
    }
  };
  if (ring.fills()) {
#pragma unroll
    for (int i = 0; i < ST; i++) fill(i);
  }
  __syncwarp();

  wait_for_previous_kernels();
  // Lanes of columns that do not exist read the last one; their sums are not stored.
  const int x_lane = (min_int(lane >> 2, XR - 1) * 4 + (lane & 3)) * 16;
  const u8* x_warp = x + (u64)first * X_RECORD;
  u32 x_registers[XM > 0 ? XM : 1][8];
  if constexpr (XM > 0) {
#pragma unroll
    for (int i = 0; i < XM; i++) {
      const u8* p = x_warp + i * X_RECORD + x_lane;
      unpack_x(load_global_16(p), load_global_16(p + 64 * XR), x_registers[i]);
    }
  } else if constexpr (XM == X_IN_SHARED) {
#if NINFER_HAS_BULK_COPY
    if (lane == 0 && count > 0) {
      barrier_expect(x_barrier, count * X_RECORD);
      bulk_copy(x_shared, x_warp, count * X_RECORD, x_barrier, EVICT_LAST);
    }
    __syncwarp();
    if (count > 0) barrier_wait(x_barrier, 0);
#else
    for (int i = lane * 16; i < count * X_RECORD; i += 512) {
      const uint4 v = load_global_16(x_warp + i);
      *(uint4*)shared_pointer(x_shared + i) = v;
    }
    __syncwarp();
#endif
  }
  let_next_kernel_start();

  // Sums of a row tile lie as [column][row] for each warp; a thread finishes the same element of
  // every tile, by turns with the thread half a block away.
  constexpr int COLUMNS = XR, ELEMENTS = 16 * COLUMNS, SUM_BYTES = ELEMENTS * 4;
  const int my_element = threadIdx.x % ELEMENTS, my_row = my_element & 15;
  const int my_column = my_element >> 4;
  float my_factor = record_factor<F>();
  if (my_column < columns) my_factor *= column_scale[my_column];

  float acc[4];
  const auto use = [&](u32 record, int i) {
    u32 b[8];
    const LaneRecord<F> r = load_record<F>(record, lane);
    if constexpr (XM > 0) {
      multiply_record<F>(acc, r, x_registers[i]);
    } else if constexpr (XM == X_IN_SHARED) {
      const u32 p = x_shared + i * X_RECORD + x_lane;
      unpack_x(load_shared_16(p), load_shared_16(p + 64 * XR), b);
      multiply_record<F>(acc, r, b);
    } else {
      const uint4* p = (const uint4*)(x_warp + (u64)i * X_RECORD + x_lane);
      unpack_x(p[0], p[4 * XR], b);
      multiply_record<F>(acc, r, b);
    }
  };
  const auto next_stage = [&]() {
    const int stage = ring.release();
    if (ring.fills()) fill(stage);
  };

  const auto store = [&](int tile, float v) {
    const int row = tile * 16 + my_row;
    if (my_column < columns && row < rows) {
      v *= my_factor;
      if (row_scale) v *= row_scale[row];
      const u64 at = (u64)my_column * stride + row;
      if (float_output)
        ((float*)y)[at] = v;
      else
        ((u16*)y)[at] = float_to_bf16(v);
    }
  };

  for (int t = 0; t < my_tiles; t++) {
    acc[0] = acc[1] = acc[2] = acc[3] = 0.f;
    if constexpr (XM > 0) {
#pragma unroll
      for (int c = 0; c < (XM + KC - 1) / KC; c++) {
        const u32 stage = ring.wait();
#pragma unroll
        for (int i = 0; i < KC; i++)
          if (c * KC + i < XM) use(stage + i * BYTES, c * KC + i);
        next_stage();
      }
    } else if constexpr (EVEN) {
      const int full = KL == KC ? chunks : chunks - 1;
#pragma unroll 1
      for (int c = 0; c < full; c++) {
        const u32 stage = ring.wait();
#pragma unroll
        for (int i = 0; i < KC; i++) use(stage + i * BYTES, c * KC + i);
        next_stage();
      }
      if constexpr (KL != KC) {
        const u32 stage = ring.wait();
#pragma unroll
        for (int i = 0; i < KL; i++) use(stage + i * BYTES, full * KC + i);
        next_stage();
      }
    } else {
#pragma unroll 1
      for (int c = 0; c < chunks; c++) {
        const u32 stage = ring.wait();
#pragma unroll 1
        for (int i = 0; i < min_int(KC, count - c * KC); i++) use(stage + i * BYTES, c * KC + i);
        next_stage();
      }
    }

    // Sum of the warps, in their order. The array alternates, so that one barrier is enough.
    const u32 sums = sums_at + (t & 1) * (W * SUM_BYTES);
    const u32 my_sums = sums + warp * SUM_BYTES + (lane >> 2) * 4 + (lane & 3) * 128;
#pragma unroll
    for (int e = 0; e < 4; e++)  // element e: row g + 8 (e >> 1), column 2q + (e & 1)
      if (2 * (lane & 3) + (e & 1) < COLUMNS)
        store_shared_float(my_sums + (e & 1) * 64 + (e >> 1) * 32, acc[e]);
    __syncthreads();
    static_assert(W * 16 >= ELEMENTS, "half a block finishes a tile");
    if ((threadIdx.x + (t & 1) * (W * 16)) % (W * 32) < ELEMENTS) {
      float v = 0.f;
#pragma unroll
      for (int i = 0; i < W; i++) v += load_shared_float(sums + i * SUM_BYTES + my_element * 4);
      if constexpr (S > 1)
        store_shared_float(sums_at + (2 * W + t) * SUM_BYTES + my_element * 4, v);
      else
        store(cluster + t * clusters, v);
    }
  }

  if constexpr (S > 1) {  // rank r finishes the row tiles r, r + S, ...; summed in rank order
    synchronize_cluster();
    for (int i = threadIdx.x; i < my_tiles * ELEMENTS; i += W * 32) {
      const int t = i / ELEMENTS;
      if (t % S != rank) continue;
      float v = 0.f;
#pragma unroll
      for (int r = 0; r < S; r++)
        v += load_cluster_float(sums_at + 2 * W * SUM_BYTES + i * 4, r);
      store(cluster + t * clusters, v);
    }
    synchronize_cluster();
  }
}

}  // namespace ninfer
