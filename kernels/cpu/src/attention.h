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
// together: a block of keys is read once and used for up to 64 rows. Then each sequence of the tile goes through the
// rest of its own blocks. Decoding a batch behind a shared prefix, a chunk of a prompt and a single token are all this
// one case.
//
// A row walks its keys in chunks of 64 (4 blocks), from position 0, with one online softmax update a chunk (Milakov and
// Gimelshein 2018; Dao et al., FlashAttention, 2022, algorithm 1). Where a chunk begins never depends on the tile and
// masked keys add exact zeros. So a row's result has the same bits alone, batched, shared or chunked, and no merge of
// partial results is needed.
//
// ARITHMETIC. Keys and values are bf16, queries and softmax weights are rounded to it, products are exact and sums
// fp32. Every kernel follows the order in which the matrix unit (amx.h) adds, so they all give the same bits: a product
// of 32 terms is two chains of 16 fused multiply-adds from zero, over the first and the second halves of pairs, "even"
// and "odd", whose sum is then added to the result.
//
//      score = 0                                       for each 32 dimensions (d odd, even: of those):
//              even = fma(q[d], k[d], even)                d = 0, 2, ... 30
//              odd  = fma(q[d], k[d], odd)                 d = 1, 3, ... 31
//              score += even + odd
//
//      weight[key] = bf16(2^(score - maximum))         maximum: the largest score up to this chunk. Queries are scaled
//                                                      such that the softmax is one of powers of two.
//
//      sum[d] = 0                                      for each two blocks of the chunk, which are 32 keys:
//              even = fma(weight[i], v[i][d], even)        i = 0, 2, ... 30
//              odd  = fma(weight[i], v[i][d], odd)         i = 1, 3, ... 31
//              sum[d] += even + odd
//      output[d] = fma(output[d], factor, sum[d])      factor = 2^(maximum before - maximum), 1 if it is the same
//
//      total[i] = fma(total[i], factor, the sum of slot i's weights in the four blocks, before they are rounded);
//      the 16 totals are added after the last chunk
//
// A chunk with fewer blocks, or dimensions that are no multiple of 32, go on as if zeros followed, which changes no bit.
//
// LIMITS. The matrix unit takes denormal numbers for zeros. There are none: a query below 2^-66 is made zero, and so
// are a weight below that and a stored number below 2^-40. bf16 has 8 bits, so all products and their sums are
// multiples of 2^-(66 + 7 + 40 + 7), which is normal. Stored numbers are at most 2^40: no sum of values overflows, and
// no score of a query below 2^80 / head_dim, so that a token whose own numbers overflow leaves something finite behind.
#pragma once
#include "aligned.h"
#include "simd.h"

namespace ramet {

constexpr int kChunkBlocks = 4;
constexpr int kChunk = kChunkBlocks * kLanes;
constexpr int kMaxTileTokens = 16;
constexpr int kMaxTileRows = 64;
constexpr int kDepth = 32;  // terms of two chains

// A row's maximum before its first key, and a masked key's score: so far below that the key's weight is zero.
constexpr float kLowestMaximum = -1e29f;
constexpr float kMasked = -1e30f;
constexpr float kTinyQuery = 0x1p-66f;
constexpr float kTinyWeightLog2 = -66.0f;
constexpr float kTinyStored = 0x1p-40f;
constexpr float kLargestStored = 0x1p40f;

struct KVLayout {
    bf16_t* data;
    int64_t block_stride;  // in elements, as all here
    int num_kv_heads, head_dim;

    int64_t head_elements() const { return static_cast<int64_t>(head_dim) * kLanes; }
    bf16_t* keys(int layer, int block, int head) const {
        return data + block * block_stride + (2 * layer * num_kv_heads + head) * head_elements();
    }
    bf16_t* values(int layer, int block, int head) const { return keys(layer, block, num_kv_heads + head); }
};

// Rows of one kv head on their way through the keys.
struct AttentionRows {
    int num_rows = 0;
    float* queries;          // [rows][dim], scaled, rounded to bf16
    bf16_t* packed_queries;  // [rows][dim, padded with zeros to a multiple of kDepth]: for the matrix unit
    float* outputs;          // [rows][dim]
    float* scores;           // [rows][kChunk] of one chunk; later its weights, as the kernel wants them
    float* maxima;           // [rows]
    float* factors;          // [rows] what the chunk's new maximum multiplies output and totals with
    float* totals;           // [rows][kLanes]
    int* first_keys;         // [rows] positions a row sees: first_keys <= position < end_keys
    int* end_keys;
    float* chunk;            // room for what a kernel makes of one chunk

    AttentionRows from(int row, int count, int head_dim) const {
        return {count,
                queries + row * head_dim,
                packed_queries + row * round_up(head_dim, kDepth),
                outputs + row * head_dim,
                scores + row * kChunk,
                maxima + row,
                factors + row,
                totals + row * kLanes,
                first_keys + row,
                end_keys + row,
                chunk};
    }
};

// Floats that AttentionRows::chunk has room for.
size_t chunk_room(int head_dim);

// Makes packed_queries of queries, where this machine's kernel wants them.
void pack_queries(const AttentionRows& rows, int head_dim);

// Attention of `rows` over the blocks of one sequence: chunks from `first_chunk` on up to the last key any of the rows
// sees. Chunks before every row's window are skipped. `end_key` is the largest of the rows' end_keys, or where a run of
// blocks that all of them see ends.
void attend_blocks(const AttentionRows& rows, const KVLayout& kv, int layer, int head, const int32_t* blocks,
                   int first_chunk, int end_key);

}  // namespace ramet
