// The vector interface of simd.h on AVX512 with VNNI: a Vec is one register.
#pragma once
#include <immintrin.h>

#include "layout.h"

namespace ramet {

using Vec = __m512;
using IntVec = __m512i;
using Bytes = __m512i;
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
inline void vstore_half(half_t* p, Vec v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline void vstore_int8(int8_t* p, Vec v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v)));
}
inline Vec vfrom_int(IntVec v) { return _mm512_cvtepi32_ps(v); }

inline Bytes bytes_load(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Bytes low_nibbles(Bytes v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
inline Bytes high_nibbles(Bytes v) { return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15)); }

// Unsigned weights times signed activations; the sum starts at what takes the weights' offset back out.
struct DotVnni {
    static IntVec begin(int32_t correction) { return _mm512_set1_epi32(correction); }
    static IntVec step(IntVec acc, Bytes weights, int32_t four_inputs) {
        return _mm512_dpbusd_epi32(acc, weights, _mm512_set1_epi32(four_inputs));
    }
    static IntVec end(IntVec acc, int32_t) { return acc; }
    using Acc = IntVec;
};
using Dot4 = DotVnni;
using Dot8 = DotVnni;

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
inline bool vany_above(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
inline Vec vzero_below(Vec v, Vec x, Vec limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), v);
}
inline Vec vshift_exponent(Vec v, Vec shifted) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(v), exponent));
}

}  // namespace ramet
