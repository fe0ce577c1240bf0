// Records the last tokens of each sequence, after the kernels that read them: these must not record
// the new tokens where they have more of them than the ring holds besides its history.
#include "ninfer/delta_tokens.cuh"
#include "ninfer/launch_order.cuh"

namespace ninfer {

// Of the new tokens the last ring - 3 are recorded; tokens before them, replayed ones and the
// history of the convolution, are copied from the source where the destination is another slot.
// Blocks: [sequence][token from the last one][part of a record]; 256 threads.
__global__ __launch_bounds__(256) void gated_delta_net_record_kernel(
    const u16* u, i64 u_stride, const u16* a, i64 a_stride, const u16* b, i64 b_stride,
    u16* records, const int* sources, const int* destinations, const int* positions,
    const int* replays, const int* new_columns, u32 columns, u32 recorded, u32 channels, u32 heads,
    u32 ring) {
  wait_for_previous_kernels();
  let_next_kernel_start();
  const u32 record_width = channels + 2 * heads, parts = (record_width + 255) / 256;
  const u32 element = blockIdx.x % parts * 256 + threadIdx.x;
  const u32 sequence = blockIdx.x / parts / recorded, from_last = blockIdx.x / parts % recorded;
  if (element >= record_width) return;
  const int column = new_columns[sequence] - 1 - (int)from_last;
  const int token = replays[sequence] + column, position = positions[sequence] + token;
  const int source = sources[sequence], destination = destinations[sequence];
  const i64 slot = (i64)ring * record_width;
  u16* const target = records + destination * slot + position % (int)ring * record_width + element;
  if (column < 0) {
    const bool exists = token >= -(TAPS - 1) && position >= 0;
    if (exists && source != destination) *target = *(target + (source - destination) * slot);
    return;
  }
  if (from_last > ring - TAPS) return;
  const i64 row = (i64)sequence * columns + column;
  *target = element < channels           ? u[row * u_stride + element]
            : element < channels + heads ? a[row * a_stride + element - channels]
                                         : b[row * b_stride + element - channels - heads];
}

}  // namespace ninfer
