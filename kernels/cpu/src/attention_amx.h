// The attention kernel of the matrix unit (amx.h): 16 rows x 16 keys or dimensions x 32 bf16 terms in one instruction.
//
//      a: 16 rows of 32 terms            b: 16 pairs of terms                     c: 16 rows of 16 columns
//
//      row 0:  | a0 a1 a2 ... a31 |      pair 0: | col 0: b0 b1 | col 1: b0 b1 | ...      c += a * b, even terms and odd
//      row 1:  | ...              |      pair 1: | col 0: b2 b3 | col 1: b2 b3 | ...      terms in a chain each
//
// Scores: the columns are a block's keys, the terms dimensions. Outputs: the columns are dimensions, the terms the keys
// of two blocks.
//
// Keys lie in the cache as tiles `b`. Behind a head whose dimensions are no multiple of 32, half a tile of something
// else is read: it is finite, and its factors are zero. Values lie there as halves of tiles, which are put together for
// all rows. Tiles `a` and `c` are rows in memory as they lie. 16 rows are always computed: those after the last one may
// hold anything, and nobody looks at their results.
#pragma once
#include "amx.h"
#include "attention_chunks.h"
#include "attention_softmax.h"

namespace ramet::amx {

#if defined(RAMET_HAS_AMX)

using Tile = bf16_t[kTileRows][kDepth];

// Fewer rows are left to vectors: the matrix unit takes as long for one row as for 16. (Measured: 3 rows are faster
// there, 4 as fast, 6 slower.)
constexpr int kMinRows = 5;
inline bool is_worth(int num_rows) { return num_rows >= kMinRows && is_permitted(); }

// 32 values as a row of a tile `a`, rounded to nearest even.
RAMET_INLINE void store_row(bf16_t* out, Vec first, Vec second) {
    _mm512_store_si512(out, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
}

// Weights as rows of a tile `a`, in place of the scores.
struct TileWeights {
    static void store(float* scores, int pair, Vec first, Vec second) {
        store_row(reinterpret_cast<bf16_t*>(scores) + pair * kDepth, first, second);
    }
};

inline void pack_queries(const AttentionRows& rows, int head_dim) {
    bf16_t* out = rows.packed_queries;
    for (int r = 0; r < rows.num_rows; ++r) {
        const float* query = rows.queries + r * head_dim;
        for (int d = 0; d < head_dim; d += kDepth, out += kDepth)
            store_row(out, vload(query + d), d + kLanes < head_dim ? vload(query + d + kLanes) : vzero());
    }
}

inline void prefetch(const bf16_t* line) { _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T0); }

// Tiles of two blocks' values, one for each 16 dimensions, which lie `stride` tiles apart. Meanwhile a line of `ahead`,
// the block that is needed next, is fetched from memory for each line of values.
template <int D>
void gather_values(const bf16_t* const* values, const bf16_t* const* ahead, int any_dim, Tile* tiles, int stride) {
    const int head_dim = width_of<D>(any_dim);
    for (int half = 0; half < 2; ++half)
        for (int i = 0; i < kLanes / 2; ++i)
            for (int d = 0; d < head_dim; d += kLanes) {
                const int at = 2 * (i * head_dim + d);
                prefetch(ahead[half] + at);
                bf16_t* row = tiles[d / kLanes * stride][half * kLanes / 2 + i];
                _mm512_store_si512(row, _mm512_loadu_si512(values[half] + at));
            }
}

// The product a[16][depth * 32] times N columns of `depth` tiles, left in tile registers 0 to N - 1; an instruction names
// them by constants. 4 is `a`, and the others take turns as `b`.
template <int N, typename Columns>
RAMET_INLINE void multiply_tiles(const void* a, size_t a_stride, const Columns& columns, int first, int depth) {
    _tile_zero(0);
    if constexpr (N > 1) _tile_zero(1);
    if constexpr (N > 2) _tile_zero(2);
    if constexpr (N > 3) _tile_zero(3);
    for (int i = 0; i < depth; ++i) {
        _tile_loadd(4, static_cast<const uint8_t*>(a) + i * kTileRowBytes, a_stride);
        _tile_loadd(5, columns(first)[i], kTileRowBytes);
        _tile_dpbf16ps(0, 4, 5);
        if constexpr (N > 1) {
            _tile_loadd(6, columns(first + 1)[i], kTileRowBytes);
            _tile_dpbf16ps(1, 4, 6);
        }
        if constexpr (N > 2) {
            _tile_loadd(7, columns(first + 2)[i], kTileRowBytes);
            _tile_dpbf16ps(2, 4, 7);
        }
        if constexpr (N > 3) {
            _tile_loadd(5, columns(first + 3)[i], kTileRowBytes);
            _tile_dpbf16ps(3, 4, 5);
        }
    }
}

// out[16][num_columns * 16] = a[16][depth * 32] times columns(0), columns(1), ..., each `depth` tiles. Strides are in
// bytes.
//
// `end` stores what `begin` computed. A store waits for the product, so other work should go on between them.
template <typename Columns>
struct Product {
    const void* a;
    size_t a_stride;
    Columns columns;
    int depth, num_columns;
    float* out;
    size_t out_stride;

    void begin() const {
        for (int first = 0; first < last_group(); first += kGroupColumns) {
            multiply(first, kGroupColumns);
            store(first, kGroupColumns);
        }
        multiply(last_group(), num_columns - last_group());
    }
    void end() const { store(last_group(), num_columns - last_group()); }

private:
    static constexpr int kGroupColumns = 4;

    int last_group() const { return (num_columns - 1) / kGroupColumns * kGroupColumns; }
    void multiply(int first, int count) const {
        if (count == 4) multiply_tiles<4>(a, a_stride, columns, first, depth);
        if (count == 3) multiply_tiles<3>(a, a_stride, columns, first, depth);
        if (count == 2) multiply_tiles<2>(a, a_stride, columns, first, depth);
        if (count == 1) multiply_tiles<1>(a, a_stride, columns, first, depth);
    }
    void store(int first, int count) const {
        float* at = out + first * kLanes;
        _tile_stored(0, at, out_stride);
        if (count > 1) _tile_stored(1, at + kLanes, out_stride);
        if (count > 2) _tile_stored(2, at + 2 * kLanes, out_stride);
        if (count > 3) _tile_stored(3, at + 3 * kLanes, out_stride);
    }
};

// Calls `work` while the matrix unit is at `product`.
template <typename Columns, typename Work>
RAMET_INLINE void overlap(const Product<Columns>& product, const Work& work) {
    product.begin();
    work();
    product.end();
}

// Rows on their way through chunks, in tiles of 16: scores, softmax, sums.
//
// The matrix unit works while other instructions do. What it reads should be written, and what it wrote be read, some
// hundred instructions away. So every product of a tile runs beside the softmax of another one, or beside the gathering
// of values, and what one chunk begins the next one ends. With three tiles of rows:
//
//      matrix unit    scores 0        scores 1          scores 2  sums 0   sums 1    sums 2
//      beside it      gather values   softmax 0         softmax 1          softmax 2 fetch next values
template <int D>
class RowTiles {
public:
    RowTiles(const AttentionRows& rows, int any_dim)
        : rows_(rows), head_dim_(width_of<D>(any_dim)), num_tiles_(ceil_div(rows.num_rows, kTileRows)),
          values_(reinterpret_cast<Tile*>(rows.chunk)),
          sums_(reinterpret_cast<float*>(values_ + kChunkBlocks / 2 * head_dim_ / kLanes)) {}

    void attend(const ChunkRange& chunks) {
        Chunk chunk = chunks.at(chunks.begin);
        for (int i = chunks.begin; i < chunks.end; ++i) {
            const Chunk next = i + 1 < chunks.end ? chunks.at(i + 1) : Chunk{};
            overlap(scores_of(0, chunk), [&] {
                gather_chunk_values(chunk, next);
                if (i > chunks.begin) add_sums(num_tiles_ - 1);
            });
            for (int tile = 0; tile < num_tiles_; ++tile) attend_tile(tile, chunk);
            overlap(sums_of(num_tiles_ - 1, chunk), [&] { fetch_blocks(next.values, next.num_blocks, head_dim_); });
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

    void gather_chunk_values(const Chunk& chunk, const Chunk& next) {
        const int num_pairs = chunk.num_pairs();
        for (int pair = 0; pair < num_pairs; ++pair) {
            const bf16_t* const* values = chunk.values + 2 * pair;
            const bf16_t* const* ahead = 2 * pair + 1 < next.num_blocks ? next.keys + 2 * pair : values;
            gather_values<D>(values, ahead, head_dim_, values_ + pair, num_pairs);
        }
    }

    auto scores_of(int tile, const Chunk& chunk) const {
        const bf16_t* queries = rows_.packed_queries + tile * kTileRows * key_depth() * kDepth;
        const auto keys = [&chunk](int block) { return reinterpret_cast<const Tile*>(chunk.keys[block]); };
        return Product<decltype(keys)>{queries, static_cast<size_t>(key_depth() * kTileRowBytes), keys, key_depth(),
                                       chunk.num_blocks, scores(tile), kScoreStride};
    }

    auto sums_of(int tile, const Chunk& chunk) const {
        const int num_pairs = chunk.num_pairs();
        const auto values = [this, num_pairs](int column) { return values_ + column * num_pairs; };
        return Product<decltype(values)>{scores(tile), kScoreStride, values, num_pairs, head_dim_ / kLanes, sums(tile),
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
    Tile* const values_;  // [16 dimensions][two blocks]
    float* const sums_;   // [two tiles of rows in turn][16][dim]
};

template <int D>
void attend_chunks(const AttentionRows& rows, int head_dim, const ChunkRange& chunks) {
    RowTiles<D>(rows, head_dim).attend(chunks);
}

#endif

}  // namespace ramet::amx
