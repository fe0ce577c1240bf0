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

// The tile that a ring is filled with next, in shared memory: what is looked at once a tile or less
// takes no registers. Each warp has its own, to which every lane writes the same.
template <int ROWS>
struct TileCursor {
  Item<ROWS, false> item;
  u32 number;  // of the item after it
  int position, page, filled;
};

constexpr int UNKNOWN_PAGE = -1;

// The tiles of all that a block has to do. Tile i lies in stage i % STAGES; a warp copies the keys that
// it multiplies itself, and their values. While the last tiles of a segment are used, the first of the
// next one are on their way.
template <int KC, int VC, int ROWS, int WARPS, int STAGES>
struct TileRing {
  static constexpr int KEYS = PRODUCT_KEYS * WARPS;
  using Keys = Tile<KC, KEYS>;
  using Values = Tile<VC, KEYS>;
  static constexpr int STAGE = Keys::BYTES + Values::BYTES;
  const Work& work;
  const PagedRows& rows;
  TileCursor<ROWS>& next;
  u32 place, end_number;
  int warp, lane;

  // The keys and the values of a product of a tile.
  NINFER_DEVICE ProductRows keys(int tile, int product) const {
    return Keys::product(place + tile % STAGES * STAGE, product);
  }
  NINFER_DEVICE ProductRows values(int tile, int product) const {
    return Values::product(place + tile % STAGES * STAGE + Keys::BYTES, product);
  }

  // Before the first tile of the thing with this number, which `fill` will look up.
  NINFER_DEVICE void start(u32 number) {
    TileCursor<ROWS> from = {};
    from.item = Item<ROWS, false>::none();
    from.number = number;
    from.page = UNKNOWN_PAGE;
    from.filled = -1;
    next = from;
  }

  // Whether the next tile may be filled while the kernels before run: it has older tokens only, whose
  // rows are there already.
  NINFER_DEVICE bool has_old_tile() const {
    return next.page == UNKNOWN_PAGE || next.position + KEYS <= next.item.before;
  }

  // Whether the next tile is the first with new tokens.
  NINFER_DEVICE bool has_first_new_row() const {
    const int first = max(next.item.begin, next.item.before);
    return next.page != UNKNOWN_PAGE && next.position <= first && first < next.position + KEYS;
  }

  // Begins to copy the tile whose page is known, and looks up the page of the one after it.
  NINFER_DEVICE void fill() {
    const u32 key_head = next.item.key_head;
    const int position = next.position, page = next.page, filled = next.filled;
    const int end = next.item.end, left = next.item.total - position;
    int following = position;
    __syncwarp();  // all lanes have read it
    if (page != UNKNOWN_PAGE) {
      const int own = warp * PRODUCT_KEYS;
      const i64 row = ((i64)page * work.key_heads + key_head) * PAGE + position % PAGE + own;
      copy_product<KC>(keys(filled, warp), rows.key_codes, rows.key_scales, row, left - own, lane);
      copy_product<VC>(values(filled, warp), rows.value_codes, rows.value_scales, row, left - own,
                       lane);
      following += KEYS;
    }
    if (filled >= 0) commit_tile();
    if (following < end) {
      next.position = following;
      next.page = rows.page(next.item.sequence, following);
    } else {
      TileCursor<ROWS> from = next;
      __syncwarp();
      from.position = following;
      from.page = UNKNOWN_PAGE;
      if (from.number < end_number) {
        from.item.advance(work, from.number, lane);
        from.number++;
        from.position = from.item.begin;
        from.page = rows.page(from.item.sequence, from.position);
      }
      next = from;
    }
    next.filled = filled + 1;
  }

  // Waits for what this warp has copied of a tile. The tiles after it, up to the one before that again,
  // are on their way.
  NINFER_DEVICE void wait(int tile) const {
    if (tile == 0)
      wait_for_tile<STAGES - 1>();
    else
      wait_for_tile<STAGES - 2>();
    __syncwarp();
  }
};

}  // namespace ninfer
