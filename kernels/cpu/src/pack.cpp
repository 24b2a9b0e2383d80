// Packing: the 4 or 8 bits of GGUF blocks go to the groups of layout.h as they are, without a detour over floats; only scales
// and minima are rewritten, as integers times a scale of the row. fp32 rows are quantised to 8 bits on the way. Planes are
// made from groups.
//
//   Q4_0  fp16 scale, 16 bytes                    block of 32: low halves are values 0..15, high halves 16..31
//   Q4_1  fp16 scale, fp16 minimum, 16 bytes      the same
//   Q8_0  fp16 scale, 32 signed bytes
//   Q4_K  block of 256: fp16 d, fp16 dmin, 12 bytes of 6-bit scales and minima for 8 groups of 32, then 128 bytes: 32 bytes
//         hold a group in their low halves and the next one in their high halves.
//         scale = d * scale6, minimum = -dmin * min6.
#include "pack.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "aligned.h"
#include "simd.h"
#include "team.h"
#include "unpack.h"

namespace ramet {

namespace {

// weight = scale * value + minimum, with the values as the packed layout has them: 0..15, or -128..127 plus 128.
struct SourceGroup {
    uint8_t values[kGroup];
    float scale;
    float minimum;
};

float half_at(const uint8_t* bytes) {
    half_t halves[kLanes] = {};
    std::memcpy(halves, bytes, sizeof(half_t));
    return vfirst(vload_half(halves));
}

void split_nibbles(const uint8_t* bytes, uint8_t* values) {
    for (int i = 0; i < kGroup / 2; ++i) {
        values[i] = bytes[i] & 15;
        values[i + kGroup / 2] = bytes[i] >> 4;
    }
}

SourceGroup read_q4_0(const uint8_t* row, int g) {
    SourceGroup group{};
    const uint8_t* block = row + static_cast<size_t>(g) * 18;
    group.scale = half_at(block);
    group.minimum = -8.0f * group.scale;
    split_nibbles(block + 2, group.values);
    return group;
}

SourceGroup read_q4_1(const uint8_t* row, int g) {
    SourceGroup group{};
    const uint8_t* block = row + static_cast<size_t>(g) * 20;
    group.scale = half_at(block);
    group.minimum = half_at(block + 2);
    split_nibbles(block + 4, group.values);
    return group;
}

SourceGroup read_q8_0(const uint8_t* row, int g) {
    SourceGroup group{};
    const uint8_t* block = row + static_cast<size_t>(g) * 34;
    group.scale = half_at(block);
    for (int i = 0; i < kGroup; ++i) group.values[i] = block[2 + i] ^ 0x80;
    return group;
}

SourceGroup read_q4_k(const uint8_t* row, int g) {
    SourceGroup group{};
    const uint8_t* block = row + static_cast<size_t>(g / 8) * 144;
    const uint8_t* sixes = block + 4;
    const int j = g % 8;
    int scale, minimum;
    if (j < 4) {
        scale = sixes[j] & 63;
        minimum = sixes[j + 4] & 63;
    } else {
        scale = (sixes[j + 4] & 15) | (sixes[j - 4] >> 6 << 4);
        minimum = (sixes[j + 4] >> 4) | (sixes[j] >> 6 << 4);
    }
    group.scale = half_at(block) * static_cast<float>(scale);
    group.minimum = -half_at(block + 2) * static_cast<float>(minimum);
    const uint8_t* bytes = block + 16 + (j / 2) * kGroup;
    for (int i = 0; i < kGroup; ++i) group.values[i] = j % 2 == 0 ? bytes[i] & 15 : bytes[i] >> 4;
    return group;
}

// Only the scale, for the largest magnitude to become 127: the values follow when the multiplier is known.
SourceGroup read_f32(const uint8_t* row, int g) {
    SourceGroup group{};
    const float* x = reinterpret_cast<const float*>(row) + static_cast<size_t>(g) * kGroup;
    float largest = 0.0f;
    for (int i = 0; i < kGroup; ++i) largest = std::max(largest, std::fabs(x[i]));
    group.scale = largest / 127.0f;
    return group;
}

void quantize_f32(const float* x, float scale, uint8_t* values) {
    for (int i = 0; i < kGroup; ++i) {
        const float quotient = scale > 0.0f ? std::nearbyint(x[i] / scale) : 0.0f;
        values[i] = static_cast<uint8_t>(128 + static_cast<int>(std::max(-127.0f, std::min(127.0f, quotient))));
    }
}

using ReadGroup = SourceGroup (*)(const uint8_t* row, int g);

struct Source {
    ReadGroup read;
    WeightFormat format;
    int values_per_block;
    int block_bytes;
};

// Indexed by RAMET_SOURCE_*.
constexpr Source kSources[] = {
    {read_f32, kInt8, 1, 4},    {read_q4_0, kInt4, 32, 18},   {read_q4_1, kInt4, 32, 20},
    {read_q8_0, kInt8, 32, 34}, {read_q4_k, kInt4, 256, 144},
};

// Both formats make |w| * (256 of kInt4) at most 127 * 256, so that its upper byte, when rounded, is a signed one.
constexpr float kMaxInteger4 = 127.0f * 256.0f;
constexpr float kMaxMultiplier8 = 127.0f * 256.0f / 128.0f;

// What one unit of multipliers and offsets stands for in a row. Infinite if a scale or minimum is not finite.
float unit_of_row(const Source& source, const uint8_t* row, int num_groups) {
    const bool is_int8 = source.format == kInt8;
    float largest = 0.0f;
    for (int g = 0; g < num_groups; ++g) {
        const SourceGroup group = source.read(row, g);
        const float reach = is_int8 ? std::fabs(group.scale)
                                    : std::max(std::fabs(group.minimum + 15.0f * group.scale), std::fabs(group.minimum));
        largest = std::isfinite(reach) ? std::max(largest, reach) : INFINITY;
    }
    return largest / (is_int8 ? kMaxMultiplier8 : kMaxInteger4);
}

void put_values(const uint8_t* values, int format, int lane, uint8_t* packed) {
    for (int i = 0; i < kGroup; ++i) {
        const int step = i / 4, byte = lane * 4 + i % 4;
        if (format == kInt8) {
            packed[step * 64 + byte] = values[i];
        } else if (step < 4) {
            packed[step * 64 + byte] = values[i] | static_cast<uint8_t>(values[i + kGroup / 2] << 4);
        }
    }
}

int16_t round_to_int(float value) { return static_cast<int16_t>(std::nearbyint(value)); }

// The next larger multiplier; what is whole but for rounding is taken for it.
float larger_multiplier(float exact) {
    constexpr float kRounding = 1e-3f;
    return std::copysign(std::ceil(std::fabs(exact) - kRounding), exact);
}

// A multiplier of kInt8. Where rounding it would change weights by more than rounding their values does, `values` are rounded
// to the next larger multiplier instead.
int16_t int8_multiplier(float exact, uint8_t* values) {
    constexpr float kPrecise = 64.0f;
    if (std::fabs(exact) >= kPrecise) return round_to_int(exact);
    const float multiplier = larger_multiplier(exact);
    const float ratio = multiplier == 0.0f ? 0.0f : exact / multiplier;
    for (int i = 0; i < kGroup; ++i)
        values[i] = static_cast<uint8_t>(128 + static_cast<int>(std::nearbyint(ratio * static_cast<float>(values[i] - 128))));
    return round_to_int(multiplier);
}

struct PackedRow {
    bool is_finite;         // all scales and minima are
    int num_coarse_groups;  // of 4 bits whose steps are smaller than those of the row's 8 bits
};

PackedRow pack_row(const Source& source, const uint8_t* source_row, const PackedMatrix& matrix, int row) {
    const int format = matrix.format, block = row / kLanes, lane = row % kLanes;
    const float unit = unit_of_row(source, source_row, num_groups(matrix));
    if (!std::isfinite(unit)) return {false, 0};
    const float inverse = unit >= std::numeric_limits<float>::min() ? 1.0f / unit : 0.0f;  // next to nothing is nothing
    int num_coarse = 0;
    for (int g = 0; g < num_groups(matrix); ++g) {
        SourceGroup group = source.read(source_row, g);
        uint8_t* packed = group_of(matrix, block, g);
        int16_t* integers = reinterpret_cast<int16_t*>(packed + quant_bytes(format)) + lane;
        const float multiplier = group.scale * inverse;
        if (source.read == read_f32) {
            integers[0] = round_to_int(larger_multiplier(multiplier));
            quantize_f32(reinterpret_cast<const float*>(source_row) + static_cast<size_t>(g) * kGroup,
                         unit * static_cast<float>(integers[0]), group.values);
        } else if (format == kInt8) {
            integers[0] = int8_multiplier(multiplier, group.values);
        } else {
            integers[0] = round_to_int(multiplier);
            integers[kLanes] = round_to_int(group.minimum * inverse + 128.0f);  // to round, not cut off
            num_coarse += group.scale != 0.0f && std::fabs(multiplier) < 256.0f;
        }
        put_values(group.values, format, lane, packed);
    }
    trailer_of(matrix, block).scales[lane] = inverse == 0.0f ? 0.0f : format == kInt4 ? 256.0f * unit : unit;
    return {true, num_coarse};
}

void sum_rows(const WeightChunk* plane, int num_chunks, int32_t* sums) {
    std::fill_n(sums, kLanes, 0);
    for (int c = 0; c < num_chunks; ++c)
        for (const auto& step : plane[c].steps)
            for (int i = 0; i < 4 * kLanes; ++i) sums[i / 4] += step[i];
}

// Gives a channel block of `to` what follows from packed groups: the sums of its rows, and its planes if it is to have them.
// `scratch` has room for the planes.
void finish_block(const PackedMatrix& groups, const PackedMatrix& to, int block, WeightChunk* scratch) {
    WeightChunk* planes = to.is_planes ? plane_of(to, block, 0) : scratch;
    unpack_planes(groups, block, planes);
    Trailer& trailer = trailer_of(to, block);
    trailer = trailer_of(groups, block);
    for (int p = 0; p < num_planes(groups.format); ++p)
        sum_rows(planes + p * num_chunks(groups), num_chunks(groups), trailer.sums[p]);
}

}  // namespace

void unpack_row(const PackedMatrix& matrix, int row, WeightChunk* scratch, float* out) {
    const int block = row / kLanes, lane = row % kLanes, chunks = num_chunks(matrix);
    if (!matrix.is_planes) unpack_planes(matrix, block, scratch);
    const WeightChunk* plane_0 = matrix.is_planes ? plane_of(matrix, block, 0) : scratch;
    const WeightChunk* plane_1 = num_planes(matrix.format) == 2 ? plane_0 + chunks : nullptr;
    const float scale = trailer_of(matrix, block).scales[lane];
    for (int step = 0; step < matrix.num_inputs / 4; ++step) {
        const int c = step / kChunkSteps, s = step % kChunkSteps;
        for (int i = 0; i < 4; ++i) {
            const int upper = plane_1 == nullptr ? 0 : 256 * plane_1[c].steps[s][4 * lane + i];
            out[4 * step + i] = scale * static_cast<float>(upper + plane_0[c].steps[s][4 * lane + i]);
        }
    }
}

}  // namespace ramet

using namespace ramet;

extern "C" {

int64_t ramet_matrix_bytes(int32_t format, int32_t is_planes, int32_t num_outputs, int32_t num_inputs) {
    const PackedMatrix matrix = {num_outputs, num_inputs, format, is_planes, nullptr};
    return static_cast<int64_t>(round_up(num_outputs, kPair) / kLanes) * static_cast<int64_t>(block_bytes(matrix));
}

int32_t ramet_source_format(int32_t source) { return kSources[source].format; }

int32_t ramet_pack_rows(const ramet_matrix* matrix, int32_t source_idx, const void* rows, const int32_t* row_of,
                        int32_t num_rows, int32_t num_threads, int32_t* num_coarse_groups) {
    const PackedMatrix packed = as_packed(*matrix);
    const Source& source = kSources[source_idx];
    const size_t row_bytes = static_cast<size_t>(packed.num_inputs) / source.values_per_block * source.block_bytes;
    std::atomic<bool> all_finite{true};
    std::atomic<int32_t> num_coarse{0};
    run_team(num_threads, [&](const Member& member) {
        const Range share = member.share(num_rows);
        for (int i = share.begin; i < share.end; ++i) {
            const uint8_t* row = static_cast<const uint8_t*>(rows) + i * row_bytes;
            const PackedRow result = pack_row(source, row, packed, row_of[i]);
            if (!result.is_finite) all_finite.store(false, std::memory_order_relaxed);
            num_coarse.fetch_add(result.num_coarse_groups, std::memory_order_relaxed);
        }
    });
    *num_coarse_groups = num_coarse;
    return all_finite ? 0 : 1;
}

int32_t ramet_finish_matrix(const ramet_matrix* groups, const ramet_matrix* to, int32_t num_threads) {
    const PackedMatrix from = as_packed(*groups), finished = as_packed(*to);
    const int num_blocks = round_up(from.num_outputs, kPair) / kLanes;
    try {
        std::vector<AlignedArray<WeightChunk>> scratch(num_threads);
        for (auto& one : scratch) one.resize(static_cast<size_t>(num_planes(from.format)) * num_chunks(from));
        run_team(num_threads, [&](const Member& member) {
            const Range blocks = member.share(num_blocks);
            for (int block = blocks.begin; block < blocks.end; ++block)
                finish_block(from, finished, block, scratch[member.thread].data());
        });
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}

void ramet_unpack_rows(const ramet_matrix* matrix, const int32_t* rows, int32_t num_rows, float* out) {
    const PackedMatrix packed = as_packed(*matrix);
    std::vector<WeightChunk> scratch(num_planes(packed.format) * num_chunks(packed));
    for (int i = 0; i < num_rows; ++i)
        unpack_row(packed, rows[i], scratch.data(), out + static_cast<size_t>(i) * packed.num_inputs);
}

}  // extern "C"
