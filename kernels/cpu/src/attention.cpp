// The kernels of attention.h.
#include "attention.h"

#include <algorithm>

#include "simd.h"

namespace ramet {

namespace {

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
int score_while(const AttentionRows& rows, int row, int head_dim, const half_t* const* keys, int num_blocks) {
    for (; row + R <= rows.num_rows; row += R) {
        const float* queries = rows.queries + row * head_dim;
        float* scores = rows.scores + row * kChunk;
        int p = 0;
        for (; p + P <= num_blocks; p += P) score_rows<R, P>(queries, head_dim, keys + p, scores + p * kLanes);
        for (; p < num_blocks; ++p) score_rows<R, 1>(queries, head_dim, keys + p, scores + p * kLanes);
    }
    return row;
}

void score_chunk(const AttentionRows& rows, int head_dim, const half_t* const* keys, int num_blocks) {
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
int mix_while(const AttentionRows& rows, int row, int head_dim, const half_t* const* values, int num_blocks) {
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

void mix_chunk(const AttentionRows& rows, int head_dim, const half_t* const* values, int num_blocks) {
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
void attend_chunk(const AttentionRows& rows, const KVLayout& kv, int layer, int head, const int32_t* blocks,
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

}  // namespace

void attend_blocks(const AttentionRows& rows, const KVLayout& kv, int layer, int head, const int32_t* blocks,
                   int first_chunk, int end_key) {
    const int first_seen = *std::min_element(rows.first_keys, rows.first_keys + rows.num_rows);
    const int num_blocks = ceil_div(end_key, kLanes);
    for (int block = std::max(first_chunk, first_seen / kChunk) * kChunkBlocks; block < num_blocks; block += kChunkBlocks)
        attend_chunk(rows, kv, layer, head, blocks + block, std::min(kChunkBlocks, num_blocks - block), block * kLanes);
}

}  // namespace ramet
