// The work items of attend_item.h.
#include "attend_item.h"

#include <algorithm>
#include <cmath>

#include "simd.h"

namespace ramet {

AttentionRows ThreadScratch::attention_rows(int head_dim) {
    rows.resize(static_cast<size_t>(kMaxTileRows) * (2 * head_dim + kChunk + 2) + kChunk * head_dim);
    limits.resize(2 * kMaxTileRows);
    float* at = rows.data();
    AttentionRows result;
    const auto take = [&at](size_t count) { return (at += count) - count; };
    result.queries = take(static_cast<size_t>(kMaxTileRows) * head_dim);
    result.outputs = take(static_cast<size_t>(kMaxTileRows) * head_dim);
    result.scores = take(static_cast<size_t>(kMaxTileRows) * kChunk);
    result.converted = take(static_cast<size_t>(kChunk) * head_dim);
    result.maxima = take(kMaxTileRows);
    result.totals = take(kMaxTileRows);
    result.first_keys = limits.data();
    result.end_keys = limits.data() + kMaxTileRows;
    return result;
}

namespace {

// Query heads of `kv_head` for the tile's tokens, scaled; and which keys each row sees.
void gather_rows(const AttentionArgs& args, const AttentionTile& tile, int kv_head, AttentionRows& rows) {
    const int head_dim = args.kv.head_dim, group = args.num_heads / args.kv.num_kv_heads;
    const Vec scale = vset(1.0f / std::sqrt(static_cast<float>(head_dim)));
    for (int t = 0; t < tile.count; ++t) {
        const AttentionToken& token = args.plan->token(tile.first + t);
        const float* query = args.query + static_cast<size_t>(token.row) * args.query_stride + kv_head * group * head_dim;
        for (int i = 0; i < group * head_dim; i += kLanes) {
            vstore(rows.queries + t * group * head_dim + i, vmul(vload(query + i), scale));
            vstore(rows.outputs + t * group * head_dim + i, vzero());
        }
        for (int r = t * group; r < (t + 1) * group; ++r) {
            rows.maxima[r] = kMasked;
            rows.totals[r] = 0.0f;
            rows.end_keys[r] = token.num_keys;
            rows.first_keys[r] = args.sliding_window > 0 ? std::max(0, token.num_keys - args.sliding_window) : 0;
        }
    }
    rows.num_rows = tile.count * group;
}

// Divides each row's output by its total.
void normalize_rows(const AttentionRows& rows, int head_dim) {
    for (int r = 0; r < rows.num_rows; ++r) {
        const Vec inverse = vset(1.0f / rows.totals[r]);
        float* output = rows.outputs + r * head_dim;
        for (int d = 0; d < head_dim; d += kLanes) vstore(output + d, vmul(vload(output + d), inverse));
    }
}

}  // namespace

AttentionRows attend_item(const AttentionArgs& args, int tile_idx, int kv_head, ThreadScratch& scratch) {
    const AttentionTile& tile = args.plan->tiles()[tile_idx];
    const int head_dim = args.kv.head_dim, group = args.num_heads / args.kv.num_kv_heads;
    AttentionRows rows = scratch.attention_rows(head_dim);
    gather_rows(args, tile, kv_head, rows);
    const int32_t* table = args.tables.of(args.plan->token(tile.first).sequence);
    attend_blocks(rows, args.kv, args.layer, kv_head, table, 0, tile.num_common_chunks * kChunk);
    for (int t = 0; t < tile.count;) {  // the tails, one sequence of the tile after another
        const int sequence = args.plan->token(tile.first + t).sequence;
        int count = 1;
        while (t + count < tile.count && args.plan->token(tile.first + t + count).sequence == sequence) ++count;
        const int last_end = args.plan->token(tile.first + t + count - 1).num_keys;
        attend_blocks(rows.from(t * group, count * group, head_dim), args.kv, args.layer, kv_head,
                      args.tables.of(sequence), tile.num_common_chunks, last_end);
        t += count;
    }
    normalize_rows(rows, head_dim);
    return rows;
}

}  // namespace ramet
