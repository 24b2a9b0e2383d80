// The matrix unit of newer server processors (AMX): permission, configuration, and who owns it.
//
// It has eight tile registers of 16 rows by 64 bytes, and one configuration serves all that is done with them here: a
// product is 16 rows by 16 columns by 64 bytes of depth (64 int8 or 32 bf16), with int32 or fp32 results.
//
// Where the processor has no AMX, `is_permitted` is false and nothing else here does anything.
#pragma once
#include <cstdint>

#if defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#define RAMET_HAS_AMX 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ramet::amx {

#if defined(RAMET_HAS_AMX)

constexpr int kTileRows = 16;
constexpr int kTileRowBytes = 64;

// The kernel saves the unit's large registers only for processes that asked for it.
inline bool request_permission() {
    constexpr int kArchReqXcompPerm = 0x1023, kXfeatureXtiledata = 18;
    return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}
inline bool is_permitted() {
    static const bool permitted = request_permission();
    return permitted;
}

struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t num_rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// A thread owns the unit between these two: `begin` before its first product of a step, `end` after its last.
inline void begin_thread() {
    if (!is_permitted()) return;
    static const TileConfig config;
    // GCC 12 does not see that the instruction reads the configuration, and would drop the writes to it.
    asm volatile("" ::"m"(config) : "memory");
    _tile_loadconfig(&config);
}
inline void end_thread() {
    if (is_permitted()) _tile_release();
}

#else

inline bool is_permitted() { return false; }
inline void begin_thread() {}
inline void end_thread() {}

#endif

}  // namespace ramet::amx
