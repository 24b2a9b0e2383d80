// Packing: GGUF blocks go to the packed layout as they are, 4 and 8 bits, without a detour over floats; fp32 rows are
// quantised to 8 bits on the way.
//
//   Q4_0  fp16 scale, 16 bytes                    block of 32: low halves are values 0..15, high halves 16..31
//   Q4_1  fp16 scale, fp16 minimum, 16 bytes      the same
//   Q8_0  fp16 scale, 32 signed bytes
//   Q4_K  block of 256: fp16 d, fp16 dmin, 12 bytes of 6-bit scales and minima for 8 groups of 32, then 128 bytes: 32 bytes
//         hold a group in their low halves and the next one in their high halves.
//         scale = d * scale6, minimum = -dmin * min6; these products are rounded to fp16.
#include "pack.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "simd.h"
#include "team.h"

namespace ramet {

namespace {

struct SourceGroup {
    uint8_t values[kGroup];  // as the packed layout has them: offset by 128 or 8, or plain for kInt4Min
    half_t scale;
    half_t minimum;
};

half_t to_half(float value) {
    alignas(64) float lanes[kLanes] = {value};
    half_t halves[kLanes];
    vstore_half(halves, vload(lanes));
    return halves[0];
}

float to_float(half_t half) {
    const half_t halves[kLanes] = {half};
    return vfirst(vload_half(halves));
}

half_t half_at(const uint8_t* bytes) {
    half_t half;
    std::memcpy(&half, bytes, sizeof half);
    return half;
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
    group.scale = to_half(to_float(half_at(block)) * static_cast<float>(scale));
    group.minimum = to_half(-to_float(half_at(block + 2)) * static_cast<float>(minimum));
    const uint8_t* bytes = block + 16 + (j / 2) * kGroup;
    for (int i = 0; i < kGroup; ++i) group.values[i] = j % 2 == 0 ? bytes[i] & 15 : bytes[i] >> 4;
    return group;
}

// Symmetric: the largest magnitude becomes 127, with the scale as fp16 will hold it.
SourceGroup quantize_f32(const uint8_t* row, int g) {
    SourceGroup group{};
    const float* x = reinterpret_cast<const float*>(row) + static_cast<size_t>(g) * kGroup;
    float largest = 0.0f;
    for (int i = 0; i < kGroup; ++i) largest = std::max(largest, std::fabs(x[i]));
    group.scale = to_half(largest / 127.0f);
    const float scale = to_float(group.scale);
    for (int i = 0; i < kGroup; ++i) {
        const float quotient = scale > 0.0f ? std::nearbyint(x[i] / scale) : 0.0f;
        group.values[i] = static_cast<uint8_t>(128 + static_cast<int>(std::max(-127.0f, std::min(127.0f, quotient))));
    }
    return group;
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
    {quantize_f32, kInt8, 1, 4},   {read_q4_0, kInt4, 32, 18},      {read_q4_1, kInt4Min, 32, 20},
    {read_q8_0, kInt8, 32, 34},    {read_q4_k, kInt4Min, 256, 144},
};

bool is_finite(const SourceGroup& group) {
    constexpr half_t kExponent = 0x7C00;
    return (group.scale & kExponent) != kExponent && (group.minimum & kExponent) != kExponent;
}

uint8_t* group_of(const PackedMatrix& matrix, int row, int g) {
    return matrix.data + (row / kLanes) * block_bytes(matrix) + g * group_bytes(matrix.format);
}

void put_group(const SourceGroup& group, int format, int lane, uint8_t* packed) {
    for (int i = 0; i < kGroup; ++i) {
        const int step = i / 4, byte = lane * 4 + i % 4;
        if (format == kInt8) {
            packed[step * 64 + byte] = group.values[i];
        } else if (step < 4) {
            packed[step * 64 + byte] = group.values[i] | static_cast<uint8_t>(group.values[i + kGroup / 2] << 4);
        }
    }
    std::memcpy(packed + quant_bytes(format) + lane * sizeof(half_t), &group.scale, sizeof(half_t));
    if (format == kInt4Min)
        std::memcpy(packed + quant_bytes(format) + (kLanes + lane) * sizeof(half_t), &group.minimum, sizeof(half_t));
}

}  // namespace

void unpack_row(const PackedMatrix& matrix, int row, float* out) {
    const int lane = row % kLanes;
    for (int g = 0; g < matrix.num_inputs / kGroup; ++g) {
        const uint8_t* packed = group_of(matrix, row, g);
        const float scale = to_float(group_scales(packed, matrix.format)[lane]);
        const float minimum = matrix.format == kInt4Min ? to_float(group_minima(packed)[lane]) : 0.0f;
        for (int i = 0; i < kGroup; ++i) {
            const int step = i / 4, byte = lane * 4 + i % 4;
            int value;
            if (matrix.format == kInt8) {
                value = packed[step * 64 + byte] - 128;
            } else {
                const uint8_t both = packed[step % 4 * 64 + byte];
                value = (step < 4 ? both & 15 : both >> 4) - (matrix.format == kInt4 ? 8 : 0);
            }
            out[g * kGroup + i] = static_cast<float>(value) * scale + minimum;
        }
    }
}

}  // namespace ramet

using namespace ramet;

extern "C" {

int64_t ramet_matrix_bytes(int32_t format, int32_t num_outputs, int32_t num_inputs) {
    return static_cast<int64_t>(round_up(num_outputs, kPair) / kLanes) * (num_inputs / kGroup) *
           static_cast<int64_t>(group_bytes(format));
}

int32_t ramet_source_format(int32_t source) { return kSources[source].format; }

int32_t ramet_pack_rows(const ramet_matrix* matrix, int32_t source_idx, const void* rows, const int32_t* row_of,
                        int32_t num_rows, int32_t num_threads) {
    const PackedMatrix packed = as_packed(*matrix);
    const Source& source = kSources[source_idx];
    const size_t row_bytes = static_cast<size_t>(packed.num_inputs) / source.values_per_block * source.block_bytes;
    std::atomic<bool> all_finite{true};
    run_team(num_threads, [&](const Member& member) {
        const Range share = member.share(num_rows);
        for (int i = share.begin; i < share.end; ++i) {
            const uint8_t* row = static_cast<const uint8_t*>(rows) + i * row_bytes;
            for (int g = 0; g < packed.num_inputs / kGroup; ++g) {
                const SourceGroup group = source.read(row, g);
                if (!is_finite(group)) all_finite.store(false, std::memory_order_relaxed);
                put_group(group, packed.format, row_of[i] % kLanes, group_of(packed, row_of[i], g));
            }
        }
    });
    return all_finite ? 0 : 1;
}

void ramet_unpack_rows(const ramet_matrix* matrix, const int32_t* rows, int32_t num_rows, float* out) {
    const PackedMatrix packed = as_packed(*matrix);
    for (int i = 0; i < num_rows; ++i) unpack_row(packed, rows[i], out + static_cast<size_t>(i) * packed.num_inputs);
}

}  // extern "C"
