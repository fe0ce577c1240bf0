// A mixture of experts for up to 8 tokens in one kernel: scores, choice, gates and up matrices, down
// matrices, and the sum that is added to the residual. Blocks exchange scores and products through
// global memory (expert_exchange.cuh), so that all weights of the chosen experts are on their way at once.
#include "ninfer/expert_block_choice.cuh"
#include "ninfer/expert_gates.cuh"
#include "ninfer/expert_split.cuh"
#include "ninfer/expert_sums.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/router_rows.cuh"

namespace ninfer {

// M: a MixtureShape, B: a MixtureBlock. ROOM: threads that the registers of an SM must suffice for.
//
// One block an SM at most, all of them resident at once. A block scores some experts, multiplies an equal
// share of the chosen gates, and row tiles of all chosen down matrices.
template <class M, class B, int ROOM>
__global__ __launch_bounds__(ROOM, 1) void moe_mixture_kernel(
    const u16* rows, i64 row_stride, i64 chunk_stride, int fragments, const u8* x,
    const float* x_factors, u32 x_rows_given, const float* squares, float inverse_size, float eps,
    float norm_scale, const u16* __restrict__ router, const u8* __restrict__ gates,
    const float* __restrict__ gate_scale,
    const u8* __restrict__ shared_gates, const float* __restrict__ shared_gate_scale,
    const u8* __restrict__ downs, const float* __restrict__ down_scale,
    const u8* __restrict__ shared_downs, const float* __restrict__ shared_down_scale,
    u16* residual, const u16* norm_weight, float norm_offset, float* squares_out, u32* half,
    float* half_factor, u32* words, float* words_factor, u32* state, u64* exchanged, int parts_at,
    int products_at, int exchanged_words, int num_tokens) {
  using Memory = MixtureMemory<M, B>;
  constexpr int W = B::W, CHUNKS = (M::D / 32 + W - 1) / W;
  using Choice = BlockChoice<M::A <= 8 ? M::A : 8>;
  constexpr bool TOGETHER = B::T == 1 && B::THREADS == Choice::THREADS &&
                            M::E <= Choice::EXPERTS && M::A <= Choice::LENGTH;
  const int lane = threadIdx.x & 31, warp = warp_index();
  const int tokens = B::T == 1 ? 1 : num_tokens, x_rows = B::T == 1 ? 1 : x_rows_given;

  int* const done = (int*)(dynamic_shared + Memory::DONE);
  int* const flags = (int*)(dynamic_shared + Memory::FLAGS);
  float* const factors = (float*)(dynamic_shared + Memory::FACTORS);
  float* const sums = (float*)(dynamic_shared + Memory::SUMS);
  u32* const orders = (u32*)(dynamic_shared + Memory::SCORES);  // of scores
  float* const partial = (float*)(dynamic_shared + Memory::PARTIAL);
  float* const shared_partial = partial + 2 * Memory::SLOTS * 16;
  float* const counts = (float*)(dynamic_shared + Memory::COUNTS);
  int* const chosen = (int*)(dynamic_shared + Memory::CHOSEN);
  Selection<M, B> selection = {
      chosen, Groups(dynamic_shared + Memory::GROUPS, Memory::MOST_GROUPS, M::E)};

  const u32 shared = shared_address(dynamic_shared);
  const u32 area = shared + BARRIERS + warp * Memory::AREA;
  const u32 barriers = shared + warp * Memory::BARRIERS_OF_WARP;
  typename Gates<M, B>::Ring gate_ring(area + Memory::DOWN_STAGE, barriers);
  const typename Downs<M, B>::Ring down_ring(area, barriers + B::ST * 8);
  const SharedDown<M, B> shared_down = {shared_downs, warp};
  const typename SharedDown<M, B>::Ring shared_ring(
      shared + Memory::SHARED_DOWN + shared_down.first() * SharedDown<M, B>::BYTES,
      barriers + (B::ST + Downs<M, B>::STAGES) * 8);
  gate_ring.prepare();
  down_ring.prepare();
  shared_ring.prepare();
  if (threadIdx.x == 0) *done = *flags = 0;

  // What does not depend on the tokens: rows of the router, the shared expert.
  const TokenRows token_rows = {rows, row_stride, chunk_stride, M::D, tokens, fragments != 0,
                                {squares, M::TILES, inverse_size, eps}};
  const int first_row = blockIdx.x * M::SCORE_ROWS;
  const int my_rows = max(min_int(M::SCORE_ROWS, M::E + 1 - first_row), 0);
  using Scores = FewScores<CHUNKS, M::D % (W * 32) == 0>;
  static_assert(M::SCORE_ROWS * Scores::ROW_BYTES <= Memory::DOWN_STAGE, "room for the router");
  const Scores router_rows = {area, my_rows};
  router_rows.fetch(router, first_row, M::D, warp, lane);
  SharedGate<M, B> shared_gate = {shared_gates, shared_gate_scale, warp};
  shared_gate.start(gate_ring);
  if (blockIdx.x < M::TILES) shared_down.fill(shared_ring, blockIdx.x);
  wait_for_copies<0>();
  __syncwarp();
  wait_for_previous_kernels();

  const LaunchNumber number = {state};
  const u32 tag = number.tag();
  const TaggedWords sent_scores = {exchanged, tag}, sent_parts = {exchanged + parts_at, tag};
  const TaggedWords sent_products = {exchanged + products_at, tag};
  const u32 own_x = shared + Memory::X;
#pragma unroll 1
  for (int i = threadIdx.x * 16; i < Memory::X_BYTES; i += B::THREADS * 16)
    copy_16(own_x + i, x + i);
  uint4 of_tokens[CHUNKS] = {};
  router_rows.load(of_tokens, token_rows, warp, lane);
  float norm_part = 0.f;  // of the rows of token `warp`
  if (warp < tokens && squares) norm_part = token_rows.norm.part(warp, lane);
  float* const score_sums = sums + W * B::T * 32;  // [warp][token][8]
  router_rows.multiply(of_tokens, score_sums + warp * (B::T * 8), token_rows, B::T, lane);
  float row_factor = 1.f;
  if (warp < tokens) {
    if (squares) row_factor = token_rows.norm.factor_of(norm_part, 1.f);
    if (lane == 0) factors[warp] = squares ? row_factor * norm_scale : x_factors[warp];
  }
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();
  if (threadIdx.x < tokens * 8) {
    const int row = threadIdx.x % 8;
    float v = 0.f;
#pragma unroll
    for (int w = 0; w < W; w++) v += score_sums[w * (B::T * 8) + threadIdx.x];
    if (row < my_rows)
      sent_scores.send(threadIdx.x / 8 * (M::E + 1) + first_row + row, __float_as_uint(v));
  }

  // The shared expert's products, while scores are on their way.
  const auto load_x = [&](int record, u32* b) {
    if constexpr (B::T == 1)
      SharedX{own_x + (lane & 3) * 16}.load(record, b);
    else
      HeldX<1>(x + record * x_rows * 128, x_rows, tokens, 1, lane).load(0, b);
  };
  shared_gate.multiply(gate_ring, load_x, sums, lane);
  const Choice choice = {orders, (u32*)(sums + W * B::T * 40), flags};
  u32* const chosen_orders = (u32*)counts;  // until they are weighted
  if constexpr (TOGETHER) {
    u32 order = 0;
    if (threadIdx.x <= M::E) {
      const u64 word = sent_scores.receive(threadIdx.x, sent_scores.load(threadIdx.x));
      order = order_of(__uint_as_float((u32)word));
    }
    if (threadIdx.x == M::E) orders[Choice::EXPERTS] = order;
    if (threadIdx.x < Choice::EXPERTS) choice.list(threadIdx.x < M::E ? order : 0, threadIdx.x);
  } else {
    sent_scores.receive_all<B::THREADS, (B::T * (M::E + 1) + B::THREADS - 1) / B::THREADS>(
        tokens * (M::E + 1), threadIdx.x,
        [&](int i, u32 bits) { orders[i] = order_of(__uint_as_float(bits)); });
  }
  __syncthreads();
  const bool chooses = warp < tokens;
  const u32* const my_orders = orders + warp * (M::E + 1);
  const auto choose = [&]() {
    const Chosen mine = choose_experts<(M::E + 31) / 32>(
        M::E, M::A, lane, (u64*)score_sums + warp * 32,
        [&](int expert) { return my_orders[expert]; });
    if (lane < M::A) {
      chosen[warp * M::A + lane] = mine.expert;
      chosen_orders[warp * M::A + lane] = order_of(mine.score);
    }
    if (mine.bad && lane == 0) atomicOr(flags, 1 << (warp + 1));
  };
  if constexpr (TOGETHER)
    choice.choose(chosen, chosen_orders, threadIdx.x);
  else if (chooses)
    choose();
  if (shared_gate.exists())
    shared_gate.send(sums, sent_parts, tokens, (threadIdx.x + W * 16) % B::THREADS);
  __syncthreads();
  if (TOGETHER && *flags & Choice::TIE) {
    if (warp == 0) choose();
    __syncthreads();
  }
  if constexpr (B::T > 1)
    selection.groups.template find<B::THREADS>([&](int slot) { return chosen[slot]; }, tokens,
                                               M::A, M::E);

  Gates<M, B> gate_units(gates, gate_scale, selection, warp);
  gate_units.start(gate_ring);
  if (B::T > 1) Downs<M, B>(downs, selection, warp).start(down_ring);
  let_next_kernel_start();
  if (chooses) {
    const u32 order = lane < M::A ? chosen_orders[warp * M::A + lane] : 0;
    const Chosen mine = {0, score_of(order), (*flags & 1 << (warp + 1)) != 0};
    const float weight = weight_of(mine, M::A, lane, row_factor);
    if (lane < M::A) counts[warp * M::A + lane] = weight;
    const float score = score_of(my_orders[TOGETHER ? Choice::EXPERTS : M::E]);
    if (lane == 0) counts[Memory::SLOTS + warp] = shared_weight_of(score * row_factor);
  }
  const int late = threadIdx.x - W * 16;  // the second half of the threads finishes the shared expert
  if (shared_gate.finishes() && 0 <= late && late < tokens * 16)
    shared_gate.finish(sent_parts, sent_products, Memory::SLOTS * (M::I / 2), factors, late);
  // With one token all gates are on their way: what comes after them must not delay them.
  if (B::T == 1) {
    if (gate_units.unit < gate_units.end && gate_units.count() > 0) gate_ring.wait();
    Downs<M, B>(downs, selection, warp).start(down_ring);
  }
  float* const team_sums = sums + warp / B::TEAM * (B::TEAM * B::T * 64);
  const int x_first = gate_units.first() * 128;
  if constexpr (B::T == 1) {
    const SharedX of_block = {own_x + x_first + (lane & 3) * 16};
    gate_units.run(gate_ring, of_block, team_sums, factors, sent_products, lane);
  } else {
    const HeldX<Gates<M, B>::MOST> held(x + x_first * x_rows, x_rows, tokens, gate_units.count(),
                                        lane);
    gate_units.run(gate_ring, held, team_sums, factors, sent_products, lane);
  }

  const ResidualSums result = {residual, norm_weight, norm_offset, squares_out,
                               {half, half_factor, words, words_factor, x_rows}, M::D};
  const int my_token = threadIdx.x / 16, my_row = threadIdx.x % 16;
  TileSums<M, B> tile_sums = {Downs<M, B>(downs, selection, warp), down_ring, down_scale,
                              shared_down, shared_ring, shared_down_scale,
                              {shared + Memory::ROWS + warp * Memory::ROW_BYTES, lane},
                              sent_products, tokens, lane};
  tile_sums.experts.start_others(down_ring);
  __syncthreads();

  u32 blocks = 0;  // that have received everything, if this warp is the last of its block
  const auto received = [&]() {
    if (lane == 0 && atomicAdd(done, 1) == W - 1) blocks = number.count_block();
  };
  if (blockIdx.x >= M::TILES || tile_sums.has_none()) received();
  for (int tile = blockIdx.x; tile < M::TILES; tile += M::BLOCKS) {
    const bool last = tile + M::BLOCKS >= M::TILES;
    ResidualSums::Before before = {};
    if (my_token < tokens) before = result.load(my_token, tile * 16 + my_row);
    tile_sums.add(tile, partial, shared_partial, [&]() {
      if (last) received();
    });
    if (!last) shared_down.fill(shared_ring, tile + M::BLOCKS);
    __syncthreads();
    if (my_token < tokens)
      result.store(my_token, tile * 16 + my_row, before,
                   sum_of_experts<M, B>(partial, shared_partial, counts, my_token, my_row));
    if (!last) __syncthreads();
  }
  if (__shfl_sync(~0u, blocks, 0) == M::BLOCKS)
    number.raise(tag, exchanged, exchanged_words, lane);
}

}  // namespace ninfer
