// The recurrence of Gated DeltaNet for many sequences: a block has whole heads, one after the
// other, and fetches the states of the next ones meanwhile. A row is computed by the same
// operations in the same order as in gated_delta_net.cu.
#include "ninfer/async_copy.cuh"
#include "ninfer/delta_recurrence.cuh"
#include "ninfer/launch_order.cuh"

namespace ninfer {

constexpr int STATE_BYTES = HEAD * HEAD * 4;
constexpr int THREADS = 512, WARPS = THREADS / 32;
constexpr int LANES = 8, ROWS = THREADS / LANES, TURNS = HEAD / ROWS;  // rows at once
constexpr int KEY_PAIRS = HEAD / 2, PAIRS = 3 * KEY_PAIRS;             // threads that convolve
constexpr int MOST_TASKS = 16;                                         // of a block

// What the kernel takes of all sequences.
struct Arguments {
  const u16* u;
  i64 u_stride;
  const u16* a;
  i64 a_stride;
  const u16* b;
  i64 b_stride;
  u16* records;
  const int *sources, *destinations, *positions, *replays, *new_columns, *commits;
  u32 columns, key_heads, heads, ring;
  bool keeps;

  NINFER_DEVICE u32 channels() const { return (2 * key_heads + heads) * HEAD; }
};

// One head of one sequence.
struct Task {
  Tokens tokens;
  i64 source, destination;  // of the state, in elements
  i64 first;                // row of the first new token
  u32 head, key_head;
  int stored;
  bool owns_key, reads_state;  // whether it records queries and keys; needs the state

  NINFER_DEVICE void find(const Arguments& all, u32 index) {
    const u32 sequence = index / all.heads, repeat = all.heads / all.key_heads;
    const u32 width = all.channels() + 2 * all.heads;
    const int from = all.sources[sequence], to = all.destinations[sequence];
    const int position = all.positions[sequence], replayed = all.replays[sequence];
    const int total = replayed + all.new_columns[sequence];
    head = index % all.heads;
    key_head = head / repeat;
    owns_key = head % repeat == 0;
    stored = replayed + all.commits[sequence];
    first = (i64)sequence * all.columns;
    source = ((i64)from * all.heads + head) * (HEAD * HEAD);
    destination = ((i64)to * all.heads + head) * (HEAD * HEAD);
    reads_state = position > 0 && (total > 0 || from != to);
    tokens = Tokens{all.records + (i64)from * all.ring * width,
                    all.records + (i64)to * all.ring * width,
                    width,
                    (int)all.ring,
                    position % (int)all.ring,
                    position,
                    replayed,
                    total,
                    from != to,
                    all.keeps};
  }
};

// Inputs of a task that one thread loads: two channels, or the gates of one token of a chunk. Where
// they lie is found anew for each use, so that between uses only what was loaded takes registers.
template <int CHUNK, class W>
struct Inputs {
  Channels<CHUNK> pair;
  Gates gates;
  float2 w[TAPS];  // of the channels; factor and bias of the decay come first for gates

  static NINFER_DEVICE bool has_pair(int thread) { return thread < PAIRS; }
  static NINFER_DEVICE bool has_gate(int thread) {
    return thread >= PAIRS && thread < PAIRS + CHUNK;
  }
  NINFER_DEVICE void bind(const Arguments& all, const Task& task, int thread) {
    if (has_pair(thread)) {
      const int part = thread / KEY_PAIRS;  // query, key, value
      const u32 head = part == 0   ? task.key_head
                       : part == 1 ? all.key_heads + task.key_head
                                   : 2 * all.key_heads + task.head;
      pair.channel = head * HEAD + thread % KEY_PAIRS * 2;
      pair.live = all.u + task.first * all.u_stride + pair.channel;
      pair.live_stride = all.u_stride;
      pair.owns = part == 2 || task.owns_key;
    } else if (has_gate(thread)) {
      gates.live_a = all.a + task.first * all.a_stride + task.head;
      gates.live_b = all.b + task.first * all.b_stride + task.head;
      gates.a_stride = all.a_stride;
      gates.b_stride = all.b_stride;
      gates.place_a = all.channels() + task.head;
      gates.place_b = gates.place_a + all.heads;
    }
  }
  NINFER_DEVICE void load(const Arguments& all, const Task& task, const W* convolution,
                          const float* a_log, const float* dt_bias, int thread) {
    bind(all, task, thread);
    if (has_pair(thread)) {
#pragma unroll
      for (int j = 0; j < TAPS; j++)
        w[j] = load_weight_pair(convolution + (i64)j * all.channels() + pair.channel);
      pair.load_history(task.tokens);
    } else if (has_gate(thread)) {
      w[0] = make_float2(a_log[task.head], dt_bias[task.head]);
    }
    load_ahead(task, 0, thread);
  }
  NINFER_DEVICE void load_ahead(const Task& task, int begin, int thread) {
    if (has_pair(thread))
      pair.load_ahead(task.tokens, begin);
    else if (has_gate(thread))
      gates.load(task.tokens, begin + thread - PAIRS);
  }
  // History for the records of another slot.
  NINFER_DEVICE void keep_history(const Task& task, int thread) const {
    if (!task.tokens.moves) return;
    if (has_pair(thread)) pair.keep_history(task.tokens);
    const int token = thread - PAIRS - (TAPS - 1);
    if (has_gate(thread) && token < 0) {
      Gates history = gates;
      history.load(task.tokens, token);
      history.keep(task.tokens, token);
    }
  }
};

// Fetches states of tasks into stages in turns.
template <int STAGES>
struct StateRing {
  u32 stages, barriers, phases;  // `phases`: a bit for each stage

  NINFER_DEVICE void fetch(const float* state, const Task& task, int turn) const {
#if NINFER_HAS_BULK_COPY
    const u32 barrier = barriers + turn % STAGES * 8;
    if (!task.reads_state) return;
    barrier_expect(barrier, STATE_BYTES);
    bulk_copy(stages + turn % STAGES * STATE_BYTES, state + task.source, STATE_BYTES, barrier,
              EVICT_FIRST);
#endif
  }
  NINFER_DEVICE void wait(int turn) {
#if NINFER_HAS_BULK_COPY
    const int stage = turn % STAGES;
    barrier_wait(barriers + 8 * stage, phases >> stage & 1);
    phases ^= 1u << stage;
#endif
  }
};

// Blocks take tasks [sequence][value head] in turns, MOST_TASKS of them at most.
template <int STAGES, int CHUNK, class W>
__global__ __launch_bounds__(THREADS, 1) void gated_delta_net_heads_kernel(
    const u16* u, i64 u_stride, const u16* a, i64 a_stride, const u16* b, i64 b_stride,
    const u16* z, i64 z_stride, const W* convolution, const float* a_log, const float* dt_bias,
    const W* norm, float* state, u16* records, const int* sources, const int* destinations,
    const int* positions, const int* replays, const int* new_columns, const int* commits, u16* out,
    u32 columns, u32 key_heads, u32 heads, u32 ring, u32 keeps, float eps, u32 num_tasks) {
  extern __shared__ __align__(128) u8 stages[];
  __shared__ __align__(16) float query[CHUNK][HEAD], key[CHUNK][HEAD], value[CHUNK][HEAD];
  __shared__ __align__(16) float result[CHUNK][HEAD];
  __shared__ float decay[CHUNK], beta[CHUNK], norm_weight[HEAD];
  __shared__ Task tasks[MOST_TASKS];
  __shared__ u64 barriers[STAGES];
  static_assert(CHUNK <= WARPS && PAIRS + CHUNK <= THREADS, "one task a warp and thread");
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int row = thread / LANES, part = thread % LANES * 4;
  const int own_tasks = (num_tasks - blockIdx.x + gridDim.x - 1) / gridDim.x;
  const Arguments all{u,         u_stride,     a,         a_stride,  b,           b_stride, records,
                      sources,   destinations, positions, replays,   new_columns, commits,  columns,
                      key_heads, heads,        ring,      keeps != 0};
  StateRing<STAGES> states{shared_address(stages), shared_address(barriers), 0};
  if (thread < HEAD) norm_weight[thread] = to_float(norm[thread]);
#if NINFER_HAS_BULK_COPY
  if (thread == 0) {
    for (int i = 0; i < STAGES; i++) barrier_init(states.barriers + 8 * i, 1);
    barrier_init_fence();
  }
#endif
  __syncwarp();
  wait_for_previous_kernels();
  let_next_kernel_start();
  if (thread < own_tasks) {
    tasks[thread].find(all, blockIdx.x + thread * gridDim.x);
    if (thread < STAGES) states.fetch(state, tasks[thread], thread);
  }
  __syncthreads();
  Inputs<CHUNK, W> inputs;
  inputs.load(all, tasks[0], convolution, a_log, dt_bias, thread);

#pragma unroll 1
  for (int turn = 0; turn < own_tasks; turn++) {
    const Task& task = tasks[turn];
    const int total = task.tokens.total, replayed = task.tokens.replayed, stored = task.stored;
    RowPart<LANES> rows[TURNS];
    auto store_state = [&] {
      float* target = state + task.destination + row * HEAD + part;
#pragma unroll
      for (int i = 0; i < TURNS; i++) rows[i].store(target + i * ROWS * HEAD);
    };
    inputs.bind(all, task, thread);
    inputs.keep_history(task, thread);
#pragma unroll 1
    for (int begin = 0; begin == 0 || begin < total; begin += CHUNK) {
      const int count = min(CHUNK, total - begin);
      if (inputs.has_pair(thread)) {
        float* vectors = thread < KEY_PAIRS ? query[0] : thread < 2 * KEY_PAIRS ? key[0] : value[0];
        inputs.pair.convolve(task.tokens, inputs.w, vectors + thread % KEY_PAIRS * 2, HEAD, begin);
      } else if (thread - PAIRS < count) {
        const int t = thread - PAIRS;
        inputs.gates.keep(task.tokens, begin + t);
        decay[t] = __expf(-__expf(inputs.w[0].x) *
                          softplus(bf16_to_float(inputs.gates.a) + inputs.w[0].y));
        beta[t] = sigmoid(bf16_to_float(inputs.gates.b));
      }
      if (begin + CHUNK < total)
        inputs.load_ahead(task, begin + CHUNK, thread);
      else if (turn + 1 < own_tasks)
        inputs.load(all, tasks[turn + 1], convolution, a_log, dt_bias, thread);
      const int own_column = begin + warp - replayed;
      const bool normalises = warp < count && own_column >= 0;
      Pack<bf16, 4> gate;
      if (normalises)
        gate = load_pack<4>((const bf16*)z + (task.first + own_column) * z_stride +
                            task.head * HEAD + lane * 4);
      __syncthreads();
      for (int i = warp; i < 2 * count; i += WARPS)
        make_unit(i % 2 ? key[i / 2] : query[i / 2], i % 2 ? 1.f : QUERY_SCALE, lane);
      if (begin == 0) {
        const float* stage = (const float*)(stages + turn % STAGES * STATE_BYTES);
        if (task.reads_state) states.wait(turn);
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
          rows[i].clear();
          if (task.reads_state) rows[i].load(stage + (row + i * ROWS) * HEAD + part);
        }
        if (stored == 0 && task.tokens.moves) store_state();
      }
      __syncthreads();
      if (begin == 0 && thread == 0 && turn + STAGES < own_tasks)
        states.fetch(state, tasks[turn + STAGES], turn + STAGES);
#pragma unroll 1
      for (int t = 0; t < count; t++) {
#pragma unroll
        for (int i = 0; i < TURNS; i++)
          rows[i].advance(key[t] + part, decay[t], beta[t], value[t][row + i * ROWS]);
        if (begin + t + 1 == stored) store_state();
        if (begin + t < replayed) continue;
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
          const float sum = rows[i].read(query[t] + part);
          if (part == 0) result[t][row + i * ROWS] = sum;
        }
      }
      __syncthreads();
      if (normalises)
        store_normalised((bf16*)out + ((task.first + own_column) * heads + task.head) * HEAD,
                         result[warp], gate, norm_weight, eps, lane);
    }
    // Columns beyond the valid ones.
    for (int column = total - replayed + warp; column < columns; column += WARPS)
      *(uint2*)(out + ((task.first + column) * heads + task.head) * HEAD + lane * 4) =
          make_uint2(0, 0);
  }
}

}  // namespace ninfer
