// Gated DeltaNet between its projections: convolution, gates, recurrence and gated norm in one
// launch.
//
// The state of a value head [128, 128] is cut into STRIPS strips of value rows, one for each block
// of a cluster; a few lanes hold a row of it in registers. A row is computed by the same operations
// in the same order whatever the number of tokens in a call, and so is the norm.
#include "ninfer/cluster.cuh"
#include "ninfer/elements.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

constexpr int HEAD = 128;  // of keys and values
constexpr int TAPS = 4;    // of the convolution
constexpr float UNIT_EPS = 1e-6f;

// Inputs of one sequence. Token 0 is the first after the source state; `replayed` tokens come from
// the records, the others are new. Tokens before 0 are the history of the convolution.
struct Tokens {
  const u16* records;  // of the source
  u16* kept;           // of the destination
  u32 record_width;
  int ring, place, position, replayed, total;  // `place`: position % ring
  bool moves, keeps;

  NINFER_DEVICE u32 record(int token) const {
    int r = place + token;  // no token with a record is a whole ring away
    r += r < 0 ? ring : r >= ring ? -ring : 0;
    return r * record_width;
  }
  // Whether `token` has to be written to the records of the destination.
  NINFER_DEVICE bool is_kept(int token) const {
    return token >= replayed ? keeps && token < total : moves && position + token >= 0;
  }
};

NINFER_DEVICE float2 pair_of(u32 words) {
  return make_float2(__uint_as_float(words << 16), __uint_as_float(words & 0xffff0000u));
}

template <class W>
NINFER_DEVICE float2 load_weight_pair(const W* p) {
  return make_float2(to_float(p[0]), to_float(p[1]));
}

// Two channels of the convolution of one block, from the records or the new tokens.
template <int CHUNK>
struct Channels {
  const u16* live;  // these channels of the first new token
  i64 live_stride;
  u32 channel;  // in a record
  bool owns;    // whether this thread records them
  u32 window[TAPS - 1], ahead[CHUNK];

  NINFER_DEVICE u32 load(const Tokens& tokens, int token) const {
    if (token >= tokens.replayed)
      return *(const u32*)(live + (token - tokens.replayed) * live_stride);
    if (tokens.position + token < 0) return 0;
    return *(const u32*)(tokens.records + tokens.record(token) + channel);
  }
  NINFER_DEVICE void load_history(const Tokens& tokens) {
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++) window[j] = load(tokens, j - (TAPS - 1));
  }
  // All loads at once, so that their times do not add up.
  NINFER_DEVICE void load_ahead(const Tokens& tokens, int begin) {
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
      if (begin + i < tokens.total) ahead[i] = load(tokens, begin + i);
  }
  NINFER_DEVICE void keep(const Tokens& tokens, int token, u32 words) const {
    if (owns && tokens.is_kept(token))
      *(u32*)(tokens.kept + tokens.record(token) + channel) = words;
  }
  NINFER_DEVICE void keep_history(const Tokens& tokens) const {
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++) keep(tokens, j - (TAPS - 1), window[j]);
  }

  // Convolution and SiLU of what was loaded ahead, rounded to bf16, into `target` [token][stride].
  NINFER_DEVICE void convolve(const Tokens& tokens, const float2* w, float* target, int stride,
                              int begin) {
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
      if (begin + i >= tokens.total) break;
      keep(tokens, begin + i, ahead[i]);
      float2 y = make_float2(0.f, 0.f);
#pragma unroll
      for (int j = 0; j < TAPS; j++) {
        const float2 x = pair_of(j < TAPS - 1 ? window[j] : ahead[i]);
        y.x = fmaf(w[j].x, x.x, y.x);
        y.y = fmaf(w[j].y, x.y, y.y);
      }
#pragma unroll
      for (int j = 0; j < TAPS - 2; j++) window[j] = window[j + 1];
      window[TAPS - 2] = ahead[i];
      y.x = bf16_to_float(float_to_bf16(silu(y.x)));
      y.y = bf16_to_float(float_to_bf16(silu(y.y)));
      *(float2*)(target + i * stride) = y;
    }
  }
};

NINFER_DEVICE float softplus(float x) { return x > 20.f ? x : log1pf(__expf(x)); }

// Decay and step size of one token, loaded ahead like the channels.
struct Gates {
  const u16 *live_a, *live_b;  // of the first new token and this head
  i64 a_stride, b_stride;
  u32 place_a, place_b;  // in a record
  u16 a, b;

  NINFER_DEVICE void load(const Tokens& tokens, int token) {
    if (token >= tokens.total) return;
    if (token >= tokens.replayed) {
      a = live_a[(token - tokens.replayed) * a_stride];
      b = live_b[(token - tokens.replayed) * b_stride];
    } else if (tokens.position + token >= 0) {
      a = tokens.records[tokens.record(token) + place_a];
      b = tokens.records[tokens.record(token) + place_b];
    }
  }
  NINFER_DEVICE void keep(const Tokens& tokens, int token) const {
    if (!tokens.is_kept(token)) return;
    tokens.kept[tokens.record(token) + place_a] = a;
    tokens.kept[tokens.record(token) + place_b] = b;
  }
};

// Blocks that a multiprocessor is to hold at once, as many as their registers allow.
NINFER_DEVICE constexpr int resident_blocks(int strips, int chunk) {
  return strips == 1 ? 1 : chunk <= 4 && __CUDA_ARCH__ == 900 ? 3 : 2;
}

// Blocks: [sequence][value head][strip], clusters of STRIPS; 128 * LANES / STRIPS threads. LANES
// lanes hold a row of the state. CHUNK tokens are in shared memory at once, those after them in
// registers.
template <int STRIPS, int LANES, int CHUNK, class W>
__global__
__launch_bounds__(HEAD* LANES / STRIPS, resident_blocks(STRIPS, CHUNK)) void gated_delta_net_kernel(
    const u16* u, i64 u_stride, const u16* a, i64 a_stride, const u16* b, i64 b_stride,
    const u16* z, i64 z_stride, const W* convolution, const float* a_log, const float* dt_bias,
    const W* norm, float* state, u16* records, const int* sources, const int* destinations,
    const int* positions, const int* replays, const int* new_columns, const int* commits, u16* out,
    u32 columns, u32 key_heads, u32 heads, u32 ring, u32 keeps, float eps) {
  constexpr int ROWS = HEAD / STRIPS, THREADS = ROWS * LANES, WARPS = THREADS / 32;
  constexpr int QUADS = HEAD / LANES / 4;  // of a lane: 4 values each, 4 * LANES apart
  constexpr int KEY_PAIRS = HEAD / 2, PAIRS = 2 * KEY_PAIRS + ROWS / 2;
  constexpr int GATE_THREAD = (PAIRS + 31) / 32 * 32;  // the first of those that compute gates
  constexpr int OWN_COLUMNS = CHUNK / STRIPS;          // of a chunk, that this block normalises
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
  float s[4 * QUADS];
#pragma unroll
  for (int j = 0; j < QUADS; j++) {
    float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
    if (tokens.position > 0)
      v = *(const float4*)(state + source * state_size + own_rows + 4 * LANES * j);
    s[4 * j] = v.x;
    s[4 * j + 1] = v.y;
    s[4 * j + 2] = v.z;
    s[4 * j + 3] = v.w;
  }
  auto store_state = [&] {
#pragma unroll
    for (int j = 0; j < QUADS; j++)
      *(float4*)(state + destination * state_size + own_rows + 4 * LANES * j) =
          make_float4(s[4 * j], s[4 * j + 1], s[4 * j + 2], s[4 * j + 3]);
  };
  if (thread < PAIRS) pair.load_history(tokens);
  load_inputs(0);
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
    for (int i = warp; i < 2 * count; i += WARPS) {
      float4* vector = (float4*)(i % 2 ? key[i / 2] : query[i / 2]) + lane;
      const float4 v = *vector;
      const float squares = warp_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w);
      const float scale = (i % 2 ? 1.f : 0.08838834764831845f) * rsqrtf(squares + UNIT_EPS);
      *vector = make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
    }
    __syncthreads();
    wait_for_cluster();  // nobody reads the results of the last chunk any more
    for (int t = 0; t < count; t++) {
      float k[4 * QUADS], dot[4] = {};
#pragma unroll
      for (int j = 0; j < QUADS; j++) {
        const float4 v = *(const float4*)&key[t][4 * part + 4 * LANES * j];
        k[4 * j] = v.x;
        k[4 * j + 1] = v.y;
        k[4 * j + 2] = v.z;
        k[4 * j + 3] = v.w;
      }
      const float alpha = decay[t];
#pragma unroll
      for (int i = 0; i < 4 * QUADS; i++) {
        s[i] *= alpha;
        dot[i % 4] = fmaf(s[i], k[i], dot[i % 4]);
      }
      const float seen = warp_sum<LANES>((dot[0] + dot[1]) + (dot[2] + dot[3]));
      const float error = beta[t] * (value[t][row] - seen);
#pragma unroll
      for (int i = 0; i < 4 * QUADS; i++) s[i] = fmaf(error, k[i], s[i]);
      if (begin + t + 1 == stored) store_state();
      if (begin + t < replayed) continue;
      float y[4] = {};
#pragma unroll
      for (int j = 0; j < QUADS; j++) {
        const float4 v = *(const float4*)&query[t][4 * part + 4 * LANES * j];
        y[0] = fmaf(s[4 * j], v.x, y[0]);
        y[1] = fmaf(s[4 * j + 1], v.y, y[1]);
        y[2] = fmaf(s[4 * j + 2], v.z, y[2]);
        y[3] = fmaf(s[4 * j + 3], v.w, y[3]);
      }
      const float sum = warp_sum<LANES>((y[0] + y[1]) + (y[2] + y[3]));
      if (part == 0)
        store_cluster_float(shared_address(&result[t / STRIPS][strip * ROWS + row]), t % STRIPS,
                            sum);
    }
    arrive_at_cluster();
    wait_for_cluster();
    if (normalises) {
      const float4 v = *((const float4*)result[warp] + lane);
      const float y[4] = {v.x, v.y, v.z, v.w};
      const float squares = warp_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w);
      const float inverse = rsqrtf(squares / HEAD + eps);
      Pack<bf16, 4> pack;
#pragma unroll
      for (int i = 0; i < 4; i++)
        pack.set(i, y[i] * inverse * norm_weight[lane * 4 + i] * silu(gate[i]));
      store_pack<4>((bf16*)out + (first + own_column) * heads * HEAD + head * HEAD + lane * 4,
                    pack);
    }
    if (begin + CHUNK < tokens.total) arrive_at_cluster();
  }
  if (tokens.total == 0) wait_for_cluster();
  // Columns beyond the valid ones.
  for (int column = valid + warp * STRIPS + strip; column < columns; column += WARPS * STRIPS)
    *(uint2*)(out + (first + column) * heads * HEAD + head * HEAD + lane * 4) = make_uint2(0, 0);
}

// Records of the last tokens of a call that has more of them than the ring holds besides its
// history; runs after the kernel above, which must not keep them then.
// Blocks: [sequence][token from the last one][part of a record]; 256 threads.
__global__ __launch_bounds__(256) void gated_delta_net_record_kernel(
    const u16* u, i64 u_stride, const u16* a, i64 a_stride, const u16* b, i64 b_stride,
    u16* records, const int* destinations, const int* positions, const int* replays,
    const int* new_columns, u32 columns, u32 kept_columns, u32 channels, u32 heads, u32 ring) {
  wait_for_previous_kernels();
  let_next_kernel_start();
  const u32 record_width = channels + 2 * heads, parts = (record_width + 255) / 256;
  const u32 element = blockIdx.x % parts * 256 + threadIdx.x;
  const u32 sequence = blockIdx.x / parts / kept_columns;
  const int column = new_columns[sequence] - 1 - (int)(blockIdx.x / parts % kept_columns);
  if (element >= record_width || column < 0) return;
  const i64 token = (i64)sequence * columns + column;
  const u32 position = positions[sequence] + replays[sequence] + column;
  const u16 bits = element < channels           ? u[token * u_stride + element]
                   : element < channels + heads ? a[token * a_stride + element - channels]
                                                : b[token * b_stride + element - channels - heads];
  records[((i64)destinations[sequence] * ring + position % ring) * record_width + element] = bits;
}

}  // namespace ninfer
