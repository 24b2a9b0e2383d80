// The vector interface of simd.h on AVX512 with VNNI: a Vec is one register.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "layout.h"

namespace ramet {

using Vec = __m512;
using IntVec = __m512i;
using ShortVec = __m512i;
constexpr int kVectorRegisters = 32;

inline Vec vload(const float* p) { return _mm512_loadu_ps(p); }
inline void vstore(float* p, Vec v) { _mm512_storeu_ps(p, v); }
inline Vec vset(float x) { return _mm512_set1_ps(x); }
inline Vec vzero() { return _mm512_setzero_ps(); }
inline Vec vadd(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec vsub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec vmul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec vdiv(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec vfma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec vmax(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec vmin(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec vabs(Vec a) { return _mm512_abs_ps(a); }
inline float vfirst(Vec v) { return _mm512_cvtss_f32(v); }
inline float vsum(Vec v) { return _mm512_reduce_add_ps(v); }
inline float vmaximum(Vec v) { return _mm512_reduce_max_ps(v); }
inline Vec vround(Vec v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vec vexp2i(Vec n) { return _mm512_scalef_ps(_mm512_set1_ps(1.0f), n); }

inline Vec vkeep(Vec v, int lo, int hi, Vec other) {
    const auto below = [](int lane) { return lane <= 0 ? 0u : lane >= kLanes ? 0xFFFFu : (1u << lane) - 1u; };
    return _mm512_mask_blend_ps(static_cast<__mmask16>(below(hi) & ~below(lo)), other, v);
}

inline Vec vload_half(const half_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec vfrom_int(IntVec v) { return _mm512_cvtepi32_ps(v); }

inline IntVec ivload(const int32_t* p) { return _mm512_loadu_si512(p); }
inline IntVec ivset(int32_t x) { return _mm512_set1_epi32(x); }
inline IntVec ivadd(IntVec a, IntVec b) { return _mm512_add_epi32(a, b); }
inline IntVec ivsub(IntVec a, IntVec b) { return _mm512_sub_epi32(a, b); }
template <int N>
IntVec ivleft(IntVec v) {
    return _mm512_slli_epi32(v, N);
}

inline void store_integers(ActivationChunk& chunk, int row, const Vec (&integers)[4]) {
    const __m512i offset = _mm512_set1_epi16(-(1 << kInputOffsetBits)), low_byte = _mm512_set1_epi16(255);
    const auto pack = [&](int i) {
        const __m512i x = _mm512_packs_epi32(_mm512_cvtps_epi32(integers[i]), _mm512_cvtps_epi32(integers[i + 1]));
        return _mm512_xor_si512(x, offset);
    };
    // Packing works inside quarters of a register: four inputs of each vector end up side by side.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i first = pack(0), second = pack(2);
    const __m512i high = _mm512_packus_epi16(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(second, 8));
    const __m512i low = _mm512_packus_epi16(_mm512_and_si512(first, low_byte), _mm512_and_si512(second, low_byte));
    _mm512_store_si512(chunk.bytes.high[row], _mm512_permutexvar_epi32(order, high));
    _mm512_store_si512(chunk.bytes.low[row], _mm512_permutexvar_epi32(order, low));
}
inline int integer_at(const ActivationChunk& chunk, int row, int input) {
    return 256 * chunk.bytes.high[row][input] + chunk.bytes.low[row][input] - (1 << kInputOffsetBits);
}

// Sums of the upper and the lower bytes of activations; the offset that makes them unsigned is taken out at the end.
struct Products {
    struct Acc {
        IntVec high, low;
    };
    using Weights = __m512i;
    static Acc begin() { return {ivset(0), ivset(0)}; }
    static Weights load(const int8_t* step) { return _mm512_load_si512(step); }
    static Acc step(Acc acc, Weights weights, const ActivationChunk& chunk, int row, int step) {
        const auto four = [step](const uint8_t* inputs) {
            int32_t x;
            std::memcpy(&x, inputs + 4 * step, sizeof x);
            return _mm512_set1_epi32(x);
        };
        return {_mm512_dpbusd_epi32(acc.high, four(chunk.bytes.high[row]), weights),
                _mm512_dpbusd_epi32(acc.low, four(chunk.bytes.low[row]), weights)};
    }
    static IntVec end(Acc acc, IntVec sums) { return ivsub(ivadd(ivleft<8>(acc.high), acc.low), ivleft<kInputOffsetBits>(sums)); }
};

inline ShortVec sload(const void* p) { return _mm512_loadu_si512(p); }
inline void sstore(void* p, ShortVec v) { _mm512_storeu_si512(p, v); }
inline ShortVec sset(int16_t x) { return _mm512_set1_epi16(x); }
inline ShortVec sadd(ShortVec a, ShortVec b) { return _mm512_add_epi16(a, b); }
inline ShortVec smul(ShortVec a, ShortVec b) { return _mm512_mullo_epi16(a, b); }
inline ShortVec sand(ShortVec a, ShortVec b) { return _mm512_and_si512(a, b); }
inline ShortVec sor(ShortVec a, ShortVec b) { return _mm512_or_si512(a, b); }
template <int N>
ShortVec sleft(ShortVec v) {
    return _mm512_slli_epi16(v, N);
}
template <int N>
ShortVec sright_unsigned(ShortVec v) {
    return _mm512_srli_epi16(v, N);
}
inline ShortVec sload_twice(const int16_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_or_si512(_mm512_slli_epi32(wide, 16), wide);
}

// bf16 is the upper half of an fp32. Adding just under half of its last place rounds to nearest; one more where the last
// bit is odd sends ties to even.
inline Vec vround_bf16(Vec v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i is_odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(is_odd, _mm512_set1_epi32(0x7FFF));
    const __mmask16 is_number = _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q);
    const __m512i rounded = _mm512_mask_add_epi32(bits, is_number, bits, bias);
    return _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(-0x10000)));
}
inline void vstore_bf16(bf16_t* p, Vec v) {
    const __m512i upper = _mm512_srli_epi32(_mm512_castps_si512(v), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(upper));
}
struct PairVec {
    Vec first, second;
};
inline PairVec vload_pairs(const bf16_t* p) {
    const __m512i pairs = _mm512_loadu_si512(p);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000)))};
}
template <int I>
void vstore_in_pairs(bf16_t* p, Vec v) {
    const __m512i bits = _mm512_castps_si512(v);
    if constexpr (I == 0) _mm512_mask_storeu_epi16(p, 0x55555555u, _mm512_srli_epi32(bits, 16));
    if constexpr (I == 1) _mm512_mask_storeu_epi16(p, 0xAAAAAAAAu, bits);
}
inline bool vany_above(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
inline Vec vzero_below(Vec v, Vec x, Vec limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), v);
}
inline Vec vshift_exponent(Vec v, Vec shifted) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(v), exponent));
}

}  // namespace ramet
