// One work item of attention: gathers a tile's query rows, walks the keys, hands each token's result on.
#pragma once
#include <cmath>

#include "attention_plan.h"
#include "linear.h"

namespace ramet {

// Scratch of one thread.
struct ThreadScratch {
    AlignedArray<float> row;       // one token's hidden state
    ProductScratch product;
    AlignedArray<float> rows;      // AttentionRows
    AlignedArray<int> limits;

    AttentionRows attention_rows(int head_dim);
};

// Attention of one layer. `query` rows are `query_stride` apart and hold all query heads.
struct AttentionArgs {
    const AttentionPlan* plan;
    BlockTables tables;
    KVLayout kv;
    int layer, num_heads, sliding_window;
    const float* query;
    int query_stride;
};

// Computes item (tile, kv head). The rows' outputs are [token of the tile][num_heads / num_kv_heads][head_dim]; they lie in
// `scratch` until its next item.
AttentionRows attend_item(const AttentionArgs& args, int tile_idx, int kv_head, ThreadScratch& scratch);

}  // namespace ramet
