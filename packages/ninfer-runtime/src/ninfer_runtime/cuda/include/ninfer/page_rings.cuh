// Pages of keys and values on their way to the tensor cores of Hopper: rings of tiles that some
// warps fill and others multiply, from rows that are copied or codes that are expanded.
#pragma once
#include "ninfer/async_copy.cuh"
#include "ninfer/attention_work.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/page_tile.cuh"

namespace ninfer {

#if NINFER_HAS_WGMMA

constexpr int SLOTS = 2, FILLING_WARPS = 4;
constexpr int TILE_BYTES = PAGE * ROW_BYTES, BARRIER_BYTES = 128;

NINFER_DEVICE void fence_for_tensor_cores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

NINFER_DEVICE bool barrier_has_passed(u32 barrier, u32 phase) {
  u32 done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(phase)
      : "memory");
  return done;
}

NINFER_DEVICE void synchronize_warpgroup(int number) {
  asm volatile("bar.sync %0, 128;" ::"r"(2 + number) : "memory");
}

// The pages of keys, or of values, of a block: SLOTS tiles in shared memory, each with a barrier
// for full and one for empty; page j lies in slot j % SLOTS.
struct TileRing {
  u32 tiles, barriers;

  NINFER_DEVICE u32 tile(int j) const { return tiles + j % SLOTS * TILE_BYTES; }
  NINFER_DEVICE u32 full(int j) const { return barriers + j % SLOTS * 8; }
  NINFER_DEVICE u32 empty(int j) const { return barriers + (SLOTS + j % SLOTS) * 8; }

  NINFER_DEVICE void init(int multipliers) const {
    for (int i = 0; i < SLOTS; i++) {
      barrier_init(full(i), FILLING_WARPS);
      barrier_init(empty(i), 4 * multipliers);
    }
  }
  NINFER_DEVICE void wait_for_page(int j) const { barrier_wait(full(j), j / SLOTS & 1); }
  NINFER_DEVICE void release(int j, int lane) const {
    if (lane == 0) barrier_arrive(empty(j));
  }
  // By the warps that fill. A slot's first page finds it empty.
  NINFER_DEVICE bool is_empty(int j) const {
    return j < SLOTS || barrier_has_passed(empty(j), (j / SLOTS & 1) ^ 1);
  }
  NINFER_DEVICE void wait_for_slot(int j) const {
    if (j >= SLOTS) barrier_wait(empty(j), (j / SLOTS & 1) ^ 1);
  }
  NINFER_DEVICE void announce(int j, int lane) const {
    fence_for_tensor_cores();
    __syncwarp();
    if (lane == 0) barrier_arrive(full(j));
  }
};

// Goes through the pages of all that a block has to do: those of keys, or of values.
template <int ROWS, bool FINAL>
struct PageCursor {
  const Work& work;
  const u8 *codes, *scales;
  const int *tables, *table_rows;
  u32 table_width;
  u32 number = blockIdx.x, sequence = 0, key_head = 0;
  int position = 0, end = 0, before = 0, total = 0;

  // To the first page of the next thing that has any.
  NINFER_DEVICE void seek(int lane) {
    Item<ROWS, FINAL> item;
    for (; position >= end && item.find(work, number, lane); number += gridDim.x) {
      sequence = item.sequence;
      key_head = item.key_head;
      position = item.begin;
      end = item.begin + item.count * PAGE;
      before = item.before;
      total = item.total;
    }
  }
  NINFER_DEVICE bool has_page() const { return position < end; }
  NINFER_DEVICE void advance(int lane) {
    position += PAGE;
    if constexpr (!FINAL) seek(lane);  // otherwise there is a block for everything
  }
  NINFER_DEVICE int valid() const { return total - position; }
  // Rows of new tokens are written by the kernel before this one, which is waited for when they
  // come.
  NINFER_DEVICE i64 row() const {
    if (position + PAGE > before) wait_for_previous_kernels();
    const Pages pages{tables + (i64)table_rows[sequence] * table_width, work.key_heads, key_head};
    return pages.row(position);
  }
};

// Fills a ring with rows of 512 bytes. The copies of one page are waited for when those of the next
// have begun, or when there is no room for it yet.
template <class Cursor>
NINFER_DEVICE void copy_pages(Cursor& from, const TileRing& ring, int warp, int lane) {
  int j = 0;
  bool pending = false;
  for (; from.has_page(); from.advance(lane), j++) {
    const int valid = from.valid();
    const u8* source = from.codes + from.row() * ROW_BYTES + lane * 16;
    if (pending && !__all_sync(~0u, ring.is_empty(j))) {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
      ring.announce(j - 1, lane);
      pending = false;
    }
    ring.wait_for_slot(j);
#pragma unroll 8
    for (int r = warp; r < PAGE; r += FILLING_WARPS)
      copy_chunk(ring.tile(j) + chunk_offset<PAGE>(r, lane), source + r * ROW_BYTES,
                 r < valid ? 16 : 0);
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (pending) {
      asm volatile("cp.async.wait_group 1;" ::: "memory");
      ring.announce(j - 1, lane);
    }
    pending = true;
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  if (pending) ring.announce(j - 1, lane);
}

// Coded pages of keys, or of values, in shared memory: codes, then scales. Page j lies in slot
// j % CODED_SLOTS.
template <int C, int CODED_SLOTS>
struct CodedPages {
  using Shape = RowShape<C>;
  static constexpr int CODE_BYTES = PAGE * Shape::CODE_BYTES;
  static constexpr int SCALE_BYTES = PAGE * Shape::SCALE_BYTES;
  static constexpr int BYTES = CODE_BYTES + SCALE_BYTES;
  u32 place, barriers;

  NINFER_DEVICE void init() const {
    for (int i = 0; i < CODED_SLOTS; i++) barrier_init(barriers + i * 8, 1);
  }
  NINFER_DEVICE u32 barrier(int j) const { return barriers + j % CODED_SLOTS * 8; }
  NINFER_DEVICE u32 slot(int j) const { return place + j % CODED_SLOTS * BYTES; }

  // By one thread.
  NINFER_DEVICE void start(int j, const u8* codes, const u8* scales, i64 row) const {
    barrier_expect(barrier(j), BYTES);
    bulk_copy(slot(j), codes + row * Shape::CODE_BYTES, CODE_BYTES, barrier(j), EVICT_LAST);
    bulk_copy(slot(j) + CODE_BYTES, scales + row * Shape::SCALE_BYTES, SCALE_BYTES, barrier(j),
              EVICT_LAST);
  }
  NINFER_DEVICE void wait_for(int j) const { barrier_wait(barrier(j), j / CODED_SLOTS & 1); }

  // Rows from `valid` on become zeros: what lies in memory there may be anything.
  NINFER_DEVICE void expand(int j, u32 tile, int valid, int warp, int lane) const {
    constexpr int BATCH = 4;  // rows that are read together: reading takes longer than expanding
    const u32 codes = slot(j), scales = codes + CODE_BYTES;
    // Rows four apart have their chunks in places that differ in one bit only.
    const u32 even = tile + chunk_offset<PAGE>(warp, lane), odd = even ^ 64;
#pragma unroll 1
    for (int first = 0; first < PAGE; first += BATCH * FILLING_WARPS) {
      ChunkCodes<C> chunk[BATCH];
#pragma unroll
      for (int i = 0; i < BATCH; i++) {
        const int r = first + i * FILLING_WARPS + warp;
        chunk[i].load(SharedRow{codes + r * Shape::CODE_BYTES, scales + r * Shape::SCALE_BYTES},
                      lane);
      }
#pragma unroll
      for (int i = 0; i < BATCH; i++)
        store_shared_16((i % 2 ? odd : even) + (first + i * FILLING_WARPS) * 128,
                        chunk[i].expand());
    }
    if (valid >= PAGE) return;
    for (int r = warp; r < PAGE; r += FILLING_WARPS)
      if (r >= valid) store_shared_16(tile + chunk_offset<PAGE>(r, lane), make_uint4(0, 0, 0, 0));
  }
};

// Fills a ring from coded pages; while one is expanded, the next are copied. `barrier` is the
// number of this warpgroup's own.
template <int C, int CODED_SLOTS, class Cursor>
NINFER_DEVICE void expand_pages(Cursor& from, const TileRing& ring,
                                const CodedPages<C, CODED_SLOTS>& coded, int barrier, int warp,
                                int lane) {
  int valid[CODED_SLOTS];  // rows of the pages that are being copied, oldest first; 0 without a
                           // page
  const auto start = [&](int j) {
    if (!from.has_page()) return 0;
    const int rows = from.valid();
    if (warp == 0 && lane == 0) coded.start(j, from.codes, from.scales, from.row());
    from.advance(lane);
    return rows;
  };
#pragma unroll
  for (int i = 0; i < CODED_SLOTS; i++) valid[i] = start(i);
  for (int j = 0; valid[0] > 0; j++) {
    coded.wait_for(j);
    ring.wait_for_slot(j);
    coded.expand(j, ring.tile(j), valid[0], warp, lane);
    ring.announce(j, lane);
    synchronize_warpgroup(barrier);  // nobody reads the codes any more
#pragma unroll
    for (int i = 1; i < CODED_SLOTS; i++) valid[i - 1] = valid[i];
    valid[CODED_SLOTS - 1] = start(j + CODED_SLOTS);
  }
}

template <int C, int CODED_SLOTS, class Cursor>
NINFER_DEVICE void fill_pages(Cursor& from, const TileRing& ring,
                              const CodedPages<C, CODED_SLOTS>& coded, int barrier, int warp,
                              int lane) {
  from.seek(lane);
  if constexpr (C <= ROWS_FP16)
    copy_pages(from, ring, warp, lane);
  else
    expand_pages(from, ring, coded, barrier, warp, lane);
}

#endif

}  // namespace ninfer
