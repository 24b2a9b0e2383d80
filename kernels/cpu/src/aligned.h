// Memory: arrays that start on a cache line and keep what they once grew to, and large regions on huge pages.
#pragma once
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace ramet {

constexpr size_t kCacheLine = 64;

// Scratch memory of trivial objects. `resize` does not keep contents; it only ever grows, so a step that is no larger
// than those before it allocates nothing. New memory is zeroed: whoever computes on padding meets finite numbers.
template <typename T>
class AlignedArray {
public:
    static_assert(std::is_trivially_copyable<T>::value, "contents are moved as bytes");
    AlignedArray() = default;
    AlignedArray(const AlignedArray&) = delete;
    AlignedArray& operator=(const AlignedArray&) = delete;
    ~AlignedArray() { std::free(data_); }

    void resize(size_t count) {
        if (count <= capacity_) return;
        const size_t bytes = (count * sizeof(T) + kCacheLine - 1) / kCacheLine * kCacheLine;
        void* memory = nullptr;
        if (posix_memalign(&memory, kCacheLine, bytes) != 0) throw std::bad_alloc();
        std::memset(memory, 0, bytes);
        std::free(data_);
        data_ = static_cast<T*>(memory);
        capacity_ = count;
    }
    T* data() { return data_; }
    const T* data() const { return data_; }
    T& operator[](size_t idx) { return data_[idx]; }
    const T& operator[](size_t idx) const { return data_[idx]; }

private:
    T* data_ = nullptr;
    size_t capacity_ = 0;
};

// A zeroed region that the operating system backs page by page as it is written, with pages of 2 MiB where it has them:
// weights and KV blocks are read all over, and small pages would spend the time on address translation.
// Returns null when there is no such memory: the system refuses at once what is plainly more than it has.
inline void* map_region(size_t bytes) {
#if defined(__linux__)
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
#else
    void* memory = nullptr;
    if (posix_memalign(&memory, kCacheLine, bytes) != 0) return nullptr;
    std::memset(memory, 0, bytes);
    return memory;
#endif
}

inline void unmap_region(void* memory, size_t bytes) {
#if defined(__linux__)
    if (memory != nullptr) munmap(memory, bytes);
#else
    (void)bytes;
    std::free(memory);
#endif
}

}  // namespace ramet
