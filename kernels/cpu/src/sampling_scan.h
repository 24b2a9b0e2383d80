// Passes over a whole row of numbers, in groups of 64.
//
//     numbers    | 64 | 64 | 64 | ... | rest |
//     largest    |  a |  b |  c | ... |   z  |     one per group
//
// Every pass that looks for large numbers asks a group's largest first, and so touches few groups.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace ramet::sampling {

constexpr int64_t GROUP_LEN = 64;
constexpr float NEG_INF = -std::numeric_limits<float>::infinity();

inline int64_t num_groups(int64_t count) { return (count + GROUP_LEN - 1) / GROUP_LEN; }
inline int64_t group_end(int64_t group, int64_t count) { return std::min((group + 1) * GROUP_LEN, count); }

// What one pass finds out about a row. Kept from row to row so that the memory is.
struct Scan {
    float peak = NEG_INF; // the largest number; NaN if there is a NaN
    std::vector<float> largest;

    bool is_finite() const { return std::isfinite(peak); }
};

inline float group_largest(const float* values, int64_t count, int32_t& num_nans) {
    float largest = NEG_INF;
    int32_t nans = 0;
#pragma omp simd reduction(max : largest) reduction(+ : nans)
    for (int64_t i = 0; i < count; ++i) {
        largest = values[i] > largest ? values[i] : largest;
        nans += values[i] != values[i];
    }
    num_nans += nans;
    return largest;
}

inline void scan(const float* values, int64_t count, Scan& result) {
    result.largest.resize(num_groups(count));
    int32_t num_nans = 0;
    float peak = NEG_INF;
    for (int64_t group = 0; group < num_groups(count); ++group) {
        int64_t start = group * GROUP_LEN, end = group_end(group, count);
        float largest = end - start == GROUP_LEN ? group_largest(values + start, GROUP_LEN, num_nans)
                                                 : group_largest(values + start, end - start, num_nans);
        result.largest[group] = largest;
        peak = std::max(peak, largest);
    }
    result.peak = num_nans ? std::numeric_limits<float>::quiet_NaN() : peak;
}

// Calls visit(idx) for every number of at least `floor`, in order. No number of a group is larger than its bound. The
// numbers lie scattered, so a group's are picked out without branches first.
template <typename Visit>
inline void for_each_from(const float* values, int64_t count, const std::vector<float>& bounds, float floor,
                          Visit visit) {
    int32_t picked[GROUP_LEN];
    for (int64_t group = 0; group < num_groups(count); ++group) {
        if (bounds[group] < floor) continue;
        const int64_t start = group * GROUP_LEN;
        const int32_t length = static_cast<int32_t>(group_end(group, count) - start);
        int32_t num_picked = 0;
        for (int32_t i = 0; i < length; ++i) {
            picked[num_picked] = i;
            num_picked += values[start + i] >= floor;
        }
        for (int32_t i = 0; i < num_picked; ++i) visit(start + picked[i]);
    }
}

// First index of the largest number of a row without NaN.
inline int64_t first_largest(const float* values, int64_t count, const Scan& found) {
    for (int64_t group = 0; group < num_groups(count); ++group) {
        if (found.largest[group] != found.peak) continue;
        int64_t i = group * GROUP_LEN;
        while (values[i] != found.peak) ++i;
        return i;
    }
    return 0;
}

// A sum in double whose order is fixed: eight running sums, added up at the end.
class LaneSum {
public:
    static constexpr int64_t NUM_LANES = 8;

    template <typename Number>
    void add_all(const Number* values, int64_t count) {
        double lanes[NUM_LANES]; // a copy that can stay in registers
        std::copy(lanes_, lanes_ + NUM_LANES, lanes);
        int64_t i = 0;
        for (; i + NUM_LANES <= count; i += NUM_LANES) {
#pragma omp simd
            for (int64_t lane = 0; lane < NUM_LANES; ++lane) lanes[lane] += static_cast<double>(values[i + lane]);
        }
        for (int64_t lane = 0; i + lane < count; ++lane) lanes[lane] += static_cast<double>(values[i + lane]);
        std::copy(lanes, lanes + NUM_LANES, lanes_);
    }

    double total() const {
        double total = 0.0;
        for (double lane : lanes_) total += lane;
        return total;
    }

private:
    double lanes_[NUM_LANES] = {};
};

} // namespace ramet::sampling
