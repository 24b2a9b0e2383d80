// The kernels of linear.h.
#include "linear.h"

#include <type_traits>

#include "simd.h"

namespace ramet {

namespace {

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

template <int Format>
void multiply_vector(const uint8_t* weights, size_t stride, const ActivationGroup* acts, int num_groups, int num_tokens,
                     float* out) {
    constexpr int kBlocks = kVectorRegisters >= 32 ? 2 : 1;  // with few registers the blocks take turns
    const int num_passes = ceil_div(num_tokens, kTokensPerPass);
    for (int pass = 0; pass < num_passes; ++pass) {
        const Range tokens = share_of(num_tokens, pass, num_passes);
        for (int b = 0; b < 2; b += kBlocks)
            multiply_some<Format, kBlocks>(weights + b * stride, stride, acts, num_groups, tokens.begin,
                                           tokens.end - tokens.begin, out + b * kLanes);
    }
}

template <int Format>
void multiply_matrix_unit(const UnpackedGroup* weights, const ActivationGroup* acts, int num_groups, const uint8_t* next,
                          float* out) {
    for (int b = 0; b < 2; ++b) {
        const uint8_t* next_block = next == nullptr ? nullptr : next + b * num_groups * group_bytes(Format);
        amx::multiply_tile<Format>(weights + b * num_groups, acts, num_groups, next_block, out + b * kLanes);
    }
}

// Calls work(format) with the format as a constant.
template <typename Work>
void with_format(int format, const Work& work) {
    switch (format) {
        case kInt8: return work(std::integral_constant<int, kInt8>{});
        case kInt4: return work(std::integral_constant<int, kInt4>{});
        default: return work(std::integral_constant<int, kInt4Min>{});
    }
}

}  // namespace

WeightPair::WeightPair(const PackedMatrix& matrix, int pair, int num_tokens, UnpackedGroup* scratch)
    : format_(matrix.format),
      num_groups_(matrix.num_inputs / kGroup),
      stride_(block_bytes(matrix)),
      weights_(matrix.data + 2 * pair * block_bytes(matrix)) {
    if (!amx::is_worthwhile(num_tokens)) return;
    unpacked_ = scratch;
    with_format(format_, [&](auto format) {
        for (int b = 0; b < 2; ++b)
            amx::unpack_block<format>(weights_ + b * stride_, num_groups_, scratch + b * num_groups_);
    });
}

void WeightPair::multiply(const ActivationGroup* acts, int num_tokens, bool is_first, PairResult& out) const {
    with_format(format_, [&](auto format) {
        if (unpacked_ != nullptr && amx::is_worthwhile(num_tokens)) {
            const uint8_t* next = is_first ? weights_ + 2 * stride_ : nullptr;
            multiply_matrix_unit<format>(unpacked_, acts, num_groups_, next, out.values[0]);
        } else {
            multiply_vector<format>(weights_, stride_, acts, num_groups_, num_tokens, out.values[0]);
        }
    });
}

}  // namespace ramet
