// Products of a mixture of experts for many tokens: the matrix of each expert with the rows of its
// slots, on sm_90a by warpgroups, elsewhere by warps.
//
// A slot is a token's place a: t * A + a. Sorted slots are rows; those of an expert follow one another
// and begin at a multiple of eight. A column tile is up to 128 or 64 rows of one expert.
#include "ninfer/async_copy.cuh"
#include "ninfer/elements.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/matrices.cuh"
#include "ninfer/mma.cuh"
#include "ninfer/wgmma_records.cuh"

extern __shared__ __align__(1024) u8 dynamic_shared[];

namespace ninfer {

constexpr int ALIGNMENT = 8;  // of the first row of an expert

NINFER_DEVICE int divide_up(int a, int b) { return (a + b - 1) / b; }

constexpr int BLOCK_TILES = 8;  // row tiles of a block, one for each warp that multiplies

// Which row tiles a block takes of an expert whose matrix has `tiles` of them: eight after another,
// or with PAIRS for each warpgroup two of the gate and the same two of the up matrix.
template <bool PAIRS>
NINFER_DEVICE int row_tile(int block, int index, int tiles) {
  if constexpr (PAIRS)
    return block * 4 + index / 4 * 2 + index % 2 + (index % 4 / 2) * (tiles / 2);
  else
    return block * 8 + index;
}

// Calls store(row, column, value) for the sums of a warp, of rows that `row_scale` belongs to.
template <int F, int N, class Store>
NINFER_DEVICE void for_each_sum(const float* acc, const float* row_scale, const float* factors,
                                int columns, int lane, Store store) {
  const int g = lane >> 2, q = lane & 3;
  float scale[2] = {record_factor<F>(), record_factor<F>()};
  if (row_scale) {
    scale[0] *= row_scale[g];
    scale[1] *= row_scale[g + 8];
  }
#pragma unroll
  for (int c = 0; c < N / 4; c++) {
    const int column = c / 2 * 8 + 2 * q + c % 2;
    if (column >= columns) continue;
    const float factor = F == BF16 ? 1.f : factors[column];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int j = c / 2 * 4 + c % 2 + 2 * h;
      store(g + 8 * h, column, acc[j] * scale[h] * factor, j);
    }
  }
}

struct GroupedOutput {
  float* data;  // [row][stride]
  i64 stride;
  const float* row_scale;  // null for formats without
  const float* factors;    // [row] of x
};

// Stores what a warp has summed up of one column tile. `exchange`: with PAIRS 32 * N floats of shared
// memory, of this half of the block.
template <int F, int N, bool PAIRS>
NINFER_DEVICE void store_tile(const float* acc, const GroupedOutput& out, int4 tile, int block,
                              int tiles, int first_tile, float* exchange, int index, int lane) {
  const int my_tile = first_tile + row_tile<PAIRS>(block, index, tiles);
  const float* row_scale =
      out.row_scale ? out.row_scale + ((i64)tile.x * tiles + my_tile) * 16 : nullptr;
  const float* factors = out.factors + tile.y;
  float* const target = out.data + tile.y * out.stride;
  if constexpr (PAIRS) {
    const int half = index / 4;
    float* const mine = exchange + index % 2 * (N / 2 * 32) + lane;
    if (index % 4 >= 2)
      for_each_sum<F, N>(acc, row_scale, factors, tile.z, lane,
                         [&](int row, int column, float up, int j) { mine[j * 32] = up; });
    asm volatile("bar.sync %0, 128;" ::"r"(half + 1) : "memory");
    if (index % 4 < 2)
      for_each_sum<F, N>(acc, row_scale, factors, tile.z, lane,
                         [&](int row, int column, float gate, int j) {
                           target[column * out.stride + my_tile * 16 + row] =
                               silu(gate) * mine[j * 32];
                         });
    asm volatile("bar.sync %0, 128;" ::"r"(half + 1) : "memory");
  } else {
    for_each_sum<F, N>(acc, row_scale, factors, tile.z, lane,
                       [&](int row, int column, float v, int j) {
                         target[column * out.stride + (my_tile - first_tile) * 16 + row] = v;
                       });
  }
}

// --- by warps -----------------------------------------------------------------------------------

constexpr int WARP_COLUMNS = 64;

// Two B fragments of 16 values of K: columns 0-7 in b[0], b[1], columns 8-15 in b[2], b[3].
NINFER_DEVICE void load_columns(u32* b, u32 x, int step, int lane) {
  const int row = (lane >> 4) * 8 + (lane & 7), chunk = 2 * step + (lane >> 3 & 1);
  load_matrices(b, x + row * 128 + ((chunk ^ row) & 7) * 16);
}

// acc += record * 64 columns of x.
template <int F>
NINFER_DEVICE void multiply_record_wide(float* acc, u32 record, u32 x, int lane) {
  constexpr int GROUPS = RecordShape<F>::GROUPS, PARTS = GROUPS > 0 ? GROUPS : 1;
  constexpr int STEPS = 4 / PARTS;
  const LaneRecord<F> r = load_record<F>(record, lane);
#pragma unroll
  for (int p = 0; p < PARTS; p++) {
    u32 a[STEPS][4];
#pragma unroll
    for (int s = 0; s < STEPS; s++) decode_step<F>(r, p * STEPS + s, a[s]);
    float s0 = 1.f, s1 = 1.f;
    if constexpr (GROUPS > 0) {
      const u32 scales = scale_pair<F>(r, p);
      s0 = f16_to_float((u16)scales);
      s1 = f16_to_float((u16)(scales >> 16));
    }
#pragma unroll
    for (int c = 0; c < WARP_COLUMNS / 16; c++) {
      float sum[8] = {};
      float* const target = GROUPS > 0 ? sum : acc + c * 8;
#pragma unroll
      for (int s = 0; s < STEPS; s++) {
        u32 b[4];
        load_columns(b, x + c * 16 * 128, p * STEPS + s, lane);
        mma_16x8x16<F == BF16>(target, a[s], b[0], b[1]);
        mma_16x8x16<F == BF16>(target + 4, a[s], b[2], b[3]);
      }
      if constexpr (GROUPS > 0) {
#pragma unroll
        for (int j = 0; j < 8; j++) acc[c * 8 + j] = fmaf(sum[j], j & 2 ? s1 : s0, acc[c * 8 + j]);
      }
    }
  }
}

// As `moe_grouped_kernel`, with column tiles of up to 64 rows. A stage holds one record of each warp
// and 64 values of every row; `stages` is STAGES.
template <int F, bool PAIRS, int STAGES>
__global__ __launch_bounds__(256, 1) void moe_grouped_by_warps_kernel(
    const u8* __restrict__ bank, const float* __restrict__ row_scale, const u8* x,
    const float* factors, const int4* column_tiles, const int* number, float* out, i64 stride,
    int records, i64 pitch, int tiles, int first_tile, int row_blocks, int stages) {
  constexpr int BYTES = RecordShape<F>::BYTES, X_BYTES = WARP_COLUMNS * 128;
  constexpr int STAGE = X_BYTES + BLOCK_TILES * BYTES;
  const u32 shared = shared_address(dynamic_shared);
  const int lane = threadIdx.x & 31, warp = warp_index();
  wait_for_previous_kernels();
  let_next_kernel_start();
  const int jobs = *number * row_blocks, step = gridDim.x;
  const int count = blockIdx.x < jobs ? (jobs - (int)blockIdx.x + step - 1) / step : 0;

  int loading = blockIdx.x, loading_record = 0, loading_slot = 0;
  const auto load_next = [&]() {
    if (loading < jobs) {
      const int4 tile = column_tiles[loading / row_blocks];
      const u32 target = shared + loading_slot * STAGE;
      const u8* rows = x + (loading_record * pitch + tile.y) * 128;
      const int bytes = divide_up(tile.z, ALIGNMENT) * ALIGNMENT * 128;
      for (int i = threadIdx.x * 16; i < bytes; i += 256 * 16) copy_16(target + i, rows + i);
      const int index = first_tile + row_tile<PAIRS>(loading % row_blocks, warp, tiles);
      const u8* record =
          bank + (((i64)tile.x * tiles + index) * records + loading_record) * BYTES;
      for (int i = lane * 16; i < BYTES; i += 512)
        copy_16(target + X_BYTES + warp * BYTES + i, record + i);
    }
    commit_copies();
    if (++loading_slot == STAGES) loading_slot = 0;
    if (++loading_record == records) {
      loading_record = 0;
      loading += step;
    }
  };
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) load_next();

  float* const exchange =
      (float*)(dynamic_shared + STAGES * STAGE) + warp / 4 * (WARP_COLUMNS * 32);
  const GroupedOutput target = {out, stride, row_scale, factors};
  int slot = 0;
  for (int i = 0; i < count; i++) {
    const int job = blockIdx.x + i * step;
    const int4 tile = column_tiles[job / row_blocks];
    float acc[WARP_COLUMNS / 2] = {};
    for (int record = 0; record < records; record++) {
      wait_for_copies<STAGES - 2>();
      __syncthreads();  // the stage has arrived, and nobody reads the one before it
      load_next();
      const u32 stage = shared + slot * STAGE;
      multiply_record_wide<F>(acc, stage + X_BYTES + warp * BYTES, stage, lane);
      if (++slot == STAGES) slot = 0;
    }
    store_tile<F, WARP_COLUMNS, PAIRS>(acc, target, tile, job % row_blocks, tiles, first_tile,
                                       exchange, warp, lane);
  }
}

// --- by warpgroups ------------------------------------------------------------------------------

#if NINFER_HAS_WGMMA

constexpr int TILE_COLUMNS = 128;
constexpr int GROUPS = 2;  // warpgroups that multiply
constexpr int X_TILE = TILE_COLUMNS * 128;

// The ring that a warp fills and the warpgroups read.
template <int F, int KC>
struct TileRing {
  static constexpr int BYTES = RecordShape<F>::BYTES;
  static constexpr int X_STAGE = KC * X_TILE, TILE_STAGE = KC * BYTES;
  static constexpr int WEIGHT_STAGE = BLOCK_TILES * TILE_STAGE;
  u32 full, empty, x_at, weight_at;
  int stages, slot;
  u32 phase;

  NINFER_DEVICE TileRing(u32 shared, int stages)
      : full(shared), empty(shared + stages * 8), x_at(shared + 1024),
        weight_at(shared + 1024 + stages * X_STAGE), stages(stages), slot(0), phase(0) {}

  NINFER_DEVICE void next() {
    if (++slot == stages) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// The sums of one warp's row tile and N columns over all records.
template <int F, int N, int KC>
NINFER_DEVICE void multiply_tile(TileRing<F, KC>& ring, Multiplier<F, N>& product, int records,
                                 int index, int lane) {
  using Ring = TileRing<F, KC>;
  int held = -1;  // the stage before, while its last record is in flight
  const auto release = [&]() {
    __syncwarp();  // all lanes have read it
    if (held >= 0 && lane == 0) barrier_arrive(ring.empty + 8 * held);
    held = -1;
  };
  product.clear();
  for (int left = records; left > 0; left -= KC) {
    barrier_wait(ring.full + 8 * ring.slot, ring.phase);
    const u32 record = ring.weight_at + ring.slot * Ring::WEIGHT_STAGE + index * Ring::TILE_STAGE;
    const u32 x_tile = wgmma_descriptor(ring.x_at + ring.slot * Ring::X_STAGE);
#pragma unroll
    for (int i = 0; i < KC; i++) {
      if (i < left) {
        product.step(record + i * Ring::BYTES, true, lane, i & 1, x_tile + i * (X_TILE / 16));
        if (i == 0) release();
      }
    }
    if (left < KC || KC % 2 == 1) {
      product.finish();
      product.forget();
      release();
      if (lane == 0) barrier_arrive(ring.empty + 8 * ring.slot);
    } else {
      held = ring.slot;
    }
    ring.next();
  }
  product.finish();
  release();
}

// What a warp does for one column tile and block of rows.
template <int F, int N, int KC, bool PAIRS>
NINFER_DEVICE void run_tile(TileRing<F, KC>& ring, const GroupedOutput& out, int4 tile, int block,
                            int tiles, int first_tile, int records, float* exchange, int index,
                            int lane) {
  Multiplier<F, N> product = {};
  multiply_tile<F, N, KC>(ring, product, records, index, lane);
  store_tile<F, N, PAIRS>(product.acc, out, tile, block, tiles, first_tile, exchange, index, lane);
}

// Products of column tiles with row tiles [first_tile, first_tile + 8 * row_blocks) of the experts'
// matrices (with PAIRS: of gates and up matrices together, whose combined product is stored).
template <int F, int KC, bool PAIRS>
__global__ __launch_bounds__((GROUPS + 1) * 128, 1) void moe_grouped_kernel(
    const u8* __restrict__ bank, const float* __restrict__ row_scale, const u8* x,
    const float* factors, const int4* column_tiles, const int* number, float* out, i64 stride,
    int records, i64 pitch, int tiles, int first_tile, int row_blocks, int stages) {
  using Ring = TileRing<F, KC>;
  const u32 shared = (shared_address(dynamic_shared) + 1023) & ~1023u;
  const int lane = threadIdx.x & 31, warp = warp_index();
  Ring ring(shared, stages);
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; i++) {
      barrier_init(ring.full + 8 * i, 1);
      barrier_init(ring.empty + 8 * i, GROUPS * 4);
    }
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_previous_kernels();
  let_next_kernel_start();
  const int jobs = *number * row_blocks, begin = blockIdx.x, step = gridDim.x;
  const auto tile_of = [&](int job) {
    return job < jobs ? column_tiles[job / row_blocks] : int4{};
  };
  int4 next = tile_of(begin);

  if (warp >= GROUPS * 4) {  // the warpgroup that loads, with one warp
    give_up_registers<24>();
    if (warp > GROUPS * 4) return;
    int filled = 0;
    for (int job = begin; job < jobs; job += step) {
      const int4 tile = next;
      next = tile_of(job + step);
      const int padded = divide_up(tile.z, ALIGNMENT) * ALIGNMENT;
      const int index = first_tile + row_tile<PAIRS>(job % row_blocks, lane & 7, tiles);
      const u8* weights = bank + ((i64)tile.x * tiles + index) * records * Ring::BYTES;
      const u8* rows = x + (i64)tile.y * 128;
      for (int record = 0; record < records; record += KC) {
        if (filled >= stages) barrier_wait(ring.empty + 8 * ring.slot, ring.phase ^ 1);
        filled++;
        const int count = min_int(KC, records - record);
        const u32 barrier = ring.full + 8 * ring.slot;
        if (lane == 0) barrier_expect(barrier, count * (BLOCK_TILES * Ring::BYTES + padded * 128));
        __syncwarp();
        if (lane < BLOCK_TILES)
          bulk_copy(ring.weight_at + ring.slot * Ring::WEIGHT_STAGE + lane * Ring::TILE_STAGE,
                    weights + (i64)record * Ring::BYTES, count * Ring::BYTES, barrier, EVICT_LAST);
        else if (lane < BLOCK_TILES + count) {
          const int i = lane - BLOCK_TILES;
          bulk_copy(ring.x_at + ring.slot * Ring::X_STAGE + i * X_TILE,
                    rows + (record + i) * pitch * 128, padded * 128, barrier, EVICT_LAST);
        }
        ring.next();
      }
    }
  } else {
    take_registers<240>();
    float* const exchange = (float*)(dynamic_shared + (shared - shared_address(dynamic_shared)) +
                                     1024 + stages * (Ring::X_STAGE + Ring::WEIGHT_STAGE)) +
                            warp / 4 * (TILE_COLUMNS * 32);
    const GroupedOutput target = {out, stride, row_scale, factors};
    for (int job = begin; job < jobs; job += step) {
      const int4 tile = next;
      next = tile_of(job + step);
      const int block = job % row_blocks;
      if (tile.z <= 32)
        run_tile<F, 32, KC, PAIRS>(ring, target, tile, block, tiles, first_tile, records, exchange,
                                   warp, lane);
      else if (tile.z <= 64)
        run_tile<F, 64, KC, PAIRS>(ring, target, tile, block, tiles, first_tile, records, exchange,
                                   warp, lane);
      else
        run_tile<F, 128, KC, PAIRS>(ring, target, tile, block, tiles, first_tile, records,
                                    exchange, warp, lane);
    }
  }
}

#endif

}  // namespace ninfer
