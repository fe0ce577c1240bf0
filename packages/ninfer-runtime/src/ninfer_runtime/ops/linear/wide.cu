// Linear for 9 to 128 columns on sm_90a: y[T, N] = x[T, K] * weight[N, K]^T.
//
// One warp streams records and activations through a ring that all warpgroups read. A warpgroup owns
// 64 rows (four row tiles) of a pass, or shares them with others that take other parts of K. Weights
// are decoded into registers and multiplied from there; the tensor cores read the activations in
// shared memory by themselves. Up to 16 columns medium.cu is faster for most formats.
#include "ninfer/activation_rows.cuh"
#include "ninfer/async_copy.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/prelude.cuh"
#include "ninfer/product_result.cuh"
#include "ninfer/wgmma_records.cuh"

#if NINFER_HAS_WGMMA

extern __shared__ __align__(1024) u8 dynamic_shared[];

namespace ninfer {

// Registers of a multiplying thread, once the warpgroup that loads has given up most of its own.
constexpr int multiplier_registers(int groups) {
  return groups >= 5 ? 88 : groups == 4 ? 112 : groups == 3 ? 160 : 240;
}

// F: weight format. N: columns of x in memory (16, 32, 64 or 128). G: warpgroups that multiply.
// KC: records of a warpgroup and row tile in a stage. `row_groups` warpgroups take different
// rows, G / row_groups different parts of K. `beside` and RESULT: as in skinny_product.cuh; what products will
// read is stored as tiles for wgmma, and nothing is added to a residual.
template <int F, int N, int G, int KC, int RESULT>
__global__ __launch_bounds__((G + 1) * 128, 1) void linear_wide_kernel(
    const u8* __restrict__ weight, const u8* x, void* y, const float* __restrict__ row_scale,
    const float* column_scale, int tiles, int rows, int columns, int stride, int records,
    int float_output, int row_groups, int stages, int beside, u32* half, float* half_factor,
    u32* words, float* words_factor) {
  static_assert(RESULT != ADDED, "no kernel");
  constexpr int BYTES = RecordShape<F>::BYTES, X_TILE = N * 128;
  const u32 shared = (shared_address(dynamic_shared) + 1023) & ~1023u;
  const int lane = threadIdx.x & 31, warp = warp_index();
  const int k_groups = G / row_groups, stage_records = k_groups * KC;
  const u32 x_stage = stage_records * X_TILE, tile_stage = stage_records * BYTES;
  const u32 full = shared, empty = shared + stages * 8;
  const u32 x_at = shared + 1024, weight_at = x_at + stages * x_stage;
  const int most_tiles = (tiles + (int)gridDim.x - 1) / (int)gridDim.x;  // of a block
  const u32 weight_stage = min_int(row_groups * 4, most_tiles) * tile_stage;
  const u32 sums_at = weight_at + stages * weight_stage;

  const int begin = (int)((u64)blockIdx.x * tiles / gridDim.x);
  const int end = (int)((u64)(blockIdx.x + 1) * tiles / gridDim.x);
  const int pass_tiles = row_groups * 4;
  const int passes = (end - begin + pass_tiles - 1) / pass_tiles;
  const int pass_stages = (records + stage_records - 1) / stage_records;

  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; i++) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, G * 4);
    }
    barrier_init_fence();
  }
  __syncthreads();

  if (warp >= G * 4) {  // the warpgroup that loads, with one warp
    give_up_registers<24>();
    if (warp > G * 4) return;
    const int total = passes * pass_stages;
    const auto load_weights = [&](int slot, int first, int chunk) {
      const int valid = min_int(pass_tiles, end - first);
      const int count = min_int(stage_records, records - chunk * stage_records);
      if (lane == 0) barrier_expect(full + 8 * slot, (valid * BYTES + X_TILE) * count);
      __syncwarp();
      if (lane < valid)
        bulk_copy(weight_at + slot * weight_stage + lane * tile_stage,
                  weight + ((u64)(first + lane) * records + chunk * stage_records) * BYTES,
                  count * BYTES, full + 8 * slot, EVICT_FIRST);
    };
    const auto load_x = [&](int slot, int chunk) {
      const int count = min_int(stage_records, records - chunk * stage_records);
      if (lane == 0)
        bulk_copy(x_at + slot * x_stage, x + (u64)chunk * x_stage, count * X_TILE, full + 8 * slot,
                  EVICT_LAST);
    };
    const int ahead = min_int(stages, total);
    for (int i = 0; i < ahead; i++)
      load_weights(i, begin + i / pass_stages * pass_tiles, i % pass_stages);
    if (!beside) wait_for_previous_kernels();
    for (int i = 0; i < ahead; i++) load_x(i, i % pass_stages);
    let_next_kernel_start();
    int first = begin + ahead / pass_stages * pass_tiles, chunk = ahead % pass_stages, slot = 0;
    u32 phase = 0;
    for (int i = ahead; i < total; i++) {
      barrier_wait(empty + 8 * slot, phase);
      load_weights(slot, first, chunk);
      load_x(slot, chunk);
      if (++chunk == pass_stages) {
        chunk = 0;
        first += pass_tiles;
      }
      if (++slot == stages) {
        slot = 0;
        phase ^= 1;
      }
    }
    if (beside) wait_for_previous_kernels();
  } else {
    take_registers<multiplier_registers(G)>();
    if (!beside) wait_for_previous_kernels();
    const int group = warp >> 2, row_group = group / k_groups, k_group = group % k_groups;
    const int my_tile = row_group * 4 + (warp & 3);
    const u32 my_records = weight_at + my_tile * tile_stage + k_group * KC * BYTES;
    const u32 my_x = wgmma_descriptor(x_at + k_group * KC * X_TILE);
    const ActivationRows products = {half, half_factor, words, words_factor, N};
    if (RESULT == GATED && blockIdx.x == 0 && threadIdx.x < columns)
      products.store_factors(threadIdx.x, FIXED_FACTOR);
    const auto store_element = [&](u64 at, float v) {
      if (float_output)
        ((float*)y)[at] = v;
      else
        ((u16*)y)[at] = float_to_bf16(v);
    };
    const auto store_gated = [&](int column, int row, float v) {
      if (y) store_element((u64)column * stride + row, v);
      products.store_element(column, row, float_to_bf16(v));
    };
    Multiplier<F, N> product = {};
    int slot = 0, held = -1;  // held: the stage before, while its last record is in flight
    u32 phase = 0, record = my_records, x_tile = my_x;  // of the stage in `slot`
    const auto release = [&]() {
      __syncwarp();  // all lanes have read it
      if (held >= 0 && lane == 0) barrier_arrive(empty + 8 * held);
      held = -1;
    };
    for (int tile = begin + my_tile; tile - my_tile < end; tile += pass_tiles) {
      const bool valid = tile < end, group_valid = tile - (warp & 3) < end;
      product.clear();
      for (int left = records; left > 0; left -= stage_records) {
        barrier_wait(full + 8 * slot, phase);
        const int count = group_valid ? min_int(KC, left - k_group * KC) : 0;
        const auto step = [&](int i) {
          product.step(record + i * BYTES, valid, lane, i & 1, x_tile + i * (X_TILE / 16));
          if (i == 0) release();  // of the stage before
        };
        if (count == KC) {
#pragma unroll
          for (int i = 0; i < KC; i++) step(i);
        } else {
#pragma unroll
          for (int i = 0; i < KC - 1; i++)
            if (i < count) step(i);
        }
        if (count < KC || KC % 2 == 1) {  // the next stage begins with slot 0 again
          product.finish();
          product.forget();
          release();
          if (lane == 0) barrier_arrive(empty + 8 * slot);
        } else {
          held = slot;
        }
        record += weight_stage;
        x_tile += x_stage / 16;
        if (++slot == stages) {
          slot = 0;
          phase ^= 1;
          record = my_records;
          x_tile = my_x;
        }
      }
      product.finish();
      release();
      float* acc = product.acc;

      if (k_groups > 1) {  // the first part of K adds the others in their order
        constexpr int PART = 128 * N * 2;
        const u32 sums = sums_at + row_group * (k_groups - 1) * PART + (threadIdx.x & 127) * 16;
        if (k_group > 0) {
#pragma unroll
          for (int j = 0; j < N / 2; j += 4)
            store_shared_floats(sums + (k_group - 1) * PART + j / 4 * 2048, acc + j);
        }
        asm volatile("bar.sync 1, %0;" ::"n"(G * 128) : "memory");
        if (k_group == 0) {
          for (int g = 0; g < k_groups - 1; g++)
#pragma unroll
            for (int j = 0; j < N / 2; j += 4) {
              float part[4];
              load_shared_floats(sums + g * PART + j / 4 * 2048, part);
#pragma unroll
              for (int i = 0; i < 4; i++) acc[j + i] += part[i];
            }
        }
        asm volatile("bar.sync 1, %0;" ::"n"(G * 128) : "memory");
      }
      if (k_group == 0 && valid) {
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
          const int row = tile * 16 + (lane >> 2) + 4 * (j & 2);
          const int column = j / 4 * 8 + 2 * (lane & 3) + (j & 1);
          if (column < columns && row < rows) {
            float v = acc[j] * record_factor<F>();
            if constexpr (F != BF16) v *= column_scale[column];
            if (row_scale) v *= row_scale[row];
            acc[j] = v;
            if (RESULT == STORED) store_element((u64)column * stride + row, v);
          }
        }
        if constexpr (RESULT == GATED) {
#pragma unroll
          for (int j = 0; j < N / 4; j++) {
            const int column = j / 2 * 8 + 2 * (lane & 3) + (j & 1);
            const float* gate = acc + j / 2 * 4 + (j & 1);
            const float v = silu(gate[0]) * gate[2];  // what is gated is 8 rows further
            if (column < columns) store_gated(column, tile * 8 + (lane >> 2), v);
          }
        }
      }
    }
  }
}

}  // namespace ninfer

#endif
