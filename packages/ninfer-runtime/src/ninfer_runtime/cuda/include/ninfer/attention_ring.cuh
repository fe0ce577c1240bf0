// Keys and values on their way to the warps of attention of few new tokens.
#pragma once
#include "ninfer/attention_work.cuh"
#include "ninfer/kv_tile.cuh"

namespace ninfer {

// Keys and values in pages, and which pages are whose.
struct PagedRows {
  u8 *key_codes, *key_scales, *value_codes, *value_scales;
  const int *tables, *table_rows;  // `table_rows` in shared memory
  u32 table_width;

  NINFER_DEVICE int page(u32 sequence, int position) const {
    return tables[(i64)table_rows[sequence] * table_width + position / PAGE];
  }
};

// The round that a warp copies its part of next. A round is KEYS keys of an item, of which each warp has
// 16, or none at the end.
template <int ROWS, int KEYS>
struct RoundCursor {
  Item<ROWS, false> item;
  u32 number, end_number;  // of the item after this one, and behind the last
  int position;            // at the end of the item or past it after the last round
  int own;                 // where this warp's keys are in a round
  int pages, index;        // lane l knows the page of these keys l rounds further; where this one is

  NINFER_DEVICE RoundCursor(u32 begin, u32 end, int warp)
      : item(Item<ROWS, false>::none()), number(begin), end_number(end), position(0),
        own(warp * PRODUCT_KEYS), pages(0), index(0) {}

  NINFER_DEVICE bool has_keys() const { return position + own < item.end; }
  // Whether there is a round and its rows are there before the kernels before have ended.
  NINFER_DEVICE bool is_old() const {
    return position < item.end && position + own + PRODUCT_KEYS <= item.before;
  }
  NINFER_DEVICE int page() const { return __shfl_sync(~0u, pages, index); }

  NINFER_DEVICE void advance(const KnownWork& work, const PagedRows& rows, int lane) {
    position += KEYS;
    index++;
    if (position >= item.end && number < end_number) {
      item.advance(work, number++, lane);
      position = item.begin;
      index = 32;
    }
    if (index < 32) return;
    const int known = position + own + lane * KEYS;
    pages = known < item.end ? rows.page(item.sequence, known) : 0;
    index = 0;
  }
};

// What is copied of the next STAGES rounds: by each warp the keys that it multiplies itself, and their
// values, which all read.
template <int KC, int VC, int WARPS, int STAGES>
struct RoundRing {
  using Keys = RowShape<KC>;
  using Values = RowShape<VC>;
  static constexpr int VALUE_CODES = PRODUCT_KEYS * Keys::CODE_BYTES;
  static constexpr int KEY_SCALES = VALUE_CODES + PRODUCT_KEYS * Values::CODE_BYTES;
  static constexpr int VALUE_SCALES = KEY_SCALES + PRODUCT_KEYS * Keys::SCALE_BYTES;
  static constexpr int PRODUCT = VALUE_SCALES + PRODUCT_KEYS * Values::SCALE_BYTES;
  u32 place;

  NINFER_DEVICE u32 product(int round, int warp) const {
    return place + (round % STAGES * WARPS + warp) * PRODUCT;
  }
  NINFER_DEVICE ProductRows keys(int round, int warp) const {
    return {product(round, warp), product(round, warp) + KEY_SCALES};
  }
  NINFER_DEVICE ProductRows values(int round, int warp) const {
    return {product(round, warp) + VALUE_CODES, product(round, warp) + VALUE_SCALES};
  }
  // Where a warp leaves its weights of a round, in place of the keys: [scale of the values][lane].
  NINFER_DEVICE u32 weights(int round, int warp, int scale, int lane) const {
    return product(round, warp) + scale * 256 + lane * 8;
  }

  // Begins to copy what the cursor is at, if anything; nobody reads the stage.
  template <class Cursor>
  NINFER_DEVICE void fill(int round, const Cursor& next, const KnownWork& work,
                          const PagedRows& rows, int warp, int lane) const {
    if (next.has_keys()) {
      const int position = next.position + next.own, left = next.item.total - position;
      const i64 row =
          ((i64)next.page() * work.key_heads + next.item.key_head) * PAGE + position % PAGE;
      copy_product<KC>(keys(round, warp), rows.key_codes, rows.key_scales, row, left, lane);
      copy_product<VC>(values(round, warp), rows.value_codes, rows.value_scales, row, left, lane);
    }
    commit_copies();
  }

  // Waits for what this warp has copied of a round. The rounds after it, up to the one before that again,
  // are on their way.
  NINFER_DEVICE void wait(int round) const {
    if (round == 0)
      wait_for_copies<STAGES - 1>();
    else
      wait_for_copies<STAGES - 2>();
    __syncwarp();
  }
};

}  // namespace ninfer
