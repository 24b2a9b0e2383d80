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
    static void store(float* scores, int pair, Vec first, Vec second) {
        vstore(scores + 2 * pair * kLanes, vround_bf16(first));
        vstore(scores + (2 * pair + 1) * kLanes, vround_bf16(second));
    }
};

template <int A, int B, typename Body>
RAMET_INLINE void unroll_both(const Body& body) {
    unroll<A>([&](auto a) RAMET_INLINED { unroll<B>([&](auto b) RAMET_INLINED { body(a, b); }); });
}

// The two chains of R rows by C columns of 16 keys or dimensions.
template <int R, int C>
struct Chains {
    Vec even[R][C], odd[R][C];

    RAMET_INLINE Chains() {
        unroll_both<R, C>([&](auto r, auto c) RAMET_INLINED { even[r][c] = odd[r][c] = vzero(); });
    }
    // A pair of terms: those of the columns, and for row r factors[r * stride] and the number after it. All of one
    // chain come before those of the other: that many factors at once would not fit in registers.
    RAMET_INLINE void add(const PairVec (&terms)[C], const float* factors, int stride) {
        unroll_both<R, C>([&](auto r, auto c) RAMET_INLINED {
            even[r][c] = vfma(vset(factors[r * stride]), terms[c].first, even[r][c]);
        });
        unroll_both<R, C>([&](auto r, auto c) RAMET_INLINED {
            odd[r][c] = vfma(vset(factors[r * stride + 1]), terms[c].second, odd[r][c]);
        });
    }
    RAMET_INLINE void add_to(Vec (&sums)[R][C]) const {
        unroll_both<R, C>([&](auto r, auto c) RAMET_INLINED {
            sums[r][c] = vadd(sums[r][c], vadd(even[r][c], odd[r][c]));
        });
    }
};

// Scores of R rows against P blocks of 16 keys. D: see width_of.
template <int R, int P, int D>
void score_rows(const float* queries, int any_dim, const bf16_t* const* keys, float* scores) {
    const int head_dim = width_of<D>(any_dim);
    Vec sums[R][P];
    unroll_both<R, P>([&](auto r, auto p) RAMET_INLINED { sums[r][p] = vzero(); });
    for (int first = 0; first < head_dim; first += kDepth) {
        Chains<R, P> chains;
        for (int d = first; d < std::min(first + kDepth, head_dim); d += 2) {
            PairVec terms[P];
            unroll<P>([&](auto p) RAMET_INLINED { terms[p] = vload_pairs(keys[p] + d * kLanes); });
            chains.add(terms, queries + d, head_dim);
        }
        chains.add_to(sums);
    }
    unroll_both<R, P>([&](auto r, auto p) RAMET_INLINED { vstore(scores + r * kChunk + p * kLanes, sums[r][p]); });
}

// Scores of rows from `row` on while R are left; returns the first that is left over.
template <int R, int P, int D>
int score_while(const AttentionRows& rows, int row, int head_dim, const Chunk& chunk) {
    for (; row + R <= rows.num_rows; row += R) {
        const float* queries = rows.queries + row * head_dim;
        float* scores = rows.scores + row * kChunk;
        int p = 0;
        for (; p + P <= chunk.num_blocks; p += P)
            score_rows<R, P, D>(queries, head_dim, chunk.keys + p, scores + p * kLanes);
        for (; p < chunk.num_blocks; ++p)
            score_rows<R, 1, D>(queries, head_dim, chunk.keys + p, scores + p * kLanes);
    }
    return row;
}

// Weights times values, for R rows and V vectors of dimensions.
template <int R, int V, int D>
void mix_rows(const AttentionRows& rows, int row, int any_dim, int first_dim, const Chunk& chunk) {
    const int head_dim = width_of<D>(any_dim);
    Vec sums[R][V];
    unroll_both<R, V>([&](auto r, auto v) RAMET_INLINED { sums[r][v] = vzero(); });
    for (int pair = 0; pair < chunk.num_pairs(); ++pair) {
        Chains<R, V> chains;
        for (int block = 2 * pair; block < 2 * pair + 2; ++block) {
            const float* weights = rows.scores + row * kChunk + block * kLanes;
            const bf16_t* values = chunk.values[block] + 2 * first_dim;
            for (int slot = 0; slot < kLanes; slot += 2, values += 2 * head_dim) {
                PairVec terms[V];
                unroll<V>([&](auto v) RAMET_INLINED { terms[v] = vload_pairs(values + 2 * v * kLanes); });
                chains.add(terms, weights + slot, kChunk);
            }
        }
        chains.add_to(sums);
    }
    unroll_both<R, V>([&](auto r, auto v) RAMET_INLINED {
        float* output = rows.outputs + (row + r) * head_dim + first_dim + v * kLanes;
        vstore(output, vfma(vload(output), vset(rows.factors[row + r]), sums[r][v]));
    });
}

template <int R, int V, int D>
int mix_while(const AttentionRows& rows, int row, int head_dim, const Chunk& chunk) {
    for (; row + R <= rows.num_rows; row += R) {
        int d = 0;
        for (; d + V * kLanes <= head_dim; d += V * kLanes) mix_rows<R, V, D>(rows, row, head_dim, d, chunk);
        for (; d < head_dim; d += kLanes) mix_rows<R, 1, D>(rows, row, head_dim, d, chunk);
    }
    return row;
}

// The widest tile of registers first; two chains are two registers a tile.
template <int D>
void score_chunk(const AttentionRows& rows, int head_dim, const Chunk& chunk) {
    int row = 0;
    if constexpr (kVectorRegisters >= 32) {
        row = score_while<12, 1, D>(rows, row, head_dim, chunk);
        row = score_while<6, 2, D>(rows, row, head_dim, chunk);
        row = score_while<3, 4, D>(rows, row, head_dim, chunk);
        score_while<1, 4, D>(rows, row, head_dim, chunk);
    } else {
        row = score_while<3, 1, D>(rows, row, head_dim, chunk);
        score_while<1, 2, D>(rows, row, head_dim, chunk);
    }
}

template <int D>
void mix_chunk(const AttentionRows& rows, int head_dim, const Chunk& chunk) {
    int row = 0;
    if constexpr (kVectorRegisters >= 32) {
        row = mix_while<12, 1, D>(rows, row, head_dim, chunk);
        row = mix_while<6, 2, D>(rows, row, head_dim, chunk);
        row = mix_while<3, 4, D>(rows, row, head_dim, chunk);
        mix_while<1, 4, D>(rows, row, head_dim, chunk);
    } else {
        row = mix_while<3, 1, D>(rows, row, head_dim, chunk);
        mix_while<1, 2, D>(rows, row, head_dim, chunk);
    }
}

template <int D>
void attend_chunks(const AttentionRows& rows, int head_dim, const ChunkRange& chunks) {
    for (int i = chunks.begin; i < chunks.end; ++i) {
        const Chunk chunk = chunks.at(i);
        fetch_blocks(chunk.values, chunk.num_blocks, head_dim);
        score_chunk<D>(rows, head_dim, chunk);
        softmax_rows<VectorWeights>(rows, 0, rows.num_rows, chunk.start);
        if (i + 1 < chunks.end) {
            const Chunk next = chunks.at(i + 1);
            fetch_blocks(next.keys, next.num_blocks, head_dim);
        }
        mix_chunk<D>(rows, head_dim, chunk);
    }
}

}  // namespace

// For the matrix unit: 64 values, and 32 rows of sums.
size_t chunk_room(int head_dim) {
    return static_cast<size_t>(kChunk) * head_dim * sizeof(bf16_t) / sizeof(float) + 2 * kLanes * head_dim;
}

void pack_queries(const AttentionRows& rows, int head_dim) {
#if defined(RAMET_HAS_AMX)
    if (amx::is_worth(rows.num_rows)) amx::pack_queries(rows, head_dim);
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
    if (amx::is_worth(rows.num_rows))
        return is_64 ? amx::attend_chunks<64>(rows, 64, chunks) : amx::attend_chunks<0>(rows, kv.head_dim, chunks);
#endif
    return is_64 ? attend_chunks<64>(rows, 64, chunks) : attend_chunks<0>(rows, kv.head_dim, chunks);
}

}  // namespace ramet
