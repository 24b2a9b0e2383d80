// Exponentials and random numbers of the sampler, written so that a compiler vectorises the loops they stand in.
//
// No branches (a choice between two results is made by their bits), no calls, and no fused multiply-adds
// (-ffp-contract=off): a result is the same in a vector of any width and in plain code.
#pragma once

#include <cstdint>
#include <cstring>

namespace ramet::sampling {

template <typename To, typename From>
inline To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

// e^-d for d >= 0 in fp32, within 2 units in the last place; exactly 1 at 0, and 0 beyond 87. -d = n ln 2 + r with
// |r| <= ln(2) / 2; e^r by the polynomial of Cephes' expf (Moshier, 1989), times 2^n. It comes in two halves because two
// loops over short dependent chains keep more of a processor busy than one loop over a long one.
struct ReducedExp {
    float r;
    float power;
};

// Adding 1.5 * 2^23 rounds to a whole number, which then stands in the low bits. Numbers that are not negative are
// ordered as their bits are.
inline ReducedExp exp_minus_reduce(float d) {
    const float round = 12582912.0f;
    const int32_t limit = bit_cast<int32_t>(87.0f);
    int32_t bits = bit_cast<int32_t>(d);
    float x = -bit_cast<float>(bits < limit ? bits : limit);
    float shifted = x * 1.44269504088896341f + round;
    float n = shifted - round;
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    uint32_t power = (bit_cast<uint32_t>(shifted) << 23) + 0x3F800000u;
    uint32_t kept_bits = 0u - static_cast<uint32_t>(bits <= limit);
    return ReducedExp{r, bit_cast<float>(power & kept_bits)};
}

inline float exp_minus_finish(float r, float power) {
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return ((p * (r * r) + r) + 1.0f) * power;
}

// The same in fp64, in one piece; 0 beyond 708. e^r by its Taylor series.
inline double exp_minus(double d) {
    const double round = 6755399441055744.0;
    const int64_t limit = bit_cast<int64_t>(708.0);
    int64_t bits = bit_cast<int64_t>(d);
    double x = -bit_cast<double>(bits < limit ? bits : limit);
    double shifted = x * 1.4426950408889634074 + round;
    double n = shifted - round;
    double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    double mantissa = (p * (r * r) + r) + 1.0;
    double power = bit_cast<double>((bit_cast<uint64_t>(shifted) << 52) + 0x3FF0000000000000u);
    uint64_t kept_bits = uint64_t{0} - static_cast<uint64_t>(bits <= limit);
    return bit_cast<double>(bit_cast<uint64_t>(mantissa * power) & kept_bits);
}

// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), as runtime/random_stream.py has it: the two draw the same numbers.
constexpr uint64_t GAMMA = 0x9E3779B97F4A7C15u;

inline uint64_t mix(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

// The state that a row's tokens are hashed with.
inline uint64_t stream_state(uint64_t seed, int64_t sample_idx, int64_t position) {
    uint64_t state = mix(seed + GAMMA);
    state = mix((state ^ static_cast<uint64_t>(sample_idx)) + GAMMA);
    return mix((state ^ static_cast<uint64_t>(position)) + GAMMA);
}

// A token's hash, in two halves as the exponential.
inline uint64_t token_hash_begin(uint64_t state, int64_t token_id) {
    return mix((static_cast<uint64_t>(token_id) ^ state) + GAMMA) + GAMMA;
}

inline uint64_t token_hash(uint64_t state, int64_t token_id) { return mix(token_hash_begin(state, token_id)); }

// The token's uniform number in [0, 1).
inline double uniform(uint64_t hash) { return static_cast<double>(hash >> 11) * 0x1p-53; }

} // namespace ramet::sampling
