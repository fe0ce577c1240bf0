// Attention of few new tokens over a paged cache.
//
// The query heads that share a key head and all new tokens of a sequence form the rows of one
// matrix. The keys are cut into segments, which blocks process side by side and which merge.cu puts
// together in order; a block may have several, which are neighbours. In a round each warp of a block scores
// 16 keys; the warps exchange the weights of a round, and each multiplies them with its part of the values'
// elements.
//
// Keys and values are the left operands of the tensor cores, rows the right one: a product has 16
// keys or 16 elements and 8 rows, so that the few rows of one new token fill it.
#include "ninfer/attention_ring.cuh"
#include "ninfer/attention_rows.cuh"
#include "ninfer/attention_work.cuh"
#include "ninfer/kv_coding.cuh"
#include "ninfer/launch_order.cuh"

namespace ninfer {

// Rows 2q and 2q+1: the keys that they see and the factors of their scores.
struct OwnRows {
  int last_key[2], unmasked;  // all rows see keys up to `unmasked`
  float factor[2];

  OwnRows() = default;
  NINFER_DEVICE OwnRows(const float* factors, float scale, int before, int group, int lane)
      : unmasked(before) {
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const int own = lane % 4 * 2 + c;
      last_key[c] = before + own / group;
      factor[c] = factors[own] * scale;
    }
  }

  // Scores of keys from `position` on in powers of two, those that a row does not see as good as none.
  NINFER_DEVICE void scale_and_mask(float (&score)[4], int position, int lane) const {
#pragma unroll
    for (int i = 0; i < 4; i++) score[i] *= factor[i % 2];
    if (position + PRODUCT_KEYS - 1 <= unmasked) return;
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (position + lane / 4 + i / 2 * 8 > last_key[i % 2]) score[i] = NEVER * 2;
  }
};

// Keys and values of new tokens as a projection gives them; without keys the rows are in the pages.
struct NewRows {
  const bf16 *key, *value;
  i64 key_sequence, key_column, key_head, value_sequence, value_column, value_head;
  const bf16* key_weight;
  const float *cosines, *sines;  // [sequence][column][pairs]
  int pairs;
  float eps;

  // Makes the key or the value of a new token ready and writes it, coded, into its page; by a warp.
  template <int KC, int VC, class Token>
  NINFER_DEVICE void append(const PagedRows& rows, const KnownWork& work, const Token& token,
                            bool is_key, int lane) const {
    const u32 sequence = token.sequence, column = token.column, head = token.head;
    const int position = work.span(sequence).before + column;
    const i64 row =
        ((i64)rows.page(sequence, position) * work.key_heads + head) * PAGE + position % PAGE;
    float x[8];
    if (is_key) {
      load_row(key + sequence * key_sequence + column * key_column + head * key_head, lane, x);
      const i64 angles = ((i64)sequence * work.columns + column) * pairs;
      float scale[8];
      load_row(key_weight, lane, scale);
      normalise_and_rotate(x, scale, Rotation(cosines + angles, sines + angles, pairs, lane), eps,
                           lane);
      append_key<KC>(x, rows.key_codes, rows.key_scales, row, lane);
    } else {
      load_row(value + sequence * value_sequence + column * value_column + head * value_head, lane,
               x);
      append_value<VC>(x, rows.value_codes, rows.value_scales, row, lane);
    }
  }

};

// A new token's key and value rows, by number.
struct NewToken {
  u32 sequence, column, head;

  NINFER_DEVICE NewToken(const KnownWork& work, u32 number) {
    const u32 token = quotient(number, work.key_heads);
    head = number - token * work.key_heads;
    sequence = quotient(token, work.columns);
    column = token - sequence * work.columns;
  }

  // Whether it exists and its key is in a segment of a block.
  NINFER_DEVICE bool is_in(const KnownWork& work, const Share& share) const {
    if (sequence >= work.sequences) return false;
    const Span span = work.span(sequence);
    const u32 number = (sequence ? work.ends[sequence - 1] : 0) + head * span.segments +
                       quotient((span.before + column) / PAGE, span.segment_keys / PAGE);
    return (int)column < span.columns && share.begin <= number && number < share.end;
  }
};

NINFER_DEVICE void prefetch_to_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// Where the sequences stand was written before the kernels that may still run when this one starts, and
// so were the angles and the rows of older tokens. Those of new tokens are made here, by the only block
// that reads them, or by the kernel before. BLOCKS: those of a multiprocessor.
template <int KC, int VC, int WARPS, int STAGES, int BLOCKS>
__global__ __launch_bounds__(32 * WARPS, BLOCKS) void paged_attention_kernel(
    const u16* query, i64 query_sequence, i64 query_column, i64 query_head, const bf16* key,
    i64 key_sequence, i64 key_column, i64 key_head, const bf16* value, i64 value_sequence,
    i64 value_column, i64 value_head, const bf16* query_weight, const bf16* key_weight,
    const float* cosines, const float* sines, int pairs, float eps, u8* key_codes, u8* key_scales,
    u8* value_codes, u8* value_scales, const int* tables, u32 table_width, const int* table_rows,
    const int* before, const int* new_columns, float* partial_rows, float* partial_weights,
    u32 sequences, u32 columns, u32 key_heads, u32 group, u32 row_blocks, u32 max_segments,
    float scale) {
  extern __shared__ __align__(128) u8 shared[];
  constexpr int ROWS = 8, KEYS = PRODUCT_KEYS * WARPS;
  constexpr int SCALES = WEIGHT_SCALES<VC>;
  static_assert(WARPS % SCALES == 0, "a warp's part of the elements has one scale");
  __shared__ float row_factors[ROWS];
  __shared__ RoundWeights<WARPS> shared_weights;
  __shared__ u32 ends[MOST_SEQUENCES];
  __shared__ Span spans[MOST_SEQUENCES];
  __shared__ int rows_of_tables[MOST_SEQUENCES];
  const int lane = threadIdx.x % 32, warp = warp_index();
  const u32 queries = shared_address(shared);
  const KnownWork work({before, new_columns, sequences, columns, key_heads, group, row_blocks,
                        max_segments, ends},
                       spans);
  const PagedRows rows{key_codes, key_scales,     value_codes, value_scales,
                       tables,    rows_of_tables, table_width};
  const PartialSums partial{partial_rows, partial_weights, max_segments};

  if (warp == 0) {
    Item<ROWS, false>::number_things(work, lane);
  } else {
#pragma unroll 1
    for (u32 i = threadIdx.x - 32; i < sequences; i += 32 * (WARPS - 1))
      rows_of_tables[i] = table_rows[i];
  }
  __syncthreads();
  const Share share(ends[sequences - 1], blockIdx.x, gridDim.x);
  if (share.begin == share.end) {
    wait_for_previous_kernels();
    let_next_kernel_start();
    return;
  }
  const RoundRing<KC, VC, WARPS, STAGES> ring{queries + ROWS * HEAD_DIM * 2};
  RoundCursor<ROWS, KEYS> next(share.begin, share.end, warp);
  next.advance(work, rows, lane);
  u32 new_here = __ballot_sync(~0u, NewToken(work, lane).is_in(work, share));

  // One loop for everything, so that the code, which is read when nothing else is to be done, is short:
  // a turn ends when the weights of a round are known, and the next one begins with their values.
  SegmentSums<WARPS> sums;
  OwnRows own;
  uint2 query_rows[HEAD_DIM / 16];
  Item<ROWS, false> item = next.item;
  bool is_started = false;
  int round = -1, position = item.end, wanted = STAGES, filled = 0;  // rounds on their way
  float own_sum[2], own_exponent[2];
  for (u32 number = share.begin + 1;;) {
    while (filled < wanted && (is_started || next.is_old())) {
      ring.fill(filled++, next, work, rows, warp, lane);
      next.advance(work, rows, lane);
    }
    if (round >= 0) {
      u32 factors[WARPS];
      sums.follow(shared_weights.exponent[round % 2], factors, lane);
#pragma unroll
      for (int c = 0; c < 2; c++)
        sums.total[c] =
            fmaf(own_sum[c], exp2_approx(own_exponent[c] - sums.exponent[c]), sums.total[c]);
#pragma unroll
      for (int w = 0; w < WARPS; w++) {
        // Without a branch: weights of keys that do not exist are 0, whatever finite values they get.
        const int source = position + w * PRODUCT_KEYS < item.end ? w : 0;
        uint2 weights = load_shared_8(ring.weights(round, w, warp * SCALES / WARPS, lane));
        weights = make_uint2(mul_f16x2(weights.x, factors[w]), mul_f16x2(weights.y, factors[w]));
        multiply_values<VC, WARPS>(sums.values, weights, ring.values(round, source), warp, lane);
      }
      position += KEYS;
    }
    if (position >= item.end) {  // to the next segment
      if (round >= 0) {
        const i64 first_row = ((i64)item.sequence * key_heads + item.key_head) * columns * group;
        leave_sums<VC, WARPS>(partial, first_row * max_segments + item.segment, sums,
                              shared_weights.total, item.end_row, warp, lane);
        if (number == share.end) break;
        item.advance(work, number++, lane);
      }
      position = item.begin;
      sums.clear();
      if (item.segment == 0 || !is_started) {  // other rows
        const i64 angles = (i64)item.sequence * columns * pairs;
        if (!is_started) {
          if (key && warp == 0) {
            if (lane < 4) prefetch_to_l2(query_weight + lane * 64);
            if (lane == 4) prefetch_to_l2(cosines + angles);
            if (lane == 5) prefetch_to_l2(sines + angles);
          }
          wait_for_previous_kernels();
          let_next_kernel_start();
        }
        QueryRows<KC, WARPS> heads;
        heads.load(
            HeadRows{query + item.sequence * query_sequence + item.key_head * group * query_head,
                     query_column, query_head, group},
            0, item.end_row, warp, lane);
        if (!is_started && key) {
          const NewRows added{key,        value,          key_sequence, key_column,
                              key_head,   value_sequence, value_column, value_head,
                              key_weight, cosines,        sines,        pairs,
                              eps};
          const u32 tokens = sequences * columns * key_heads;
          int turn = 0;
#pragma unroll 1
          for (u32 first = 0;;) {
            for (; new_here; new_here &= new_here - 1) {
              const NewToken token(work, first + __ffs(new_here) - 1);
              // The last warps begin: they have the fewest rows of queries.
#pragma unroll 1
              for (int i = 0; i < 2; i++)
                if (turn++ % WARPS == WARPS - 1 - warp)
                  added.append<KC, VC>(rows, work, token, i == 0, lane);
            }
            first += 32;
            if (first >= tokens) break;
            new_here = __ballot_sync(~0u, NewToken(work, first + lane).is_in(work, share));
          }
        }
        heads.place(queries, row_factors, group,
                    QueryNorm{query_weight, cosines + angles, sines + angles, pairs, eps}, 0,
                    item.end_row, warp, lane);
        __syncthreads();
        own = OwnRows(row_factors, scale, item.before, group, lane);
#pragma unroll
        for (int step = 0; step < HEAD_DIM / 16; step++)
          query_rows[step] = load_shared_8(queries + step * 256 + lane * 8);
        if (!is_started) {
          is_started = true;
          continue;
        }
      }
    }
    round++;
    const int own_position = position + warp * PRODUCT_KEYS;
    float(&exponents)[8] = shared_weights.exponent[round % 2][warp];
    if (own_position < item.end) {
      ring.wait(round);
      float score[4];
      multiply_keys<KC>(score, query_rows, ring.keys(round, warp), lane);
      own.scale_and_mask(score, own_position, lane);
      const OwnWeights weights(score, exponents, lane);
      __syncwarp();  // all lanes have read the keys
      const ProductRows values = ring.values(round, warp);
#pragma unroll
      for (int i = 0; i < SCALES; i++)
        store_shared_8(ring.weights(round, warp, i, lane),
                       scale_weights<VC>(weights.fragment, values, i, lane));
#pragma unroll
      for (int c = 0; c < 2; c++) {
        own_sum[c] = weights.sum[c];
        own_exponent[c] = weights.exponent[c];
      }
    } else {
      if (lane < 8) exponents[lane] = NEVER;
#pragma unroll
      for (int i = 0; i < SCALES; i++)
        store_shared_8(ring.weights(round, warp, i, lane), make_uint2(0, 0));
      own_sum[0] = own_sum[1] = 0.f;
      own_exponent[0] = own_exponent[1] = NEVER;
    }
    __syncthreads();  // all weights and values are there, and nobody reads the round before
    wanted = round + STAGES;
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace ninfer
