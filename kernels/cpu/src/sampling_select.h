// Selection of the largest: top-k by count, top-p by share of a sum. Neither sorts more than it keeps, or one bucket.
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
// Weights are gathered from the likeliest down until their sum reaches the target. They fall into buckets by the upper
// half of their bits (a bucket is 0.8 % wide), and only the bucket in which the sum crosses the target is sorted.
class Nucleus {
public:
    // The fewest largest weights whose sum reaches top_p * total; of equal ones at the border the lower indices. No
    // weight of a group is larger than its bound.
    // Source: Holtzman et al., ICLR 2020, section 3.1.
    Cut find(const float* weights, int64_t count, const std::vector<float>& bounds, double top_p, double total) {
        double target = top_p * total;
        // Smaller weights hold less than 1 - top_p of the sum together, half of that because of rounding.
        float floor = static_cast<float>(0.5 * (1.0 - top_p) * total / static_cast<double>(count));
        for (float trial = 0x1p-4f; !gather(weights, count, bounds, std::max(trial, floor), target);) {
            if (trial <= floor) break;
            trial *= 0x1p-3f;
        }
        return cut(weights, count, bounds, target);
    }

private:
    static constexpr int64_t NUM_BUCKETS = (0x3F800000 >> 16) + 1; // up to 1.0

    static int64_t bucket_of(float weight) { return bit_cast<uint32_t>(weight) >> 16; }

    // Whether the weights of at least `floor` reach the target together.
    bool gather(const float* weights, int64_t count, const std::vector<float>& bounds, float floor, double target) {
        gathered_.clear();
        for_each_from(weights, count, bounds, floor, [&](int64_t i) { gathered_.push_back(weights[i]); });
        LaneSum sum;
        sum.add_all(gathered_.data(), static_cast<int64_t>(gathered_.size()));
        return sum.total() >= target;
    }

    Cut cut(const float* weights, int64_t count, const std::vector<float>& bounds, double target) {
        float smallest = *std::min_element(gathered_.begin(), gathered_.end());
        int64_t lowest = bucket_of(smallest);
        sums_.assign(NUM_BUCKETS - lowest, 0.0);
        for (float weight : gathered_) sums_[bucket_of(weight) - lowest] += weight;
        int64_t bucket = NUM_BUCKETS - 1;
        double before = 0.0;
        while (bucket > lowest && before + sums_[bucket - lowest] < target) before += sums_[bucket-- - lowest];
        return cut_inside(weights, count, bounds, bucket, target - before);
    }

    // The cut in the bucket where what is `missing` of the target is found.
    Cut cut_inside(const float* weights, int64_t count, const std::vector<float>& bounds, int64_t bucket,
                   double missing) {
        bucket_.clear();
        for (float weight : gathered_) {
            if (bucket_of(weight) == bucket) bucket_.push_back(weight);
        }
        std::sort(bucket_.begin(), bucket_.end(), std::greater<float>());
        size_t last = 0;
        double sum = bucket_[0];
        while (sum < missing && last + 1 < bucket_.size()) sum += bucket_[++last];
        float smallest = bucket_[last];
        size_t first_equal = last;
        while (first_equal > 0 && bucket_[first_equal - 1] == smallest) --first_equal;
        return Cut{smallest, nth_equal(weights, count, bounds, smallest, last - first_equal)};
    }

    // Index of the weight that equals `value` and has n like it in front.
    static int64_t nth_equal(const float* weights, int64_t count, const std::vector<float>& bounds, float value,
                             size_t n) {
        int64_t found = -1;
        for_each_from(weights, count, bounds, value, [&](int64_t i) {
            if (weights[i] == value && n-- == 0) found = i;
        });
        return found;
    }

    std::vector<float> gathered_, bucket_;
    std::vector<double> sums_;
};

} // namespace ramet::sampling
