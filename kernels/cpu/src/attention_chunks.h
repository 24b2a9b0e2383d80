// The chunks of a sequence's keys and values, as the attention kernels walk them.
#pragma once
#include <algorithm>

#include "attention.h"

namespace ramet {

// D is the head's width where it is a constant that addresses can be made of, 0 where it is not.
template <int D>
constexpr int width_of(int head_dim) {
    return D > 0 ? D : head_dim;
}

struct Chunk {
    const bf16_t *keys[kChunkBlocks], *values[kChunkBlocks];
    int num_blocks = 0;
    int start = 0;  // position of its first key

    int num_pairs() const { return ceil_div(num_blocks, 2); }
};

// Asks for the keys or the values of a chunk, which are needed next: memory answers while something else is computed.
inline void fetch_blocks(const bf16_t* const* blocks, int num_blocks, int head_dim) {
    constexpr int kLineElements = 64 / sizeof(bf16_t);
    for (int p = 0; p < num_blocks; ++p)
        for (int i = 0; i < head_dim * kLanes; i += kLineElements) __builtin_prefetch(blocks[p] + i);
}

// Chunks [begin, end) of the sequence that owns `blocks`, of which the first end_block are walked.
struct ChunkRange {
    const KVLayout& kv;
    int layer, head;
    const int32_t* blocks;
    int begin, end, end_block;

    Chunk at(int idx) const {
        Chunk chunk;
        chunk.num_blocks = std::min(kChunkBlocks, end_block - idx * kChunkBlocks);
        chunk.start = idx * kChunk;
        for (int p = 0; p < chunk.num_blocks; ++p) {
            const int block = blocks[idx * kChunkBlocks + p];
            chunk.keys[p] = kv.keys(layer, block, head);
            chunk.values[p] = kv.values(layer, block, head);
        }
        // Values are taken by two blocks. One that is missing has weights of zero, and may be any.
        if (chunk.num_blocks % 2 != 0) chunk.values[chunk.num_blocks] = chunk.values[chunk.num_blocks - 1];
        return chunk;
    }
};

}  // namespace ramet
