// Matrix products on the matrix unit (amx.h): 16 tokens x 16 outputs x 64 inputs of a plane in two instructions, one for each
// byte of the activations. Nothing but these happens between the first input and the last.
#pragma once
#include <algorithm>

#include "amx.h"
#include "simd.h"

namespace ramet {

// Sums of a token tile and two channel blocks, as the unit makes them.
struct alignas(64) UnitSums {
    int32_t high[2][kTokenTile][kLanes];  // with the upper bytes of activations
    int32_t low[2][kTokenTile][kLanes];
};

namespace amx {

#if defined(RAMET_HAS_AMX)

constexpr int kMinTokens = 6;  // from here on the unit is faster than the vector kernel

inline bool is_worthwhile(int num_tokens) { return num_tokens >= kMinTokens && is_permitted(); }

// Two channel blocks times all 16 tokens of a tile. `meanwhile(row)` is called for rows 0..15, between products: work of the
// vector units that the matrix unit hides. What lies `ahead` bytes beyond the weights, if not 0, is fetched from memory.
template <typename Meanwhile>
RAMET_INLINE void multiply_tile(const WeightChunk* block_0, const WeightChunk* block_1, const ActivationChunk* acts,
                                int num_chunks, ptrdiff_t ahead, UnitSums& sums, const Meanwhile& meanwhile) {
    const int rows_per_chunk = ceil_div(kTokenTile, num_chunks);
    int row = 0;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int c = 0; c < num_chunks; ++c) {
        if (ahead != 0) {
            for (int step = 0; step < kChunkSteps; ++step) {
                prefetch_far(block_0[c].steps[step] + ahead);
                prefetch_far(block_1[c].steps[step] + ahead);
            }
        }
        _tile_loadd(4, acts[c].bytes.high, kChunkInputs);
        _tile_loadd(6, block_0[c].steps, 4 * kLanes);
        _tile_dpbusd(0, 4, 6);
        _tile_loadd(7, block_1[c].steps, 4 * kLanes);
        _tile_dpbusd(1, 4, 7);
        _tile_loadd(5, acts[c].bytes.low, kChunkInputs);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
        for (const int end = std::min(kTokenTile, row + rows_per_chunk); row < end; ++row) meanwhile(row);
    }
    constexpr int kRowBytes = kLanes * sizeof(int32_t);
    _tile_stored(0, sums.high[0], kRowBytes);
    _tile_stored(1, sums.high[1], kRowBytes);
    _tile_stored(2, sums.low[0], kRowBytes);
    _tile_stored(3, sums.low[1], kRowBytes);
}

// Row t of a channel block's sums, as the vector kernel would have made it.
RAMET_INLINE IntVec total(const UnitSums& sums, int block, int t, IntVec row_sums) {
    return Products::end({ivload(sums.high[block][t]), ivload(sums.low[block][t])}, row_sums);
}

#else

constexpr bool is_worthwhile(int) { return false; }
template <typename Meanwhile>
void multiply_tile(const WeightChunk*, const WeightChunk*, const ActivationChunk*, int, ptrdiff_t, UnitSums&,
                   const Meanwhile&) {}
inline IntVec total(const UnitSums&, int, int, IntVec row_sums) { return row_sums; }

#endif

}  // namespace amx
}  // namespace ramet
