"""What every CUDA kernel of the runtime needs: compilation, launching, streams, graphs, memory.

Kernels are compiled at run time by NVRTC, for the architecture of the device, and kept on disk. An op
names its kernels (`kernel.Kernel`), a device loads and launches them. Only this package,
``device/cuda.py`` and ``ops/*/cuda.py`` import CuPy and cuda-bindings, on first use.
"""
