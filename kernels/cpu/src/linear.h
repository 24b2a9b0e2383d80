// Matrix products y = W x on the integers of layout.h, with fp32 results.
//
//      total  = sum over all inputs of w * x                             for each plane of the weights; exact, in 32 bits
//      result = total * (row scale * token scale)                        one plane
//      result = (256 * total of plane 1 + total of plane 0) * scales     two planes: one fused multiply-add
//
// Since totals are exact, a result is a function of the row and the token alone: it never depends on what else is computed,
// on which kernel computes it, or on the processor.
//
// The unit of work is a pair of channel blocks (32 outputs) times a token tile (16 tokens). The vector kernel holds a few
// tokens in registers; the matrix unit (linear_amx.h) is used where it is faster.
#pragma once
#include <algorithm>

#include "activations.h"
#include "linear_amx.h"
#include "team.h"

namespace ramet {

struct PairResult {
    alignas(64) float values[kTokenTile][kPair];
};

// Scratch of one thread.
struct ProductScratch {
    static constexpr int kTiles = 8;  // whose activations stay in the cache while pairs go by

    PairResult results[kTiles];
    UnitSums sums[2];
    AlignedArray<WeightChunk> planes;  // of a pair that lies in groups: [channel block][plane][chunk]

    void resize(int num_inputs) { planes.resize(2 * num_planes(kInt8) * ceil_div(num_inputs, kChunkInputs)); }
};

// A pair of channel blocks, ready to be multiplied.
class WeightPair {
public:
    // Unpacks the pair into `scratch` if the matrix lies in groups.
    WeightPair(const PackedMatrix& matrix, int pair, ProductScratch& scratch);

    // Results for up to ProductScratch::kTiles token tiles, in scratch.results. Rows beyond the last token hold anything.
    void multiply(const Activations& acts, Range tiles, int num_tokens, ProductScratch& scratch) const;

private:
    template <int Plane, int NumPlanes>
    void multiply_plane(const Activations& acts, Range tiles, int num_tokens, ProductScratch& scratch) const;

    int num_planes_, num_chunks_;
    ptrdiff_t bytes_to_next_;       // to the pair that follows in memory; 0 if weights lie in scratch
    const WeightChunk* blocks_[2];  // [plane][chunk] each
    const Trailer* trailers_[2];
};

// Pairs [pairs.begin, pairs.end) of a matrix times all tokens. `finish(pair, first_token, num_tokens, result)` is called
// with the results of each pair and token tile. A few tiles go through all pairs before the next ones do: their activations
// stay in the cache, and weights, of which there are fewer bytes than of a long prompt's activations, are read again.
template <typename Finish>
void multiply_pairs(const PackedMatrix& matrix, const Activations& acts, int num_tokens, Range pairs,
                    ProductScratch& scratch, const Finish& finish) {
    const int num_tiles = ceil_div(num_tokens, kTokenTile);
    for (int first = 0; first < num_tiles; first += ProductScratch::kTiles) {
        const Range tiles = {first, std::min(num_tiles, first + ProductScratch::kTiles)};
        for (int pair = pairs.begin; pair < pairs.end; ++pair) {
            WeightPair(matrix, pair, scratch).multiply(acts, tiles, num_tokens, scratch);
            for (int tile = tiles.begin; tile < tiles.end; ++tile) {
                const int token = tile * kTokenTile;
                finish(pair, token, std::min(kTokenTile, num_tokens - token), scratch.results[tile - first]);
            }
        }
    }
}

}  // namespace ramet
