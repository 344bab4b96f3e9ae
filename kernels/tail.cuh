// Reading the end of a piece: what lies beyond it counts as zeros.
#pragma once
#include <cstdint>

// The first `left` bytes of a vector, 1 to 15 of them, the rest zeroed.
template <class Count>
__device__ __forceinline__ uint4 first_bytes(const uint4 &vector, Count left) {
    uint32_t w[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
        if (left <= 4 * k) w[k] = 0;
        else if (left < 4 * k + 4) w[k] &= (1u << (8 * (left - 4 * k))) - 1;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}
