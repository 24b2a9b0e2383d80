// One token for each row of a step's logits. What is promised, and the structs, are in sampling.h.
#include "sampling.h"

#include "sampling_math.h"
#include "sampling_scan.h"
#include "sampling_select.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace ramet::sampling {
namespace {

// A token this much less likely than the likeliest is not drawn: all of them together come up once in 10**8 draws.
constexpr float NEGLIGIBLE = 1e-13f;

// Memory of one thread, kept from call to call.
struct Scratch {
    std::vector<float> changed;
    std::vector<int32_t> counts; // one a token, zero between rows
    std::vector<float> weights, bounds, work;
    std::vector<RankKey> keys;
    std::vector<int32_t> token_ids;
    Scan scanned;
    Nucleus nucleus;
};

// The call's lists of ids and biases.
struct Lists {
    const int32_t* ids;
    const float* biases;
};

struct Choice {
    int32_t token_id = -1;
    ramet_sampling_status status = RAMET_SAMPLED;
};

// ---- changes ---------------------------------------------------------------------------------------------------------

void forbid(float* logits, int64_t vocab_size, const uint8_t* allowed) {
#pragma omp simd
    for (int64_t i = 0; i < vocab_size; ++i) logits[i] = allowed[i] ? logits[i] : NEG_INF;
}

void forbid_bits(float* logits, int64_t vocab_size, const uint32_t* allowed_bits) {
    for (int64_t start = 0; start < vocab_size; start += 32) {
        uint32_t word = allowed_bits[start / 32];
        int64_t count = std::min<int64_t>(32, vocab_size - start);
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) logits[start + i] = (word >> i) & 1u ? logits[start + i] : NEG_INF;
    }
}

void penalise_repetition(float* logits, const int32_t* ids, int64_t num_ids, float penalty, int32_t* counts) {
    for (int64_t i = 0; i < num_ids; ++i) {
        if (counts[ids[i]]++) continue;
        float& logit = logits[ids[i]];
        logit = logit > 0.0f ? logit / penalty : logit * penalty;
    }
    for (int64_t i = 0; i < num_ids; ++i) counts[ids[i]] = 0;
}

void penalise_output(float* logits, const int32_t* ids, int64_t num_ids, double presence, double frequency,
                     int32_t* counts) {
    for (int64_t i = 0; i < num_ids; ++i) ++counts[ids[i]];
    for (int64_t i = 0; i < num_ids; ++i) {
        int32_t& count = counts[ids[i]];
        if (count) logits[ids[i]] -= static_cast<float>(presence + frequency * count);
        count = 0;
    }
}

// A copy of the logits after allowed tokens, bans, biases and penalties, in this order.
const float* change(const float* logits, int64_t vocab_size, const ramet_sampling_changes& changes, const Lists& lists,
                    Scratch& scratch) {
    scratch.changed.assign(logits, logits + vocab_size);
    float* changed = scratch.changed.data();
    if (changes.allowed) forbid(changed, vocab_size, changes.allowed);
    if (changes.allowed_bits) forbid_bits(changed, vocab_size, changes.allowed_bits);
    const int32_t* banned = lists.ids + changes.ids_start;
    const int32_t* biased = banned + changes.num_banned_ids;
    const int32_t* sequence = biased + changes.num_biased_ids;
    for (int64_t i = 0; i < changes.num_banned_ids; ++i) {
        if (banned[i] < vocab_size) changed[banned[i]] = NEG_INF;
    }
    const float* biases = lists.biases + changes.biases_start;
    for (int64_t i = 0; i < changes.num_biased_ids; ++i) changed[biased[i]] += biases[i];
    if (changes.num_sequence_ids == 0) return changed;
    scratch.counts.resize(vocab_size, 0);
    int32_t* counts = scratch.counts.data();
    if (changes.repetition_penalty != 1.0) {
        penalise_repetition(changed, sequence, changes.num_sequence_ids,
                            static_cast<float>(changes.repetition_penalty), counts);
    }
    penalise_output(changed, sequence + changes.num_prompt_ids, changes.num_sequence_ids - changes.num_prompt_ids,
                    changes.presence_penalty, changes.frequency_penalty, counts);
    return changed;
}

// ---- the draw --------------------------------------------------------------------------------------------------------

// The logits that top-k leaves, in ascending order of token ids, and their weights: softmax's numerators after
// temperature, so the largest is 1. Weights are computed where they are needed: all of them for a sum, otherwise only
// in groups that may matter, which a bound on the weights of each group tells.
class Candidates {
public:
    Candidates(const float* logits, int64_t count, const int32_t* token_ids, const Scan& scanned, double temperature,
               std::vector<float>& bounds)
        : logits_(logits), count_(count), token_ids_(token_ids), peak_(scanned.peak),
          factor_(1.0f / std::max(static_cast<float>(temperature), FLT_MIN)), bounds_(bounds) {
        bounds_.resize(scanned.largest.size());
        weigh(scanned.largest.data(), static_cast<int64_t>(bounds_.size()), bounds_.data());
        for (float& bound : bounds_) bound *= 1.0f + 0x1p-20f; // an exponential may be rounded up
    }

    int64_t count() const { return count_; }
    bool is_vocabulary() const { return token_ids_ == nullptr; }
    int64_t token_id(int64_t idx) const { return token_ids_ ? token_ids_[idx] : idx; }

    // No weight of a group is larger than its bound.
    const std::vector<float>& bounds() const { return bounds_; }

    // The weights of one group.
    const float* weights(int64_t group) {
        int64_t start = group * GROUP_LEN;
        if (all_) return all_ + start;
        weigh(logits_ + start, group_end(group, count_) - start, group_);
        return group_;
    }

    // The weights of all; the result's memory is kept in `memory`.
    const float* weigh_all(std::vector<float>& memory) {
        memory.resize(std::max(count_, static_cast<int64_t>(memory.size())));
        all_ = memory.data();
        weigh(logits_, count_, memory.data());
        return all_;
    }

private:
    void weigh(const float* logits, int64_t count, float* weights) const {
        constexpr int64_t CHUNK_LEN = 256;
        const float peak = peak_, factor = factor_;
        float rests[CHUNK_LEN], powers[CHUNK_LEN];
        for (int64_t start = 0; start < count; start += CHUNK_LEN) {
            const int64_t length = std::min(CHUNK_LEN, count - start);
#pragma omp simd
            for (int64_t i = 0; i < length; ++i) {
                const ReducedExp reduced = exp_minus_reduce((peak - logits[start + i]) * factor);
                rests[i] = reduced.r;
                powers[i] = reduced.power;
            }
#pragma omp simd
            for (int64_t i = 0; i < length; ++i) weights[start + i] = exp_minus_finish(rests[i], powers[i]);
        }
    }

    const float* logits_;
    int64_t count_;
    const int32_t* token_ids_;
    float peak_, factor_;
    std::vector<float>& bounds_;
    const float* all_ = nullptr;
    float group_[GROUP_LEN];
};

Candidates keep_top_k(const float* logits, int64_t vocab_size, const ramet_sampling_row& row, Scratch& scratch) {
    if (row.top_k <= 0 || row.top_k >= vocab_size) {
        return Candidates(logits, vocab_size, nullptr, scratch.scanned, row.temperature, scratch.bounds);
    }
    select_largest(logits, vocab_size, scratch.scanned, row.top_k, scratch.work, scratch.keys);
    scratch.token_ids.clear();
    for (RankKey key : scratch.keys) scratch.token_ids.push_back(token_of(key));
    std::sort(scratch.token_ids.begin(), scratch.token_ids.end());
    scratch.work.clear();
    for (int32_t token_id : scratch.token_ids) scratch.work.push_back(logits[token_id]);
    scan(scratch.work.data(), row.top_k, scratch.scanned);
    return Candidates(scratch.work.data(), row.top_k, scratch.token_ids.data(), scratch.scanned, row.temperature,
                      scratch.bounds);
}

Cut cut_of(const ramet_sampling_row& row, Candidates& candidates, Scratch& scratch) {
    Cut cut;
    if (row.top_p < 1.0) {
        const float* weights = candidates.weigh_all(scratch.weights);
        LaneSum sum;
        sum.add_all(weights, candidates.count());
        cut = scratch.nucleus.find(weights, candidates.count(), candidates.bounds(), row.top_p, sum.total());
    }
    cut.raise_to(static_cast<float>(row.min_p));
    cut.raise_to(std::nextafter(NEGLIGIBLE, 1.0f));
    return cut;
}

// A race between the tokens of one row.
class Race {
public:
    Race(const ramet_sampling_row& row, Candidates& candidates, const Cut& cut)
        : state_(stream_state(row.seed, row.sample_idx, row.position)), candidates_(candidates), cut_(cut) {}

    int32_t winner() {
        for (int64_t group = 0; group < num_groups(candidates_.count()); ++group) {
            const float bound = candidates_.bounds()[group];
            if (bound >= cut_.smallest && may_lead(group, first_arrival_ * static_cast<double>(bound))) run(group);
        }
        return static_cast<int32_t>(candidates_.token_id(winner_idx_));
    }

private:
    // Whether a uniform number of the group is below `bound`. A token's waiting time is never below its uniform number,
    // so most groups are settled here, by hashes alone.
    bool may_lead(int64_t group, double bound) const {
        const int64_t start = group * GROUP_LEN;
        if (bound > 0.5 || !candidates_.is_vocabulary() || start + GROUP_LEN > candidates_.count()) return true;
        const uint64_t state = state_, limit = static_cast<uint64_t>(bound * 0x1p53 + 1.0) << 11;
        uint64_t hashes[GROUP_LEN];
#pragma omp simd
        for (int64_t i = 0; i < GROUP_LEN; ++i) hashes[i] = token_hash_begin(state, start + i);
        int64_t num_below = 0;
#pragma omp simd reduction(+ : num_below)
        for (int64_t i = 0; i < GROUP_LEN; ++i) num_below += mix(hashes[i]) < limit;
        return num_below > 0;
    }

    void run(int64_t group) {
        const int64_t start = group * GROUP_LEN, count = group_end(group, candidates_.count()) - start;
        const float* weights = candidates_.weights(group);
        for (int64_t i = 0; i < count; ++i) {
            if (!cut_.keeps(weights[i], start + i)) continue;
            double number = uniform(token_hash(state_, candidates_.token_id(start + i)));
            double weight = static_cast<double>(weights[i]);
            if (number > first_arrival_ * weight * (1.0 + 1e-9)) continue;
            double arrival = -std::log1p(-number) / weight;
            if (arrival < first_arrival_) {
                first_arrival_ = arrival;
                winner_idx_ = start + i;
            }
        }
    }

    uint64_t state_;
    Candidates& candidates_;
    const Cut& cut_;
    double first_arrival_ = std::numeric_limits<double>::infinity();
    int64_t winner_idx_ = 0;
};

int32_t draw(const float* logits, int64_t vocab_size, const ramet_sampling_row& row, Scratch& scratch) {
    Candidates candidates = keep_top_k(logits, vocab_size, row, scratch);
    Cut cut = cut_of(row, candidates, scratch);
    return Race(row, candidates, cut).winner();
}

Choice choose(const float* logits, int64_t vocab_size, const ramet_sampling_row& row,
              const ramet_sampling_changes* changes, const Lists& lists, Scratch& scratch, float& raw_peak) {
    scan(logits, vocab_size, scratch.scanned);
    raw_peak = scratch.scanned.peak;
    if (!scratch.scanned.is_finite()) return Choice{-1, RAMET_NOT_FINITE};
    if (row.changes_idx >= 0) {
        logits = change(logits, vocab_size, changes[row.changes_idx], lists, scratch);
        scan(logits, vocab_size, scratch.scanned);
        if (scratch.scanned.peak == NEG_INF) return Choice{-1, RAMET_NOTHING_LEFT};
        if (!scratch.scanned.is_finite()) return Choice{-1, RAMET_OUT_OF_RANGE};
    }
    if (row.temperature == 0.0) {
        return Choice{static_cast<int32_t>(first_largest(logits, vocab_size, scratch.scanned))};
    }
    return Choice{draw(logits, vocab_size, row, scratch)};
}

Scratch& thread_scratch() {
    static thread_local Scratch scratch;
    return scratch;
}

} // namespace
} // namespace ramet::sampling

extern "C" void ramet_sample(const float* logits, int64_t row_stride, int64_t vocab_size, int64_t num_rows,
                             const ramet_sampling_row* rows, const ramet_sampling_changes* changes, const int32_t* ids,
                             const float* biases, int32_t* token_ids, int32_t* statuses, float* peaks,
                             int32_t num_threads) {
    using namespace ramet::sampling;
    const Lists lists{ids, biases};
#ifdef _OPENMP
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, 1) if (num_rows > 1)
#endif
    for (int64_t i = 0; i < num_rows; ++i) {
        Choice choice =
            choose(logits + i * row_stride, vocab_size, rows[i], changes, lists, thread_scratch(), peaks[i]);
        token_ids[i] = choice.token_id;
        statuses[i] = choice.status;
    }
    (void)num_threads;
}
