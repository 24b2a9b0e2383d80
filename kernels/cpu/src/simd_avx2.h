// The vector interface of simd.h on AVX2 with FMA and F16C: a Vec is two registers.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "layout.h"

namespace ramet {

struct Vec {
    __m256 lo, hi;
};
struct IntVec {
    __m256i lo, hi;
};
using ShortVec = IntVec;
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
inline Vec vfrom_int(IntVec v) { return {_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)}; }

inline IntVec ivload(const void* p) {
    const __m256i* halves = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
inline IntVec ivset(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline IntVec ivadd(IntVec a, IntVec b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
inline IntVec ivsub(IntVec a, IntVec b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
template <int N>
IntVec ivleft(IntVec v) {
    return {_mm256_slli_epi32(v.lo, N), _mm256_slli_epi32(v.hi, N)};
}

inline void store_integers(ActivationChunk& chunk, int row, const Vec (&integers)[4]) {
    const auto swap = [](__m256 x) { return _mm256_shuffle_epi32(_mm256_cvtps_epi32(x), 0b11'01'10'00); };
    for (int i = 0; i < 4; ++i) {
        const __m256i packed = _mm256_packs_epi32(swap(integers[i].lo), swap(integers[i].hi));  // quarters 0, 2, 1, 3
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(chunk.values[row] + i * kLanes),
                            _mm256_permute4x64_epi64(packed, 0b11'01'10'00));
    }
}
inline int integer_at(const ActivationChunk& chunk, int row, int input) {
    return chunk.values[row][place_in_pairs(input)];
}

// Without a dot instruction bytes would have to be multiplied into 16 bits, which do not hold two products. So weights are
// widened: inputs 0 and 2 of a step are the lower bytes of 16-bit lanes, inputs 1 and 3 the upper ones.
struct Products {
    using Acc = IntVec;
    struct Weights {
        IntVec even, odd;
    };
    static Acc begin() { return ivset(0); }
    static Weights load(const int8_t* step) {
        const IntVec bytes = ivload(step);
        const auto even = [](__m256i x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); };
        return {{even(bytes.lo), even(bytes.hi)}, {_mm256_srai_epi16(bytes.lo, 8), _mm256_srai_epi16(bytes.hi, 8)}};
    }
    static Acc step(Acc acc, const Weights& weights, const ActivationChunk& chunk, int row, int step) {
        const auto pair = [&](int half) {
            int32_t x;
            std::memcpy(&x, chunk.values[row] + 4 * step + 2 * half, sizeof x);
            return _mm256_set1_epi32(x);
        };
        const auto add = [](IntVec sums, IntVec w, __m256i x) {
            return ivadd(sums, {_mm256_madd_epi16(w.lo, x), _mm256_madd_epi16(w.hi, x)});
        };
        return add(add(acc, weights.even, pair(0)), weights.odd, pair(1));
    }
    static IntVec end(Acc acc, IntVec) { return acc; }
};

inline ShortVec sload(const void* p) { return ivload(p); }
inline void sstore(void* p, ShortVec v) {
    __m256i* halves = static_cast<__m256i*>(p);
    _mm256_storeu_si256(halves, v.lo);
    _mm256_storeu_si256(halves + 1, v.hi);
}
inline ShortVec sset(int16_t x) { return {_mm256_set1_epi16(x), _mm256_set1_epi16(x)}; }
inline ShortVec sadd(ShortVec a, ShortVec b) { return {_mm256_add_epi16(a.lo, b.lo), _mm256_add_epi16(a.hi, b.hi)}; }
inline ShortVec smul(ShortVec a, ShortVec b) { return {_mm256_mullo_epi16(a.lo, b.lo), _mm256_mullo_epi16(a.hi, b.hi)}; }
inline ShortVec sand(ShortVec a, ShortVec b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
template <int N>
ShortVec sleft(ShortVec v) {
    return {_mm256_slli_epi16(v.lo, N), _mm256_slli_epi16(v.hi, N)};
}
inline ShortVec sor(ShortVec a, ShortVec b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
template <int N>
ShortVec sright_unsigned(ShortVec v) {
    return {_mm256_srli_epi16(v.lo, N), _mm256_srli_epi16(v.hi, N)};
}
inline ShortVec sload_twice(const int16_t* p) {
    const auto twice = [](const int16_t* eight) {
        const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(eight)));
        return _mm256_or_si256(_mm256_slli_epi32(wide, 16), wide);
    };
    return {twice(p), twice(p + 8)};
}

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
inline void vstore_bf16(bf16_t* p, Vec v) {
    const auto upper = [](__m256 x) { return _mm256_srli_epi32(_mm256_castps_si256(x), 16); };
    const __m256i packed = _mm256_packus_epi32(upper(v.lo), upper(v.hi));  // quarters in the order 0, 2, 1, 3
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0b11'01'10'00));
}
struct PairVec {
    Vec first, second;
};
inline PairVec vload_pairs(const bf16_t* p) {
    const IntVec pairs = ivload(p);
    const auto first = [](__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); };
    const auto second = [](__m256i x) {
        return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(-0x10000)));
    };
    return {{first(pairs.lo), first(pairs.hi)}, {second(pairs.lo), second(pairs.hi)}};
}
template <int I>
void vstore_in_pairs(bf16_t* p, Vec v) {
    bf16_t values[kLanes];
    vstore_bf16(values, v);
    for (int lane = 0; lane < kLanes; ++lane) p[2 * lane + I] = values[lane];
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
