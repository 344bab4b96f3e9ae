//! The loaded CUDA driver (NVIDIA's or softgpu): function table, address ranges, arenas, pinned buffers.
