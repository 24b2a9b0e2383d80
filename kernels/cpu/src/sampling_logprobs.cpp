// Logprobs of tokens under the model's own distribution; see sampling.h.
#include "sampling.h"

#include "sampling_math.h"
#include "sampling_scan.h"
#include "sampling_select.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace ramet::sampling {
namespace {

// Memory of one thread, kept from call to call.
struct Scratch {
    Scan scanned;
    std::vector<float> work;
    std::vector<RankKey> keys;
};

// The logarithm of the sum of e to the power of every logit.
double log_total(const float* logits, int64_t vocab_size, float peak) {
    LaneSum sum;
    double powers[GROUP_LEN];
    for (int64_t start = 0; start < vocab_size; start += GROUP_LEN) {
        int64_t count = std::min(GROUP_LEN, vocab_size - start);
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) {
            powers[i] = exp_minus(static_cast<double>(peak) - static_cast<double>(logits[start + i]));
        }
        sum.add_all(powers, count);
    }
    return static_cast<double>(peak) + std::log(sum.total());
}

int32_t rank_of(const float* logits, int64_t vocab_size, int64_t token_id) {
    const float own = logits[token_id];
    int32_t num_before = 0;
#pragma omp simd reduction(+ : num_before)
    for (int64_t i = 0; i < vocab_size; ++i) num_before += (logits[i] > own) | ((logits[i] == own) & (i < token_id));
    return num_before + 1;
}

int32_t list_largest(const float* logits, int64_t vocab_size, int64_t count, double total, Scratch& scratch,
                     int32_t* listed_ids, double* listed_logprobs) {
    select_largest(logits, vocab_size, scratch.scanned, count, scratch.work, scratch.keys);
    std::sort(scratch.keys.begin(), scratch.keys.end(), std::greater<RankKey>());
    for (RankKey key : scratch.keys) {
        *listed_ids++ = token_of(key);
        *listed_logprobs++ = static_cast<double>(logits[token_of(key)]) - total;
    }
    return static_cast<int32_t>(scratch.keys.size());
}

Scratch& thread_scratch() {
    static thread_local Scratch scratch;
    return scratch;
}

} // namespace
} // namespace ramet::sampling

extern "C" void ramet_logprobs(const float* logits, int64_t row_stride, int64_t vocab_size, int64_t num_rows,
                               const int32_t* row_indices, const int32_t* token_ids, const int32_t* top_ns,
                               int64_t width, double* own_logprobs, int32_t* own_ranks, int32_t* num_listed,
                               int32_t* listed_ids, double* listed_logprobs, int32_t num_threads) {
    using namespace ramet::sampling;
#ifdef _OPENMP
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, 1) if (num_rows > 1)
#endif
    for (int64_t i = 0; i < num_rows; ++i) {
        const float* row = logits + row_indices[i] * row_stride;
        Scratch& scratch = thread_scratch();
        scan(row, vocab_size, scratch.scanned);
        const bool is_finite = scratch.scanned.is_finite();
        const double total = is_finite ? log_total(row, vocab_size, scratch.scanned.peak)
                                       : std::numeric_limits<double>::quiet_NaN();
        own_logprobs[i] = static_cast<double>(row[token_ids[i]]) - total;
        own_ranks[i] = rank_of(row, vocab_size, token_ids[i]);
        num_listed[i] = is_finite ? list_largest(row, vocab_size, top_ns[i], total, scratch, listed_ids + i * width,
                                                 listed_logprobs + i * width)
                                  : 0;
    }
    (void)num_threads;
}
