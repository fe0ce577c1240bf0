// What becomes of a product: the argument RESULT of the linear kernels.
#pragma once

namespace ninfer {

constexpr int STORED = 0;
constexpr int ADDED = 1;  // to a residual
constexpr int GATED = 2;  // a gate and what it gates become one

}  // namespace ninfer
