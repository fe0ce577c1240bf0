// First half of Gated DeltaNet over chunks of 64 tokens: everything that does not touch the state.
//
// With the unit keys K and queries Q of a chunk [64, 128], the running sums G of the logarithms of
// its decays, D[i, j] = exp(G[i] - G[j]) and the step sizes beta, a value head gets
//
//     M = (I + strictly_lower(beta K K^T * D))^-1        P = lower(Q K^T * D)
//
// in f16: its entries are at most 1, and it has 3 bits more than bf16.
#include "ninfer/delta_chunk.cuh"
#include "ninfer/delta_inverse.cuh"
#include "ninfer/delta_segment.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/matrices.cuh"
#include "ninfer/mma.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int TOGETHER = 4;  // value heads whose matrices are in shared memory at once

// Products of 16 rows of a tile with the keys: those of later rows, or for queries of earlier ones.
NINFER_DEVICE void multiply_keys(float (&c)[8][4], u32 rows, u32 keys, bool is_query, int block,
                                 int lane) {
  const u32 a_base = rows + (16 * block + lane % 16) * 128 + ((lane / 16) ^ (lane & 7)) * 16;
  const u32 b_base = keys + (lane / 16 * 8 + lane % 8) * 128 + ((lane / 8 % 2) ^ (lane & 7)) * 16;
#pragma unroll
  for (int t = 0; t < HEAD / 16; t++) {
    const u32 half = t / 4 * TILE_BYTES, turn = t % 4 * 32;
    u32 a[4];
    load_matrices(a, (a_base + half) ^ turn);
#pragma unroll
    for (int p = 0; p < 4; p++) {
      if (is_query ? p > block : p < block) continue;
      u32 b[4];
      load_matrices(b, (b_base + half + p * 2048) ^ turn);
      mma_16x8x16<false>(c[2 * p], a, b[0], b[1]);
      mma_16x8x16<false>(c[2 * p + 1], a, b[2], b[3]);
    }
  }
}

// Decays and step sizes of the chunk, by one warp: two tokens a lane. Sums of many decays are large
// where their differences are small: a second float keeps what the first one rounds off.
NINFER_DEVICE void store_factors(const HeadMemory& head, const float (&g)[2],
                                 const float (&beta)[2], float* factors, int lane) {
  double sum = (double)g[0] + (double)g[1];
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const double before = __shfl_up_sync(~0u, sum, d);
    if (lane >= d) sum += before;
  }
  const double last = __shfl_sync(~0u, sum, 31);
  const double sums[2] = {sum - (double)g[1], sum};
  const double first = __shfl_sync(~0u, sums[0], lane & 24),
               end = __shfl_sync(~0u, sums[1], lane | 7);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int token = 2 * lane + i;
    const float rounded = (float)sums[i], decay = exp_or_zero(rounded) * (1 << SHRINK);
    const float from_first = exp_or_zero((float)(sums[i] - first));
    head.decay_sum()[token] = rounded;
    head.decay_rest()[token] = (float)(sums[i] - (double)rounded);
    head.step()[token] = beta[i];
    head.until_end()[token] = exp_or_zero((float)(end - sums[i]));
    head.from_first()[token] = from_first;
    head.from_first_step()[token] = from_first * beta[i];
    factors[STEP_DECAY + token] = beta[i] * decay;
    factors[STEP + token] = beta[i];
    factors[DECAY + token] = decay;
    factors[REMAINING + token] = exp_or_zero((float)(last - sums[i])) / (1 << SHRINK);
  }
  const double later = __shfl_sync(~0u, sums[0], lane / 4 * 8 & 24);
  const double earlier = __shfl_sync(~0u, sums[1], lane % 4 * 8 + 7);
  if (lane < 16) head.between_blocks()[lane] = exp_or_zero((float)(later - earlier));
}

// Products of a block of tokens with itself times their decays, and for A step sizes.
NINFER_DEVICE void decay_diagonal(float (&v)[2][4], const float (&c)[8][4], const HeadMemory& head,
                                  bool is_query, int block, int lane) {
  const float *sums = head.decay_sum() + 16 * block, *rests = head.decay_rest() + 16 * block;
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int row = lane / 4 + e / 2 * 8, column = 8 * half + lane % 4 * 2 + e % 2;
      const float difference = (sums[row] - sums[column]) + (rests[row] - rests[column]);
      const float decay = exp_or_zero(is_query ? difference : -difference);
      const float factor = is_query ? decay : decay * head.step()[16 * block + column];
      const bool keeps = is_query ? row >= column : row < column;
      v[half][e] = keeps ? c[half][e] * factor : 0.f;
    }
}

// The same of a block with another one. All three factors are 1 at most.
NINFER_DEVICE void decay_block(float (&v)[2][4], const float (&c)[8][4], const float* rows,
                               const float* columns, float between, int lane) {
  const float row[2] = {rows[lane / 4] * between, rows[lane / 4 + 8] * between};
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float2 column = *(const float2*)(columns + 8 * half + lane % 4 * 2);
#pragma unroll
    for (int e = 0; e < 4; e++)
      v[half][e] = c[half][e] * (row[e / 2] * (e % 2 ? column.y : column.x));
  }
}

// A or P of a head from the products of its keys: rows of 16 tokens by this warp. A is transposed
// here: the products with later keys are its columns.
NINFER_DEVICE void store_decayed(const float (&c)[8][4], const HeadMemory& head, u8* scores,
                                 bool is_query, int block, int lane) {
  const float* rows = (is_query ? head.from_first() : head.until_end()) + 16 * block;
  const float* columns = is_query ? head.until_end() : head.from_first_step();
#pragma unroll
  for (int p = 0; p < 4; p++) {
    if (is_query ? p > block : p < block) continue;
    const float(&products)[8][4] = *(const float(*)[8][4]) & c[2 * p];
    float v[2][4];
    if (p == block)
      decay_diagonal(v, products, head, is_query, block, lane);
    else
      decay_block(v, products, rows, columns + 16 * p,
                  head.between_blocks()[is_query ? block * 4 + p : p * 4 + block], lane);
    if (!is_query && p == block) {
      float* row = head.diagonal(block) + lane / 4 * 16 + lane % 4 * 2;
#pragma unroll
      for (int half = 0; half < 2; half++) {
        *(float2*)(row + 8 * half) = make_float2(v[half][0], v[half][1]);
        *(float2*)(row + 8 * half + 128) = make_float2(v[half][2], v[half][3]);
      }
      continue;
    }
    const u32 words[4] = {f16_pair(v[0][0], v[0][1]), f16_pair(v[1][0], v[1][1]),
                          f16_pair(v[0][2], v[0][3]), f16_pair(v[1][2], v[1][3])};
    if (is_query)
      store_block(scores, block, p, words, lane);
    else
      *(uint4*)(head.below(p, block) + lane * 16) =
          make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// Where a block is: everything of one chunk.
struct Place {
  Tokens tokens;
  int begin, end;  // tokens of the chunk
  i64 first;       // row of the first new token
};

// Keys and queries of a key head into tiles of shared memory, and into their record.
template <class W>
NINFER_DEVICE void find_units(const Place& place, const u16* u, i64 u_stride, const W* convolution,
                              u32 channels, u32 key_heads, u32 key_head, u8* tiles, u8* record,
                              int warp, int lane) {
#pragma unroll 1
  for (int task = warp; task < 2 * SEGMENTS; task += WARPS) {
    const int part = task / SEGMENTS, row = task % SEGMENTS * SEGMENT;  // 0: keys
    const u32 channel = ((part == 0 ? key_heads : 0) + key_head) * HEAD + 4 * lane;
    Segment segment;
    segment.load(place.tokens, u + place.first * u_stride, u_stride, channel, place.begin + row,
                 place.end);
    segment.convolve(convolution, channels, channel);
    segment.store_units(tiles + part * KEY_BYTES, record + part * KEY_BYTES, row, lane);
  }
}

// Values of neighbouring heads into their records, with the largest one. `largest`: a float for
// each head and warp in shared memory.
template <class W>
NINFER_DEVICE void find_values(const Place& place, const u16* u, i64 u_stride, const W* convolution,
                               u32 channels, u32 first_head, int count, u8* records, float* largest,
                               int thread) {
  static_assert(SEGMENTS == WARPS, "each warp has one segment of every head");
  const int lane = thread % 32, warp = thread / 32, row = warp * SEGMENT;
#pragma unroll 1
  for (int h = 0; h < count; h++) {
    const u32 channel = (first_head + h) * HEAD + 4 * lane;
    Segment segment;
    segment.load(place.tokens, u + place.first * u_stride, u_stride, channel, place.begin + row,
                 place.end);
    segment.convolve(convolution, channels, channel);
    const float value =
        segment.store_values(records + h * VALUE_RECORD_BYTES + TERM_BYTES, row, lane);
    if (lane == 0) largest[h * WARPS + warp] = value;
  }
  __syncthreads();
  for (int h = thread; h < count; h += THREADS) {
    float value = 0.f;
    for (int i = 0; i < WARPS; i++) value = fmaxf(value, largest[h * WARPS + i]);
    ((float*)(records + h * VALUE_RECORD_BYTES + 2 * INVERSE_BYTES))[LARGEST_VALUE] = value;
  }
}

// Decays and step sizes of the tokens of a head, by one warp.
NINFER_DEVICE void find_factors(const Place& place, const u16* a, i64 a_stride, const u16* b,
                                i64 b_stride, float a_log, float bias, u32 recorded, u32 head,
                                u32 heads, const HeadMemory& memory, float* factors, int lane) {
  const Tokens& tokens = place.tokens;
  const float factor = -__expf(a_log);
  float g[2] = {}, beta[2] = {};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int token = place.begin + 2 * lane + i;
    if (token >= place.end) continue;
    const u16* place_a = a + (place.first + token - tokens.replayed) * a_stride + head;
    const u16* place_b = b + (place.first + token - tokens.replayed) * b_stride + head;
    if (token < tokens.replayed) {
      place_a = tokens.records + tokens.record(token) + recorded + head;
      place_b = place_a + heads;
    }
    // Finite, so that differences of sums are.
    g[i] = fmaxf(factor * softplus(bf16_to_float(*place_a) + bias), -1e30f);
    beta[i] = sigmoid(bf16_to_float(*place_b));
  }
  store_factors(memory, g, beta, factors, lane);
  const float largest_step = warp_max(fmaxf(beta[0], beta[1]));
  if (lane == 0) factors[LARGEST_STEP] = largest_step;
}

// Blocks: [sequence][chunk of this pass][key head][keys or values], one more if it runs beside the
// kernel before it; 256 threads. Shared memory: tiles of keys and queries, TOGETHER value heads at
// most; or 8 floats a value head.
template <class W>
__global__ __launch_bounds__(THREADS, 3) void gated_delta_net_terms_kernel(
    const u16* u, i64 u_stride, const u16* a, i64 a_stride, const u16* b, i64 b_stride,
    const W* convolution, const float* a_log, const float* dt_bias, const u16* records,
    const int* sources, const int* positions, const int* replays, const int* new_columns,
    const int* commits, u8* key_records, u8* value_records, u32 columns, u32 key_heads, u32 heads,
    u32 ring, u32 first_chunk, u32 chunks, u32 runs_beside) {
  extern __shared__ __align__(1024) u8 shared[];
  const int thread = threadIdx.x, lane = thread % 32, warp = warp_index();
  const bool has_keys = blockIdx.x % 2 == 0;
  const u32 group = blockIdx.x / 2, key_head = group % key_heads, record = group / key_heads;
  const u32 sequence = record / chunks, chunk = first_chunk + record % chunks;
  const int repeat = heads / key_heads;
  const u32 channels = (2 * key_heads + heads) * HEAD, record_width = channels + 2 * heads;

  // A later pass reads nothing that the kernel before it writes, and writes nothing that it reads.
  // A last block of its own waits nevertheless, so that who waits for this kernel waits for that
  // one too.
  if (!runs_beside) wait_for_previous_kernels();
  let_next_kernel_start();
  if (runs_beside && blockIdx.x + 1 == gridDim.x) {
    wait_for_previous_kernels();
    return;
  }
  const Sequence steps(positions, replays, new_columns, commits, sequence);
  if (!steps.is_chunked() || chunk >= steps.chunks()) return;
  const Place place{
      {records + (i64)sources[sequence] * ring * record_width, nullptr, record_width, (int)ring,
       steps.position % (int)ring, steps.position, steps.replayed, steps.total(), false, false},
      steps.chunk_begin(chunk),
      steps.chunk_end(chunk),
      (i64)sequence * columns};
  const u32 first_head = key_head * repeat;
  u8* const value_record = value_records + ((i64)record * heads + first_head) * VALUE_RECORD_BYTES;
  if (!has_keys) {
    find_values(place, u, u_stride, convolution, channels, 2 * key_heads + first_head, repeat,
                value_record, (float*)shared, thread);
    return;
  }
  find_units(place, u, u_stride, convolution, channels, key_heads, key_head, shared,
             key_records + (i64)group * KEY_RECORD_BYTES, warp, lane);
  __syncthreads();

  const bool is_query = warp >= 4;
  const int block = warp % 4;
  float products[8][4] = {};
  const u32 keys = shared_address(shared);
  multiply_keys(products, is_query ? keys + KEY_BYTES : keys, keys, is_query, block, lane);

  for (int h0 = 0; h0 < repeat; h0 += TOGETHER) {
    const int count = min(TOGETHER, repeat - h0);
    auto memory = [&](int h) { return HeadMemory{shared + KEY_RECORD_BYTES + h * HEAD_BYTES}; };
    auto terms = [&](int h) { return value_record + (h0 + h) * VALUE_RECORD_BYTES; };
    // By the warps with the fewest products.
    const int gated = warp < 4 ? 2 * (3 - warp) : 2 * (warp - 4) + 1;
    if (gated < count) {
      const u32 head = first_head + h0 + gated;
      find_factors(place, a, a_stride, b, b_stride, a_log[head], dt_bias[head], channels, head,
                   heads, memory(gated), (float*)(terms(gated) + 2 * INVERSE_BYTES), lane);
    }
    __syncthreads();
#pragma unroll 1
    for (int h = 0; h < count; h++)
      store_decayed(products, memory(h), terms(h) + INVERSE_BYTES, is_query, block, lane);
    __syncthreads();
    const int sixteenth = thread / 16;
    if (sixteenth < 4 * count)
      invert_row(memory(sixteenth / 4).diagonal(sixteenth % 4),
                 memory(sixteenth / 4).unit(sixteenth % 4), thread % 16);
    __syncthreads();
    for (int task = warp; task < 4 * count; task += WARPS)
      invert_panel(memory(task % count), terms(task % count), 3 - task / count, lane);
  }
}

}  // namespace ninfer
