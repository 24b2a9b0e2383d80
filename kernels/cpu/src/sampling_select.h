// Selection of the largest: top-k by count, top-p by share of a sum. Neither sorts more than it keeps.
#pragma once

#include "sampling_math.h"
#include "sampling_scan.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace ramet::sampling {

// A logit and its token as one number: larger is a larger logit, or of equal logits the lower token id.
using RankKey = uint64_t;

inline RankKey rank_key(float logit, int64_t token_id) {
    uint32_t bits = bit_cast<uint32_t>(logit + 0.0f); // -0 is 0
    uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<uint64_t>(ordered) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(token_id));
}

inline int32_t token_of(RankKey key) { return static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(key)); }

// A logit that at least `count` logits of the row reach: the count-th largest of the groups' largest.
inline float floor_of_largest(const std::vector<float>& largest, int64_t count, std::vector<float>& work) {
    if (count > static_cast<int64_t>(largest.size())) return NEG_INF;
    work = largest;
    std::nth_element(work.begin(), work.begin() + (count - 1), work.end(), std::greater<float>());
    return work[count - 1];
}

// The `count` largest logits of a row without NaN, in no order; of equals the lower ids. All if there are fewer.
inline void select_largest(const float* logits, int64_t vocab_size, const Scan& found, int64_t count,
                           std::vector<float>& work, std::vector<RankKey>& keys) {
    keys.clear();
    if (count <= 0) return;
    float floor = floor_of_largest(found.largest, count, work);
    for_each_from(logits, vocab_size, found.largest, floor,
                  [&](int64_t token_id) { keys.push_back(rank_key(logits[token_id], token_id)); });
    if (count >= static_cast<int64_t>(keys.size())) return;
    std::nth_element(keys.begin(), keys.begin() + count, keys.end(), std::greater<RankKey>());
    keys.resize(count);
}

// Which weights are kept: those above `smallest`, and of those equal to it the ones up to index last_equal.
struct Cut {
    float smallest = 0.0f;
    int64_t last_equal = std::numeric_limits<int64_t>::max();

    void raise_to(float floor) {
        if (floor > smallest) *this = Cut{floor};
    }

    bool keeps(float weight, int64_t idx) const {
        return weight > smallest || (weight == smallest && idx <= last_equal);
    }
};

// Top-p over weights in [0, 1] of which the largest is 1.
//
// To count and sum the weights above a floor is cheap. So the floor goes down, by eighths, until the sum above it reaches
// the target; then the band between the last two floors is halved until few weights are left in it, and those are sorted.
//
//     1        2^-4        2^-7        2^-10
//     |----------|-----------|--#--------|        #: where the sum reaches the target
//                            |-----#-----|
//                            |--#--|
class Nucleus {
public:
    // The fewest largest weights whose sum reaches top_p * total; of equal ones at the border the lower indices. No
    // weight of a group is larger than its bound.
    // Source: Holtzman et al., ICLR 2020, section 3.1.
    Cut find(const float* weights, int64_t count, const std::vector<float>& bounds, double top_p, double total) {
        const Weights all{weights, count, bounds};
        const double target = top_p * total;
        // Smaller weights hold less than 1 - top_p of the sum together, half of that because of rounding.
        const float last_floor = static_cast<float>(0.5 * (1.0 - top_p) * total / static_cast<double>(count));
        Level above{2.0f, 0.0, 0}, below = level_at(all, std::max(0x1p-4f, last_floor));
        while (below.sum < target && below.floor > last_floor) {
            above = below;
            below = level_at(all, std::max(above.floor * 0x1p-3f, last_floor));
        }
        while (below.count - above.count > MAX_SORTED) {
            const float floor = bit_cast<float>((bit_cast<int32_t>(below.floor) + bit_cast<int32_t>(above.floor)) / 2);
            if (floor == below.floor) break; // all that are left are equal
            const Level middle = level_at(all, floor);
            (middle.sum < target ? above : below) = middle;
        }
        return cut(all, below.floor, above.floor, target - above.sum);
    }

private:
    static constexpr int64_t MAX_SORTED = 256;

    struct Weights {
        const float* values;
        int64_t count;
        const std::vector<float>& bounds;
    };

    // The weights of at least `floor`: their sum and number.
    struct Level {
        float floor;
        double sum;
        int64_t count;
    };

    static Level level_at(const Weights& all, float floor) {
        Level level{floor, 0.0, 0};
        for (int64_t group = 0; group < num_groups(all.count); ++group) {
            if (all.bounds[group] < floor) continue;
            const float* values = all.values + group * GROUP_LEN;
            const int64_t length = group_end(group, all.count) - group * GROUP_LEN;
            length == GROUP_LEN ? add_group(values, GROUP_LEN, level) : add_group(values, length, level);
        }
        return level;
    }

    static inline void add_group(const float* values, int64_t length, Level& level) {
        float kept[GROUP_LEN];
        int32_t count = 0;
#pragma omp simd reduction(+ : count)
        for (int64_t i = 0; i < length; ++i) {
            kept[i] = values[i] >= level.floor ? values[i] : 0.0f;
            count += values[i] >= level.floor;
        }
        LaneSum sum;
        sum.add_all(kept, length);
        level.sum += sum.total();
        level.count += count;
    }

    // The cut among the weights of at least `floor` and below `ceiling`, where what is `missing` of the target is found.
    Cut cut(const Weights& all, float floor, float ceiling, double missing) {
        band_.clear();
        for_each_from(all.values, all.count, all.bounds, floor, [&](int64_t i) {
            if (all.values[i] < ceiling) band_.push_back(all.values[i]);
        });
        if (band_.empty()) return Cut{ceiling}; // a target within the rounding of the sum
        std::sort(band_.begin(), band_.end(), std::greater<float>());
        size_t last = 0;
        double sum = band_[0];
        while (sum < missing && last + 1 < band_.size()) sum += band_[++last];
        const float smallest = band_[last];
        if (last + 1 == band_.size() || band_[last + 1] < smallest) return Cut{smallest};
        const auto first_equal = std::find(band_.begin(), band_.end(), smallest) - band_.begin();
        return Cut{smallest, nth_equal(all, smallest, static_cast<int64_t>(last) - first_equal)};
    }

    // Index of the weight that equals `value` and has n like it in front.
    static int64_t nth_equal(const Weights& all, float value, int64_t n) {
        int64_t found = -1;
        for_each_from(all.values, all.count, all.bounds, value, [&](int64_t i) {
            if (all.values[i] == value && n-- == 0) found = i;
        });
        return found;
    }

    std::vector<float> band_;
};

} // namespace ramet::sampling
