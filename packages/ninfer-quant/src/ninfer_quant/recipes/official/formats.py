"""Short names that the built-in recipes call formats by."""

from __future__ import annotations

BF16 = "bf16"
Q4 = "q4_g64_fp16"
Q5 = "q5_g64_fp16"
Q6 = "q6_g64_fp16"
Q8 = "q8_g32_fp16"
FP8 = "fp8_e4m3fn_row_bf16"
NVFP4 = "nvfp4"
EXL3 = "exl3_mul1"
