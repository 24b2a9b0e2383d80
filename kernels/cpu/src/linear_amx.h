// The matrix unit of newer server processors (AMX): 16 tokens x 16 outputs x 32 inputs in one instruction.
//
// The integer sums are exact, and what follows them is the very sequence of linear.h, so a product has the same bits here
// and in the vector kernel. The unit is used from a number of tokens on where it is faster.
//
// Where the processor has no AMX, `is_worthwhile` is false and nothing here is called.
#pragma once
#include "layout.h"
#include "simd.h"

#if defined(__AMX_INT8__) && defined(__linux__)
#define RAMET_HAS_AMX 1
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ramet {

// A group of one channel block as the matrix unit takes it.
struct alignas(64) UnpackedGroup {
    int8_t values[8][64];  // [step][16 outputs x 4 inputs], the weights' offset taken out
    float scales[kLanes];
    float minima[kLanes];
};

namespace amx {

#if defined(RAMET_HAS_AMX)

constexpr int kMinTokens = 12;

// The kernel saves the unit's large registers only for processes that asked for it.
inline bool request_permission() {
    constexpr int kArchReqXcompPerm = 0x1023, kXfeatureXtiledata = 18;
    return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}
inline bool is_permitted() {
    static const bool permitted = request_permission();
    return permitted;
}
inline bool is_worthwhile(int num_tokens) { return num_tokens >= kMinTokens && is_permitted(); }

// Tile registers: 0, 1 sums (16 tokens x 16 outputs); 2, 3 activations (16 tokens x 32 bytes); 4, 5 weights (8 x 64 bytes).
struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 32, 32, 64, 64};
    uint8_t num_rows[16] = {16, 16, 16, 16, 8, 8};
};

// A thread owns the unit between these two: `begin` before its first product of a step, `end` after its last.
inline void begin_thread() {
    if (!is_permitted()) return;
    static const TileConfig config;
    asm volatile("" ::"m"(config) : "memory");
    _tile_loadconfig(&config);
}
inline void end_thread() {
    if (is_permitted()) _tile_release();
}

template <int Format>
void unpack_block(const uint8_t* weights, int num_groups, UnpackedGroup* out) {
    const __m512i offset = _mm512_set1_epi8(Format == kInt4 ? 8 : 0);
    for (int g = 0; g < num_groups; ++g, weights += group_bytes(Format), ++out) {
        for (int j = 0; j < (Format == kInt8 ? 8 : 4); ++j) {
            const Bytes packed = bytes_load(weights + j * 64);
            if (Format == kInt8) {
                _mm512_store_si512(out->values[j], _mm512_xor_si512(packed, _mm512_set1_epi8(-128)));
            } else {
                _mm512_store_si512(out->values[j], _mm512_sub_epi8(low_nibbles(packed), offset));
                _mm512_store_si512(out->values[j + 4], _mm512_sub_epi8(high_nibbles(packed), offset));
            }
        }
        vstore(out->scales, vload_half(group_scales(weights, Format)));
        if (Format == kInt4Min) vstore(out->minima, vload_half(group_minima(weights)));
    }
}

template <size_t NumBytes>
RAMET_INLINE void prefetch_bytes(const void* bytes) {
    unroll<NumBytes / 64>([&](auto line) RAMET_INLINED {
        _mm_prefetch(static_cast<const char*>(bytes) + line * 64, _MM_HINT_T0);
    });
}

constexpr int kPrefetchGroups = 8;  // about as far ahead as memory one level up takes to arrive

// Fetches what lies kPrefetchGroups beyond `object` in its array; past the array's end this does nothing.
template <typename T>
RAMET_INLINE void prefetch_ahead(const T& object) {
    prefetch_bytes<sizeof(T)>(reinterpret_cast<const char*>(&object) + kPrefetchGroups * sizeof(T));
}

using GroupSums = int32_t[kTokenTile][kLanes];

// Adds one group's sums, scaled, to the results of 16 tokens: the last two lines of the sequence in linear.h.
template <int Format>
RAMET_INLINE void scale_sums(const GroupSums& sums, const UnpackedGroup& weights, const ActivationGroup& acts,
                             Vec (&result)[kTokenTile]) {
    prefetch_ahead(weights);
    prefetch_ahead(acts);
    const Vec scale = vload(weights.scales);
    unroll<kTokenTile>([&](auto t) RAMET_INLINED {
        const Vec sum = vfrom_int(_mm512_load_si512(sums[t]));
        result[t] = vfma(sum, vmul(scale, vset(acts.scales[t])), result[t]);
    });
    if constexpr (Format == kInt4Min) {
        const Vec minimum = vload(weights.minima);
        unroll<kTokenTile>(
            [&](auto t) RAMET_INLINED { result[t] = vfma(minimum, vset(acts.scaled_sums[t]), result[t]); });
    }
}

// Integer sums of one group by the tile registers SUM, ACT and WEIGHT, which an instruction names by constants.
#define RAMET_AMX_SUMS(SUM, ACT, WEIGHT, acts, weights, sums) \
    _tile_zero(SUM);                                          \
    _tile_loadd(ACT, (acts).values, kGroup);                  \
    _tile_loadd(WEIGHT, (weights).values, 64);                \
    _tile_dpbssd(SUM, ACT, WEIGHT);                           \
    _tile_stored(SUM, sums, kLanes * sizeof(int32_t))

// One channel block times all 16 tokens of a tile; out[t * kPair] are token t's 16 results. The sums of two groups are on
// their way, in the two sets of tile registers, while those before them are scaled. `next`, if not null, are packed groups
// that will be unpacked soon: they are fetched from memory meanwhile.
template <int Format>
void multiply_tile(const UnpackedGroup* weights, const ActivationGroup* acts, int num_groups, const uint8_t* next,
                   float* out) {
    alignas(64) GroupSums sums[4];
    Vec result[kTokenTile];
    unroll<kTokenTile>([&](auto t) RAMET_INLINED { result[t] = vzero(); });
    RAMET_AMX_SUMS(0, 2, 4, acts[0], weights[0], sums[0]);
    if (num_groups > 1) {
        RAMET_AMX_SUMS(1, 3, 5, acts[1], weights[1], sums[1]);
    }
    for (int g = 0; g < num_groups; g += 2) {
        if (next != nullptr) prefetch_bytes<2 * group_bytes(Format)>(next + g * group_bytes(Format));
        if (g + 2 < num_groups) {
            RAMET_AMX_SUMS(0, 2, 4, acts[g + 2], weights[g + 2], sums[(g + 2) % 4]);
        }
        scale_sums<Format>(sums[g % 4], weights[g], acts[g], result);
        if (g + 1 == num_groups) break;
        if (g + 3 < num_groups) {
            RAMET_AMX_SUMS(1, 3, 5, acts[g + 3], weights[g + 3], sums[(g + 3) % 4]);
        }
        scale_sums<Format>(sums[(g + 1) % 4], weights[g + 1], acts[g + 1], result);
    }
    unroll<kTokenTile>([&](auto t) RAMET_INLINED { vstore(out + t * kPair, result[t]); });
}
#undef RAMET_AMX_SUMS

#else

inline bool is_permitted() { return false; }
constexpr bool is_worthwhile(int) { return false; }
inline void begin_thread() {}
inline void end_thread() {}
template <int Format>
void unpack_block(const uint8_t*, int, UnpackedGroup*) {}
template <int Format>
void multiply_tile(const UnpackedGroup*, const ActivationGroup*, int, const uint8_t*, float*) {}

#endif

}  // namespace amx
}  // namespace ramet
