// Second half of Gated DeltaNet over chunks of 64 tokens: states, results and their gated norm.
//
// With the names of chunk_terms.cu and the state S [value, key] before a chunk:
//
//     E = beta (V - exp(G) K S^T)     N = M E      Y = exp(G) Q S^T + P N
//     S <- exp(G[last]) S + N^T (exp(G[last] - G) K)
//
// A block runs through the chunks of a pass with one strip of the value rows of a head; STRIPS of
// them are a cluster, which shares the sums of squares of the norm. Each warp has 16 value rows for
// itself. Where OVERLAPS, four more warps fetch the next chunk and finish the one before; otherwise
// all warps do both in turns.
#include "ninfer/cluster.cuh"
#include "ninfer/delta_chunk.cuh"
#include "ninfer/delta_stages.cuh"
#include "ninfer/delta_strip.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

// A barrier of all threads of the block, who meet from different places.
template <int THREADS>
NINFER_DEVICE void meet() {
  asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}

// Blocks: [sequence][value head][strip]. P: how products are computed.
template <int STRIPS, bool OVERLAPS, class P, class W>
__global__ __maxnreg__(P::REGISTERS) void gated_delta_net_states_kernel(
    const u8* key_records, const u8* value_records, const u16* z, i64 z_stride, const W* norm,
    float* state, float* carried, const int* sources, const int* destinations, const int* positions,
    const int* replays, const int* new_columns, const int* commits, u16* out, u32 columns,
    u32 key_heads, u32 heads, u32 first_chunk, u32 chunks, float eps) {
  using M = StripMemory<STRIPS, OVERLAPS>;
  constexpr int WARPS = 8 / STRIPS, FINISHERS = OVERLAPS ? 4 : WARPS;
  constexpr int LANES = M::ROWS / 4, AT_ONCE = 32 / LANES;  // lanes of a token, tokens of a warp
  constexpr int AT_A_TURN = FINISHERS * AT_ONCE, TURNS = CHUNK / AT_A_TURN;
  static_assert(TURNS == 8, "the sums of eight rows are found together");
  extern __shared__ __align__(1024) u8 shared[];
  const int thread = threadIdx.x, lane = thread % 32, warp = warp_index();
  const bool finishes = !OVERLAPS || warp >= WARPS;
  const int finisher = OVERLAPS ? warp - WARPS : warp;
  const u32 strip = blockIdx.x % STRIPS, head = blockIdx.x / STRIPS % heads;
  const u32 sequence = blockIdx.x / STRIPS / heads;
  const u32 memory = shared_address(shared), squares_barrier = memory + M::BARRIERS + 16;

  if constexpr (P::READS_UPPER) {
    Fetcher<STRIPS, OVERLAPS>::template clear_upper<(WARPS + FINISHERS) * 32>(shared, thread);
    fence_shared_for_products();
  }
#if NINFER_HAS_BULK_COPY
  if (thread == 0) {
    for (int i = 0; i < 3; i++) barrier_init(memory + M::BARRIERS + 8 * i, 1);
    barrier_init_fence();
  }
#endif
  arrive_at_cluster();
  wait_for_previous_kernels();
  let_next_kernel_start();
  wait_for_cluster();
  const Sequence steps(positions, replays, new_columns, commits, sequence);
  const int count = min((int)chunks, steps.chunks() - (int)first_chunk);
  if (!steps.is_chunked() || count <= 0) return;

  const u32 key_head = head / (heads / key_heads);
  const i64 record = (i64)sequence * chunks;
  const Fetcher<STRIPS, OVERLAPS> fetcher{
      memory,
      key_records + (record * key_heads + key_head) * KEY_RECORD_BYTES,
      value_records + (record * heads + head) * VALUE_RECORD_BYTES,
      key_heads * KEY_RECORD_BYTES,
      heads * VALUE_RECORD_BYTES,
      (int)strip};
  const int fetching_thread = OVERLAPS ? thread - WARPS * 32 : thread;
  if (finishes) fetcher.template fetch<FINISHERS * 32>(0, fetching_thread);

  const i64 first = (i64)sequence * columns;  // row of the first new token in z and out
  const i64 head_column = head * HEAD + strip * M::ROWS;
  const i64 own_rows = ((i64)head * HEAD + strip * M::ROWS + warp % WARPS * 16) * HEAD;
  const i64 state_size = (i64)heads * HEAD * HEAD;
  float* const kept = state + destinations[sequence] * state_size + own_rows;
  float* const between = carried + sequence * state_size + own_rows;
  StateStrip rows;
  auto load_state = [&] {
    const int source = sources[sequence];
    if (first_chunk > 0)
      rows.load(between, lane);
    else if (steps.position > 0)
      rows.load(state + source * state_size + own_rows, lane);
    else
      rows.clear();
    if (first_chunk == 0 && steps.stored == 0 && source != destinations[sequence])
      rows.store(kept, lane);
  };

  auto compute = [&](int chunk) {
    fetcher.wait(chunk);
    if constexpr (!NINFER_HAS_BULK_COPY) __syncthreads();
    float y[8][4];
    rows.advance<P>(y, fetcher.matrices(chunk), warp, lane);
    const float scale = QUERY_SCALE * power_of_two(-rows.exponent);
    float* result = (float*)(shared + M::RESULTS + chunk % M::STAGES * M::RESULT_BYTES) +
                    lane % 4 * 2 * M::ROW_STRIDE + warp * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        result[(8 * j + e % 2) * M::ROW_STRIDE + e / 2 * 8] = y[j][e] * scale;
    P::template wait<0>(rows.s);
    if (first_chunk + chunk + 1 == steps.chunks_before_stored()) rows.store(kept, lane);
  };

  // Row of the chunk that this lane finishes in turn i, and the component after which it has 4.
  const int first_row = finisher * AT_ONCE + lane / LANES, component = lane % LANES * 4;
  const Pack<W, 4> norm_weight = load_pack<4>(norm + strip * M::ROWS + component);
  using OutputGates = Pack<bf16, 4>[TURNS];
  auto load_gates = [&](OutputGates& gate, int chunk) {
    const int column = steps.chunk_begin(first_chunk + chunk) + first_row - steps.replayed;
    const bf16* place = (const bf16*)z + first * z_stride + head_column + component;
#pragma unroll
    for (int i = 0; i < TURNS; i++) {  // of columns that do not exist any others
      const int own = max(0, min(column + i * AT_A_TURN, steps.valid - 1));
      gate[i] = load_pack<4>(place + own * z_stride);
    }
  };

  auto finish = [&](const OutputGates& gate, int chunk) {
    const float* result =
        (const float*)(shared + M::RESULTS + chunk % M::STAGES * M::RESULT_BYTES) +
        first_row * M::ROW_STRIDE + component;
    float4 y[TURNS];
    float squares[TURNS];
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
      y[i] = *(const float4*)(result + i * AT_A_TURN * M::ROW_STRIDE);
      squares[i] = y[i].x * y[i].x + y[i].y * y[i].y + y[i].z * y[i].z + y[i].w * y[i].w;
    }
    constexpr int APART = LANES / TURNS;  // lanes that have the sums of turns i and i + 1
    float sum = sum_of_eighth<LANES>(squares, lane);
    const int summed_row = first_row + lane % LANES / APART * AT_A_TURN;
    const u32 target = memory + M::SQUARES + (chunk % 2 * CHUNK + summed_row) * 4;
    if constexpr (STRIPS == 2) {
#if NINFER_HAS_BULK_COPY
      if (finisher == 0 && lane == 0) barrier_expect(squares_barrier, CHUNK * 4);
#endif
      if (lane % APART == 0) send_cluster_float(target, strip ^ 1, sum, squares_barrier);
    }
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
      y[i].x *= norm_weight[0] * silu_or_zero(gate[i][0]);
      y[i].y *= norm_weight[1] * silu_or_zero(gate[i][1]);
      y[i].z *= norm_weight[2] * silu_or_zero(gate[i][2]);
      y[i].w *= norm_weight[3] * silu_or_zero(gate[i][3]);
    }
    if constexpr (STRIPS == 2) {
#if NINFER_HAS_BULK_COPY
      barrier_wait(squares_barrier, chunk & 1);
#endif
      sum += load_shared_float(target);
    }
    const float inverse = rsqrtf(sum / HEAD + eps);
    const int begin = steps.chunk_begin(first_chunk + chunk);
    const int column = begin + first_row - steps.replayed;
    const int end = steps.chunk_end(first_chunk + chunk) - steps.replayed;
    bf16* place = (bf16*)out + (first + column) * heads * HEAD + head_column + component;
#pragma unroll
    for (int i = 0; i < TURNS; i++, place += AT_A_TURN * heads * HEAD) {
      const float scale = __shfl_sync(~0u, inverse, lane / LANES * LANES + i * APART);
      const uint2 words = make_uint2(bf16_pair(y[i].x * scale, y[i].y * scale),
                                     bf16_pair(y[i].z * scale, y[i].w * scale));
      const int own = column + i * AT_A_TURN;
      if (own >= 0 && own < end) *(uint2*)place = words;
    }
  };

  if constexpr (OVERLAPS) {
    if (finishes) {
      P::give_up_registers();
      // The gates of a chunk are on their way while the one before is finished.
      OutputGates even, odd;
      auto step = [&](int chunk, OutputGates& gate, const OutputGates& gate_before) {
        if (chunk + 1 < count) fetcher.template fetch<FINISHERS * 32>(chunk + 1, fetching_thread);
        load_gates(gate, chunk);
        if (chunk > 0) finish(gate_before, chunk - 1);
        meet<(WARPS + FINISHERS) * 32>();
      };
      for (int chunk = 0; chunk < count; chunk += 2) {
        step(chunk, even, odd);
        if (chunk + 1 < count) step(chunk + 1, odd, even);
      }
      if (count % 2)
        finish(even, count - 1);
      else
        finish(odd, count - 1);
    } else {
      P::take_registers();
      load_state();
      for (int chunk = 0; chunk < count; chunk++) {
        compute(chunk);
        meet<(WARPS + FINISHERS) * 32>();
      }
      if (first_chunk + chunks < steps.chunks()) rows.store(between, lane);
    }
  } else {
    load_state();
    for (int chunk = 0; chunk < count; chunk++) {
      compute(chunk);
      __syncthreads();
      if (chunk + 1 < count) fetcher.template fetch<FINISHERS * 32>(chunk + 1, fetching_thread);
      OutputGates gate;
      load_gates(gate, chunk);
      finish(gate, chunk);
      __syncthreads();
    }
    if (first_chunk + chunks < steps.chunks()) rows.store(between, lane);
  }
  // Columns beyond the valid ones.
  if (first_chunk > 0 || !finishes) return;
  for (int column = steps.valid + first_row; column < columns; column += AT_A_TURN)
    *(uint2*)(out + (first + column) * heads * HEAD + head_column + component) = make_uint2(0, 0);
}

}  // namespace ninfer
