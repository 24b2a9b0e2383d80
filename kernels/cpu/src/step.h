// One step of a Llama-family model: all layers, for the flattened tokens of all sequences, in one parallel region.
//
//      embedding
//      for each layer:
//          norm, quantise          tokens shared out among the threads     | barrier
//          query, key, value       outputs shared out                      | barrier
//          rotate, store           tokens                                  | barrier
//          attention               tiles x kv heads, taken from a counter  | barrier
//          quantise                tokens                                  | barrier
//          output += residual      outputs                                 | barrier
//          norm, quantise          tokens                                  | barrier
//          gate, up, silu          outputs                                 | barrier
//          quantise                tokens                                  | barrier
//          down += residual        outputs                                 | barrier
//      norm, lm_head for the rows whose logits are wanted
#pragma once
#include <atomic>
#include <vector>

#include "activations.h"
#include "attend_item.h"
#include "c_api.h"
#include "linear.h"
#include "pack.h"
#include "pointwise.h"
#include "team.h"

namespace ramet {

enum Phase { kPhasePointwise, kPhaseLinear, kPhaseAttention, kPhaseHead, kPhasePlan, kPhaseCount };
static_assert(kPhaseCount <= RAMET_NUM_PHASES, "c_api.h has room for the phases");

class Model {
public:
    explicit Model(const ramet_model_config& config);

    // Throws std::bad_alloc, before anything was computed.
    void step(const ramet_step& step);
    const double* times() const { return times_; }

private:
    void prepare(const ramet_step& step);
    void run(const ramet_step& step, const Member& member);
    void run_layer(const ramet_step& step, int layer_idx, const Member& member);
    void embed(const ramet_step& step, Range tokens, ThreadScratch& scratch);
    void normalize(const float* norm, const int32_t* rows, Range tokens, ThreadScratch& scratch);
    void project(const ramet_linear& linear, int num_tokens, const Member& member);
    void rotate_and_store(const ramet_step& step, int layer_idx, Range tokens);
    void attend(const ramet_step& step, int layer_idx, const Member& member);
    void quantize(const AlignedArray<float>& rows, int size, Range tokens, Activations& acts);
    void add_product(const ramet_linear& linear, const Activations& acts, int num_tokens, const Member& member);
    void gate_up(const ramet_linear& linear, int num_tokens, const Member& member);
    void compute_logits(const ramet_step& step, const Member& member);
    void lap(Phase phase, int thread);

    int qkv_size() const { return (config_.num_heads + 2 * config_.num_kv_heads) * config_.head_dim; }
    int attention_size() const { return config_.num_heads * config_.head_dim; }
    int group_heads() const { return config_.num_heads / config_.num_kv_heads; }

    const ramet_model_config config_;
    const std::vector<ramet_layer> layers_;
    KVLayout kv_;
    AttentionPlan plan_;
    AlignedArray<float> hidden_;  // [tokens][hidden_size]
    AlignedArray<float> qkv_;     // [tokens][qkv_size]
    AlignedArray<float> mixed_;   // [tokens][attention_size], what attention gives
    AlignedArray<float> gated_;   // [tokens][intermediate_size], silu(gate) * up
    Activations normed_;          // inputs of products: hidden states after a norm,
    Activations mixed_acts_;      // mixed_,
    Activations gated_acts_;      // gated_
    std::vector<ThreadScratch> scratch_;
    std::vector<std::atomic<int>> next_items_;  // of each layer's attention
    double times_[RAMET_NUM_PHASES] = {};
    double lap_start_ = 0.0;
};

}  // namespace ramet
