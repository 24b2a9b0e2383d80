// One vector interface for every instruction set: 16 lanes of fp32 (Vec) or int32 (IntVec), 32 of int16 (ShortVec).
//
// What each file provides, all as inline functions:
//   vload vstore vset vzero vadd vsub vmul vdiv vfma(a, b, c) = a * b + c, vmax vmin
//   vsum vmaximum            over the lanes, in an order that is always the same
//   vfirst                   the first lane
//   vround                   to the nearest integer value, ties to even
//   vexp2i(n)                2 to the power of an integer-valued vector, by its exponent bits
//   vkeep(v, lo, hi, other)  lanes lo <= i < hi of v, the others from `other`
//   vload_half               16 fp16 values
//   vfrom_int                IntVec to Vec
//   ivload ivset ivadd ivsub ivleft<N>
//   store_integers(chunk, row, v)   64 integers of a token, in the form that Products takes; integer_at reads one back
//   Products                 sums of products of 16 outputs' weights with one token's inputs: begin, step, end
//   sload sstore sset sadd smul sand sor            ShortVec: 32 lanes of int16, modulo 2^16
//   sleft<N> sright_unsigned<N>                     shifts by N bits
//   sload_twice                                     16 values, each in two neighbouring lanes
//   For attention, whose operands are bf16:
//   vround_bf16              to the nearest bf16, ties to even; the result is still fp32. NaN stays NaN
//   vstore_bf16              16 values that are bf16 already
//   vload_pairs(p)           16 pairs of bf16: PairVec{the first ones, the second ones}
//   vstore_in_pairs<I>(p, v) element I of 16 pairs, from values that are bf16 already; the other element stays as it is
//   vany_above(a, b)         whether a > b in any lane
//   vzero_below(v, x, limit) v, but zero in lanes where x < limit
//   vshift_exponent(v, s)    v * 2^n by adding n to v's exponent, where s = n + 1.5 * 2^23: n is in the low bits of s
// and how many registers it has for tiles: kVectorRegisters, counted in Vec.
#pragma once
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#include "simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd_avx2.h"
#else
#include "simd_generic.h"
#endif

#include <type_traits>
#include <utility>

#define RAMET_INLINE inline __attribute__((always_inline))
#define RAMET_INLINED __attribute__((always_inline))  // of a lambda: [&](auto i) RAMET_INLINED { ... }

namespace ramet {

template <typename Body, int... Idx>
RAMET_INLINE void unroll_sequence(const Body& body, std::integer_sequence<int, Idx...>) {
    (body(std::integral_constant<int, Idx>{}), ...);
}

// body(0), body(1), ..., body(N - 1), with constants: an array that is only indexed by them lives in registers. (A loop
// that the compiler unrolls later does not do that: by then the array has been put in memory.)
template <int N, typename Body>
RAMET_INLINE void unroll(const Body& body) {
    unroll_sequence(body, std::make_integer_sequence<int, N>{});
}

// Asks for a cache line that is needed some microseconds later. Any address will do.
RAMET_INLINE void prefetch_far(const void* line) { __builtin_prefetch(line, 0, 2); }

inline Vec vclamp(Vec value, float limit) { return vmax(vmin(value, vset(limit)), vset(-limit)); }

// e^x for x <= 87, relative error about 2e-7; x below -87 gives e^-87.
// Cephes' reduction: x = n ln 2 + r with ln 2 in two parts, then a polynomial in r.
inline Vec vexp(Vec x) {
    x = vmax(x, vset(-87.0f));
    const Vec n = vround(vmul(x, vset(1.44269504f)));
    Vec r = vfma(n, vset(-0.693359375f), x);
    r = vfma(n, vset(2.12194440e-4f), r);
    Vec p = vset(1.9875691500e-4f);
    p = vfma(p, r, vset(1.3981999507e-3f));
    p = vfma(p, r, vset(8.3334519073e-3f));
    p = vfma(p, r, vset(4.1665795894e-2f));
    p = vfma(p, r, vset(1.6666665459e-1f));
    p = vfma(p, r, vset(5.0000001201e-1f));
    p = vfma(vmul(p, r), r, vadd(r, vset(1.0f)));
    return vmul(p, vexp2i(n));
}

}  // namespace ramet
