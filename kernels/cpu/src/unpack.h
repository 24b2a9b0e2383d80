// Groups of packed weights to planes (layout.h).
//
// 32 lanes of 16 bits at a time: the even bytes of a step (inputs 0 and 2) and the odd ones (inputs 1 and 3). In both, what a
// plane has of a weight is the upper byte.
#pragma once
#include "simd.h"

namespace ramet {

inline void store_upper_bytes(int8_t* step, ShortVec even, ShortVec odd) {
    sstore(step, sor(sright_unsigned<8>(even), sand(odd, sset(-256))));
}

// One plane of a group: eight steps, 64 bytes each.
template <int Format, int Plane>
RAMET_INLINE void unpack_group(const uint8_t* group, int8_t (*steps)[4 * kLanes]) {
    const int16_t* integers = reinterpret_cast<const int16_t*>(group + quant_bytes(Format));
    const ShortVec multiplier = sload_twice(integers);
    if constexpr (Format == kInt4) {
        const ShortVec offset = sload_twice(integers + kLanes), nibble = sset(15);
        const auto weights = [&](ShortVec q) RAMET_INLINED { return sadd(smul(sand(q, nibble), multiplier), offset); };
        for (int j = 0; j < 4; ++j) {
            const ShortVec packed = sload(group + j * 64);
            store_upper_bytes(steps[j], weights(packed), weights(sright_unsigned<8>(packed)));
            store_upper_bytes(steps[j + 4], weights(sright_unsigned<4>(packed)), weights(sright_unsigned<12>(packed)));
        }
    } else {
        const ShortVec minus_128 = smul(multiplier, sset(-128)), low_byte = sset(255);
        const auto weights = [&](ShortVec q) RAMET_INLINED {
            const ShortVec w = sadd(smul(q, multiplier), minus_128);
            return Plane == 0 ? sleft<8>(w) : sadd(w, sset(128));  // plane 1 is rounded, so that plane 0 is signed
        };
        for (int j = 0; j < 8; ++j) {
            const ShortVec packed = sload(group + j * 64);
            store_upper_bytes(steps[j], weights(sand(packed, low_byte)), weights(sright_unsigned<8>(packed)));
        }
    }
}

// One plane of a channel block of groups. What the last chunk has beyond the last group becomes zero.
template <int Format, int Plane>
void unpack_block(const uint8_t* block, int num_groups, WeightChunk* plane) {
    constexpr int kGroupSteps = kGroup / 4;
    if (num_groups % kChunkGroups != 0) plane[num_groups / kChunkGroups] = WeightChunk{};
    for (int g = 0; g < num_groups; ++g)
        unpack_group<Format, Plane>(block + g * group_bytes(Format), plane[g / kChunkGroups].steps + g % kChunkGroups * kGroupSteps);
}

// All planes of channel block `block` of a matrix of groups, one after another.
inline void unpack_planes(const PackedMatrix& matrix, int block, WeightChunk* planes) {
    const uint8_t* packed = block_of(matrix, block);
    const int groups = num_groups(matrix);
    if (matrix.format == kInt4) return unpack_block<kInt4, 0>(packed, groups, planes);
    unpack_block<kInt8, 0>(packed, groups, planes);
    unpack_block<kInt8, 1>(packed, groups, planes + num_chunks(matrix));
}

}  // namespace ramet
