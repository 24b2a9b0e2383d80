// Activations on their way into a matrix product: int8 with one scale per token and group of 32 (layout.h).
#pragma once
#include "aligned.h"
#include "simd.h"

namespace ramet {

// Quantises 32 values to token `token` of a group. The scale makes the largest magnitude 127. What is next to nothing
// becomes zero: 127 divided by it would overflow. If a value is NaN or infinite, the scale is NaN, so that it shows.
inline void quantize_group(const float* x, ActivationGroup& group, int token) {
    constexpr float kNothing = 1e-30f;
    const Vec a = vload(x), b = vload(x + kLanes);
    const float largest = vmaximum(vmax(vabs(a), vabs(b)));
    const Vec inverse = vset(largest > kNothing ? 127.0f / largest : 0.0f);
    const Vec qa = vround(vmul(a, inverse)), qb = vround(vmul(b, inverse));
    vstore_int8(group.values[token], qa);
    vstore_int8(group.values[token] + kLanes, qb);
    const float sum = vsum(vadd(qa, qb));  // an exact integer, 32 * 127 at most; NaN if a value was not finite
    const float scale = largest / 127.0f + (sum - sum);
    const bool is_finite = sum == sum;  // 0 * infinity and NaN end up here
    group.scales[token] = is_finite ? scale : sum;
    group.scaled_sums[token] = scale * sum;
    group.sums[token] = is_finite ? static_cast<int32_t>(sum) : 0;
}

// The quantised activations of a step: [token tile][group].
class Activations {
public:
    void resize(int num_tokens, int num_inputs) {
        num_groups_ = num_inputs / kGroup;
        groups_.resize(static_cast<size_t>(ceil_div(num_tokens, kTokenTile)) * num_groups_);
    }
    ActivationGroup* tile(int tile_idx) { return groups_.data() + static_cast<size_t>(tile_idx) * num_groups_; }
    const ActivationGroup* tile(int tile_idx) const {
        return groups_.data() + static_cast<size_t>(tile_idx) * num_groups_;
    }

    // Quantises columns [first_group * 32, ...) of one token from x, which points at the first of them.
    void quantize(const float* x, int token, int first_group, int num_groups) {
        ActivationGroup* tile_groups = tile(token / kTokenTile) + first_group;
        for (int g = 0; g < num_groups; ++g) quantize_group(x + g * kGroup, tile_groups[g], token % kTokenTile);
    }

private:
    int num_groups_ = 0;
    AlignedArray<ActivationGroup> groups_;
};

}  // namespace ramet
