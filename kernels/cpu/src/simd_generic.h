// The vector interface of simd.h in the compiler's own vectors (GCC and Clang), for every other processor. It has been
// compiled for ARM, but not run there.
#pragma once
#include <cmath>
#include <cstring>

#include "layout.h"

namespace ramet {

typedef float Vec __attribute__((vector_size(64)));
typedef int32_t IntVec __attribute__((vector_size(64)));
typedef int16_t ShortVec __attribute__((vector_size(64)));
typedef uint16_t UnsignedShortVec __attribute__((vector_size(64)));
#if defined(__ARM_NEON)
constexpr int kVectorRegisters = 8;
#else
constexpr int kVectorRegisters = 4;
#endif

inline Vec vload(const float* p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline void vstore(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
inline Vec vset(float x) { return Vec{} + x; }
inline Vec vzero() { return Vec{}; }
inline Vec vadd(Vec a, Vec b) { return a + b; }
inline Vec vsub(Vec a, Vec b) { return a - b; }
inline Vec vmul(Vec a, Vec b) { return a * b; }
inline Vec vdiv(Vec a, Vec b) { return a / b; }
inline Vec vselect(IntVec mask, Vec yes, Vec no) {
    return reinterpret_cast<Vec>((reinterpret_cast<IntVec>(yes) & mask) | (reinterpret_cast<IntVec>(no) & ~mask));
}
// Like the x86 instructions: the second argument where either is NaN.
inline Vec vmax(Vec a, Vec b) { return vselect(a > b, a, b); }
inline Vec vmin(Vec a, Vec b) { return vselect(a < b, a, b); }
inline Vec vabs(Vec a) { return reinterpret_cast<Vec>(reinterpret_cast<IntVec>(a) & 0x7FFFFFFF); }
inline Vec vfma(Vec a, Vec b, Vec c) {
#if defined(__ARM_NEON)
    Vec result;
    for (int lane = 0; lane < kLanes; ++lane) result[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
    return result;
#else
    return a * b + c;  // two roundings: there is no instruction to call, and -ffp-contract=off keeps it so everywhere
#endif
}
inline float vfirst(Vec v) { return v[0]; }
inline float vsum(Vec v) {
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; ++lane) v[lane] += v[lane + width];
    return v[0];
}
inline float vmaximum(Vec v) {
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; ++lane) v[lane] = v[lane] > v[lane + width] ? v[lane] : v[lane + width];
    return v[0];
}
// Adding and taking away 1.5 * 2^23 rounds what is smaller than 2^22 to an integer, ties to even.
inline Vec vround(Vec v) {
    const Vec magic = vset(12582912.0f);
    return (v + magic) - magic;
}
inline IntVec vto_int(Vec v) { return __builtin_convertvector(v, IntVec); }
inline Vec vexp2i(Vec n) { return reinterpret_cast<Vec>((vto_int(n) + 127) << 23); }

inline Vec vkeep(Vec v, int lo, int hi, Vec other) {
    const IntVec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return vselect((lane >= lo) & (lane < hi), v, other);
}

// fp16 by its bits: a power of two moves the exponent, which treats subnormal numbers rightly as well.
inline float half_to_float(half_t half) {
    const uint32_t magnitude = static_cast<uint32_t>(half & 0x7FFF) << 13;
    uint32_t bits = magnitude;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    value *= 5.192296858534828e+33f;  // 2^112
    std::memcpy(&bits, &value, sizeof bits);
    if (magnitude >= 0x0F800000u) bits |= 0x7F800000u;  // infinity or NaN
    bits |= static_cast<uint32_t>(half & 0x8000) << 16;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
inline Vec vload_half(const half_t* p) {
    Vec v;
    for (int lane = 0; lane < kLanes; ++lane) v[lane] = half_to_float(p[lane]);
    return v;
}
inline Vec vfrom_int(IntVec v) { return __builtin_convertvector(v, Vec); }

inline IntVec ivload(const int32_t* p) {
    IntVec v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline IntVec ivset(int32_t x) { return IntVec{} + x; }
inline IntVec ivadd(IntVec a, IntVec b) { return a + b; }
inline IntVec ivsub(IntVec a, IntVec b) { return a - b; }
template <int N>
IntVec ivleft(IntVec v) {
    return v * (1 << N);
}

inline void store_integers(ActivationChunk& chunk, int row, const Vec (&integers)[4]) {
    for (int input = 0; input < kChunkInputs; ++input) {
        chunk.values[row][place_in_pairs(input)] = static_cast<int16_t>(integers[input / kLanes][input % kLanes]);
    }
}
inline int integer_at(const ActivationChunk& chunk, int row, int input) {
    return chunk.values[row][place_in_pairs(input)];
}

struct Products {
    using Acc = IntVec;
    using Weights = const int8_t*;
    static Acc begin() { return IntVec{}; }
    static Weights load(const int8_t* step) { return step; }
    static Acc step(Acc acc, Weights weights, const ActivationChunk& chunk, int row, int step) {
        const int16_t* x = chunk.values[row] + 4 * step;
        int32_t sums[kLanes];
        for (int lane = 0; lane < kLanes; ++lane) {
            const int8_t* w = weights + 4 * lane;
            sums[lane] = w[0] * x[0] + w[1] * x[2] + w[2] * x[1] + w[3] * x[3];
        }
        return acc + ivload(sums);
    }
    static IntVec end(Acc acc, IntVec) { return acc; }
};

inline ShortVec sload(const void* p) {
    ShortVec v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline void sstore(void* p, ShortVec v) { std::memcpy(p, &v, sizeof v); }
inline ShortVec sset(int16_t x) { return ShortVec{} + x; }
// Sums and products wrap: unsigned lanes do so by definition.
inline ShortVec sadd(ShortVec a, ShortVec b) {
    return reinterpret_cast<ShortVec>(reinterpret_cast<UnsignedShortVec>(a) + reinterpret_cast<UnsignedShortVec>(b));
}
inline ShortVec smul(ShortVec a, ShortVec b) {
    return reinterpret_cast<ShortVec>(reinterpret_cast<UnsignedShortVec>(a) * reinterpret_cast<UnsignedShortVec>(b));
}
inline ShortVec sand(ShortVec a, ShortVec b) { return a & b; }
inline ShortVec sor(ShortVec a, ShortVec b) { return a | b; }
template <int N>
ShortVec sleft(ShortVec v) {
    return reinterpret_cast<ShortVec>(reinterpret_cast<UnsignedShortVec>(v) << N);
}
template <int N>
ShortVec sright_unsigned(ShortVec v) {
    return reinterpret_cast<ShortVec>(reinterpret_cast<UnsignedShortVec>(v) >> N);
}
inline ShortVec sload_twice(const int16_t* p) {
    ShortVec v;
    for (int lane = 0; lane < kLanes; ++lane) v[2 * lane] = v[2 * lane + 1] = p[lane];
    return v;
}

// bf16 is the upper half of an fp32. Adding just under half of its last place rounds to nearest; one more where the last
// bit is odd sends ties to even.
inline Vec vround_bf16(Vec v) {
    const IntVec bits = reinterpret_cast<IntVec>(v);
    const IntVec bias = ((bits >> 16) & 1) + 0x7FFF;
    return reinterpret_cast<Vec>((bits + (bias & (v == v))) & -0x10000);
}
inline void vstore_bf16(bf16_t* p, Vec v) {
    const IntVec bits = reinterpret_cast<IntVec>(v);
    for (int lane = 0; lane < kLanes; ++lane) p[lane] = static_cast<bf16_t>(static_cast<uint32_t>(bits[lane]) >> 16);
}
struct PairVec {
    Vec first, second;
};
// The first of a pair is the lower half of an int32: all processors that this is compiled for are little-endian.
inline PairVec vload_pairs(const bf16_t* p) {
    IntVec pairs;
    std::memcpy(&pairs, p, sizeof pairs);
    return {reinterpret_cast<Vec>(pairs << 16), reinterpret_cast<Vec>(pairs & -0x10000)};
}
template <int I>
void vstore_in_pairs(bf16_t* p, Vec v) {
    bf16_t values[kLanes];
    vstore_bf16(values, v);
    for (int lane = 0; lane < kLanes; ++lane) p[2 * lane + I] = values[lane];
}
inline bool vany_above(Vec a, Vec b) {
    const IntVec is_above = a > b;
    int any = 0;
    for (int lane = 0; lane < kLanes; ++lane) any |= is_above[lane];
    return any != 0;
}
inline Vec vzero_below(Vec v, Vec x, Vec limit) { return vselect(x < limit, vzero(), v); }
inline Vec vshift_exponent(Vec v, Vec shifted) {
    return reinterpret_cast<Vec>(reinterpret_cast<IntVec>(v) + (reinterpret_cast<IntVec>(shifted) << 23));
}

}  // namespace ramet
