// Matrix products of int8 activations with packed weights (layout.h): y = W x, fp32 results.
//
// The unit of work is a pair of channel blocks (32 outputs) times a token tile (16 tokens):
//
//      for each group g of 32 inputs, in order:
//          sum    = the integer dot product over the group, exact
//          result = sum * (weight scale * activation scale) + result        one fused multiply-add
//          result = weight minimum * scaled sum of activations + result     kInt4Min only
//
// Each output of each token goes through exactly this sequence, however many tokens are computed beside it and whichever
// kernel does it. That is why a result never depends on the batch: the two kernels below, and every number of tokens
// they are compiled for, give the same bits.
//
// The vector kernel holds a few tokens in registers. The AMX kernel (linear_amx.h) does 16 tokens at once in the
// processor's matrix unit, which needs the weights as plain signed bytes; they are unpacked once per pair of blocks and
// used for all tokens of the step.
#pragma once
#include <algorithm>

#include "activations.h"
#include "linear_amx.h"
#include "team.h"

namespace ramet {

struct PairResult {
    alignas(64) float values[kTokenTile][kPair];
};

// A pair of channel blocks, ready to be multiplied with many token tiles.
class WeightPair {
public:
    // For `num_tokens` tokens in all. `scratch` has room for 2 * num_inputs / kGroup.
    WeightPair(const PackedMatrix& matrix, int pair, int num_tokens, UnpackedGroup* scratch);

    // Results of the first `num_tokens` tokens of a tile. Rows of `out` beyond them may be overwritten. With is_first, the
    // pair that follows in memory is fetched meanwhile.
    void multiply(const ActivationGroup* acts, int num_tokens, bool is_first, PairResult& out) const;

private:
    int format_;
    int num_groups_;
    size_t stride_;  // bytes of a channel block
    const uint8_t* weights_;
    const UnpackedGroup* unpacked_ = nullptr;
};

// Pairs [pairs.begin, pairs.end) of a matrix times all tokens. `finish(pair, first_token, num_tokens, result)` is called
// with the results of each pair and token tile.
template <typename Finish>
void multiply_pairs(const PackedMatrix& matrix, const Activations& acts, int num_tokens, Range pairs,
                    UnpackedGroup* scratch, const Finish& finish) {
    PairResult result;
    for (int pair = pairs.begin; pair < pairs.end; ++pair) {
        const WeightPair weights(matrix, pair, num_tokens, scratch);
        for (int token = 0; token < num_tokens; token += kTokenTile) {
            const int count = std::min(kTokenTile, num_tokens - token);
            weights.multiply(acts.tile(token / kTokenTile), count, token == 0, result);
            finish(pair, token, count, result);
        }
    }
}

}  // namespace ramet
