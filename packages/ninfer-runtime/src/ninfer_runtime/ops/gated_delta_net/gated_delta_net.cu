// Gated DeltaNet between its projections, token by token: convolution, gates, recurrence, gated norm
// and the order that the next product reads, in one launch.
//
// The state of a value head [128, 128] is cut into STRIPS strips of value rows, one for each block of
// a cluster. Each warp fetches its rows of the strip into shared memory, where they lie until they
// have seen all tokens; a few lanes hold a row of them in registers at a time. A row is computed by the
// same operations in the same order whatever the number of tokens, sequences and strips, and so is the
// norm.
#include "ninfer/activation_rows.cuh"
#include "ninfer/async_copy.cuh"
#include "ninfer/cluster.cuh"
#include "ninfer/delta_recurrence.cuh"
#include "ninfer/delta_squares.cuh"
#include "ninfer/launch_order.cuh"

namespace ninfer {

constexpr int WARPS = 8, THREADS = WARPS * 32;
constexpr int LANES = 8, ROWS_AT_ONCE = 32 / LANES;  // lanes of a row, rows of a warp
// Six warps convolve queries, keys and values of every other token, one computes decays and steps.
constexpr int KINDS = 3, TOKEN_TURNS = 2, GATE_WARP = KINDS * TOKEN_TURNS;
constexpr int FIRST_FINISHER = KINDS;  // a warp that has nothing to convolve if there is one token
constexpr int MOST_CHUNK = 16, HISTORY = TAPS - 1;

// Blocks: [sequence][value head][strip], clusters of STRIPS. `chunk` tokens are in shared memory at
// once. Sequences with more than `longest` new tokens are left to other kernels.
//
// `settled`: what the slots hold and what the sequences do was written before the launch that made the
// projections began. Then it is read at once: see launch_order.cuh.
template <int STRIPS, class W>
__global__
__launch_bounds__(THREADS, STRIPS == 4 && sizeof(W) == 2 ? 4 : 3) void gated_delta_net_kernel(
    const u16* u, i64 u_stride, const u16* a, i64 a_stride, const u16* b, i64 b_stride,
    const u16* z, i64 z_stride, const W* convolution, const float* a_log, const float* dt_bias,
    const W* norm, float* state, u16* records, const int* sources, const int* destinations,
    const int* positions, const int* replays, const int* new_columns, const int* commits, bf16* out,
    u32* half, float* half_factor, u32* words, float* words_factor, int block, int columns,
    int longest, u32 key_heads, u32 heads, u32 ring, u32 keeps, int chunk, u32 settled, float eps) {
  constexpr int ROWS = HEAD / STRIPS, WARP_ROWS = ROWS / WARPS;
  constexpr int TOGETHER = WARP_ROWS / ROWS_AT_ONCE >= 2 ? 2 : 1;  // rows that a lane works on
  constexpr int PASS_ROWS = ROWS_AT_ONCE * TOGETHER, PASSES = WARP_ROWS / PASS_ROWS;
  constexpr int TOKEN_LANES = ROWS / 8;  // lanes that finish a token
  extern __shared__ __align__(128) u8 dynamic[];
  __shared__ u64 arrivals[WARPS][PASSES];  // of the rows of each warp and pass
  __shared__ float decay[MOST_CHUNK], beta[MOST_CHUNK];
  __shared__ Task task;
  __shared__ StripSums<STRIPS, MOST_CHUNK> strip_sums;
  float(*const rows)[HEAD] = (float(*)[HEAD])dynamic;  // of the state
  float(*const query)[HEAD] = rows + ROWS;
  float(*const key)[HEAD] = query + chunk;
  float(*const value)[ROWS] = (float(*)[ROWS])(key + chunk);  // then results
  float(*const output_gate)[ROWS] = value + chunk;            // times the weight of the norm

  let_next_kernel_start();
  const int thread = threadIdx.x, lane = thread % 32, warp = warp_index();
  const u32 strip = blockIdx.x % STRIPS;
  const u32 own_head = blockIdx.x / STRIPS % heads, sequence = blockIdx.x / STRIPS / heads;
  const u32 channels = (2 * key_heads + heads) * HEAD;
  // What this warp convolves, and of which tokens of a chunk.
  const int kind = warp % KINDS, turn = warp / KINDS;
  const bool convolves = warp < KINDS * TOKEN_TURNS && (kind < 2 || lane < ROWS / 4);
  const bool makes_gates = warp == GATE_WARP;
  // The token of a chunk that this thread finishes, and its columns of the head.
  const int finisher = (thread - FIRST_FINISHER * 32) & (THREADS - 1);
  const int finished = finisher / TOKEN_LANES, column = finisher % TOKEN_LANES * 8;
  const u32 head_column = strip * ROWS + column;

  auto channel_of = [&](u32 head, u32 key_head) {  // the first that this lane convolves
    return lane * 4 + (kind == 2 ? (2 * key_heads + head) * HEAD + strip * ROWS
                                 : (kind * key_heads + key_head) * HEAD);
  };
  Channels<W> quad;
  Gates gates;
  auto load_weights = [&](u32 head, u32 key_head) {
    if (convolves) quad.load_weight(convolution, channels, channel_of(head, key_head));
    if (makes_gates) gates.load_weight(a_log, dt_bias, head);
  };
  auto load_channels = [&](int token) {
    quad.load_recorded(task.tokens, token, channel_of(task.head, task.key_head));
  };
  auto load_gates = [&](int token) {
    gates.load_recorded(task.tokens, token, task.first, a_stride, b_stride, task.head,
                        channels + task.head, heads);
  };
  // Fetches the rows of passes of this warp.
  auto fetch = [&](i64 from_head, int first_pass, int end_pass) {
    constexpr int PASS_BYTES = PASS_ROWS * HEAD * 4;
    const u8* from =
        (const u8*)(state + from_head) + (strip * WARPS + warp) * (PASSES * PASS_BYTES);
    const u32 to = shared_address(rows[warp * WARP_ROWS]);
#if NINFER_HAS_BULK_COPY
    for (int i = first_pass; i < end_pass && lane == 0; i++) {
      const u32 arrival = shared_address(&arrivals[warp][i]);
      barrier_expect(arrival, PASS_BYTES);
      bulk_copy(to + i * PASS_BYTES, from + i * PASS_BYTES, PASS_BYTES, arrival, EVICT_FIRST);
    }
#else
    for (int i = first_pass * PASS_BYTES + lane * 16; i < end_pass * PASS_BYTES; i += 512)
      copy_16(to + i, from + i);
    commit_copies();
#endif
  };
  load_weights(own_head, own_head / (heads / key_heads));
  WeightQuad<W> norm_weight[2];
  auto load_norm = [&] {
    for (int i = 0; i < 2; i++) norm_weight[i] = load_quad(norm + head_column + 4 * i);
  };
  load_norm();
#if NINFER_HAS_BULK_COPY
  if (lane == 0) {
    for (int i = 0; i < PASSES; i++) barrier_init(shared_address(&arrivals[warp][i]), 1);
    barrier_init_fence();
  }
#endif
  if constexpr (STRIPS > 1) {
    if (thread == 0) strip_sums.begin();
    __syncwarp();
    arrive_at_cluster();
  }

  if (!settled) wait_for_previous_kernels();
  // The state first of all, because it takes longest; of more passes than one the others once the new
  // tokens are there, which would wait behind them. A sequence without tokens fetches it in vain.
  const int source = __ldcg(sources + sequence);
  const bool is_left = __ldcg(new_columns + sequence) > longest;
  if (__ldcg(positions + sequence) > 0 && !is_left)
    fetch(((i64)source * heads + own_head) * (HEAD * HEAD), 0, 1);
  if (thread == 0)
    task.find(records, sources, destinations, positions, replays, new_columns, commits, sequence,
              own_head, heads, key_heads, columns, ring, keeps);
  __syncthreads();
  if (convolves) load_channels(turn);
  if (makes_gates) load_gates(lane - HISTORY);
  if constexpr (STRIPS > 1) wait_for_cluster();  // all have begun: their memory may be written
  if (settled) wait_for_previous_kernels();
  if (is_left) return;

#pragma unroll 1
  for (int begin = 0, index = 0;; begin += chunk, index++) {
    // After the tokens of the sequence come columns that do not exist.
    auto left = [&] { return task.tokens.replayed + columns - begin; };
    const int count = max(0, min(chunk, task.tokens.total - begin));
    const bool moves = begin == 0 && task.tokens.moves;  // the history to the other slot's records
    if (convolves) {
      const bool owns = kind == 2 || (strip == 0 && task.owns_key);
#pragma unroll 1
      for (int t = moves ? -2 - turn : turn; t < count; t += TOKEN_TURNS) {
        const int token = begin + t;
        if (token != turn || moves) load_channels(token);
        quad.load_new(task.tokens, token, u, task.first, u_stride,
                      channel_of(task.head, task.key_head));
        if (t >= 0) {
          float4 v = quad.convolve();
          if (kind < 2) v = unit_of(v, kind == 0 ? QUERY_SCALE : 1.f);
          *(float4*)(query[kind * chunk] + t * (kind < 2 ? HEAD : ROWS) + lane * 4) = v;
        }
        if (owns) quad.keep(task.tokens, token, channel_of(task.head, task.key_head));
      }
    }
    const int gated = lane - HISTORY;  // token of the chunk
    if (makes_gates && gated >= (moves ? -HISTORY : 0) && gated < count) {
      if (begin > 0) load_gates(begin + gated);
      gates.load_new(task.tokens, begin + gated, a, b);
      if (gated >= 0) {
        decay[gated] = gates.decay();
        beta[gated] = gates.step_size();
      }
      if (strip == 0) gates.keep(task.tokens, begin + gated, channels + task.head, heads);
    }
    const int own_column = begin + finished - task.tokens.replayed;
    if (finished < count && own_column >= 0) {
      const bf16* const row = (const bf16*)z + (task.first + own_column) * z_stride;
      const Pack<bf16, 8> gate = load_pack<8>(row + task.head * HEAD + head_column);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        float weight[4];
        norm_weight[i / 4].expand(weight);
        output_gate[finished][column + i] = weight[i % 4] * silu(gate[i]);
      }
    }
    if constexpr (STRIPS > 1) {
      if (thread == 0 && count > 0) strip_sums.expect(index, count);
    }
    if (PASSES > 1 && begin == 0 && task.tokens.position > 0) fetch(task.source, 1, PASSES);
    __syncthreads();

    const bool waits = begin == 0 && task.tokens.position > 0, has_rows = begin > 0 || waits;
    const bool is_last = left() <= chunk;
#if !NINFER_HAS_BULK_COPY
    if (waits) wait_for_copies<0>();
    __syncwarp();
#endif
    const int replayed = task.tokens.replayed - begin, stored = task.stored - begin;
    const bool copies = begin == 0 && stored == 0 && task.tokens.moves;
#pragma unroll 1
    for (int i = 0; i < PASSES; i++) {
#if NINFER_HAS_BULK_COPY
      if (waits) barrier_wait(shared_address(&arrivals[warp][i]), 0);
#endif
      const int row = warp * WARP_ROWS + i * PASS_ROWS + lane / LANES, part = lane % LANES * 4;
      RowPart<LANES> own[TOGETHER];
      auto store_state = [&] {
        float* target = state + task.destination + (strip * ROWS + row) * HEAD + part;
#pragma unroll
        for (int r = 0; r < TOGETHER; r++) own[r].store(target + r * ROWS_AT_ONCE * HEAD);
      };
#pragma unroll
      for (int r = 0; r < TOGETHER; r++) {
        if (has_rows)
          own[r].load(rows[row + r * ROWS_AT_ONCE] + part);
        else
          own[r].clear();
      }
      if (copies) store_state();
#pragma unroll 1
      for (int t = 0; t < count; t++) {
#pragma unroll
        for (int r = 0; r < TOGETHER; r++)
          own[r].advance(key[t] + part, decay[t], beta[t], value[t][row + r * ROWS_AT_ONCE]);
        if (t + 1 == stored) store_state();
        if (t < replayed) continue;
        __syncwarp();  // all lanes of a row have read its value
#pragma unroll
        for (int r = 0; r < TOGETHER; r++) {
          const float sum = own[r].read(query[t] + part);
          if (part == 0) value[t][row + r * ROWS_AT_ONCE] = sum;
        }
      }
      if (is_last) continue;
#pragma unroll
      for (int r = 0; r < TOGETHER; r++) own[r].store(rows[row + r * ROWS_AT_ONCE] + part);
    }
    __syncthreads();

    if (finisher / 32 * 32 / TOKEN_LANES < min(chunk, left())) {
      const bool exists = finished < count;
      const int token = min(finished, chunk - 1);
      const float4 low = *(const float4*)(value[token] + column);
      const float4 high = *(const float4*)(value[token] + column + 4);
      const float y[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      float squares = 0.f;
#pragma unroll
      for (int i = 0; i < 8; i++) squares = fmaf(y[i], y[i], squares);
      squares = rising_sum<TOKEN_LANES>(squares);
      if constexpr (STRIPS > 1) {
        const int own_lane = finisher % TOKEN_LANES;
        if (count > 0)
          squares = strip_sums.exchange(index, token, strip, squares, own_lane, exists);
      }
      const float inverse = rsqrtf(squares / HEAD + eps);
      if (own_column >= 0 && own_column < columns && finished < chunk) {
        Pack<bf16, 8> result = {};
        if (exists)
#pragma unroll
          for (int i = 0; i < 8; i++)
            result.set(i, y[i] * inverse * output_gate[token][column + i]);
        const ActivationRows products = {half, half_factor, words, words_factor, block};
        const u32 k = task.head * HEAD + head_column;
        const i64 place = task.first + own_column;
        store_pack<8>(out + place * heads * HEAD + k, result);
        if (half) products.store_half(place, k, result, 1.f / FIXED_FACTOR);
        if (words) products.store_words(place, k, result);
        if (k == 0) products.store_factors(place, FIXED_FACTOR);
      }
    }
    if (left() <= chunk) break;
    __syncthreads();
    quad = {};  // loaded anew, so that no registers hold it from one chunk to the next
    gates = {};
    load_weights(task.head, task.key_head);
    load_norm();
  }
}

}  // namespace ninfer
