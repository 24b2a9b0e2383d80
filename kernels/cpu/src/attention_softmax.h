// The softmax of one chunk of attention: scores to weights, and the rows' maxima, factors and totals brought up to date.
//
// It takes as long as the matrix products around it, so it is made of few instructions: no division, no horizontal
// sum, and a horizontal maximum only where the maximum changes, which is rare after a row's first chunks.
#pragma once
#include "attention.h"

namespace ramet {

// 2^x for x <= 0, relative error 3e-6; zero below kTinyWeightLog2. NaN stays NaN.
//
//      x = n + r, n the nearest integer: adding 1.5 * 2^23 rounds x to an integer and leaves n in the sum's low bits.
//      2^r by a polynomial (minimax over [-0.5, 0.5], exactly 1 at 0), times 2^n by adding n to its exponent.
//
// Where x is far below that, n does not fit in an exponent; the result is replaced by zero in any case.
RAMET_INLINE Vec exp2_weight(Vec x) {
    const Vec magic = vset(12582912.0f), tiny_weight = vset(kTinyWeightLog2);
    const Vec shifted = vadd(x, magic);
    const Vec r = vsub(x, vsub(shifted, magic));
    Vec p = vset(9.582853221e-3f);
    p = vfma(p, r, vset(5.590642621e-2f));
    p = vfma(p, r, vset(2.402409862e-1f));
    p = vfma(p, r, vset(6.931241932e-1f));
    p = vfma(p, r, vset(1.0f));
    return vzero_below(vshift_exponent(p, shifted), x, tiny_weight);
}

// `Weights::store(scores, pair, first, second)` rounds the weights of two neighbouring blocks to bf16 and writes them
// as a kernel wants them to `scores`.
template <typename Weights>
RAMET_INLINE void softmax_row(const AttentionRows& rows, int r, int start) {
    float* scores = rows.scores + r * kChunk;
    Vec score[kChunkBlocks];
    unroll<kChunkBlocks>([&](auto p) RAMET_INLINED { score[p] = vload(scores + p * kLanes); });
    const int lo = rows.first_keys[r] - start, hi = rows.end_keys[r] - start;
    if (lo > 0 || hi < kChunk) {
        unroll<kChunkBlocks>([&](auto p) RAMET_INLINED {
            score[p] = vkeep(score[p], lo - p * kLanes, hi - p * kLanes, vset(kMasked));
        });
    }
    const Vec largest = vmax(vmax(score[0], score[1]), vmax(score[2], score[3]));
    float maximum = rows.maxima[r], factor = 1.0f;
    if (vany_above(largest, vset(maximum))) {
        maximum = vmaximum(largest);
        factor = vfirst(exp2_weight(vset(rows.maxima[r] - maximum)));
        rows.maxima[r] = maximum;
    }
    rows.factors[r] = factor;
    unroll<kChunkBlocks>([&](auto p) RAMET_INLINED { score[p] = exp2_weight(vsub(score[p], vset(maximum))); });
    const Vec sum = vadd(vadd(score[0], score[1]), vadd(score[2], score[3]));
    float* totals = rows.totals + r * kLanes;
    vstore(totals, vfma(vload(totals), vset(factor), sum));
    unroll<kChunkBlocks / 2>([&](auto pair) RAMET_INLINED {
        Weights::store(scores, pair, score[2 * pair], score[2 * pair + 1]);
    });
}

// `start` is the chunk's first position. Scores of keys that no row sees may be anything.
template <typename Weights>
void softmax_rows(const AttentionRows& rows, int first_row, int end_row, int start) {
    for (int r = first_row; r < end_row; ++r) softmax_row<Weights>(rows, r, start);
}

}  // namespace ramet
