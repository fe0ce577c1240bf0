// Where the new tokens of a sequence stand in a paged cache, and where attention finds their rows.
#pragma once
#include "ninfer/elements.cuh"

namespace ninfer {

constexpr int PAGE = 64;  // tokens
constexpr int MIN_SEGMENT_PAGES = 2;

// a / b for a below 2^20, for which a machine has no instruction: (a + 1/2) / b is further from every
// integer than the error of a division of floats.
NINFER_DEVICE u32 quotient(u32 a, u32 b) { return (u32)__fdividef((float)a + 0.5f, (float)b); }

// Where one sequence's rows look: `total` keys, of which column c sees the first `before` + c + 1.
// They are cut into segments, which blocks process side by side.
struct Span {
  int before, columns, total, segment_keys, segments;

  Span() = default;
  NINFER_DEVICE Span(int before, int columns, int max_segments)
      : before(before), columns(columns), total(before + columns) {
    const int pages = (total + PAGE - 1) / PAGE;
    const int per = max(MIN_SEGMENT_PAGES, (int)quotient(pages + max_segments - 1, max_segments));
    segment_keys = per * PAGE;
    segments = quotient(pages + per - 1, per);
  }
};

struct Pages {
  const int* table;  // of this sequence
  u32 key_heads, key_head;

  // The row of a position in every plane.
  NINFER_DEVICE i64 row(int position) const {
    return ((i64)table[position / PAGE] * key_heads + key_head) * PAGE + position % PAGE;
  }
};

// Queries or gates [column][head][256] of a sequence and key head: row r is column r / group and
// head r % group.
struct HeadRows {
  const u16* data;
  i64 column_stride, head_stride;
  u32 group;

  NINFER_DEVICE const u16* row(u32 r) const {
    return data + r / group * column_stride + r % group * head_stride;
  }
};

// The same of the result, [column][all heads][256].
struct OutputRows {
  u16* data;  // of the sequence and key head
  u32 heads, group;

  NINFER_DEVICE u16* row(u32 r) const {
    return data + ((i64)(r / group) * heads + r % group) * 256;
  }
};

// Zeros rows `begin` to `end` - 1 of a result: those of columns that do not exist.
NINFER_DEVICE void clear_rows(const OutputRows& out, int begin, int end, int warp, int warps,
                              int lane) {
  for (int r = begin + warp; r < end; r += warps)
    *(uint4*)(out.row(r) + lane * 8) = make_uint4(0, 0, 0, 0);
}

// What a block works on; blocks: [sequence][key head][row block, most keys first][segment].
struct BlockPlace {
  u32 sequence, key_head, row_block;
  int segment;

  NINFER_DEVICE BlockPlace(u32 block, u32 key_heads, u32 row_blocks, u32 segments) {
    segment = block % segments;
    block /= segments;
    row_block = row_blocks - 1 - block % row_blocks;
    block /= row_blocks;
    key_head = block % key_heads;
    sequence = block / key_heads;
  }

  // The first head of its rows in a result of so many columns.
  NINFER_DEVICE i64 first_head(u32 columns, u32 key_heads, u32 group) const {
    return ((i64)sequence * columns * key_heads + key_head) * group;
  }

  // Where the sums of its segment begin among [sequence][key head][row][segment].
  NINFER_DEVICE i64 partial(u32 key_heads, u32 rows, u32 segments) const {
    return ((i64)sequence * key_heads + key_head) * rows * segments + segment;
  }
};

}  // namespace ninfer
