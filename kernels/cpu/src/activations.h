// Activations on their way into a matrix product: integers of up to 16 bits, with one scale per token (layout.h).
#pragma once
#include <algorithm>
#include <cstdint>

#include "aligned.h"
#include "simd.h"

namespace ramet {

// The largest |x| for which a sum of K products with signed bytes fits 32 bits. It is also below 2^15.
inline int max_activation(int num_inputs) { return std::min(32512, INT32_MAX / (128 * num_inputs)); }

// The quantised activations of a step: [token tile][chunk].
class Activations {
public:
    void resize(int num_tokens, int num_inputs) {
        num_inputs_ = num_inputs;
        num_chunks_ = ceil_div(num_inputs, kChunkInputs);
        chunks_.resize(static_cast<size_t>(ceil_div(num_tokens, kTokenTile)) * num_chunks_);
        scales_.resize(round_up(num_tokens, kTokenTile));
    }
    int num_chunks() const { return num_chunks_; }
    const ActivationChunk* tile(int tile_idx) const { return &chunks_[static_cast<size_t>(tile_idx) * num_chunks_]; }
    const float* scales(int tile_idx) const { return &scales_[static_cast<size_t>(tile_idx) * kTokenTile]; }

    // Quantises the row of one token, so that its largest magnitude becomes max_activation. If a value is NaN or infinite the
    // scale is NaN: it shows in every output. What is next to nothing becomes zero, as its inverse would overflow.
    void quantize(const float* x, int token) {
        constexpr float kNothing = 1e-30f;
        Vec largest = vzero(), zero_or_nan = vzero();
        for (int i = 0; i < num_inputs_; i += kLanes) {
            const Vec values = vload(x + i);
            largest = vmax(vabs(values), largest);
            zero_or_nan = vfma(values, vzero(), zero_or_nan);
        }
        const float invalid = vsum(zero_or_nan), maximum = vmaximum(largest);
        const bool is_zero = !(maximum > kNothing) || invalid != 0.0f;
        const float limit = static_cast<float>(max_activation(num_inputs_));
        scales_[token] = is_zero ? invalid : maximum / limit;
        store(x, token, is_zero ? 0.0f : limit / maximum);
    }

    // What the integer of one token's input stands for.
    float value(int token, int input) const {
        const ActivationChunk& chunk = tile(token / kTokenTile)[input / kChunkInputs];
        return scales_[token] * static_cast<float>(integer_at(chunk, token % kTokenTile, input % kChunkInputs));
    }

private:
    void store(const float* x, int token, float factor) {
        ActivationChunk* row_chunks = &chunks_[static_cast<size_t>(token / kTokenTile) * num_chunks_];
        const int num_values = factor == 0.0f ? 0 : num_inputs_;
        for (int c = 0; c < num_chunks_; ++c) {
            Vec integers[4];
            unroll<4>([&](auto i) RAMET_INLINED {
                const int input = c * kChunkInputs + i * kLanes;
                integers[i] = input < num_values ? vround(vmul(vload(x + input), vset(factor))) : vzero();
            });
            store_integers(row_chunks[c], token % kTokenTile, integers);
        }
    }

    int num_inputs_ = 0, num_chunks_ = 0;
    AlignedArray<ActivationChunk> chunks_;
    AlignedArray<float> scales_;
};

}  // namespace ramet
