// How numbers lie in memory. Everything else in this library is code over these pictures.
//
// GROUP. Weights and activations are quantised in groups of 32 neighbouring inputs (columns) of a matrix product.
//
// PACKED MATRIX. A matrix [outputs N, inputs K] is cut into channel blocks of 16 outputs, and a channel block into its
// K / 32 groups, which lie one after another: a thread that computes 16 outputs reads memory in one direction.
//
//      channel block 0: | group 0 | group 1 | ... | group K/32-1 |   channel block 1: | group 0 | ...
//
//   8 bits (kInt8), 544 bytes a group: byte = value + 128, so that it is unsigned as the dot instruction wants it
//
//      step j = 0..7:   | out 0: inputs 4j..4j+3 | out 1: 4j..4j+3 | ... | out 15: 4j..4j+3 |      64 bytes
//      then             | 16 scales, fp16 |                                                         32 bytes
//
//   4 bits (kInt4, kInt4Min): the low half of a byte is what 8 bits has at step j, the high half what it has at j + 4
//
//      step j = 0..3:   64 bytes as above, two values in each                                      256 bytes
//      then             | 16 scales, fp16 |                                                         32 bytes
//      kInt4Min only    | 16 minima, fp16 |                                                         32 bytes
//
//   weight = scale * (byte - 128)     kInt8        (GGUF Q8_0, and whatever is quantised here)
//   weight = scale * (byte - 8)       kInt4        (GGUF Q4_0)
//   weight = scale * byte + minimum   kInt4Min     (GGUF Q4_1, Q4_K)
//
//   N is rounded up to 32 (two channel blocks are computed at a time); rows beyond N have scale 0.
//
// ACTIVATIONS are int8 with one fp32 scale per token and group. 16 tokens by one group are an ActivationGroup: every
// kernel walks it with constant offsets from one pointer.
//
//      token tile 0: | group 0 | group 1 | ... |   token tile 1: | group 0 | ...
//
// KV CACHE, fp16, blocks of 16 token slots. All layers of a block lie together: a copied or newly used block is one
// piece of memory. Keys are transposed, so that 16 keys are one vector load; values are not, for the same reason.
//
//      block b: | layer 0: keys [kv head][dim][16 slots], values [kv head][16 slots][dim] | layer 1: ... |
//
// Stored keys and values are always finite (quantise saturates), so that a masked slot may be multiplied by zero.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ramet {

constexpr int kGroup = 32;          // inputs that share a scale
constexpr int kLanes = 16;          // fp32 lanes of a vector, outputs of a channel block, slots of a KV block
constexpr int kPair = 2 * kLanes;   // outputs computed at a time
constexpr int kTokenTile = 16;      // tokens of an ActivationGroup

using half_t = uint16_t;  // the bits of an IEEE fp16

enum WeightFormat : int32_t { kInt8 = 0, kInt4 = 1, kInt4Min = 2 };

struct alignas(64) ActivationGroup {
    int8_t values[kTokenTile][kGroup];
    float scales[kTokenTile];
    float scaled_sums[kTokenTile];  // scale * sum of the values: what a weight's minimum is multiplied by
    int32_t sums[kTokenTile];       // sum of the values: corrects for the offset of unsigned weights
};

struct PackedMatrix {
    int32_t num_outputs;
    int32_t num_inputs;  // a multiple of kGroup
    int32_t format;
    uint8_t* data;  // 64-byte aligned
};

constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }
constexpr int ceil_div(int value, int divisor) { return (value + divisor - 1) / divisor; }

constexpr size_t quant_bytes(int format) { return format == kInt8 ? 512 : 256; }
constexpr size_t group_bytes(int format) { return format == kInt8 ? 544 : format == kInt4 ? 288 : 320; }
inline size_t block_bytes(const PackedMatrix& matrix) {
    return static_cast<size_t>(matrix.num_inputs / kGroup) * group_bytes(matrix.format);
}

// The 16 scales and minima of a packed group.
inline const half_t* group_scales(const uint8_t* group, int format) {
    return reinterpret_cast<const half_t*>(group + quant_bytes(format));
}
inline const half_t* group_minima(const uint8_t* group) {
    return reinterpret_cast<const half_t*>(group + quant_bytes(kInt4Min) + kLanes * sizeof(half_t));
}

}  // namespace ramet
