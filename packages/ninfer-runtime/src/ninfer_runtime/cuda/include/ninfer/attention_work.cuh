// Attention as a list of things to do, which the blocks of a launch share out.
#pragma once
#include "ninfer/paged_spans.cuh"

namespace ninfer {

constexpr u32 MOST_SEQUENCES = 192;

// Things are numbered [sequence][key head][row block, most keys first][segment].
struct Work {
  const int *before, *new_columns;
  u32 sequences, columns, key_heads, group, row_blocks, max_segments;
  u32* ends;  // [sequences] in shared memory: how many things there are up to each sequence

  NINFER_DEVICE Span span(u32 sequence) const {
    return Span(before[sequence], new_columns[sequence], max_segments);
  }
  NINFER_DEVICE void keep_span(u32, const Span&) const {}
};

// The same where there is shared memory for what is known of the sequences, [sequences].
struct KnownWork : Work {
  Span* spans;

  NINFER_DEVICE KnownWork(const Work& work, Span* spans) : Work(work), spans(spans) {}
  NINFER_DEVICE const Span& span(u32 sequence) const { return spans[sequence]; }
  NINFER_DEVICE void keep_span(u32 sequence, const Span& span) const { spans[sequence] = span; }
};

// The things of one of `parts` workers: neighbours, as many as others have or one more.
struct Share {
  u32 begin, end;

  NINFER_DEVICE Share(u32 things, u32 part, u32 parts) {
    const u32 each = things < parts ? 0 : quotient(things, parts), more = things - each * parts;
    begin = part * each + min(part, more);
    end = begin + each + (part < more);
  }
};

// One thing to do: rows of a sequence and key head, and the keys of a segment that they see.
template <int ROWS, bool FINAL>
struct Item {
  u32 sequence, key_head, segment;
  int first_row, end_row;  // there are none if no column of the row block exists
  int begin, end, count;   // positions, pages
  int before, total;
  u32 segments;
  int segment_keys, visible;  // keys that the last row sees

  // Fills `ends`, by one warp.
  template <class W>
  static NINFER_DEVICE void number_things(const W& work, int lane) {
    u32 before = 0;
#pragma unroll 1
    for (u32 first = 0; first < work.sequences; first += 32) {
      const u32 sequence = first + lane;
      u32 things = 0;
      if (sequence < work.sequences) {
        const Span span = work.Work::span(sequence);
        work.keep_span(sequence, span);
        things = work.key_heads * row_blocks(work, span) * segments_of(span);
      }
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const u32 lower = __shfl_up_sync(~0u, things, d);
        if (lane >= d) things += lower;
      }
      if (sequence < work.sequences) work.ends[sequence] = before + things;
      before += __shfl_sync(~0u, things, 31);
    }
  }

  // By whole warps. False if there are no more things.
  template <class W>
  NINFER_DEVICE bool find(const W& work, u32 number, int lane) {
    sequence = 0;
#pragma unroll 1
    for (u32 first = 0; first < work.sequences; first += 32) {
      const bool is_past = first + lane < work.sequences && work.ends[first + lane] <= number;
      sequence += __popc(__ballot_sync(~0u, is_past));
      if (sequence < first + 32) break;
    }
    if (sequence >= work.sequences) return false;
    if (sequence > 0) number -= work.ends[sequence - 1];
    const Span span = work.span(sequence);
    const u32 blocks = row_blocks(work, span);
    segments = segments_of(span);
    const u32 row_block = quotient(number, segments);
    segment = number - row_block * segments;
    number = row_block;
    key_head = blocks == 1 ? number : quotient(number, blocks);
    first_row = (blocks - 1 - (number - key_head * blocks)) * ROWS;
    end_row = min(first_row + ROWS, span.columns * (int)work.group);
    before = span.before;
    total = span.total;
    segment_keys = span.segment_keys;
    visible = total;
    if (blocks > 1) visible = before + (end_row - 1) / (int)work.group + 1;
    take_segment();
    return true;
  }

  // What comes before everything: `advance` finds any thing from here.
  static NINFER_DEVICE Item none() {
    Item item = {};
    item.segments = 1;
    return item;
  }

  // To the thing after this one, whose number is given; there is one.
  template <class W>
  NINFER_DEVICE void advance(const W& work, u32 number, int lane) {
    if (segment + 1 == segments) {
      find(work, number, lane);
    } else {
      segment++;
      take_segment();
    }
  }

 private:
  NINFER_DEVICE void take_segment() {
    begin = segment * segment_keys;
    end = end_row > first_row ? min(begin + segment_keys, visible) : begin;
    count = max(0, end - begin + PAGE - 1) / PAGE;
  }
  static NINFER_DEVICE u32 segments_of(const Span& span) { return FINAL ? 1 : span.segments; }
  // If FINAL, row blocks of columns that do not exist count: there is something to write for them.
  static NINFER_DEVICE u32 row_blocks(const Work& work, const Span& span) {
    return FINAL ? work.row_blocks : (span.columns * work.group + ROWS - 1) / ROWS;
  }
};

// Where blocks leave the sums of segments: [sequence][key head][row][segment], 256 unnormalised
// sums in `rows`; in `weights` the largest score of the segment, in powers of two, and the sum of
// weights.
struct PartialSums {
  float *rows, *weights;
  u32 segments;

  NINFER_DEVICE float* row(i64 place) const { return rows + place * 256; }
  NINFER_DEVICE void set_weight(i64 place, float largest, float total) const {
    *(float2*)(weights + 2 * place) = make_float2(largest, total);
  }
};

}  // namespace ninfer
