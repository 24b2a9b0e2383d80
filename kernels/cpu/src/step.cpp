// The step of step.h.
#include "step.h"

#include <chrono>

namespace ramet {

namespace {

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Tokens a tile may have. Large tiles read shared keys least often, but every thread needs items, and about as many as the
// others.
int choose_tile_tokens(int num_tokens, int num_kv_heads, int group, int num_threads) {
    int limit = std::min(kMaxTileTokens, std::max(1, kMaxTileRows / group));
    while (limit > 4 && ceil_div(num_tokens, limit) * num_kv_heads < 3 * num_threads) limit /= 2;
    return limit;
}

// Gives `combine(result, out, column)` to the outputs of a pair: num_valid columns of rows that lie `stride` apart.
template <typename Combine>
void scatter(const PairResult& result, int num_tokens, int num_valid, float* y, size_t stride, const Combine& combine) {
    for (int t = 0; t < num_tokens; ++t) {
        float* out = y + t * stride;
        alignas(64) float padded[kPair] = {};
        float* to = num_valid == kPair ? out : padded;
        if (to == padded) std::memcpy(padded, out, num_valid * sizeof(float));
        for (int i = 0; i < kPair; i += kLanes) vstore(to + i, combine(vload(result.values[t] + i), to + i, i));
        if (to == padded) std::memcpy(out, padded, num_valid * sizeof(float));
    }
}

// The part of a bias that belongs to a pair, padded with zeros; zeros if there is none.
struct PairBias {
    alignas(64) float values[kPair] = {};

    PairBias(const float* bias, int first_output, int num_valid) {
        if (bias != nullptr) std::memcpy(values, bias + first_output, num_valid * sizeof(float));
    }
};

// Calls visit(part, first_output, pairs) for each part of a linear with this thread's share of its pairs.
template <typename Visit>
void for_each_part(const ramet_linear& linear, const Member& member, const Visit& visit) {
    int first_output = 0;
    for (int p = 0; p < linear.num_parts; ++p) {
        const PackedMatrix part = as_packed(linear.parts[p]);
        visit(part, first_output, member.share(ceil_div(part.num_outputs, kPair)));
        first_output += part.num_outputs;
    }
}

}  // namespace

Model::Model(const ramet_model_config& config)
    : config_(config), layers_(config.layers, config.layers + config.num_layers),
      kv_{config.kv_data, config.kv_block_stride, config.num_kv_heads, config.head_dim},
      next_items_(config.num_layers) {}

void Model::step(const ramet_step& step) {
    lap_start_ = now();
    prepare(step);
    lap(kPhasePlan, 0);
    run_team(step.num_threads, [&](const Member& member) {
        amx::begin_thread();
        run(step, member);
        amx::end_thread();
    });
}

void Model::prepare(const ramet_step& step) {
    const int num_tokens = step.num_tokens;
    hidden_.resize(static_cast<size_t>(num_tokens) * config_.hidden_size);
    qkv_.resize(static_cast<size_t>(num_tokens) * qkv_size());
    mixed_.resize(static_cast<size_t>(num_tokens) * attention_size());
    gated_.resize(static_cast<size_t>(num_tokens) * config_.intermediate_size);
    normed_.resize(num_tokens, config_.hidden_size);
    mixed_acts_.resize(num_tokens, attention_size());
    gated_acts_.resize(num_tokens, config_.intermediate_size);
    if (static_cast<int>(scratch_.size()) < step.num_threads) scratch_ = std::vector<ThreadScratch>(step.num_threads);
    const int largest = std::max({config_.hidden_size, attention_size(), config_.intermediate_size});
    for (ThreadScratch& scratch : scratch_) {
        scratch.row.resize(config_.hidden_size);
        scratch.product.resize(largest);
        scratch.attention_rows(config_.head_dim);
    }
    for (std::atomic<int>& item : next_items_) item.store(0, std::memory_order_relaxed);
    plan_.build({step.block_tables, step.block_table_starts}, step.num_sequences, step.query_starts, step.positions,
                choose_tile_tokens(num_tokens, config_.num_kv_heads, group_heads(), step.num_threads),
                step.is_sharing != 0);
}

void Model::run(const ramet_step& step, const Member& member) {
    embed(step, member.share(step.num_tokens), scratch_[member.thread]);
    member.wait();
    lap(kPhasePointwise, member.thread);
    for (int layer = 0; layer < config_.num_layers; ++layer) run_layer(step, layer, member);
    if (step.num_logit_rows == 0) return;
    normalize(config_.final_norm, step.logit_rows, member.share(step.num_logit_rows), scratch_[member.thread]);
    member.wait();
    lap(kPhasePointwise, member.thread);
    compute_logits(step, member);
    member.wait();
    lap(kPhaseHead, member.thread);
}

void Model::run_layer(const ramet_step& step, int layer_idx, const Member& member) {
    const ramet_layer& layer = layers_[layer_idx];
    const int num_tokens = step.num_tokens;
    const Range tokens = member.share(num_tokens);
    ThreadScratch& scratch = scratch_[member.thread];
    const auto end_phase = [&](Phase phase) {
        member.wait();
        lap(phase, member.thread);
    };
    normalize(layer.input_norm, nullptr, tokens, scratch);
    end_phase(kPhasePointwise);
    project(layer.qkv, num_tokens, member);
    end_phase(kPhaseLinear);
    rotate_and_store(step, layer_idx, tokens);
    end_phase(kPhasePointwise);
    attend(step, layer_idx, member);
    end_phase(kPhaseAttention);
    quantize(mixed_, attention_size(), tokens, mixed_acts_);
    end_phase(kPhasePointwise);
    add_product(layer.output, mixed_acts_, num_tokens, member);
    end_phase(kPhaseLinear);
    normalize(layer.post_attention_norm, nullptr, tokens, scratch);
    end_phase(kPhasePointwise);
    gate_up(layer.gate_up, num_tokens, member);
    end_phase(kPhaseLinear);
    quantize(gated_, config_.intermediate_size, tokens, gated_acts_);
    end_phase(kPhasePointwise);
    add_product(layer.down, gated_acts_, num_tokens, member);
    end_phase(kPhaseLinear);
}

void Model::embed(const ramet_step& step, Range tokens, ThreadScratch& scratch) {
    const PackedMatrix embedding = as_packed(config_.embedding);
    for (int t = tokens.begin; t < tokens.end; ++t)
        unpack_row(embedding, step.token_ids[t], scratch.product.planes.data(),
                   &hidden_[static_cast<size_t>(t) * config_.hidden_size]);
}

// Norms and quantises hidden rows (of `rows`, or all in order) into normed_.
void Model::normalize(const float* norm, const int32_t* rows, Range tokens, ThreadScratch& scratch) {
    const int size = config_.hidden_size;
    for (int t = tokens.begin; t < tokens.end; ++t) {
        const int row = rows == nullptr ? t : rows[t];
        rms_norm(&hidden_[static_cast<size_t>(row) * size], norm, size, config_.norm_eps, scratch.row.data());
        normed_.quantize(scratch.row.data(), t);
    }
}

void Model::quantize(const AlignedArray<float>& rows, int size, Range tokens, Activations& acts) {
    for (int t = tokens.begin; t < tokens.end; ++t) acts.quantize(&rows[static_cast<size_t>(t) * size], t);
}

void Model::project(const ramet_linear& linear, int num_tokens, const Member& member) {
    const size_t stride = qkv_size();
    for_each_part(linear, member, [&](const PackedMatrix& part, int first_output, Range pairs) {
        const auto finish = [&](int pair, int token, int count, const PairResult& result) {
            const int output = first_output + pair * kPair, num_valid = std::min(kPair, part.num_outputs - pair * kPair);
            const PairBias bias(linear.bias, output, num_valid);
            scatter(result, count, num_valid, &qkv_[token * stride + output], stride,
                    [&](Vec value, const float*, int i) { return vadd(value, vload(bias.values + i)); });
        };
        multiply_pairs(part, normed_, num_tokens, pairs, scratch_[member.thread].product, finish);
    });
}

void Model::rotate_and_store(const ramet_step& step, int layer_idx, Range tokens) {
    const ramet_layer& layer = layers_[layer_idx];
    const int head_dim = config_.head_dim, num_heads = config_.num_heads, half = config_.rotary_dim / 2;
    for (int s = 0, t = tokens.begin; t < tokens.end; ++t) {
        while (step.query_starts[s + 1] <= t) ++s;
        float* heads = &qkv_[static_cast<size_t>(t) * qkv_size()];
        const size_t position = step.positions[t];
        for (int h = 0; h < num_heads + config_.num_kv_heads; ++h) {
            float* head = heads + h * head_dim;
            const float* norm = h < num_heads ? layer.query_norm : layer.key_norm;
            if (norm != nullptr) rms_norm(head, norm, head_dim, config_.norm_eps, head);
            rotate(head, step.cos + position * half, step.sin + position * half, half);
        }
        const int32_t* table = step.block_tables + step.block_table_starts[s];
        const float* key = heads + num_heads * head_dim;
        store_kv(key, key + config_.num_kv_heads * head_dim, kv_, layer_idx, table[position / kLanes],
                 static_cast<int>(position % kLanes));
    }
}

void Model::attend(const ramet_step& step, int layer_idx, const Member& member) {
    const AttentionArgs args = {&plan_,
                                {step.block_tables, step.block_table_starts},
                                kv_,
                                layer_idx,
                                config_.num_heads,
                                layers_[layer_idx].sliding_window,
                                qkv_.data(),
                                qkv_size()};
    const int width = group_heads() * config_.head_dim;
    const int num_items = static_cast<int>(plan_.tiles().size()) * config_.num_kv_heads;
    for (;;) {  // the last tiles of a prompt have most keys: they go first
        const int item = num_items - 1 - next_items_[layer_idx].fetch_add(1, std::memory_order_relaxed);
        if (item < 0) break;
        const int tile_idx = item / config_.num_kv_heads, kv_head = item % config_.num_kv_heads;
        const AttentionRows rows = attend_item(args, tile_idx, kv_head, scratch_[member.thread]);
        const AttentionTile& tile = plan_.tiles()[tile_idx];
        for (int t = 0; t < tile.count; ++t)
            std::memcpy(&mixed_[static_cast<size_t>(plan_.token(tile.first + t).row) * attention_size() + kv_head * width],
                        rows.outputs + t * width, width * sizeof(float));
    }
}

void Model::add_product(const ramet_linear& linear, const Activations& acts, int num_tokens, const Member& member) {
    const size_t stride = config_.hidden_size;
    for_each_part(linear, member, [&](const PackedMatrix& part, int first_output, Range pairs) {
        const auto finish = [&](int pair, int token, int count, const PairResult& result) {
            const int output = first_output + pair * kPair;
            const PairBias bias(linear.bias, output, kPair);
            scatter(result, count, kPair, &hidden_[token * stride + output], stride, [&](Vec value, const float* y, int i) {
                return vadd(vload(y), vadd(value, vload(bias.values + i)));
            });
        };
        multiply_pairs(part, acts, num_tokens, pairs, scratch_[member.thread].product, finish);
    });
}

// A pair of the matrix is 16 gates and their 16 ups.
void Model::gate_up(const ramet_linear& linear, int num_tokens, const Member& member) {
    const PackedMatrix matrix = as_packed(linear.parts[0]);
    const size_t stride = config_.intermediate_size;
    const auto finish = [&](int pair, int token, int count, const PairResult& result) {
        const PairBias bias(linear.bias, pair * kPair, kPair);
        for (int t = 0; t < count; ++t) {
            const Vec gate = vadd(vload(result.values[t]), vload(bias.values));
            const Vec up = vadd(vload(result.values[t] + kLanes), vload(bias.values + kLanes));
            vstore(&gated_[(token + t) * stride + pair * kLanes], silu_mul(gate, up));
        }
    };
    multiply_pairs(matrix, normed_, num_tokens, member.share(config_.intermediate_size / kLanes),
                   scratch_[member.thread].product, finish);
}

void Model::compute_logits(const ramet_step& step, const Member& member) {
    const PackedMatrix matrix = as_packed(config_.lm_head);
    const size_t stride = config_.vocab_size;
    const auto finish = [&](int pair, int token, int count, const PairResult& result) {
        const int output = pair * kPair;
        scatter(result, count, std::min(kPair, matrix.num_outputs - output), step.logits + token * stride + output, stride,
                [](Vec value, const float*, int) { return value; });
    };
    multiply_pairs(matrix, normed_, step.num_logit_rows, member.share(ceil_div(matrix.num_outputs, kPair)),
                   scratch_[member.thread].product, finish);
}

void Model::lap(Phase phase, int thread) {
    if (thread != 0) return;
    const double time = now();
    times_[phase] += time - lap_start_;
    lap_start_ = time;
}

}  // namespace ramet
