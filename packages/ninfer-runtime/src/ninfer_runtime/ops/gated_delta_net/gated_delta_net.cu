// Gated DeltaNet between its projections: convolution, gates, recurrence and gated norm in one
// launch.
//
// The state of a value head [128, 128] is cut into STRIPS strips of value rows, one for each block
// of a cluster; a few lanes hold a row of it in registers. A row is computed by the same operations
// in the same order whatever the number of tokens in a call, and so is the norm.
#include "ninfer/cluster.cuh"
#include "ninfer/delta_recurrence.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

// Blocks: [sequence][value head][strip], clusters of STRIPS; 128 * LANES / STRIPS threads. LANES
// lanes hold a row of the state. CHUNK tokens are in shared memory at once, those after them in
// registers. Sequences with more than `longest` new tokens are left to other kernels.
template <int STRIPS, int LANES, int CHUNK, class W>
__global__ __launch_bounds__(HEAD* LANES / STRIPS, STRIPS == 1 ? 1 : 2) void gated_delta_net_kernel(
    const u16* u, i64 u_stride, const u16* a, i64 a_stride, const u16* b, i64 b_stride,
    const u16* z, i64 z_stride, const W* convolution, const float* a_log, const float* dt_bias,
    const W* norm, float* state, u16* records, const int* sources, const int* destinations,
    const int* positions, const int* replays, const int* new_columns, const int* commits, u16* out,
    u32 columns, u32 longest, u32 key_heads, u32 heads, u32 ring, u32 keeps, float eps) {
  constexpr int ROWS = HEAD / STRIPS, THREADS = ROWS * LANES, WARPS = THREADS / 32;
  constexpr int KEY_PAIRS = HEAD / 2, PAIRS = 2 * KEY_PAIRS + ROWS / 2;
  constexpr int GATE_THREAD = (PAIRS + 31) / 32 * 32;  // the first of those that compute gates
  constexpr int OWN_COLUMNS = CHUNK / STRIPS;          // of a chunk, that this block normalises
  constexpr bool SKIPS = STRIPS == 1 || CHUNK > 4;     // the other one is for short calls alone
  static_assert(GATE_THREAD + CHUNK <= THREADS && OWN_COLUMNS <= WARPS, "one task a thread");
  __shared__ __align__(16) float query[CHUNK][HEAD], key[CHUNK][HEAD], value[CHUNK][ROWS];
  __shared__ __align__(16) float result[OWN_COLUMNS][HEAD];
  __shared__ float decay[CHUNK], beta[CHUNK], norm_weight[HEAD];
  __shared__ float2 head_gate;  // factor and bias of the decay; of one warp alone
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int row = thread / LANES, part = thread % LANES;
  const u32 strip = blockIdx.x % STRIPS;
  const u32 head = blockIdx.x / STRIPS % heads, sequence = blockIdx.x / STRIPS / heads;
  const u32 repeat = heads / key_heads, key_head = head / repeat;
  const u32 channels = (2 * key_heads + heads) * HEAD, record_width = channels + 2 * heads;

  // What this thread convolves: queries, keys, then its block's rows of the values.
  const bool is_value = thread >= 2 * KEY_PAIRS, is_key = thread >= KEY_PAIRS;
  const u32 element = is_value ? (thread - 2 * KEY_PAIRS) * 2 : thread % KEY_PAIRS * 2;
  const u32 channel = is_value ? (2 * key_heads + head) * HEAD + strip * ROWS + element
                               : ((is_key ? key_heads : 0) + key_head) * HEAD + element;
  float* target = (is_value ? value[0] : is_key ? key[0] : query[0]) + element;
  const int target_stride = is_value ? ROWS : HEAD;
  float2 w[TAPS];
  if (thread < PAIRS) {
#pragma unroll
    for (int j = 0; j < TAPS; j++)
      w[j] = load_weight_pair(convolution + (i64)j * channels + channel);
  }
  if (thread < HEAD) norm_weight[thread] = to_float(norm[thread]);
  if (thread == GATE_THREAD) head_gate = make_float2(-__expf(a_log[head]), dt_bias[head]);
  __syncwarp();
  arrive_at_cluster();

  wait_for_previous_kernels();
  let_next_kernel_start();
  const int source = sources[sequence], destination = destinations[sequence];
  const int valid = new_columns[sequence], replayed = replays[sequence];
  const int position = positions[sequence];
  const int stored = replayed + commits[sequence];  // tokens that the stored state contains
  const i64 slot = (i64)ring * record_width;
  const Tokens tokens{records + source * slot,
                      records + destination * slot,
                      record_width,
                      (int)ring,
                      position % (int)ring,
                      position,
                      replayed,
                      replayed + valid,
                      source != destination,
                      keeps != 0};
  const i64 first = (i64)sequence * columns;  // row of the first new token in u, a, b, z and out
  Channels<CHUNK> pair{u + first * u_stride + channel, u_stride, channel,
                       is_value || (strip == 0 && head % repeat == 0)};
  Gates gates{a + first * a_stride + head,
              b + first * b_stride + head,
              a_stride,
              b_stride,
              channels + head,
              channels + heads + head,
              0,
              0};
  const int gate_index = thread - GATE_THREAD;
  const bool has_gate = gate_index >= 0 && gate_index < CHUNK;
  auto load_inputs = [&](int begin) {
    if (thread < PAIRS) pair.load_ahead(tokens, begin);
    if (has_gate) gates.load(tokens, begin + gate_index);
  };

  const i64 own_rows = ((i64)head * HEAD + strip * ROWS + row) * HEAD + 4 * part;
  const i64 state_size = (i64)heads * HEAD * HEAD;
  RowPart<LANES> own_row;
  own_row.clear();
  if (tokens.position > 0) own_row.load(state + source * state_size + own_rows);
  auto store_state = [&] { own_row.store(state + destination * state_size + own_rows); };
  if (thread < PAIRS) pair.load_history(tokens);
  load_inputs(0);
  if (SKIPS && valid > (int)longest) {  // not before the loads are on their way
    wait_for_cluster();
    return;
  }
  if (thread < PAIRS) pair.keep_history(tokens);
  if (strip == 0 && thread < TAPS - 1 && tokens.moves) {
    Gates history = gates;
    history.load(tokens, thread - (TAPS - 1));
    history.keep(tokens, thread - (TAPS - 1));
  }
  if (stored == 0 && tokens.moves) store_state();

  for (int begin = 0; begin < tokens.total; begin += CHUNK) {
    const int count = min(CHUNK, tokens.total - begin);
    if (thread < PAIRS) pair.convolve(tokens, w, target, target_stride, begin);
    if (has_gate && gate_index < count) {
      if (strip == 0) gates.keep(tokens, begin + gate_index);
      decay[gate_index] = __expf(head_gate.x * softplus(bf16_to_float(gates.a) + head_gate.y));
      beta[gate_index] = sigmoid(bf16_to_float(gates.b));
    }
    load_inputs(begin + CHUNK);
    // The output gate of the column that this warp normalises.
    const int own = warp * STRIPS + strip, own_column = begin + own - replayed;
    const bool normalises = warp < OWN_COLUMNS && own < count && own_column >= 0;
    Pack<bf16, 4> gate;
    if (normalises)
      gate =
          load_pack<4>((const bf16*)z + (first + own_column) * z_stride + head * HEAD + lane * 4);
    __syncthreads();
    for (int i = warp; i < 2 * count; i += WARPS)
      make_unit(i % 2 ? key[i / 2] : query[i / 2], i % 2 ? 1.f : QUERY_SCALE, lane);
    __syncthreads();
    wait_for_cluster();  // nobody reads the results of the last chunk any more
    for (int t = 0; t < count; t++) {
      own_row.advance(key[t] + 4 * part, decay[t], beta[t], value[t][row]);
      if (begin + t + 1 == stored) store_state();
      if (begin + t < replayed) continue;
      const float sum = own_row.read(query[t] + 4 * part);
      if (part == 0)
        store_cluster_float(shared_address(&result[t / STRIPS][strip * ROWS + row]), t % STRIPS,
                            sum);
    }
    arrive_at_cluster();
    wait_for_cluster();
    if (normalises)
      store_normalised((bf16*)out + (first + own_column) * heads * HEAD + head * HEAD, result[warp],
                       gate, norm_weight, eps, lane);
    if (begin + CHUNK < tokens.total) arrive_at_cluster();
  }
  if (tokens.total == 0) wait_for_cluster();
  // Columns beyond the valid ones.
  for (int column = valid + warp * STRIPS + strip; column < columns; column += WARPS * STRIPS)
    *(uint2*)(out + (first + column) * heads * HEAD + head * HEAD + lane * 4) = make_uint2(0, 0);
}

}  // namespace ninfer
