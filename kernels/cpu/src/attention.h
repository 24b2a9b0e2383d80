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

    AttentionRows from(int row, int count, int head_dim) const {
        return {count,        queries + row * head_dim, scores + row * kChunk, outputs + row * head_dim, maxima + row,
                totals + row, first_keys + row,         end_keys + row};
    }
};

// Scores of R rows against P blocks of 16 keys. keys[p]: [dim][16].
template <int R, int P>
void score_rows(const float* queries, int head_dim, const half_t* const* keys, float* scores) {
    Vec sums[R][P];
    unroll<R>([&](auto r) RAMET_INLINED { unroll<P>([&](auto p) RAMET_INLINED { sums[r][p] = vzero(); }); });
    for (int d = 0; d < head_dim; ++d) {
        Vec key[P];
        unroll<P>([&](auto p) RAMET_INLINED { key[p] = vload_half(keys[p] + d * kLanes); });
        unroll<R>([&](auto r) RAMET_INLINED {
            const Vec query = vset(queries[r * head_dim + d]);
            unroll<P>([&](auto p) RAMET_INLINED { sums[r][p] = vfma(query, key[p], sums[r][p]); });
        });
    }
    unroll<R>([&](auto r) RAMET_INLINED {
        unroll<P>([&](auto p) RAMET_INLINED { vstore(scores + r * kChunk + p * kLanes, sums[r][p]); });
    });
}

// Scores of all rows; the widest tile of registers first.
template <int R, int P>
inline int score_while(const AttentionRows& rows, int row, int head_dim, const half_t* const* keys, int num_blocks) {
    for (; row + R <= rows.num_rows; row += R) {
        const float* queries = rows.queries + row * head_dim;
        float* scores = rows.scores + row * kChunk;
        int p = 0;
        for (; p + P <= num_blocks; p += P) score_rows<R, P>(queries, head_dim, keys + p, scores + p * kLanes);
        for (; p < num_blocks; ++p) score_rows<R, 1>(queries, head_dim, keys + p, scores + p * kLanes);
    }
    return row;
}

inline void score_chunk(const AttentionRows& rows, int head_dim, const half_t* const* keys, int num_blocks) {
    int row = 0;
    if constexpr (kVectorRegisters >= 32) {
        row = score_while<12, 2>(rows, row, head_dim, keys, num_blocks);
        row = score_while<6, 4>(rows, row, head_dim, keys, num_blocks);
    } else {
        row = score_while<5, 1>(rows, row, head_dim, keys, num_blocks);
    }
    row = score_while<3, (kVectorRegisters >= 32 ? 4 : 2)>(rows, row, head_dim, keys, num_blocks);
    score_while<1, 4>(rows, row, head_dim, keys, num_blocks);
}

// Scores to weights, and the row's maximum, total and output brought up to date. `start` is the chunk's first position.
inline void softmax_chunk(const AttentionRows& rows, int head_dim, int start, int num_blocks) {
    const int num_keys = num_blocks * kLanes;
    for (int r = 0; r < rows.num_rows; ++r) {
        float* scores = rows.scores + r * kChunk;
        const int lo = rows.first_keys[r] - start, hi = rows.end_keys[r] - start;
        const bool is_whole = lo <= 0 && hi >= num_keys;
        Vec score[kChunkBlocks];
        Vec largest = vset(kMasked);
        for (int p = 0; p < num_blocks; ++p) {
            score[p] = vload(scores + p * kLanes);
            if (!is_whole) score[p] = vkeep(score[p], lo - p * kLanes, hi - p * kLanes, vset(kMasked));
            largest = vmax(score[p], largest);
        }
        const float maximum = std::max(rows.maxima[r], vmaximum(largest));
        const Vec factor = vexp(vset(rows.maxima[r] - maximum));
        Vec total = vzero();
        for (int p = 0; p < num_blocks; ++p) {
            Vec weight = vexp(vsub(score[p], vset(maximum)));
            if (!is_whole) weight = vkeep(weight, lo - p * kLanes, hi - p * kLanes, vzero());
            vstore(scores + p * kLanes, weight);
            total = vadd(total, weight);
        }
        rows.totals[r] = rows.totals[r] * vfirst(factor) + vsum(total);
        if (maximum == rows.maxima[r]) continue;
        rows.maxima[r] = maximum;
        float* output = rows.outputs + r * head_dim;
        for (int d = 0; d < head_dim; d += kLanes) vstore(output + d, vmul(vload(output + d), factor));
    }
}

// Adds weights times values for R rows and V vectors of dimensions. values[p]: [16][dim].
template <int R, int V>
void mix_rows(const float* weights, int head_dim, const half_t* const* values, int first_dim, int num_blocks,
              float* outputs) {
    Vec sums[R][V];
    const auto output = [&](int r, int v) RAMET_INLINED { return outputs + r * head_dim + first_dim + v * kLanes; };
    unroll<R>([&](auto r) RAMET_INLINED { unroll<V>([&](auto v) RAMET_INLINED { sums[r][v] = vload(output(r, v)); }); });
    for (int p = 0; p < num_blocks; ++p) {
        for (int k = 0; k < kLanes; ++k) {
            Vec value[V];
            const half_t* row = values[p] + k * head_dim + first_dim;
            unroll<V>([&](auto v) RAMET_INLINED { value[v] = vload_half(row + v * kLanes); });
            unroll<R>([&](auto r) RAMET_INLINED {
                const Vec weight = vset(weights[r * kChunk + p * kLanes + k]);
                unroll<V>([&](auto v) RAMET_INLINED { sums[r][v] = vfma(weight, value[v], sums[r][v]); });
            });
        }
    }
    unroll<R>([&](auto r) RAMET_INLINED { unroll<V>([&](auto v) RAMET_INLINED { vstore(output(r, v), sums[r][v]); }); });
}

template <int R, int V>
inline int mix_while(const AttentionRows& rows, int row, int head_dim, const half_t* const* values, int num_blocks) {
    for (; row + R <= rows.num_rows; row += R) {
        const float* weights = rows.scores + row * kChunk;
        float* outputs = rows.outputs + row * head_dim;
        int d = 0;
        for (; d + V * kLanes <= head_dim; d += V * kLanes)
            mix_rows<R, V>(weights, head_dim, values, d, num_blocks, outputs);
        for (; d < head_dim; d += kLanes) mix_rows<R, 1>(weights, head_dim, values, d, num_blocks, outputs);
    }
    return row;
}

inline void mix_chunk(const AttentionRows& rows, int head_dim, const half_t* const* values, int num_blocks) {
    int row = 0;
    if constexpr (kVectorRegisters >= 32) {
        row = mix_while<6, 4>(rows, row, head_dim, values, num_blocks);
        row = mix_while<3, 4>(rows, row, head_dim, values, num_blocks);
        mix_while<1, 4>(rows, row, head_dim, values, num_blocks);
    } else {
        row = mix_while<3, 1>(rows, row, head_dim, values, num_blocks);
        mix_while<1, 2>(rows, row, head_dim, values, num_blocks);
    }
}

// One chunk for all rows. `blocks`: the chunk's block ids.
inline void attend_chunk(const AttentionRows& rows, const KVLayout& kv, int layer, int head, const int32_t* blocks,
                         int num_blocks, int start) {
    const half_t *keys[kChunkBlocks], *values[kChunkBlocks];
    for (int p = 0; p < num_blocks; ++p) {
        keys[p] = kv.keys(layer, blocks[p], head);
        values[p] = kv.values(layer, blocks[p], head);
    }
    score_chunk(rows, kv.head_dim, keys, num_blocks);
    softmax_chunk(rows, kv.head_dim, start, num_blocks);
    mix_chunk(rows, kv.head_dim, values, num_blocks);
}

// Keys [first_chunk * 64, ...) up to the last one any of the rows sees, skipping chunks before every row's window.
inline void attend_blocks(const AttentionRows& rows, const KVLayout& kv, int layer, int head, const int32_t* blocks,
                          int first_chunk, int end_key) {
    const int first_seen = *std::min_element(rows.first_keys, rows.first_keys + rows.num_rows);
    const int num_blocks = ceil_div(end_key, kLanes);
    for (int block = std::max(first_chunk, first_seen / kChunk) * kChunkBlocks; block < num_blocks; block += kChunkBlocks)
        attend_chunk(rows, kv, layer, head, blocks + block, std::min(kChunkBlocks, num_blocks - block), block * kLanes);
}

}  // namespace ramet
