// The vector interface of simd.h on AVX2 with FMA and F16C: a Vec is two registers.
#pragma once
#include <immintrin.h>

#include "layout.h"

namespace ramet {

struct Vec {
    __m256 lo, hi;
};
struct IntVec {
    __m256i lo, hi;
};
using Bytes = IntVec;
constexpr int kVectorRegisters = 8;

inline Vec vload(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void vstore(float* p, Vec v) {
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
}
inline Vec vset(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec vzero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec vadd(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline Vec vsub(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline Vec vmul(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline Vec vdiv(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline Vec vfma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
inline Vec vmax(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline Vec vmin(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline Vec vabs(Vec a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
inline float vfirst(Vec v) { return _mm256_cvtss_f32(v.lo); }
inline float vsum(Vec v) {
    const __m256 eight = _mm256_add_ps(v.lo, v.hi);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float vmaximum(Vec v) {
    const __m256 eight = _mm256_max_ps(v.lo, v.hi);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
inline Vec vround(Vec v) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(v.lo, mode), _mm256_round_ps(v.hi, mode)};
}
inline Vec vexp2i(Vec n) {
    const auto power = [](__m256 x) {
        const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(127));
        return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
    };
    return {power(n.lo), power(n.hi)};
}

inline Vec vkeep(Vec v, int lo, int hi, Vec other) {
    const auto inside = [lo, hi](int first_lane) {
        const __m256i lane = _mm256_add_epi32(_mm256_set1_epi32(first_lane), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        const __m256i above = _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(lo - 1));
        return _mm256_castsi256_ps(_mm256_and_si256(above, _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane)));
    };
    return {_mm256_blendv_ps(other.lo, v.lo, inside(0)), _mm256_blendv_ps(other.hi, v.hi, inside(8))};
}

inline Vec vload_half(const half_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline void vstore_half(half_t* p, Vec v) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v.lo, mode));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(v.hi, mode));
}
inline void vstore_int8(int8_t* p, Vec v) {
    const __m256i a = _mm256_cvtps_epi32(v.lo), b = _mm256_cvtps_epi32(v.hi);
    const __m128i low = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    const __m128i high = _mm_packs_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(low, high));
}
inline Vec vfrom_int(IntVec v) { return {_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)}; }

inline Bytes bytes_load(const uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
inline Bytes low_nibbles(Bytes v) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(v.lo, mask), _mm256_and_si256(v.hi, mask)};
}
inline Bytes high_nibbles(Bytes v) {
    return low_nibbles({_mm256_srli_epi16(v.lo, 4), _mm256_srli_epi16(v.hi, 4)});
}
inline IntVec add_int(IntVec v, int32_t x) {
    const __m256i all = _mm256_set1_epi32(x);
    return {_mm256_add_epi32(v.lo, all), _mm256_add_epi32(v.hi, all)};
}

// maddubs adds two products in 16 bits. Eight steps of 4-bit weights reach at most 8 * 2 * 15 * 127 = 30480, which fits:
// the sum stays in 16 bits through the group.
struct Dot4 {
    using Acc = IntVec;
    static Acc begin(int32_t) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    static Acc step(Acc acc, Bytes weights, int32_t four_inputs) {
        const __m256i inputs = _mm256_set1_epi32(four_inputs);
        return {_mm256_add_epi16(acc.lo, _mm256_maddubs_epi16(weights.lo, inputs)),
                _mm256_add_epi16(acc.hi, _mm256_maddubs_epi16(weights.hi, inputs))};
    }
    static IntVec end(Acc acc, int32_t correction) {
        const __m256i ones = _mm256_set1_epi16(1);
        return add_int({_mm256_madd_epi16(acc.lo, ones), _mm256_madd_epi16(acc.hi, ones)}, correction);
    }
};

// Two products of unsigned 8-bit weights would overflow 16 bits, so the weight's sign moves to the activation:
// |w| <= 128 times |x| <= 127, twice, is 32512 at most.
struct Dot8 {
    using Acc = IntVec;
    static Acc begin(int32_t) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    static Acc step(Acc acc, Bytes weights, int32_t four_inputs) {
        const __m256i inputs = _mm256_set1_epi32(four_inputs), ones = _mm256_set1_epi16(1);
        const auto dot = [inputs, ones](__m256i unsigned_weights) {
            const __m256i signed_weights = _mm256_xor_si256(unsigned_weights, _mm256_set1_epi8(-128));
            const __m256i products =
                _mm256_maddubs_epi16(_mm256_abs_epi8(signed_weights), _mm256_sign_epi8(inputs, signed_weights));
            return _mm256_madd_epi16(products, ones);
        };
        return {_mm256_add_epi32(acc.lo, dot(weights.lo)), _mm256_add_epi32(acc.hi, dot(weights.hi))};
    }
    static IntVec end(Acc acc, int32_t) { return acc; }
};

// bf16 is the upper half of an fp32. Adding just under half of its last place rounds to nearest; one more where the last
// bit is odd sends ties to even.
inline Vec vround_bf16(Vec v) {
    const auto round = [](__m256 x) {
        const __m256i bits = _mm256_castps_si256(x);
        const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i bias = _mm256_add_epi32(is_odd, _mm256_set1_epi32(0x7FFF));
        const __m256i is_number = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_ORD_Q));
        const __m256i rounded = _mm256_add_epi32(bits, _mm256_and_si256(bias, is_number));
        return _mm256_castsi256_ps(_mm256_and_si256(rounded, _mm256_set1_epi32(-0x10000)));
    };
    return {round(v.lo), round(v.hi)};
}
inline bool vany_above(Vec a, Vec b) {
    const __m256 lo = _mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), hi = _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ);
    return _mm256_movemask_ps(_mm256_or_ps(lo, hi)) != 0;
}
inline Vec vzero_below(Vec v, Vec x, Vec limit) {
    return {_mm256_and_ps(v.lo, _mm256_cmp_ps(x.lo, limit.lo, _CMP_NLT_UQ)),
            _mm256_and_ps(v.hi, _mm256_cmp_ps(x.hi, limit.hi, _CMP_NLT_UQ))};
}
inline Vec vshift_exponent(Vec v, Vec shifted) {
    const auto shift = [](__m256 x, __m256 s) {
        const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(s), 23);
        return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent));
    };
    return {shift(v.lo, shifted.lo), shift(v.hi, shifted.hi)};
}

}  // namespace ramet
