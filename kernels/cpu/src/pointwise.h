// What happens to a token between matrix products: norm, rotation, activation, and its way into the KV cache.
#pragma once
#include <cmath>
#include <cstring>

#include "attention.h"
#include "simd.h"

namespace ramet {

// y = x / sqrt(mean(x^2) + eps) * weight, over `size` values, a multiple of 16 (Zhang and Sennrich 2019).
inline void rms_norm(const float* x, const float* weight, int size, float eps, float* y) {
    Vec squares = vzero();
    for (int i = 0; i < size; i += kLanes) squares = vfma(vload(x + i), vload(x + i), squares);
    const Vec factor = vset(1.0f / std::sqrt(vsum(squares) / static_cast<float>(size) + eps));
    for (int i = 0; i < size; i += kLanes) vstore(y + i, vmul(vmul(vload(x + i), factor), vload(weight + i)));
}

// Rotates pairs (i, i + half) of a head, i < half; the rest of the head passes (Su et al. 2021, section 3.4).
inline void rotate(float* head, const float* cos, const float* sin, int half) {
    int i = 0;
    for (; i + kLanes <= half; i += kLanes) {
        const Vec a = vload(head + i), b = vload(head + half + i), c = vload(cos + i), s = vload(sin + i);
        vstore(head + i, vsub(vmul(a, c), vmul(b, s)));
        vstore(head + half + i, vfma(b, c, vmul(a, s)));
    }
    for (; i < half; ++i) {
        const float a = head[i], b = head[half + i];
        head[i] = a * cos[i] - b * sin[i];
        head[half + i] = b * cos[i] + a * sin[i];
    }
}

// silu(gate) * up, silu(g) = g / (1 + e^-g).
inline Vec silu_mul(Vec gate, Vec up) {
    const Vec decay = vexp(vmin(vsub(vzero(), gate), vset(87.0f)));  // beyond 87 the quotient is nothing anyway
    return vdiv(vmul(gate, up), vadd(vset(1.0f), decay));
}

// A key or value as it is stored. NaN becomes the largest that there is. attention.h says why there are limits.
inline Vec prepare_stored(Vec x) {
    const Vec finite = vclamp(x, kLargestStored);
    return vround_bf16(vzero_below(finite, vabs(finite), vset(kTinyStored)));
}

// Writes one token's key and value heads to its slot. The neighbouring slot is a half of the same pairs: another thread
// may be writing it, so those bytes are not even rewritten.
inline void store_kv(const float* key, const float* value, const KVLayout& kv, int layer, int block, int slot) {
    alignas(32) bf16_t dims[kLanes];
    for (int head = 0; head < kv.num_kv_heads; ++head, key += kv.head_dim, value += kv.head_dim) {
        bf16_t* keys = kv.keys(layer, block, head) + 2 * slot;
        bf16_t* values = kv.values(layer, block, head) + slot / 2 * 2 * kv.head_dim;
        for (int d = 0; d < kv.head_dim; d += kLanes, keys += kLanes * kLanes) {
            vstore_bf16(dims, prepare_stored(vload(key + d)));
            for (int i = 0; i < kLanes; i += 2) std::memcpy(keys + i * kLanes, dims + i, 2 * sizeof(bf16_t));
            const Vec stored = prepare_stored(vload(value + d));
            if (slot % 2 == 0) {
                vstore_in_pairs<0>(values + 2 * d, stored);
            } else {
                vstore_in_pairs<1>(values + 2 * d, stored);
            }
        }
    }
}

}  // namespace ramet
