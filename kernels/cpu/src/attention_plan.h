// Which tokens share a tile: planned once a step, used by every layer. attention.h has the picture.
#pragma once
#include <algorithm>
#include <vector>

#include "attention.h"

namespace ramet {

struct AttentionToken {
    int32_t row;       // of the step's flattened tokens
    int32_t sequence;
    int32_t num_keys;  // position + 1
};

// Tokens [first, first + count) of the plan; the first `num_common_chunks` chunks of their block tables are the same
// blocks, and each of them sees those whole.
struct AttentionTile {
    int32_t first, count, num_common_chunks;
};

struct BlockTables {
    const int32_t* blocks;
    const int32_t* starts;  // sequence s owns blocks[starts[s] .. starts[s + 1])

    const int32_t* of(int sequence) const { return blocks + starts[sequence]; }
    int length(int sequence) const { return starts[sequence + 1] - starts[sequence]; }
};

class AttentionPlan {
public:
    // positions: of each row; query_starts: rows of sequence s are query_starts[s] .. query_starts[s + 1].
    // With is_sharing off, no tile holds two sequences. Cost: a sort of the sequences by their tables.
    void build(const BlockTables& tables, int num_sequences, const int32_t* query_starts, const int32_t* positions,
               int max_tile_tokens, bool is_sharing) {
        order_.resize(num_sequences);
        for (int s = 0; s < num_sequences; ++s) order_[s] = s;
        if (is_sharing && num_sequences > 1) {
            std::sort(order_.begin(), order_.end(), [&tables](int a, int b) {
                return std::lexicographical_compare(tables.of(a), tables.of(a) + tables.length(a), tables.of(b),
                                                    tables.of(b) + tables.length(b));
            });
        }
        tokens_.clear();
        for (const int s : order_)
            for (int row = query_starts[s]; row < query_starts[s + 1]; ++row)
                tokens_.push_back({row, s, positions[row] + 1});
        cut_tiles(tables, max_tile_tokens, is_sharing);
    }

    const std::vector<AttentionTile>& tiles() const { return tiles_; }
    const AttentionToken& token(int idx) const { return tokens_[idx]; }

private:
    void cut_tiles(const BlockTables& tables, int max_tile_tokens, bool is_sharing) {
        tiles_.clear();
        const int num_tokens = static_cast<int>(tokens_.size());
        for (int first = 0; first < num_tokens;) {
            int common = tokens_[first].num_keys / kLanes;
            int count = 1;
            for (; first + count < num_tokens && count < max_tile_tokens; ++count) {
                const int shared = shared_blocks(tables, tokens_[first], tokens_[first + count], common);
                const bool is_same = tokens_[first + count].sequence == tokens_[first].sequence;
                // Another sequence joins if it does not take more from the run than it gains.
                if (!is_same && (!is_sharing || shared == 0 || 2 * shared < common)) break;
                common = shared;
            }
            tiles_.push_back({first, count, common / kChunkBlocks});
            first += count;
        }
    }

    // Leading blocks that both tokens see whole, at most `limit`.
    static int shared_blocks(const BlockTables& tables, const AttentionToken& a, const AttentionToken& b, int limit) {
        limit = std::min(limit, b.num_keys / kLanes);
        if (a.sequence == b.sequence) return limit;
        const int32_t *blocks = tables.of(a.sequence), *others = tables.of(b.sequence);
        return static_cast<int>(std::mismatch(blocks, blocks + limit, others).first - blocks);
    }

    std::vector<int> order_;
    std::vector<AttentionToken> tokens_;
    std::vector<AttentionTile> tiles_;
};

}  // namespace ramet
