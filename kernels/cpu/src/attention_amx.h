// The attention kernel of the matrix unit (amx.h): 16 rows x 16 keys or dimensions x 32 bf16 terms in one instruction.
//
//      a: 16 rows of 32 terms            b: 16 pairs of terms                     c: 16 rows of 16 columns
//
//      row 0:  | a0 a1 a2 ... a31 |      pair 0: | col 0: b0 b1 | col 1: b0 b1 | ...      c += a * b, even terms and odd
//      row 1:  | ...              |      pair 1: | col 0: b2 b3 | col 1: b2 b3 | ...      terms in a chain each
//
// Scores: the columns are a block's keys, the terms dimensions. Outputs: the columns are dimensions; the terms are the keys
// of two blocks, slot by slot: a pair is slot i of the first block and slot i of the second.
//
// The tiles `b` of a chunk's keys and values are made once for all rows. Tiles `a` and `c` are rows in memory as they lie.
// 16 rows are always computed: those after the last one may hold anything, and nobody looks at their results.
#pragma once
#include "amx.h"
#include "attention_chunks.h"
#include "attention_softmax.h"

namespace ramet::amx {

#if defined(RAMET_HAS_AMX)

using Tile = bf16_t[kTileRows][kDepth];

// Two fp32 vectors as 16 pairs of bf16, rounded to nearest even.
RAMET_INLINE __m512i pack_pairs(Vec first, Vec second) {
    const __m512i halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));  // 16 firsts, 16 seconds
    alignas(64) static constexpr uint16_t kInterleave[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                             8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_permutexvar_epi16(_mm512_load_si512(kInterleave), halves);
}
RAMET_INLINE void store_pairs(bf16_t* out, const half_t* first, const half_t* second) {
    _mm512_store_si512(out, pack_pairs(vload_half(first), vload_half(second)));
}

// Weights as rows of a tile `a`, 32 of a row in 64 bytes.
struct TileWeights {
    static Vec store(float* scores, int pair, Vec first, Vec second, Vec total) {
        const __m512i weights = pack_pairs(first, second), ones = _mm512_set1_epi32(0x3F803F80);
        _mm512_store_si512(reinterpret_cast<bf16_t*>(scores) + pair * kDepth, weights);
        return _mm512_dpbf16_ps(total, reinterpret_cast<__m512bh>(weights), reinterpret_cast<__m512bh>(ones));
    }
};

inline void pack_queries(const AttentionRows& rows, int head_dim) {
    bf16_t* out = rows.packed_queries;
    for (int r = 0; r < rows.num_rows; ++r) {
        const float* query = rows.queries + r * head_dim;
        for (int d = 0; d < head_dim; d += kDepth, out += kDepth) {
            const Vec high = d + kLanes < head_dim ? vload(query + d + kLanes) : vzero();
            _mm512_store_si512(out, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, vload(query + d))));
        }
    }
}

inline void prefetch(const half_t* line) { _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T0); }

// Tiles of one block's keys, one for each 32 dimensions. keys: [dim][16 slots]. Meanwhile `ahead`, the block that is needed
// next, is fetched from memory: a line for each line.
inline void pack_keys(const half_t* keys, const half_t* ahead, int head_dim, Tile* tiles) {
    bf16_t* out = tiles[0][0];
    for (int d = 0; d < head_dim; d += 2, keys += 2 * kLanes, ahead += 2 * kLanes, out += kDepth) {
        prefetch(ahead);
        store_pairs(out, keys, keys + kLanes);
    }
    for (int d = head_dim; d % kDepth != 0; d += 2, out += kDepth) _mm512_store_si512(out, _mm512_setzero_si512());
}

// Tiles of two blocks' values, one for each 16 dimensions, which lie `stride` tiles apart. values: [16 slots][dim].
template <int D>
void pack_values(const half_t* const* values, const half_t* const* ahead, int any_dim, Tile* tiles, int stride) {
    const int head_dim = width_of<D>(any_dim);
    for (int slot = 0; slot < kLanes; ++slot)
        for (int d = 0; d < head_dim; d += kLanes) {
            const int at = slot * head_dim + d, half_line = at / kLanes % 2;
            prefetch(ahead[half_line] + at);
            store_pairs(tiles[d / kLanes * stride][slot], values[0] + at, values[1] + at);
        }
}

// The product a[16][depth * 32] times N columns of `depth` tiles, left in tile registers 0 to N - 1; an instruction names
// them by constants. 4 is `a`, and the others take turns as `b`.
template <int N>
void multiply_tiles(const void* a, size_t a_stride, const Tile* b, int depth) {
    _tile_zero(0);
    if constexpr (N > 1) _tile_zero(1);
    if constexpr (N > 2) _tile_zero(2);
    if constexpr (N > 3) _tile_zero(3);
    for (int i = 0; i < depth; ++i) {
        _tile_loadd(4, static_cast<const uint8_t*>(a) + i * kTileRowBytes, a_stride);
        _tile_loadd(5, b[i], kTileRowBytes);
        _tile_dpbf16ps(0, 4, 5);
        if constexpr (N > 1) {
            _tile_loadd(6, b[depth + i], kTileRowBytes);
            _tile_dpbf16ps(1, 4, 6);
        }
        if constexpr (N > 2) {
            _tile_loadd(7, b[2 * depth + i], kTileRowBytes);
            _tile_dpbf16ps(2, 4, 7);
        }
        if constexpr (N > 3) {
            _tile_loadd(5, b[3 * depth + i], kTileRowBytes);
            _tile_dpbf16ps(3, 4, 5);
        }
    }
}

// out[16][columns * 16] = a[16][depth * 32] times columns of `depth` tiles. Strides are in bytes.
//
// `end` stores what `begin` computed, and other work should go on between them. Right behind its product a store would wait
// for it; and until a store is done, loads from addresses that differ from its own in the upper bits only wait as well,
// which here is every load: 16 rows of 256 bytes are 4096 bytes.
struct Product {
    const void* a;
    size_t a_stride;
    const Tile* b;
    int depth, num_columns;
    float* out;
    size_t out_stride;

    void begin() {
        while (num_columns > 4) {
            multiply(4);
            store(4);
            b += 4 * depth;
            out += 4 * kLanes;
            num_columns -= 4;
        }
        multiply(num_columns);
    }
    void end() const { store(num_columns); }

private:
    void multiply(int count) const {
        if (count == 4) multiply_tiles<4>(a, a_stride, b, depth);
        if (count == 3) multiply_tiles<3>(a, a_stride, b, depth);
        if (count == 2) multiply_tiles<2>(a, a_stride, b, depth);
        if (count == 1) multiply_tiles<1>(a, a_stride, b, depth);
    }
    void store(int count) const {
        _tile_stored(0, out, out_stride);
        if (count > 1) _tile_stored(1, out + kLanes, out_stride);
        if (count > 2) _tile_stored(2, out + 2 * kLanes, out_stride);
        if (count > 3) _tile_stored(3, out + 3 * kLanes, out_stride);
    }
};

// Calls `work` while the matrix unit is at `product`.
template <typename Work>
RAMET_INLINE void overlap(Product product, const Work& work) {
    product.begin();
    work();
    product.end();
}

// Rows on their way through chunks, in tiles of 16: scores, softmax, sums.
//
// The matrix unit works while other instructions do. What it reads should be written, and what it wrote be read, some
// hundred instructions away. So every product of a tile runs beside the softmax of another one, or beside the making of
// tiles, and what one chunk begins the next one ends. With three tiles of rows:
//
//      matrix unit    scores 0      scores 1          scores 2  sums 0   sums 1    sums 2
//      beside it      pack values   softmax 0         softmax 1          softmax 2 pack next keys
template <int D>
class RowTiles {
public:
    RowTiles(const AttentionRows& rows, int any_dim)
        : rows_(rows), head_dim_(width_of<D>(any_dim)), num_tiles_(ceil_div(rows.num_rows, kTileRows)),
          keys_(reinterpret_cast<Tile*>(rows.chunk)), values_(keys_ + kChunkBlocks * key_depth()),
          sums_(reinterpret_cast<float*>(values_ + kChunkBlocks / 2 * head_dim_ / kLanes)) {}

    void attend(const ChunkRange& chunks) {
        Chunk chunk = chunks.at(chunks.begin);
        pack_chunk_keys(chunk);
        for (int i = chunks.begin; i < chunks.end; ++i) {
            const Chunk next = i + 1 < chunks.end ? chunks.at(i + 1) : Chunk{};
            overlap(scores_of(0, chunk), [&] {
                pack_chunk_values(chunk, next);
                if (i > chunks.begin) add_sums(num_tiles_ - 1);
            });
            for (int tile = 0; tile < num_tiles_; ++tile) attend_tile(tile, chunk);
            overlap(sums_of(num_tiles_ - 1, chunk), [&] { pack_chunk_keys(next); });
            if (num_tiles_ > 1) add_sums(num_tiles_ - 2);
            chunk = next;
        }
        add_sums(num_tiles_ - 1);
    }

private:
    static constexpr size_t kScoreStride = kChunk * sizeof(float);

    // Softmax of one tile of rows, beside the scores of the next one and the sums of that before.
    void attend_tile(int tile, const Chunk& chunk) {
        const int first = tile * kTileRows, end = end_row(tile), middle = std::min(first + kTileRows / 2, end);
        const auto softmax = [&](int from, int to) { softmax_rows<TileWeights>(rows_, from, to, chunk.start); };
        if (tile + 1 < num_tiles_) {
            overlap(scores_of(tile + 1, chunk), [&] { softmax(first, middle); });
        } else {
            softmax(first, middle);
        }
        if (tile > 0) {
            overlap(sums_of(tile - 1, chunk), [&] { softmax(middle, end); });
        } else {
            softmax(middle, end);
        }
        if (tile > 1) add_sums(tile - 2);
    }

    int key_depth() const { return ceil_div(head_dim_, kDepth); }
    int end_row(int tile) const { return std::min((tile + 1) * kTileRows, rows_.num_rows); }
    float* scores(int tile) const { return rows_.scores + tile * kTileRows * kChunk; }
    float* sums(int tile) const { return sums_ + tile % 2 * kTileRows * head_dim_; }

    void pack_chunk_keys(const Chunk& chunk) {
        for (int p = 0; p < chunk.num_blocks; ++p)
            pack_keys(chunk.keys[p], chunk.values[p], head_dim_, keys_ + p * key_depth());
    }

    void pack_chunk_values(const Chunk& chunk, const Chunk& next) {
        const int num_pairs = chunk.num_pairs();
        for (int pair = 0; pair < num_pairs; ++pair) {
            const half_t* const* values = chunk.values + 2 * pair;
            const half_t* const* ahead = 2 * pair + 1 < next.num_blocks ? next.keys + 2 * pair : values;
            pack_values<D>(values, ahead, head_dim_, values_ + pair, num_pairs);
        }
    }

    Product scores_of(int tile, const Chunk& chunk) const {
        const bf16_t* queries = rows_.packed_queries + tile * kTileRows * key_depth() * kDepth;
        return {queries, static_cast<size_t>(key_depth() * kTileRowBytes), keys_, key_depth(), chunk.num_blocks,
                scores(tile), kScoreStride};
    }

    Product sums_of(int tile, const Chunk& chunk) const {
        return {scores(tile), kScoreStride, values_, chunk.num_pairs(), head_dim_ / kLanes, sums(tile),
                head_dim_ * sizeof(float)};
    }

    void add_sums(int tile) {
        const float* sum = sums(tile);
        for (int r = tile * kTileRows; r < end_row(tile); ++r, sum += head_dim_) {
            const Vec factor = vset(rows_.factors[r]);
            float* output = rows_.outputs + r * head_dim_;
            for (int d = 0; d < head_dim_; d += kLanes)
                vstore(output + d, vfma(vload(output + d), factor, vload(sum + d)));
        }
    }

    const AttentionRows rows_;
    const int head_dim_, num_tiles_;
    Tile* const keys_;    // [block][32 dimensions]
    Tile* const values_;  // [16 dimensions][two blocks]
    float* const sums_;   // [two tiles of rows in turn][16][dim]
};

template <int D>
void attend_chunks(const AttentionRows& rows, int head_dim, const ChunkRange& chunks) {
    RowTiles<D>(rows, head_dim).attend(chunks);
}

#endif

}  // namespace ramet::amx
