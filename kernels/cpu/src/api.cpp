// The C surface of c_api.h over the C++ behind it.
#include "c_api.h"

#include <algorithm>
#include <new>
#include <vector>

#include "step.h"

using namespace ramet;

namespace {

template <typename Work>
int32_t guarded(const Work& work) {
    try {
        work();
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

}  // namespace

extern "C" {

int32_t ramet_abi_version(void) { return RAMET_ABI_VERSION; }

int32_t ramet_has_openmp(void) {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

int32_t ramet_uses_amx(void) { return amx::is_permitted() ? 1 : 0; }

void* ramet_map_region(int64_t num_bytes) { return map_region(static_cast<size_t>(num_bytes)); }

void ramet_unmap_region(void* region, int64_t num_bytes) { unmap_region(region, static_cast<size_t>(num_bytes)); }

void* ramet_model_new(const ramet_model_config* config) {
    void* model = nullptr;
    guarded([&] { model = new Model(*config); });
    return model;
}

void ramet_model_free(void* model) { delete static_cast<Model*>(model); }

int32_t ramet_model_step(void* model, const ramet_step* step) {
    return guarded([&] { static_cast<Model*>(model)->step(*step); });
}

void ramet_model_times(void* model, double* phases) {
    std::copy_n(static_cast<Model*>(model)->times(), RAMET_NUM_PHASES, phases);
}

int32_t ramet_copy_blocks(uint16_t* kv_data, int64_t num_elements, const int32_t* sources, const int32_t* destinations,
                          int32_t num_copies) {
    return guarded([&] {
        const auto block = [&](int32_t block_id) { return kv_data + block_id * num_elements; };
        std::vector<uint16_t> buffer(num_copies > 1 ? num_copies * num_elements : 0);
        if (num_copies == 1) return (void)std::copy_n(block(sources[0]), num_elements, block(destinations[0]));
        for (int i = 0; i < num_copies; ++i) std::copy_n(block(sources[i]), num_elements, &buffer[i * num_elements]);
        for (int i = 0; i < num_copies; ++i) std::copy_n(&buffer[i * num_elements], num_elements, block(destinations[i]));
    });
}

int32_t ramet_multiply(const ramet_matrix* matrix, const float* x, int32_t num_tokens, float* y, int32_t num_threads) {
    return guarded([&] {
        const PackedMatrix packed = as_packed(*matrix);
        Activations acts;
        acts.resize(num_tokens, packed.num_inputs);
        for (int t = 0; t < num_tokens; ++t) acts.quantize(x + static_cast<size_t>(t) * packed.num_inputs, t);
        std::vector<ProductScratch> scratch(num_threads);
        for (ProductScratch& one : scratch) one.resize(packed.num_inputs);
        run_team(num_threads, [&](const Member& member) {
            amx::begin_thread();
            const auto finish = [&](int pair, int token, int count, const PairResult& result) {
                const int output = pair * kPair, num_valid = std::min(kPair, packed.num_outputs - output);
                for (int t = 0; t < count; ++t)
                    std::copy_n(result.values[t], num_valid,
                                y + static_cast<size_t>(token + t) * packed.num_outputs + output);
            };
            multiply_pairs(packed, acts, num_tokens, member.share(ceil_div(packed.num_outputs, kPair)),
                           scratch[member.thread], finish);
            amx::end_thread();
        });
    });
}

int32_t ramet_quantize(const float* x, int32_t num_tokens, int32_t num_inputs, float* dequantized) {
    return guarded([&] {
        Activations acts;
        acts.resize(num_tokens, num_inputs);
        for (int t = 0; t < num_tokens; ++t) {
            float* row = dequantized + static_cast<size_t>(t) * num_inputs;
            acts.quantize(x + static_cast<size_t>(t) * num_inputs, t);
            for (int i = 0; i < num_inputs; ++i) row[i] = acts.value(t, i);
        }
    });
}

void ramet_rms_norm(const float* x, const float* weight, int32_t num_tokens, int32_t size, float eps, float* y) {
    for (int t = 0; t < num_tokens; ++t) rms_norm(x + t * size, weight, size, eps, y + t * size);
}

void ramet_rotate(float* heads, int32_t num_heads, int32_t head_dim, const float* cos, const float* sin, int32_t half) {
    for (int h = 0; h < num_heads; ++h) rotate(heads + h * head_dim, cos, sin, half);
}

void ramet_silu_mul(const float* gate, const float* up, int32_t size, float* y) {
    for (int i = 0; i < size; i += kLanes) vstore(y + i, silu_mul(vload(gate + i), vload(up + i)));
}

int32_t ramet_attention(const ramet_step* step, const float* query, const float* key, const float* value, int32_t num_heads,
                        int32_t num_kv_heads, int32_t head_dim, int32_t sliding_window, uint16_t* kv_data,
                        int64_t kv_block_stride, float* out) {
    return guarded([&] {
        const KVLayout kv = {kv_data, kv_block_stride, num_kv_heads, head_dim};
        const BlockTables tables = {step->block_tables, step->block_table_starts};
        for (int s = 0; s < step->num_sequences; ++s)
            for (int t = step->query_starts[s]; t < step->query_starts[s + 1]; ++t)
                store_kv(key + t * num_kv_heads * head_dim, value + t * num_kv_heads * head_dim, kv, 0,
                         tables.of(s)[step->positions[t] / kLanes], step->positions[t] % kLanes);
        AttentionPlan plan;
        plan.build(tables, step->num_sequences, step->query_starts, step->positions,
                   std::max(1, std::min(kMaxTileTokens, kMaxTileRows * num_kv_heads / num_heads)), step->is_sharing != 0);
        ThreadScratch scratch;
        const int width = num_heads * head_dim;
        const AttentionArgs args = {&plan, tables, kv, 0, num_heads, sliding_window, query, width};
        const int group = num_heads / num_kv_heads;
        amx::begin_thread();
        for (int item = 0; item < static_cast<int>(plan.tiles().size()) * num_kv_heads; ++item) {
            const int tile_idx = item / num_kv_heads, kv_head = item % num_kv_heads;
            const AttentionRows rows = attend_item(args, tile_idx, kv_head, scratch);
            const AttentionTile& tile = plan.tiles()[tile_idx];
            for (int t = 0; t < tile.count; ++t)
                std::copy_n(rows.outputs + t * group * head_dim, group * head_dim,
                            out + plan.token(tile.first + t).row * width + kv_head * group * head_dim);
        }
        amx::end_thread();
    });
}

}  // extern "C"
