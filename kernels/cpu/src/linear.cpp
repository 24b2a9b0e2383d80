// The kernels of linear.h.
#include "linear.h"

#include <type_traits>

#include "unpack.h"

namespace ramet {

namespace {

// What turns the totals of 16 outputs into results.
struct BlockScales {
    Vec scales;
    IntVec sums[2];

    explicit BlockScales(const Trailer& trailer)
        : scales(vload(trailer.scales)), sums{ivload(trailer.sums[0]), ivload(trailer.sums[1])} {}
};

// A plane's total joins the result, the upper plane first. Scales are applied with the last one.
template <int Plane, int NumPlanes>
RAMET_INLINE void add_total(IntVec total, Vec row_scales, float token_scale, float* result) {
    Vec value = vfrom_int(total);
    if constexpr (Plane < NumPlanes - 1) value = vfma(vload(result), vset(256.0f), value);
    if constexpr (Plane == 0) value = vmul(value, vmul(row_scales, vset(token_scale)));
    vstore(result, value);
}

// Sums of NB channel blocks for NT tokens of a tile. Fetches what lies `ahead` bytes beyond the weights, if not 0.
template <int NB, int NT>
RAMET_INLINE void sum_products(const WeightChunk* const* blocks, const ActivationChunk* acts, int num_chunks, ptrdiff_t ahead,
                               int first_token, Products::Acc (&sums)[NB][NT]) {
    unroll<NB>([&](auto b) RAMET_INLINED { unroll<NT>([&](auto t) RAMET_INLINED { sums[b][t] = Products::begin(); }); });
    for (int c = 0; c < num_chunks; ++c) {
        for (int step = 0; step < kChunkSteps; ++step) {
            Products::Weights weights[NB];
            unroll<NB>([&](auto b) RAMET_INLINED {
                const int8_t* bytes = blocks[b][c].steps[step];
                if (ahead != 0) prefetch_far(bytes + ahead);
                weights[b] = Products::load(bytes);
            });
            unroll<NT>([&](auto t) RAMET_INLINED {  // a token's inputs are loaded once for all blocks
                unroll<NB>([&](auto b) RAMET_INLINED {
                    sums[b][t] = Products::step(sums[b][t], weights[b], acts[c], first_token + t, step);
                });
            });
        }
    }
}

// Calls work(first, count) for the tokens of a tile, as many at a time as the registers hold, with `count` a constant.
template <typename Work>
void for_token_passes(int num_tokens, const Work& work) {
    int token = 0;
    for (; token + 4 <= num_tokens; token += 4) work(token, std::integral_constant<int, 4>{});
    for (; token + 2 <= num_tokens; token += 2) work(token, std::integral_constant<int, 2>{});
    if (token < num_tokens) work(token, std::integral_constant<int, 1>{});
}

// A plane of a pair for the tokens of one tile.
template <int Plane, int NumPlanes>
void multiply_vector(const WeightChunk* const (&blocks)[2], const BlockScales (&scales)[2], const ActivationChunk* acts,
                     const float* token_scales, int num_chunks, ptrdiff_t ahead, int num_tokens, PairResult& result) {
    constexpr int kBlocks = kVectorRegisters >= 32 ? 2 : 1;  // with few registers the blocks take turns
    for_token_passes(num_tokens, [&](int first, auto count) {
        for (int first_block = 0; first_block < 2; first_block += kBlocks) {
            Products::Acc sums[kBlocks][count];
            sum_products<kBlocks, count>(blocks + first_block, acts, num_chunks, first == 0 ? ahead : 0, first, sums);
            unroll<kBlocks>([&](auto i) RAMET_INLINED {
                const int b = first_block + i;
                unroll<count>([&](auto t) RAMET_INLINED {
                    add_total<Plane, NumPlanes>(Products::end(sums[i][t], scales[b].sums[Plane]), scales[b].scales,
                                                token_scales[first + t], result.values[first + t] + b * kLanes);
                });
            });
        }
    });
}

// A plane of a pair for token tiles, on the matrix unit. The sums of a tile are made while those of the tile before it become
// results.
template <int Plane, int NumPlanes>
void multiply_unit(const WeightChunk* const (&blocks)[2], const BlockScales (&scales)[2], const Activations& acts,
                   ptrdiff_t ahead, Range tiles, ProductScratch& scratch) {
    const auto finish_row = [&](int tile, int t) RAMET_INLINED {
        unroll<2>([&](auto b) RAMET_INLINED {
            add_total<Plane, NumPlanes>(amx::total(scratch.sums[tile % 2], b, t, scales[b].sums[Plane]), scales[b].scales,
                                        acts.scales(tile)[t], scratch.results[tile - tiles.begin].values[t] + b * kLanes);
        });
    };
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
        const auto meanwhile = [&](int t) RAMET_INLINED {
            if (tile > tiles.begin) finish_row(tile - 1, t);
        };
        amx::multiply_tile(blocks[0], blocks[1], acts.tile(tile), acts.num_chunks(), tile == tiles.begin ? ahead : 0,
                           scratch.sums[tile % 2], meanwhile);
    }
    for (int t = 0; t < kTokenTile; ++t) finish_row(tiles.end - 1, t);
}

}  // namespace

WeightPair::WeightPair(const PackedMatrix& matrix, int pair, ProductScratch& scratch)
    : num_planes_(num_planes(matrix.format)), num_chunks_(num_chunks(matrix)),
      bytes_to_next_(matrix.is_planes ? 2 * static_cast<ptrdiff_t>(block_bytes(matrix)) : 0) {
    for (int b = 0; b < 2; ++b) {
        const int block = 2 * pair + b;
        trailers_[b] = &trailer_of(matrix, block);
        blocks_[b] = plane_of(matrix, block, 0);
        if (matrix.is_planes) continue;
        WeightChunk* planes = &scratch.planes[b * num_planes_ * num_chunks_];
        unpack_planes(matrix, block, planes);
        blocks_[b] = planes;
    }
}

template <int Plane, int NumPlanes>
void WeightPair::multiply_plane(const Activations& acts, Range tiles, int num_tokens, ProductScratch& scratch) const {
    const WeightChunk* const planes[2] = {blocks_[0] + Plane * num_chunks_, blocks_[1] + Plane * num_chunks_};
    const BlockScales scales[2] = {BlockScales(*trailers_[0]), BlockScales(*trailers_[1])};
    if (amx::is_worthwhile(num_tokens)) return multiply_unit<Plane, NumPlanes>(planes, scales, acts, bytes_to_next_, tiles, scratch);
    for (int tile = tiles.begin; tile < tiles.end; ++tile)
        multiply_vector<Plane, NumPlanes>(planes, scales, acts.tile(tile), acts.scales(tile), num_chunks_,
                                          tile == tiles.begin ? bytes_to_next_ : 0,
                                          std::min(kTokenTile, num_tokens - tile * kTokenTile),
                                          scratch.results[tile - tiles.begin]);
}

void WeightPair::multiply(const Activations& acts, Range tiles, int num_tokens, ProductScratch& scratch) const {
    if (num_planes_ == 1) return multiply_plane<0, 1>(acts, tiles, num_tokens, scratch);
    multiply_plane<1, 2>(acts, tiles, num_tokens, scratch);
    multiply_plane<0, 2>(acts, tiles, num_tokens, scratch);
}

}  // namespace ramet
