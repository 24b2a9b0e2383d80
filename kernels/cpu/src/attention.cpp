// The kernels of attention.h.
#include "attention.h"

#include <algorithm>

#include "simd.h"

namespace ramet {

namespace {

// Keys and values come as fp16, as they are stored, or as fp32 (KVChunk). D is the head's width where it is a constant that
// addresses can be made of, 0 where it is not.
inline Vec load_any(const half_t* p) { return vload_half(p); }
inline Vec load_any(const float* p) { return vload(p); }
template <int D>
constexpr int width_of(int head_dim) {
    return D > 0 ? D : head_dim;
}

// Scores of R rows against P blocks of 16 keys. keys[p]: [dim][16].
template <int R, int P, int D, typename T>
void score_rows(const float* queries, int any_dim, const T* const* keys, float* scores) {
    const int head_dim = width_of<D>(any_dim);
    Vec sums[R][P];
    unroll<R>([&](auto r) RAMET_INLINED { unroll<P>([&](auto p) RAMET_INLINED { sums[r][p] = vzero(); }); });
    for (int d = 0; d < head_dim; ++d) {
        Vec key[P];
        unroll<P>([&](auto p) RAMET_INLINED { key[p] = load_any(keys[p] + d * kLanes); });
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
template <int R, int P, int D, typename T>
int score_while(const AttentionRows& rows, int row, int head_dim, const T* const* keys, int num_blocks) {
    for (; row + R <= rows.num_rows; row += R) {
        const float* queries = rows.queries + row * head_dim;
        float* scores = rows.scores + row * kChunk;
        int p = 0;
        for (; p + P <= num_blocks; p += P) score_rows<R, P, D>(queries, head_dim, keys + p, scores + p * kLanes);
        for (; p < num_blocks; ++p) score_rows<R, 1, D>(queries, head_dim, keys + p, scores + p * kLanes);
    }
    return row;
}

template <int D, typename T>
void score_chunk(const AttentionRows& rows, int head_dim, const T* const* keys, int num_blocks) {
    int row = 0;
    if constexpr (kVectorRegisters >= 32) {
        row = score_while<12, 2, D>(rows, row, head_dim, keys, num_blocks);
        row = score_while<6, 4, D>(rows, row, head_dim, keys, num_blocks);
        row = score_while<3, 4, D>(rows, row, head_dim, keys, num_blocks);
    } else {
        row = score_while<5, 1, D>(rows, row, head_dim, keys, num_blocks);
        row = score_while<3, 2, D>(rows, row, head_dim, keys, num_blocks);
    }
    score_while<1, 4, D>(rows, row, head_dim, keys, num_blocks);
}

// Scores to weights, and the row's maximum, total and output brought up to date. `start` is the chunk's first position.
void softmax_chunk(const AttentionRows& rows, int head_dim, int start, int num_blocks) {
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
        const bool is_new_maximum = maximum != rows.maxima[r];
        const Vec factor = is_new_maximum ? vexp(vset(rows.maxima[r] - maximum)) : vset(1.0f);  // e^0 is exactly 1
        Vec total = vzero();
        for (int p = 0; p < num_blocks; ++p) {
            Vec weight = vexp(vsub(score[p], vset(maximum)));
            if (!is_whole) weight = vkeep(weight, lo - p * kLanes, hi - p * kLanes, vzero());
            vstore(scores + p * kLanes, weight);
            total = vadd(total, weight);
        }
        rows.totals[r] = rows.totals[r] * vfirst(factor) + vsum(total);
        if (!is_new_maximum) continue;
        rows.maxima[r] = maximum;
        float* output = rows.outputs + r * head_dim;
        for (int d = 0; d < head_dim; d += kLanes) vstore(output + d, vmul(vload(output + d), factor));
    }
}

// Adds weights times values for R rows and V vectors of dimensions. values[p]: [16][dim].
template <int R, int V, int D, typename T>
void mix_rows(const float* weights, int any_dim, const T* const* values, int first_dim, int num_blocks, float* outputs) {
    const int head_dim = width_of<D>(any_dim);
    Vec sums[R][V];
    const auto output = [&](int r, int v) RAMET_INLINED { return outputs + r * head_dim + first_dim + v * kLanes; };
    unroll<R>([&](auto r) RAMET_INLINED { unroll<V>([&](auto v) RAMET_INLINED { sums[r][v] = vload(output(r, v)); }); });
    for (int p = 0; p < num_blocks; ++p) {
        for (int k = 0; k < kLanes; ++k) {
            Vec value[V];
            const T* row = values[p] + k * head_dim + first_dim;
            unroll<V>([&](auto v) RAMET_INLINED { value[v] = load_any(row + v * kLanes); });
            unroll<R>([&](auto r) RAMET_INLINED {
                const Vec weight = vset(weights[r * kChunk + p * kLanes + k]);
                unroll<V>([&](auto v) RAMET_INLINED { sums[r][v] = vfma(weight, value[v], sums[r][v]); });
            });
        }
    }
    unroll<R>([&](auto r) RAMET_INLINED { unroll<V>([&](auto v) RAMET_INLINED { vstore(output(r, v), sums[r][v]); }); });
}

template <int R, int V, int D, typename T>
int mix_while(const AttentionRows& rows, int row, int head_dim, const T* const* values, int num_blocks) {
    for (; row + R <= rows.num_rows; row += R) {
        const float* weights = rows.scores + row * kChunk;
        float* outputs = rows.outputs + row * head_dim;
        int d = 0;
        for (; d + V * kLanes <= head_dim; d += V * kLanes)
            mix_rows<R, V, D>(weights, head_dim, values, d, num_blocks, outputs);
        for (; d < head_dim; d += kLanes) mix_rows<R, 1, D>(weights, head_dim, values, d, num_blocks, outputs);
    }
    return row;
}

template <int D, typename T>
void mix_chunk(const AttentionRows& rows, int head_dim, const T* const* values, int num_blocks) {
    int row = 0;
    if constexpr (kVectorRegisters >= 32) {
        row = mix_while<6, 4, D>(rows, row, head_dim, values, num_blocks);
        row = mix_while<3, 4, D>(rows, row, head_dim, values, num_blocks);
        mix_while<1, 4, D>(rows, row, head_dim, values, num_blocks);
    } else {
        row = mix_while<3, 1, D>(rows, row, head_dim, values, num_blocks);
        mix_while<1, 2, D>(rows, row, head_dim, values, num_blocks);
    }
}

// Rows from which on a chunk's keys and values are converted to fp32 once, rather than by every tile of rows.
constexpr int kMinRowsToConvert = 24;

// Blocks of a chunk as fp32, in the order they have in the cache.
struct ConvertedBlocks {
    const float* blocks[kChunkBlocks];

    ConvertedBlocks(const half_t* const* halves, int num_blocks, int block_elements, float* buffer) {
        for (int p = 0; p < num_blocks; ++p, buffer += block_elements) {
            for (int i = 0; i < block_elements; i += kLanes) vstore(buffer + i, vload_half(halves[p] + i));
            blocks[p] = buffer;
        }
    }
};

// One chunk for all rows. `blocks`: the chunk's block ids.
template <int D>
void attend_chunk(const AttentionRows& rows, const KVLayout& kv, int layer, int head, const int32_t* blocks,
                  int num_blocks, int start) {
    const half_t *keys[kChunkBlocks], *values[kChunkBlocks];
    for (int p = 0; p < num_blocks; ++p) {
        keys[p] = kv.keys(layer, blocks[p], head);
        values[p] = kv.values(layer, blocks[p], head);
    }
    if (rows.num_rows < kMinRowsToConvert) {
        score_chunk<D>(rows, kv.head_dim, keys, num_blocks);
        softmax_chunk(rows, kv.head_dim, start, num_blocks);
        mix_chunk<D>(rows, kv.head_dim, values, num_blocks);
        return;
    }
    const int block_elements = static_cast<int>(kv.head_elements());
    score_chunk<D>(rows, kv.head_dim, ConvertedBlocks(keys, num_blocks, block_elements, rows.converted).blocks, num_blocks);
    softmax_chunk(rows, kv.head_dim, start, num_blocks);
    mix_chunk<D>(rows, kv.head_dim, ConvertedBlocks(values, num_blocks, block_elements, rows.converted).blocks, num_blocks);
}

}  // namespace

void attend_blocks(const AttentionRows& rows, const KVLayout& kv, int layer, int head, const int32_t* blocks,
                   int first_chunk, int end_key) {
    const int first_seen = *std::min_element(rows.first_keys, rows.first_keys + rows.num_rows);
    const int num_blocks = ceil_div(end_key, kLanes);
    const auto attend = kv.head_dim == 64 ? attend_chunk<64> : attend_chunk<0>;
    for (int block = std::max(first_chunk, first_seen / kChunk) * kChunkBlocks; block < num_blocks; block += kChunkBlocks)
        attend(rows, kv, layer, head, blocks + block, std::min(kChunkBlocks, num_blocks - block), block * kLanes);
}

}  // namespace ramet
