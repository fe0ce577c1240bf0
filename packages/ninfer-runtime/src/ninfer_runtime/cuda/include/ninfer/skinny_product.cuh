// Linear for up to 8 columns: y[T, N] = x[T, K] * weight[N, K]^T.
//
// The warps of a block (of two blocks, if S = 2) split K of one row tile. Each warp streams its records
// through a ring of its own, so that nothing but the row tile's sum synchronises them. The loads of the
// next row tiles continue meanwhile. Sums are taken in a fixed order.
#pragma once
#include "ninfer/activation_rows.cuh"
#include "ninfer/async_copy.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/mma.cuh"
#include "ninfer/prelude.cuh"
#include "ninfer/product_result.cuh"
#include "ninfer/reduce.cuh"
#include "ninfer/row_tiles.cuh"
#include "ninfer/tile_exchange.cuh"
#include "ninfer/weight_record.cuh"

extern __shared__ __align__(1024) u8 dynamic_shared[];

namespace ninfer {

constexpr int MOST_SQUARES = 320;            // row tiles of a product that is added to a residual
constexpr float DEFERRED_NORM_SCALE = 64.f;  // what f16 sums are divided by, so that they fit
constexpr int X_IN_SHARED = 0;  // of the argument XM below; -1: in global memory

// What one product takes.
struct SkinnyArguments {
  const u8* weight;
  const u8* x;
  void* y;
  const float* row_scale;
  const float* column_scale;
  int tiles, rows, columns, stride, records, float_output, beside;
  const float* squares;
  int square_count;
  float inverse_size, eps, norm_scale;
  u16* residual;
  const u16* norm_weight;
  float norm_offset;
  float* squares_out;
  u32* half;
  float* half_factor;
  u32* words;
  float* words_factor;
  u64* exchanged;
};

// F: weight format. XR: rows of x in memory (1, 4 or 8). W: warps. KC, KL: records of a stage and of
// the last stage of a row tile; KL = 0 stands for a last stage of any size. ST: stages. S: blocks
// that split K, 1 or 2 (row_tiles.cuh). MB: blocks that an SM must be able to hold. XM: where x lies
// while the block works: in shared memory, in global memory, or, if positive, in registers (then it
// is the number of records of a warp and row tile, or one more). AHEAD: stages that are filled before x
// is there; the others would only delay it, and the end of the kernel before. HELD: registers hold the
// words of a stage before it is multiplied, so that it is filled again sooner. `beside`: the launch
// before takes the same x, so that x is there already; this one must not end before it.
//
// RESULT: STORED, the product goes to `y`. ADDED, it is added to `residual` in place, and what the next
// products take is stored with the sum: the sum times the weight of a norm, as B fragments, and the
// squares of the sum. A norm divides each column by one number, so that it may be taken out of the
// products: they get `squares`, one for each row tile of the product before. GATED, 8 rows of a gate
// and 8 of what it gates take turns: rows [T, N / 2] of their products go to `y`, unless it is null, and as
// B fragments to where products will read them.
template <int F, int XR, int W, int KC, int KL, int ST, int S, int MB, int XM, int RESULT, int AHEAD,
          bool HELD>
struct SkinnyProduct : SkinnyArguments {
  NINFER_DEVICE explicit SkinnyProduct(const SkinnyArguments& arguments)
      : SkinnyArguments(arguments) {}

  // By all threads of each of `blocks` blocks, of which this is the one with the number `block`.
  NINFER_DEVICE void multiply_in(int block, int blocks) const {
    constexpr int BYTES = RecordShape<F>::BYTES, STAGE = KC * BYTES, X_RECORD = 128 * XR;
    constexpr bool EVEN = KL > 0;
    const u32 shared = shared_address(dynamic_shared);
    const int lane = threadIdx.x & 31, warp = warp_index();
    const RowTiles<S> my(tiles, block, blocks);

    // This warp's records [first, first + count) of every row tile, and those of the whole block.
    constexpr bool SPLIT = S == 2;
    constexpr int PARTS = S * W;
    static_assert(S == 1 || S == 2, "a block, or two that split K");
    // If every second part has one record more, each scheduler of an SM gets as many of those.
    const bool spreads = XM > 0 && !EVEN && W == 16;
    const int place = spreads ? (warp & 8) | (warp & 3) << 1 | (warp >> 2 & 1) : warp;
    const int part = my.rank * W + place;
    const int share = XM > 0 ? XM : records / PARTS;
    const int first = EVEN ? part * share : part * records / PARTS;
    const int count = EVEN ? share : (part + 1) * records / PARTS - first;
    const int block_first = EVEN ? my.rank * W * share : 0;
    const int block_records = EVEN ? W * share : records;

    // Shared memory: barriers of the rings and of x, rings, x, sums.
    const u32 ring_at = shared + 1024, x_at = ring_at + W * ST * STAGE;
    const u32 x_bytes = XM == X_IN_SHARED ? block_records * X_RECORD : 0;
    const u32 sums_at = x_at + x_bytes;
    const u32 x_shared = x_at + (first - block_first) * X_RECORD;

    WarpRing<ST, STAGE> ring(ring_at + warp * (ST * STAGE), shared + warp * (ST + 1) * 8, lane);
#if NINFER_HAS_BULK_COPY
    const u32 x_barrier = shared + warp * (ST + 1) * 8 + ST * 8;
    if (XM == X_IN_SHARED && lane == 0) {
      barrier_init(x_barrier, 1);
      barrier_init_fence();
    }
#endif
    const u64 tile_bytes = (u64)records * BYTES;
    const u8* own = weight + (u64)first * BYTES;
    RecordWalk<KC, BYTES> walk = {own + my.number(0) * tile_bytes, own + my.number(1) * tile_bytes,
                                  my.teams * tile_bytes, my.count, count, count};
    auto fill = [&](int stage) {
      const u8* source = walk.source;
      ring.fill(stage, source, walk.pass_stage());
    };
    if (ring.fills()) {
#pragma unroll
      for (int i = 0; i < AHEAD; i++) fill(i);
    }
    const auto fill_others = [&]() {
      __syncwarp();
      if (ring.fills())
#pragma unroll
        for (int i = AHEAD; i < ST; i++) fill(i);
      __syncwarp();
    };
    __syncwarp();

    // Sums of a row tile lie as [column][row] for each warp; a thread finishes the same element of
    // every tile, by turns with the thread half a block away.
    constexpr int COLUMNS = XR, ELEMENTS = 16 * COLUMNS, SUM_BYTES = ELEMENTS * 4;
    const int my_element = threadIdx.x % ELEMENTS, my_row = my_element & 15;
    const int my_column = my_element >> 4;
    u16 first_weight = 0;  // of the norm, for the first tile: a constant, but far away
    if (RESULT == ADDED && my.number(0) * 16 + my_row < rows)
      first_weight = norm_weight[my.number(0) * 16 + my_row];

    if (!beside) wait_for_previous_kernels();
    // All that the kernels before have made is asked for before any of it is waited for, where registers
    // are not scarce.
    float my_factor = 1.f;
    const bool scales_column = F != BF16 && !squares && my_column < columns;
    if (!SPLIT && scales_column) my_factor = column_scale[my_column];
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
      fill_others();
    } else if constexpr (XM == X_IN_SHARED) {
#if NINFER_HAS_BULK_COPY
      if (lane == 0 && count > 0) {
        barrier_expect(x_barrier, count * X_RECORD);
        bulk_copy(x_shared, x_warp, count * X_RECORD, x_barrier, EVICT_LAST);
      }
      fill_others();
      if (count > 0) barrier_wait(x_barrier, 0);
#else
      for (int i = lane * 16; i < count * X_RECORD; i += 512) {
        const uint4 v = load_global_16(x_warp + i);
        *(uint4*)shared_pointer(x_shared + i) = v;
      }
      fill_others();
#endif
    } else {
      fill_others();
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

    if (SPLIT && scales_column) my_factor = column_scale[my_column];
    my_factor *= record_factor<F>();

    const ActivationRows products = {half, half_factor, words, words_factor, XR};
    if (RESULT == GATED && block == 0 && threadIdx.x < columns)
      products.store_factors(threadIdx.x, FIXED_FACTOR);

    float acc[4];
    const auto multiply_words = [&](const LaneRecord<F>& r, int i) {
      u32 b[8];
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
    const auto use = [&](u32 record, int i) { multiply_words(load_record<F>(record, lane), i); };
    const auto next_stage = [&]() {
      const int stage = ring.release();
      // With bulk copies nothing counts the fills: after the last one no lane parts from the others.
      if (ring.fills() && (!NINFER_HAS_BULK_COPY || walk.tiles > 0)) fill(stage);
    };

    // What belongs to a row, read before it is needed where registers are not scarce.
    constexpr bool EARLY = !SPLIT && MB == 1, ROW_SCALES = F == NVFP4 || F == FP8;
    struct Row {
      float scale;
      u16 sum, weight;  // of what a product is added to, as they came: so nothing waits for them yet
    };
    const auto load_row = [&](int tile) {
      const int row = tile * 16 + my_row;
      Row r = {1.f, 0, 0};
      if (my_column >= columns || row >= rows) return r;
      if (ROW_SCALES) r.scale = row_scale[row];
      if (RESULT == ADDED) {
        r.sum = residual[(u64)my_column * rows + row];
        r.weight = tile < my.teams ? first_weight : norm_weight[row];
      }
      return r;
    };
    const auto store_residual = [&](int tile, float v, const Row& before) {
      const int row = tile * 16 + my_row;
      const u16 bits = float_to_bf16(bf16_to_float(before.sum) + v);
      const float sum = bf16_to_float(bits);
      const float weighted = sum * (bf16_to_float(before.weight) + norm_offset);
      residual[(u64)my_column * rows + row] = bits;
      const u32 at = products.place_of(my_column, row);
      ((u16*)half)[at] = float_to_f16(weighted * (1.f / DEFERRED_NORM_SCALE));
      ((u16*)words)[at] = float_to_bf16(weighted);
      float square = sum * sum;
#pragma unroll
      for (int d = 8; d > 0; d /= 2)  // the 16 rows of a column lie side by side
        square += __shfl_xor_sync(0xffffu << (lane & 16), square, d);
      if (my_row == 0) squares_out[my_column * tiles + tile] = square;
    };
    const auto store_element = [&](u64 at, float v) {
      if (float_output)
        ((float*)y)[at] = v;
      else
        ((u16*)y)[at] = float_to_bf16(v);
    };
    const auto store_gated = [&](int tile, float v) {
      const float up = __shfl_xor_sync(0xffffu << (lane & 16), v, 8);  // 8 rows further
      const int row = tile * 8 + my_row;
      if (my_row >= 8) return;
      v = silu(v) * up;
      if (y) store_element((u64)my_column * stride + row, v);
      products.store_element(my_column, row, float_to_bf16(v));
    };
    const auto store = [&](int tile, float v, const Row& before) {
      const int row = tile * 16 + my_row;
      if (my_column < columns && row < rows) {
        v *= my_factor;
        if (squares) v *= load_shared_float(norm_at + my_column * 4);
        if (ROW_SCALES) v *= before.scale;
        if constexpr (RESULT == ADDED)
          store_residual(tile, v, before);
        else if constexpr (RESULT == GATED)
          store_gated(tile, v);
        else
          store_element((u64)my_column * stride + row, v);
      }
    };

    // Sum of the warps, in their order, for row tile t of the block. The array alternates, so that one
    // barrier is enough. Of the halves of a block the second one finishes the last tile.
    const u32 own_at = sums_at + 2 * W * SUM_BYTES;
    const auto is_in_half = [&](int half) {
      return (threadIdx.x + half * (W * 16)) % (W * 32) < ELEMENTS;
    };
    const auto finishes = [&](int t) { return is_in_half((my.count - t) & 1); };
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

    // Multiplies this warp's records of a row tile.
    const auto multiply = [&]() {
      acc[0] = acc[1] = acc[2] = acc[3] = 0.f;
      const auto has = [&](int i) { return EVEN || i < XM - 1 || i < count; };
      static_assert(!HELD || XM > 0 || EVEN, "constant numbers of records");
      const auto hold = [&](u32 stage, int first, int filled) {
        LaneRecord<F> held[KC];
#pragma unroll
        for (int i = 0; i < KC; i++)
          if (i < filled && has(first + i)) held[i] = load_record<F>(stage + i * BYTES, lane);
        next_stage();
#pragma unroll
        for (int i = 0; i < KC; i++)
          if (i < filled && has(first + i)) multiply_words(held[i], first + i);
      };
      if constexpr (XM > 0) {
#pragma unroll
        for (int c = 0; c < XM; c += KC) {
          if (!has(c)) continue;
          const u32 stage = ring.wait();
          if constexpr (HELD) {
            hold(stage, c, min_int(KC, XM - c));
            continue;
          }
#pragma unroll
          for (int i = 0; i < KC; i++)
            if (c + i < XM && has(c + i)) use(stage + i * BYTES, c + i);
          next_stage();
        }
      } else {
#pragma unroll 1
        for (int c = 0; c < count; c += KC) {
          const u32 stage = ring.wait();
          const int filled = min_int(KC, count - c);
          if constexpr (HELD) {
            if (filled == KC)
              hold(stage, c, KC);
            else
              hold(stage, c, KL);
            continue;
          }
          if (EVEN && filled == KC) {
#pragma unroll
            for (int i = 0; i < KC; i++) use(stage + i * BYTES, c + i);
          } else if (EVEN) {
#pragma unroll
            for (int i = 0; i < KL; i++) use(stage + i * BYTES, c + i);
          } else {
#pragma unroll 1
            for (int i = 0; i < filled; i++) use(stage + i * BYTES, c + i);
          }
          next_stage();
        }
      }
    };

    const TileExchange exchange{exchanged};
    for (int t = 0; t < my.count; t++) {
      const int tile = my.number(t);
      Row before = {};
      if (EARLY && finishes(t)) before = load_row(tile);
      multiply();
      add_warps(t, [&](float v) {
        if (!my.finishes(t))
          exchange.send(tile * ELEMENTS + my_element, v);
        else if (SPLIT)
          store_shared_float(own_at + t * SUM_BYTES + my_element * 4, v);
        else
          store(tile, v, EARLY ? before : load_row(tile));
      });
    }

    if constexpr (SPLIT) {
      __syncthreads();
      for (int i = threadIdx.x; i < my.count * ELEMENTS; i += W * 32) {
        const int t = i / ELEMENTS, tile = my.number(t), at = tile * ELEMENTS + my_element;
        if (!my.finishes(t)) continue;
        const Row before = load_row(tile);
        const float other = exchange.receive(at);
        store(tile, load_shared_float(own_at + i * 4) + other, before);
      }
    }
    if (beside) wait_for_previous_kernels();
  }
};

}  // namespace ninfer
