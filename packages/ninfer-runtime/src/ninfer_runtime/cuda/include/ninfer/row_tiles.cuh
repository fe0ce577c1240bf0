// Which row tiles of a weight a block multiplies, and the records that a warp fetches for them.
#pragma once
#include "ninfer/prelude.cuh"

namespace ninfer {

// The row tiles of one of S blocks (1 or 2) that split K of every tile.
template <int S>
struct RowTiles {
  int team, teams, rank, count;

  NINFER_DEVICE RowTiles(int tiles, int block, int blocks)
      : team(block / S), teams(blocks / S), rank(block % S),
        count((tiles - team + teams - 1) / teams) {}

  // The number of this block's tile t among those of the weight.
  NINFER_DEVICE int number(int t) const { return team + t * teams; }

  // Whether this block stores the tile; if not, it sends its sums to the other one.
  NINFER_DEVICE bool finishes(int t) const { return rank == (t & (S - 1)); }
};

// The records of a warp, tile after tile, in stages of at most KC records of BYTES.
template <int KC, int BYTES>
struct RecordWalk {
  const u8* source;
  const u8* next;  // where the next tile's begin
  u64 distance;
  int tiles, left, count;  // tiles to come; records of this one to come, and of a whole one

  // Goes on; returns how many bytes the stage at `source` had.
  NINFER_DEVICE u32 pass_stage() {
    const u32 num_bytes = tiles > 0 ? min_int(KC, left) * BYTES : 0;
    source += KC * BYTES;
    left -= KC;
    if (left <= 0) {
      tiles--;
      left = count;
      source = next;
      next += distance;
    }
    return num_bytes;
  }
};

}  // namespace ninfer
