// Matrix products of int8 activations with packed weights (layout.h): y = W x, fp32 results.
//
// The unit of work is a pair of channel blocks (32 outputs) times a token tile (16 tokens):
//
//      for each group g of 32 inputs, in order:
//          sum    = the integer dot product over the group, exact
//          result = sum * (weight scale * activation scale) + result        one fused multiply-add
//          result = weight minimum * scaled sum of activations + result     kInt4Min only
//
// Each output of each token goes through exactly this sequence, however many tokens are computed beside it and whichever
// kernel does it. That is why a result never depends on the batch: the two kernels below, and every number of tokens
// they are compiled for, give the same bits.
//
// The vector kernel holds a few tokens in registers. The AMX kernel (linear_amx.h) does 16 tokens at once in the
// processor's matrix unit, which needs the weights as plain signed bytes; they are unpacked once per pair of blocks and
// used for all tokens of the step.
#pragma once
#include <algorithm>
#include <type_traits>

#include "activations.h"
#include "linear_amx.h"
#include "simd.h"
#include "team.h"

namespace ramet {

struct PairResult {
    alignas(64) float values[kTokenTile][kPair];
};

inline int32_t offset_correction(int format, int32_t activation_sum) {
    return format == kInt8 ? -128 * activation_sum : format == kInt4 ? -8 * activation_sum : 0;
}

// Tokens one channel block is computed for at a time: two accumulators a token, and room for weights.
constexpr int kTokensPerPass = kVectorRegisters >= 32 ? 6 : 4;

// One group of NB channel blocks for NT tokens; adds to `result`.
template <int Format, int NB, int NT>
RAMET_INLINE void add_group(const uint8_t* const (&weights)[NB], const ActivationGroup& acts, int first_token,
                            Vec (&result)[NB][NT]) {
    using Dot = std::conditional_t<Format == kInt8, Dot8, Dot4>;
    typename Dot::Acc sums[NB][NT];
    unroll<NT>([&](auto t) RAMET_INLINED {
        const int32_t correction = offset_correction(Format, acts.sums[first_token + t]);
        unroll<NB>([&](auto b) RAMET_INLINED { sums[b][t] = Dot::begin(correction); });
    });
    const auto input_at = [&](int t, int step) RAMET_INLINED {
        int32_t four_inputs;
        std::memcpy(&four_inputs, acts.values[first_token + t] + 4 * step, sizeof four_inputs);
        return four_inputs;
    };
    unroll<(Format == kInt8 ? 8 : 4)>([&](auto j) RAMET_INLINED {
        Bytes packed[NB];
        unroll<NB>([&](auto b) RAMET_INLINED { packed[b] = bytes_load(weights[b] + j * 64); });
        const auto step = [&](int input_step, auto bytes_of) RAMET_INLINED {
            Bytes bytes[NB];
            unroll<NB>([&](auto b) RAMET_INLINED { bytes[b] = bytes_of(packed[b]); });
            unroll<NT>([&](auto t) RAMET_INLINED {
                const int32_t inputs = input_at(t, input_step);
                unroll<NB>([&](auto b) RAMET_INLINED { sums[b][t] = Dot::step(sums[b][t], bytes[b], inputs); });
            });
        };
        if constexpr (Format == kInt8) {
            step(j, [](Bytes all) RAMET_INLINED { return all; });
        } else {
            step(j, [](Bytes all) RAMET_INLINED { return low_nibbles(all); });
            step(j + 4, [](Bytes all) RAMET_INLINED { return high_nibbles(all); });
        }
    });
    unroll<NB>([&](auto b) RAMET_INLINED {
        const Vec scale = vload_half(group_scales(weights[b], Format));
        unroll<NT>([&](auto t) RAMET_INLINED {
            const int32_t correction = offset_correction(Format, acts.sums[first_token + t]);
            const Vec sum = vfrom_int(Dot::end(sums[b][t], correction));
            result[b][t] = vfma(sum, vmul(scale, vset(acts.scales[first_token + t])), result[b][t]);
        });
        if constexpr (Format == kInt4Min) {
            const Vec minimum = vload_half(group_minima(weights[b]));
            unroll<NT>([&](auto t) RAMET_INLINED {
                result[b][t] = vfma(minimum, vset(acts.scaled_sums[first_token + t]), result[b][t]);
            });
        }
    });
}

// NB channel blocks, `stride` bytes apart, for NT tokens over all groups.
template <int Format, int NB, int NT>
void multiply_tokens(const uint8_t* weights, size_t stride, const ActivationGroup* acts, int num_groups,
                     int first_token, float* out) {
    Vec result[NB][NT];
    const uint8_t* groups[NB];
    unroll<NB>([&](auto b) RAMET_INLINED {
        groups[b] = weights + b * stride;
        unroll<NT>([&](auto t) RAMET_INLINED { result[b][t] = vzero(); });
    });
    for (int g = 0; g < num_groups; ++g) {
        add_group<Format, NB, NT>(groups, acts[g], first_token, result);
        unroll<NB>([&](auto b) RAMET_INLINED { groups[b] += group_bytes(Format); });
    }
    unroll<NT>([&](auto t) RAMET_INLINED {
        unroll<NB>([&](auto b) RAMET_INLINED { vstore(out + (first_token + t) * kPair + b * kLanes, result[b][t]); });
    });
}

// Any number of tokens up to kTokensPerPass.
template <int Format, int NB>
void multiply_some(const uint8_t* weights, size_t stride, const ActivationGroup* acts, int num_groups, int first_token,
                   int num_tokens, float* out) {
    switch (num_tokens) {
        case 1: return multiply_tokens<Format, NB, 1>(weights, stride, acts, num_groups, first_token, out);
        case 2: return multiply_tokens<Format, NB, 2>(weights, stride, acts, num_groups, first_token, out);
        case 3: return multiply_tokens<Format, NB, 3>(weights, stride, acts, num_groups, first_token, out);
        case 4: return multiply_tokens<Format, NB, 4>(weights, stride, acts, num_groups, first_token, out);
        default: break;
    }
    if constexpr (kTokensPerPass > 4) {
        if (num_tokens == 5)
            return multiply_tokens<Format, NB, 5>(weights, stride, acts, num_groups, first_token, out);
        return multiply_tokens<Format, NB, 6>(weights, stride, acts, num_groups, first_token, out);
    }
}

// A pair of channel blocks, ready to be multiplied with many token tiles.
template <int Format>
class WeightPair {
public:
    // `scratch` has room for 2 * num_groups.
    WeightPair(const uint8_t* weights, int num_groups, int num_tokens, UnpackedGroup* scratch)
        : weights_(weights), stride_(num_groups * group_bytes(Format)), num_groups_(num_groups), unpacked_(nullptr) {
        if (!amx::is_worthwhile(num_tokens)) return;
        unpacked_ = scratch;
        for (int b = 0; b < 2; ++b)
            amx::unpack_block<Format>(weights_ + b * stride_, num_groups, scratch + b * num_groups);
    }

    // Results of `num_tokens` tokens of one tile. Rows of `out` beyond them may be overwritten.
    void multiply(const ActivationGroup* acts, int num_tokens, PairResult& out) const {
        if (unpacked_ != nullptr && amx::is_worthwhile(num_tokens)) {
            for (int b = 0; b < 2; ++b)
                amx::multiply_tile<Format>(unpacked_ + b * num_groups_, acts, num_groups_, out.values[0] + b * kLanes);
            return;
        }
        constexpr int kBlocks = kVectorRegisters >= 32 ? 2 : 1;  // with few registers the blocks take turns
        const int num_passes = ceil_div(num_tokens, kTokensPerPass);
        for (int pass = 0; pass < num_passes; ++pass) {
            const Range tokens = share_of(num_tokens, pass, num_passes);
            for (int b = 0; b < 2; b += kBlocks)
                multiply_some<Format, kBlocks>(weights_ + b * stride_, stride_, acts, num_groups_, tokens.begin,
                                               tokens.end - tokens.begin, out.values[0] + b * kLanes);
        }
    }

private:
    const uint8_t* weights_;
    size_t stride_;
    int num_groups_;
    UnpackedGroup* unpacked_;
};

// Pairs [pairs.begin, pairs.end) of a matrix times all tokens. `finish(pair, first_token, num_tokens, result)` is called
// with the results of each pair and token tile.
template <int Format, typename Finish>
void multiply_pairs_as(const PackedMatrix& matrix, const Activations& acts, int num_tokens, Range pairs,
                       UnpackedGroup* scratch, const Finish& finish) {
    const int num_groups = matrix.num_inputs / kGroup;
    PairResult result;
    for (int pair = pairs.begin; pair < pairs.end; ++pair) {
        const WeightPair<Format> weights(matrix.data + 2 * pair * block_bytes(matrix), num_groups, num_tokens, scratch);
        for (int token = 0; token < num_tokens; token += kTokenTile) {
            const int count = std::min(kTokenTile, num_tokens - token);
            weights.multiply(acts.tile(token / kTokenTile), count, result);
            finish(pair, token, count, result);
        }
    }
}

template <typename Finish>
void multiply_pairs(const PackedMatrix& matrix, const Activations& acts, int num_tokens, Range pairs, UnpackedGroup* scratch,
                    const Finish& finish) {
    switch (matrix.format) {
        case kInt8: return multiply_pairs_as<kInt8>(matrix, acts, num_tokens, pairs, scratch, finish);
        case kInt4: return multiply_pairs_as<kInt4>(matrix, acts, num_tokens, pairs, scratch, finish);
        default: return multiply_pairs_as<kInt4Min>(matrix, acts, num_tokens, pairs, scratch, finish);
    }
}

}  // namespace ramet
