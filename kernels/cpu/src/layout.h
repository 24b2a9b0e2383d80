// How numbers lie in memory. Everything else in this library is code over these pictures.
//
// INTEGERS. A matrix product is computed on integers. A weight is (row scale) * w, an activation (token scale) * x, so that
//
//      output = (row scale) * (token scale) * sum over all inputs of w * x
//
// The sum is exact. It does not matter in which order it is made, by which instruction, or beside which other tokens.
//
// PLANES. w has 8 bits, or 16 where the checkpoint has more than 4: one plane of signed bytes, or two,
// w = 256 * plane 1 + plane 0. A matrix [outputs N, inputs K] is cut into channel blocks of 16 outputs, and those into chunks
// of 64 inputs, the depth of the matrix unit. A thread that computes 16 outputs reads memory in one direction.
//
//      chunk, 1 KiB:    step j = 0..15:   | out 0: inputs 4j..4j+3 | out 1: 4j..4j+3 | ... | out 15: 4j..4j+3 |
//
//      channel block:   | plane 0: chunk 0, 1, ... | plane 1, if there is one: chunk 0, 1, ... | trailer |
//      trailer:         | 16 row scales, fp32 | 16 sums of each row of plane 0, int32 | the same of plane 1 |
//
// GROUPS. The same integers in the size they have in a GGUF file, for models whose planes would take too much memory. They
// become planes, a channel block at a time, whenever a product needs them: w is a function of 4 or 8 bits q and two
// integers that a group of 32 inputs shares.
//
//      channel block:   | group 0 | group 1 | ... | group K/32-1 | trailer |
//
//      8 bits (kInt8), 544 bytes a group:
//         step j = 0..7, as in a chunk, byte = q + 128 | 16 multipliers, int16 |
//      4 bits (kInt4), 320 bytes a group:
//         step j = 0..3, low half of a byte: step j of a chunk, high half: step j + 4 | 16 multipliers | 16 offsets, int16 |
//
//      w = multiplier * q                                   kInt8, two planes   (GGUF Q8_0, and what is quantised here)
//      w = (multiplier * q + offset) / 256, rounded down    kInt4, one plane    (GGUF Q4_0, Q4_1, Q4_K)
//
// N is rounded up to 32 (two channel blocks are computed at a time), K to 64; what is added is zero.
//
// ACTIVATIONS have up to 16 bits. 16 tokens by 64 inputs are an ActivationChunk.
//
//      token tile 0: | chunk 0 | chunk 1 | ... |   token tile 1: | chunk 0 | ...
//
// KV CACHE, bf16, blocks of 16 token slots. All layers of a block lie together: a copied or newly used block is one
// piece of memory.
//
//      block b: | layer 0: keys of kv head 0, of 1, ..., values of kv head 0, of 1, ... | layer 1: ... |
//
// bf16 is multiplied in pairs of neighbouring terms (attention.h). A score adds over dimensions, an output over keys,
// so pairs are two dimensions of a key, and two keys' values in one dimension. A line of 64 bytes is 16 pairs.
//
//      keys:     dims 0, 1:    | slot 0: d0 d1 | slot 1: d0 d1 | ... | slot 15 |     dims 2, 3: ...
//      values:   slots 0, 1:   | dim 0: s0 s1 | dim 1: s0 s1 | ... | last dim |      slots 2, 3: ...
//
// What is stored is always finite (store_kv), so that it may be multiplied by zero: a masked slot, and what lies behind
// a head's last dimension.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ramet {

constexpr int kGroup = 32;          // inputs that share a multiplier
constexpr int kChunkInputs = 64;    // the depth of the matrix unit
constexpr int kChunkGroups = kChunkInputs / kGroup;
constexpr int kChunkSteps = kChunkInputs / 4;
constexpr int kLanes = 16;          // fp32 lanes of a vector, outputs of a channel block, slots of a KV block
constexpr int kPair = 2 * kLanes;   // outputs computed at a time
constexpr int kTokenTile = 16;      // tokens of an ActivationChunk

using half_t = uint16_t;  // the bits of an IEEE fp16
using bf16_t = uint16_t;  // the upper half of an fp32

enum WeightFormat : int32_t { kInt8 = 0, kInt4 = 1 };

constexpr int num_planes(int format) { return format == kInt8 ? 2 : 1; }

// The dot instructions and the matrix unit multiply bytes, unsigned ones of activations with signed ones of weights:
// x + 2^15 = 256 * high + low. Elsewhere 16 bits are multiplied in pairs: the inputs of a step lie in the order 0, 2, 1, 3.
union alignas(64) ActivationChunk {
    struct {
        uint8_t high[kTokenTile][kChunkInputs];
        uint8_t low[kTokenTile][kChunkInputs];
    } bytes;
    int16_t values[kTokenTile][kChunkInputs];
};
constexpr int place_in_pairs(int input) { return (input & ~3) | (input & 1) << 1 | (input >> 1 & 1); }
constexpr int kInputOffsetBits = 15;

struct alignas(64) WeightChunk {
    int8_t steps[kChunkSteps][4 * kLanes];
};

struct Trailer {
    float scales[kLanes];
    int32_t sums[2][kLanes];  // of plane 0 and 1; what the offset of unsigned activations is multiplied by
};

struct PackedMatrix {
    int32_t num_outputs;
    int32_t num_inputs;  // a multiple of kGroup
    int32_t format;
    int32_t is_planes;  // otherwise groups
    uint8_t* data;      // 64-byte aligned
};

constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }
constexpr int ceil_div(int value, int divisor) { return (value + divisor - 1) / divisor; }

constexpr size_t quant_bytes(int format) { return format == kInt8 ? 512 : 256; }
constexpr size_t group_bytes(int format) { return quant_bytes(format) + (format == kInt8 ? 32 : 64); }

inline int num_groups(const PackedMatrix& matrix) { return matrix.num_inputs / kGroup; }
inline int num_chunks(const PackedMatrix& matrix) { return ceil_div(matrix.num_inputs, kChunkInputs); }

inline size_t weight_bytes(const PackedMatrix& matrix) {  // of a channel block
    return matrix.is_planes ? num_planes(matrix.format) * num_chunks(matrix) * sizeof(WeightChunk)
                            : num_groups(matrix) * group_bytes(matrix.format);
}
inline size_t block_bytes(const PackedMatrix& matrix) { return weight_bytes(matrix) + sizeof(Trailer); }

inline uint8_t* block_of(const PackedMatrix& matrix, int block) { return matrix.data + block * block_bytes(matrix); }
inline Trailer& trailer_of(const PackedMatrix& matrix, int block) {
    return *reinterpret_cast<Trailer*>(block_of(matrix, block) + weight_bytes(matrix));
}
inline uint8_t* group_of(const PackedMatrix& matrix, int block, int group) {
    return block_of(matrix, block) + group * group_bytes(matrix.format);
}
inline WeightChunk* plane_of(const PackedMatrix& matrix, int block, int plane) {
    return reinterpret_cast<WeightChunk*>(block_of(matrix, block)) + plane * num_chunks(matrix);
}

}  // namespace ramet
