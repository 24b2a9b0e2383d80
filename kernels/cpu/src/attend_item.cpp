// The work items of attend_item.h.
#include "attend_item.h"

#include <algorithm>
#include <cmath>

#include "simd.h"

namespace ramet {

// The matrix unit computes 16 rows from any row on, and may so pass the last one by 15.
AttentionRows ThreadScratch::attention_rows(int head_dim) {
    constexpr size_t kSpareRows = 15, kRows = kMaxTileRows + kSpareRows;
    const size_t packed_size = kRows * round_up(head_dim, kDepth) * sizeof(bf16_t) / sizeof(float);
    const size_t row_size = 2 * head_dim + kChunk + kLanes + 2;
    rows.resize(kRows * row_size + packed_size + chunk_room(head_dim));
    limits.resize(2 * kMaxTileRows);
    float* at = rows.data();
    const auto take = [&at](size_t count) { return (at += count) - count; };
    AttentionRows result;
    result.queries = take(kRows * head_dim);
    result.packed_queries = reinterpret_cast<bf16_t*>(take(packed_size));
    result.outputs = take(kRows * head_dim);
    result.scores = take(kRows * kChunk);
    result.totals = take(kRows * kLanes);
    result.chunk = take(chunk_room(head_dim));
    result.maxima = take(kRows);
    result.factors = take(kRows);
    result.first_keys = limits.data();
    result.end_keys = limits.data() + kMaxTileRows;
    return result;
}

namespace {

// A query as attention.h wants it: scaled for a softmax of powers of two, free of denormal numbers, rounded.
Vec prepare_query(Vec query, Vec scale) {
    const Vec scaled = vmul(query, scale);
    return vround_bf16(vzero_below(scaled, vabs(scaled), vset(kTinyQuery)));
}

// Query heads of `kv_head` for the tile's tokens; and which keys each row sees.
void gather_rows(const AttentionArgs& args, const AttentionTile& tile, int kv_head, AttentionRows& rows) {
    const int head_dim = args.kv.head_dim, group = args.num_heads / args.kv.num_kv_heads;
    constexpr float kLog2E = 1.44269504f;
    const Vec scale = vset(kLog2E / std::sqrt(static_cast<float>(head_dim)));
    for (int t = 0; t < tile.count; ++t) {
        const AttentionToken& token = args.plan->token(tile.first + t);
        const float* query = args.query + static_cast<size_t>(token.row) * args.query_stride + kv_head * group * head_dim;
        for (int i = 0; i < group * head_dim; i += kLanes) {
            vstore(rows.queries + t * group * head_dim + i, prepare_query(vload(query + i), scale));
            vstore(rows.outputs + t * group * head_dim + i, vzero());
        }
        for (int r = t * group; r < (t + 1) * group; ++r) {
            rows.maxima[r] = kLowestMaximum;
            vstore(rows.totals + r * kLanes, vzero());
            rows.end_keys[r] = token.num_keys;
            rows.first_keys[r] = args.sliding_window > 0 ? std::max(0, token.num_keys - args.sliding_window) : 0;
        }
    }
    rows.num_rows = tile.count * group;
    pack_queries(rows, head_dim);
}

// Divides each row's output by its total.
void normalize_rows(const AttentionRows& rows, int head_dim) {
    for (int r = 0; r < rows.num_rows; ++r) {
        const Vec inverse = vset(1.0f / vsum(vload(rows.totals + r * kLanes)));
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
