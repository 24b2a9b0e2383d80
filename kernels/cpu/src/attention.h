// Causal attention over the paged KV cache, by tiles of tokens that share a run of blocks.
//
//      tokens of the step, sequences in the order of their block tables:
//
//          seq A:  [b0 b1 b2 b3 b4 b5 b6 b7 | b8 b9 a ]      tile: up to 16 neighbouring tokens and the
//          seq B:  [b0 b1 b2 b3 b4 b5 b6 b7 | c  d    ]      longest run of blocks that all of them see whole
//          seq C:  [b0 b1 b2 b3 b4 b5 b6 b7 | e       ]
//                   `---- common chunks ---'  `tails'
//
// A work item is one tile and one kv head. Its rows (tokens x query heads of that kv head) go through the common run
// together: a block of keys is converted from fp16 once and used for up to 48 rows. Then each sequence of the tile goes
// through the rest of its own blocks. Decoding a batch behind a shared prefix, a chunk of a prompt and a single token are
// all this one case.
//
// A row walks its keys in chunks of 64 (4 blocks), from position 0, with one online softmax update a chunk (Milakov and
// Gimelshein 2018; Dao et al., FlashAttention, 2022, algorithm 1). Where a chunk begins never depends on the tile, masked
// keys add exact zeros, and each sum runs over keys or dimensions in their order. So a row's result has the same bits
// alone, batched, shared or chunked, and no merge of partial results is needed.
#pragma once
#include <algorithm>

#include "aligned.h"
#include "simd.h"

namespace ramet {

constexpr int kChunkBlocks = 4;
constexpr int kChunk = kChunkBlocks * kLanes;
constexpr int kMaxTileTokens = 16;
constexpr int kMaxTileRows = 64;
constexpr float kMasked = -1e30f;

struct KVLayout {
    half_t* data;
    int64_t block_stride;  // in elements, as all here
    int num_kv_heads, head_dim;

    int64_t head_elements() const { return static_cast<int64_t>(head_dim) * kLanes; }
    half_t* keys(int layer, int block, int head) const {
        return data + block * block_stride + (2 * layer * num_kv_heads + head) * head_elements();
    }
    half_t* values(int layer, int block, int head) const { return keys(layer, block, num_kv_heads + head); }
};

// Rows of one kv head on their way through the keys.
struct AttentionRows {
    int num_rows = 0;
    float* queries;  // [rows][dim], scaled
    float* scores;   // [rows][kChunk]
    float* outputs;  // [rows][dim]
    float* maxima;   // [rows]
    float* totals;   // [rows]
    int* first_keys;  // [rows] positions a row sees: first_keys <= position < end_keys
    int* end_keys;
    float* converted;  // room for the keys or values of one chunk

    AttentionRows from(int row, int count, int head_dim) const {
        return {count,        queries + row * head_dim, scores + row * kChunk, outputs + row * head_dim, maxima + row,
                totals + row, first_keys + row,         end_keys + row,        converted};
    }
};

// Attention of `rows` over the blocks of one sequence: chunks from `first_chunk` on up to the last key any of the rows
// sees. Chunks before every row's window are skipped. `end_key` is the largest of the rows' end_keys, or where a run of
// blocks that all of them see ends.
void attend_blocks(const AttentionRows& rows, const KVLayout& kv, int layer, int head, const int32_t* blocks,
                   int first_chunk, int end_key);

}  // namespace ramet
