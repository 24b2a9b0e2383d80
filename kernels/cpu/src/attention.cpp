// The kernels of attention.h: the vector one, and the choice between it and that of attention_amx.h.
#include "attention.h"

#include <algorithm>

#include "attention_amx.h"
#include "attention_chunks.h"
#include "attention_softmax.h"

namespace ramet {

namespace {

// Weights as fp32, in place of the scores.
struct VectorWeights {
    static Vec store(float* scores, int pair, Vec first, Vec second, Vec total) {
        first = vround_bf16(first);
        second = vround_bf16(second);
        vstore(scores + 2 * pair * kLanes, first);
        vstore(scores + (2 * pair + 1) * kLanes, second);
        return vadd(vadd(total, second), first);
    }
};

template <int A, int B, typename Body>
RAMET_INLINE void unroll_both(const Body& body) {
    unroll<A>([&](auto a) RAMET_INLINED { unroll<B>([&](auto b) RAMET_INLINED { body(a, b); }); });
}

// Scores of R rows against P blocks of 16 keys. keys: blocks of [dim][16]. D: see width_of.
template <int R, int P, int D>
void score_rows(const float* queries, int any_dim, const float* keys, float* scores) {
    const int head_dim = width_of<D>(any_dim);
    const auto key = [&](int d, int p) RAMET_INLINED { return vload(keys + (p * head_dim + d) * kLanes); };
    Vec sums[R][P];
    unroll_both<R, P>([&](auto r, auto p) RAMET_INLINED { sums[r][p] = vzero(); });
    for (int first = 0; first < head_dim; first += kDepth) {
        Vec even[R][P], odd[R][P];
        unroll_both<R, P>([&](auto r, auto p) RAMET_INLINED { even[r][p] = odd[r][p] = vzero(); });
        for (int d = first; d < std::min(first + kDepth, head_dim); d += 2) {
            unroll_both<R, P>([&](auto r, auto p) RAMET_INLINED {
                even[r][p] = vfma(vset(queries[r * head_dim + d]), key(d, p), even[r][p]);
            });
            unroll_both<R, P>([&](auto r, auto p) RAMET_INLINED {
                odd[r][p] = vfma(vset(queries[r * head_dim + d + 1]), key(d + 1, p), odd[r][p]);
            });
        }
        unroll_both<R, P>([&](auto r, auto p) RAMET_INLINED { sums[r][p] = vadd(sums[r][p], vadd(even[r][p], odd[r][p])); });
    }
    unroll_both<R, P>([&](auto r, auto p) RAMET_INLINED { vstore(scores + r * kChunk + p * kLanes, sums[r][p]); });
}

// Scores of rows from `row` on while R are left; returns the first that is left over.
template <int R, int P, int D>
int score_while(const AttentionRows& rows, int row, int head_dim, int num_blocks) {
    for (; row + R <= rows.num_rows; row += R) {
        const float* queries = rows.queries + row * head_dim;
        float* scores = rows.scores + row * kChunk;
        const float* keys = rows.chunk;
        int p = 0;
        for (; p + P <= num_blocks; p += P)
            score_rows<R, P, D>(queries, head_dim, keys + p * head_dim * kLanes, scores + p * kLanes);
        for (; p < num_blocks; ++p)
            score_rows<R, 1, D>(queries, head_dim, keys + p * head_dim * kLanes, scores + p * kLanes);
    }
    return row;
}

// Weights times values, for R rows and V vectors of dimensions. values: [key of the chunk][dim].
template <int R, int V, int D>
void mix_rows(const AttentionRows& rows, int row, int any_dim, int first_dim, int num_pairs) {
    const int head_dim = width_of<D>(any_dim);
    const float *weights = rows.scores + row * kChunk, *values = rows.chunk + first_dim;
    Vec sums[R][V];
    unroll_both<R, V>([&](auto r, auto v) RAMET_INLINED { sums[r][v] = vzero(); });
    for (int pair = 0; pair < num_pairs; ++pair) {
        Vec even[R][V], odd[R][V];
        unroll_both<R, V>([&](auto r, auto v) RAMET_INLINED { even[r][v] = odd[r][v] = vzero(); });
        for (int first = 2 * pair * kLanes; first < (2 * pair + 1) * kLanes; ++first) {
            const int second = first + kLanes;
            unroll_both<R, V>([&](auto r, auto v) RAMET_INLINED {
                const Vec value = vload(values + first * head_dim + v * kLanes);
                even[r][v] = vfma(vset(weights[r * kChunk + first]), value, even[r][v]);
            });
            unroll_both<R, V>([&](auto r, auto v) RAMET_INLINED {
                const Vec value = vload(values + second * head_dim + v * kLanes);
                odd[r][v] = vfma(vset(weights[r * kChunk + second]), value, odd[r][v]);
            });
        }
        unroll_both<R, V>([&](auto r, auto v) RAMET_INLINED { sums[r][v] = vadd(sums[r][v], vadd(even[r][v], odd[r][v])); });
    }
    unroll_both<R, V>([&](auto r, auto v) RAMET_INLINED {
        float* output = rows.outputs + (row + r) * head_dim + first_dim + v * kLanes;
        vstore(output, vfma(vload(output), vset(rows.factors[row + r]), sums[r][v]));
    });
}

template <int R, int V, int D>
int mix_while(const AttentionRows& rows, int row, int head_dim, int num_pairs) {
    for (; row + R <= rows.num_rows; row += R) {
        int d = 0;
        for (; d + V * kLanes <= head_dim; d += V * kLanes) mix_rows<R, V, D>(rows, row, head_dim, d, num_pairs);
        for (; d < head_dim; d += kLanes) mix_rows<R, 1, D>(rows, row, head_dim, d, num_pairs);
    }
    return row;
}

// The widest tile of registers first; two chains are two registers a tile.
template <int D>
void score_chunk(const AttentionRows& rows, int head_dim, int num_blocks) {
    int row = 0;
    if constexpr (kVectorRegisters >= 32) {
        row = score_while<6, 2, D>(rows, row, head_dim, num_blocks);
        row = score_while<3, 4, D>(rows, row, head_dim, num_blocks);
        score_while<1, 4, D>(rows, row, head_dim, num_blocks);
    } else {
        row = score_while<3, 1, D>(rows, row, head_dim, num_blocks);
        score_while<1, 2, D>(rows, row, head_dim, num_blocks);
    }
}

template <int D>
void mix_chunk(const AttentionRows& rows, int head_dim, int num_pairs) {
    int row = 0;
    if constexpr (kVectorRegisters >= 32) {
        row = mix_while<6, 2, D>(rows, row, head_dim, num_pairs);
        row = mix_while<3, 4, D>(rows, row, head_dim, num_pairs);
        mix_while<1, 4, D>(rows, row, head_dim, num_pairs);
    } else {
        row = mix_while<3, 1, D>(rows, row, head_dim, num_pairs);
        mix_while<1, 2, D>(rows, row, head_dim, num_pairs);
    }
}

// Blocks as fp32 that are bf16 in fact, one after another.
void convert_blocks(const half_t* const* halves, int num_blocks, int block_elements, float* out) {
    for (int p = 0; p < num_blocks; ++p, out += block_elements)
        for (int i = 0; i < block_elements; i += kLanes) vstore(out + i, vround_bf16(vload_half(halves[p] + i)));
}

template <int D>
void attend_chunks(const AttentionRows& rows, int head_dim, const ChunkRange& chunks) {
    const int block_elements = head_dim * kLanes;
    for (int i = chunks.begin; i < chunks.end; ++i) {
        const Chunk chunk = chunks.at(i);
        convert_blocks(chunk.keys, chunk.num_blocks, block_elements, rows.chunk);
        score_chunk<D>(rows, head_dim, chunk.num_blocks);
        softmax_rows<VectorWeights>(rows, 0, rows.num_rows, chunk.start);
        convert_blocks(chunk.values, 2 * chunk.num_pairs(), block_elements, rows.chunk);
        mix_chunk<D>(rows, head_dim, chunk.num_pairs());
    }
}

}  // namespace

// 64 keys and 64 values of bf16, the keys' dimensions padded, and 32 rows of sums; which is also room for 64 of fp32.
size_t chunk_room(int head_dim) {
    const size_t padded = round_up(head_dim, kDepth);
    return kChunk * padded + 2 * kLanes * head_dim;
}

void pack_queries(const AttentionRows& rows, int head_dim) {
#if defined(RAMET_HAS_AMX)
    if (amx::is_permitted()) amx::pack_queries(rows, head_dim);
#else
    (void)rows, (void)head_dim;
#endif
}

void attend_blocks(const AttentionRows& rows, const KVLayout& kv, int layer, int head, const int32_t* blocks,
                   int first_chunk, int end_key) {
    const int first_seen = *std::min_element(rows.first_keys, rows.first_keys + rows.num_rows);
    const ChunkRange chunks = {kv, layer, head, blocks, std::max(first_chunk, first_seen / kChunk),
                               ceil_div(end_key, kChunk), ceil_div(end_key, kLanes)};
    if (chunks.begin >= chunks.end) return;
    const bool is_64 = kv.head_dim == 64;
#if defined(RAMET_HAS_AMX)
    if (amx::is_permitted())
        return is_64 ? amx::attend_chunks<64>(rows, 64, chunks) : amx::attend_chunks<0>(rows, kv.head_dim, chunks);
#endif
    return is_64 ? attend_chunks<64>(rows, 64, chunks) : attend_chunks<0>(rows, kv.head_dim, chunks);
}

}  // namespace ramet
