// Linear for up to 8 columns: y[T, N] = x[T, K] * weight[N, K]^T.
//
// The warps of a block (of a cluster of blocks, if S > 1) split K of one row tile. Each warp streams
// its records through a ring of its own, so that nothing but the row tile's sum synchronises them.
// The loads of the next row tiles continue meanwhile. Sums are taken in a fixed order.
#include "ninfer/async_copy.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/mma.cuh"
#include "ninfer/prelude.cuh"
#include "ninfer/reduce.cuh"
#include "ninfer/weight_record.cuh"

extern __shared__ __align__(1024) u8 dynamic_shared[];

namespace ninfer {

constexpr int MOST_SQUARES = 320;            // row tiles of a product that is added to a residual
constexpr float DEFERRED_NORM_SCALE = 64.f;  // what f16 sums are divided by, so that they fit
constexpr int X_IN_SHARED = 0;  // of the argument XM below; -1: in global memory

// F: weight format. XR: rows of x in memory (1, 4 or 8). W: warps. KC, KL: records of a stage and of
// the last stage of a row tile; KL = 0 stands for a last stage of any size. ST: stages. S: blocks
// that split K. MB: blocks that an SM must be able to hold. XM: where x lies while the block works:
// in shared memory, in global memory, or, if positive, in registers (then it is the number of records
// of a warp and row tile). `beside`: the launch before takes the same x, so that x is there already;
// this one must not end before it.
//
// SUMS: the product is added to `residual` in place, and what the next products take is stored with the
// sum: the sum times the weight of a norm, as B fragments, and the squares of the sum. A norm divides each
// column by one number, so that it may be taken out of the products: they get `squares`, one for each
// row tile of the product before.
template <int F, int XR, int W, int KC, int KL, int ST, int S, int MB, int XM, bool SUMS>
__global__ __launch_bounds__(W * 32, MB) void linear_skinny_kernel(
    const u8* __restrict__ weight, const u8* x, void* y, const float* __restrict__ row_scale,
    const float* column_scale, int tiles, int rows, int columns, int stride, int records,
    int float_output, int beside, const float* squares, int square_count, float inverse_size,
    float eps, float norm_scale, u16* residual, const u16* norm_weight, float norm_offset,
    u16* half, u16* words, float* squares_out) {
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

  if (!beside) wait_for_previous_kernels();
  // Warp c adds the squares of column c.
  const bool adds_squares = squares && warp < columns;
  float square_parts[MOST_SQUARES / 32];
  if (adds_squares)
#pragma unroll
    for (int i = 0; i < MOST_SQUARES / 32; i++) {
      const int at = i * 32 + lane;
      square_parts[i] = at < square_count ? squares[warp * square_count + at] : 0.f;
    }
  // Lanes of columns that do not exist read the last one; their sums are not stored.
  const int x_lane = (min_int(lane >> 2, XR - 1) * 4 + (lane & 3)) * 16;
  const u8* x_warp = x + (u64)first * X_RECORD;
  u32 x_registers[XM > 0 ? XM : 1][8];
  if constexpr (XM > 0) {
#pragma unroll
    for (int i = 0; i < XM; i++) {
      const u8* p = x_warp + i * X_RECORD + x_lane;
      unpack_fragment(load_global_16(p), load_global_16(p + 64 * XR), x_registers[i]);
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
  const u32 norm_at = shared + 1024 - 4 * XR;
  static_assert(W * (ST + 1) * 8 + 4 * XR <= 1024, "barriers and norms of columns");
  if (adds_squares) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < MOST_SQUARES / 32; i++) sum += square_parts[i];
    sum = warp_sum(sum);
    if (lane == 0)
      store_shared_float(norm_at + warp * 4, norm_scale * rsqrtf(sum * inverse_size + eps));
  }

  // Sums of a row tile lie as [column][row] for each warp; a thread finishes the same element of
  // every tile, by turns with the thread half a block away.
  constexpr int COLUMNS = XR, ELEMENTS = 16 * COLUMNS, SUM_BYTES = ELEMENTS * 4;
  const int my_element = threadIdx.x % ELEMENTS, my_row = my_element & 15;
  const int my_column = my_element >> 4;
  float my_factor = record_factor<F>();
  if (F != BF16 && !squares && my_column < columns) my_factor *= column_scale[my_column];

  float acc[4];
  const auto use = [&](u32 record, int i) {
    u32 b[8];
    const LaneRecord<F> r = load_record<F>(record, lane);
    if constexpr (XM > 0) {
      multiply_record<F>(acc, r, x_registers[i]);
    } else if constexpr (XM == X_IN_SHARED) {
      const u32 p = x_shared + i * X_RECORD + x_lane;
      unpack_fragment(load_shared_16(p), load_shared_16(p + 64 * XR), b);
      multiply_record<F>(acc, r, b);
    } else {
      const uint4* p = (const uint4*)(x_warp + (u64)i * X_RECORD + x_lane);
      unpack_fragment(p[0], p[4 * XR], b);
      multiply_record<F>(acc, r, b);
    }
  };
  const auto next_stage = [&]() {
    const int stage = ring.release();
    if (ring.fills()) fill(stage);
  };

  // What a sum starts from, read before it is needed where registers are not scarce.
  constexpr bool EARLY = SUMS && S == 1 && MB == 1;
  struct Residual {
    float sum, weight;
  };
  const auto load_residual = [&](int tile) {
    const int row = tile * 16 + my_row;
    if (!SUMS || my_column >= columns) return Residual{};
    return Residual{bf16_to_float(residual[(u64)my_column * rows + row]),
                    bf16_to_float(norm_weight[row]) + norm_offset};
  };
  const auto store_residual = [&](int tile, float v, const Residual& before) {
    const int row = tile * 16 + my_row;
    const u16 bits = float_to_bf16(before.sum + v);
    const float sum = bf16_to_float(bits), weighted = sum * before.weight;
    residual[(u64)my_column * rows + row] = bits;
    const int at = ((row >> 5) * XR + my_column) * 32 + (row >> 1 & 3) * 8 + (row >> 3 & 3) * 2;
    half[at + (row & 1)] = float_to_f16(weighted * (1.f / DEFERRED_NORM_SCALE));
    words[at + (row & 1)] = float_to_bf16(weighted);
    float square = sum * sum;
#pragma unroll
    for (int d = 8; d > 0; d /= 2)  // the 16 rows of a column lie side by side
      square += __shfl_xor_sync(0xffffu << (lane & 16), square, d);
    if (my_row == 0) squares_out[my_column * tiles + tile] = square;
  };
  const auto store = [&](int tile, float v, const Residual& before) {
    const int row = tile * 16 + my_row;
    if (my_column < columns && row < rows) {
      v *= my_factor;
      if (squares) v *= load_shared_float(norm_at + my_column * 4);
      if (row_scale) v *= row_scale[row];
      const u64 at = (u64)my_column * stride + row;
      if constexpr (SUMS)
        store_residual(tile, v, before);
      else if (float_output)
        ((float*)y)[at] = v;
      else
        ((u16*)y)[at] = float_to_bf16(v);
    }
  };

  // Sum of the warps, in their order, for row tile t of the block. The array alternates, so that one
  // barrier is enough.
  const u32 exchange_at = sums_at + 2 * W * SUM_BYTES;
  const auto finishes = [&](int t) {
    return (threadIdx.x + (t & 1) * (W * 16)) % (W * 32) < ELEMENTS;
  };
  const auto add_warps = [&](int t, auto finish) {
    const u32 sums = sums_at + (t & 1) * (W * SUM_BYTES);
    const u32 my_sums = sums + warp * SUM_BYTES + (lane >> 2) * 4 + (lane & 3) * 128;
#pragma unroll
    for (int e = 0; e < 4; e++)  // element e: row g + 8 (e >> 1), column 2q + (e & 1)
      if (2 * (lane & 3) + (e & 1) < COLUMNS)
        store_shared_float(my_sums + (e & 1) * 64 + (e >> 1) * 32, acc[e]);
    __syncthreads();
    static_assert(W * 16 >= ELEMENTS, "half a block finishes a tile");
    if (finishes(t)) {
      float v = 0.f;
#pragma unroll
      for (int i = 0; i < W; i++) v += load_shared_float(sums + i * SUM_BYTES + my_element * 4);
      finish(v);
    }
  };

  for (int t = 0; t < my_tiles; t++) {
    acc[0] = acc[1] = acc[2] = acc[3] = 0.f;
    Residual before = {};
    if (EARLY && finishes(t)) before = load_residual(cluster + t * clusters);
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

    add_warps(t, [&](float v) {
      if constexpr (S > 1)
        store_shared_float(exchange_at + t * SUM_BYTES + my_element * 4, v);
      else
        store(cluster + t * clusters, v,
              EARLY ? before : load_residual(cluster + t * clusters));
    });
  }

  if constexpr (S > 1) {  // rank r finishes the row tiles r, r + S, ...; summed in rank order
    synchronize_cluster();
    for (int i = threadIdx.x; i < my_tiles * ELEMENTS; i += W * 32) {
      const int t = i / ELEMENTS;
      if (t % S != rank) continue;
      const Residual before = load_residual(cluster + t * clusters);
      float v = 0.f;
#pragma unroll
      for (int r = 0; r < S; r++) v += load_cluster_float(exchange_at + i * 4, r);
      store(cluster + t * clusters, v, before);
    }
    synchronize_cluster();
  }
  if (beside) wait_for_previous_kernels();
}

}  // namespace ninfer
