// The C interface of the sampler: from a step's logits to one token a row, and logprobs.
//
// A row is changed and cut in this order: allowed tokens and bans, biases, penalties, temperature, top-k, top-p, min-p.
// What is left runs a race: each token arrives after an exponential waiting time divided by its weight, and the first
// one is the row's token. A waiting time depends on (seed, sample, position, token) alone, and a row is always worked
// on by one thread with every sum in a fixed order. So a row's token depends on that row alone: not on the other rows,
// nor on the number of threads.
//
// Nothing here sorts a vocabulary. A row is read in groups of 64 logits, and only groups whose largest logit matters
// are looked at again (sampling_scan.h); top-k and top-p select (sampling_select.h).
//
// Python's side is kernels/cpu/sampling.py; it packs the structs below field by field.
#pragma once

#include <cstdint>

extern "C" {

// How one row is sampled. 64 bytes.
struct ramet_sampling_row {
    uint64_t seed;
    int64_t sample_idx;
    int64_t position;    // of the new token in its sequence
    double temperature;  // 0 is greedy
    double top_p;        // 1 keeps all
    double min_p;        // 0 keeps all
    int64_t top_k;       // 0 keeps all
    int64_t changes_idx; // which ramet_sampling_changes apply before temperature, -1 for none
};

// What changes a row's logits before temperature. The lists lie one after the other in the call's `ids`, from
// ids_start on: banned tokens, biased tokens, then the sequence's own tokens, whose first num_prompt_ids are its prompt.
struct ramet_sampling_changes {
    const uint8_t* allowed;       // one byte a token, 0 forbids it; null allows all
    const uint32_t* allowed_bits; // the same as bits, the lowest of a word first; null allows all
    int64_t ids_start;
    int64_t num_banned_ids; // those the vocabulary does not have are ignored
    int64_t num_biased_ids;
    int64_t num_sequence_ids; // 0 where there are no penalties
    int64_t num_prompt_ids;
    int64_t biases_start; // in the call's `biases`, one for each biased token
    double repetition_penalty;
    double presence_penalty;
    double frequency_penalty;
};

enum ramet_sampling_status : int32_t {
    RAMET_SAMPLED = 0,
    RAMET_NOT_FINITE = 1,   // NaN or +inf among the logits, or nothing but -inf
    RAMET_NOTHING_LEFT = 2, // all that is allowed has a logit of -inf
    RAMET_OUT_OF_RANGE = 3, // a penalty took a logit out of the range of fp32
};

// One token for each row of logits [num_rows, vocab_size], rows row_stride floats apart; the logits are not changed.
// Writes token_ids (-1 where the status is not RAMET_SAMPLED), statuses, and peaks: the largest logit of each row as
// the model made it.
void ramet_sample(const float* logits, int64_t row_stride, int64_t vocab_size, int64_t num_rows,
                  const ramet_sampling_row* rows, const ramet_sampling_changes* changes, const int32_t* ids,
                  const float* biases, int32_t* token_ids, int32_t* statuses, float* peaks, int32_t num_threads);

// Logprobs of num_rows rows of logits under the model's own distribution. Row i is row row_indices[i] of the logits;
// reported are its token token_ids[i] and its top_ns[i] most likely tokens.
//
// Writes of each row: own_logprobs, own_ranks (1 for the most likely; of equals the lower id comes first), num_listed,
// and from i * width on listed_ids and listed_logprobs, most likely first. A row with NaN or +inf lists none and has an
// own logprob of NaN. Sums are in double.
void ramet_logprobs(const float* logits, int64_t row_stride, int64_t vocab_size, int64_t num_rows,
                    const int32_t* row_indices, const int32_t* token_ids, const int32_t* top_ns, int64_t width,
                    double* own_logprobs, int32_t* own_ranks, int32_t* num_listed, int32_t* listed_ids,
                    double* listed_logprobs, int32_t num_threads);
}
