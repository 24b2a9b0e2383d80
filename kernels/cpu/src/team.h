// The threads of one step: how they meet, and how they share work out.
//
// A step is one OpenMP parallel region. Inside it the threads stay together by barriers that spin: a layer has several,
// some ten microseconds apart, and waking a sleeping thread costs more than that. A thread that has waited longer than
// any phase takes yields: its partner was taken off its core, and may be waiting for this one. Where there are more threads
// than cores that is so from the start.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace ramet {

struct Range {
    int begin, end;
};

// Thread `thread`'s share of `count` equal pieces of work; the shares are contiguous and differ by one at most.
inline Range share_of(int count, int thread, int num_threads) {
    return {static_cast<int>(static_cast<int64_t>(count) * thread / num_threads),
            static_cast<int>(static_cast<int64_t>(count) * (thread + 1) / num_threads)};
}

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Barrier {
public:
    explicit Barrier(int num_threads)
        : spins_(num_threads > static_cast<int>(std::thread::hardware_concurrency()) ? kFewSpins : kManySpins) {}

    void wait(int num_threads) {
        if (num_threads == 1) return;
        const uint32_t round = round_.load(std::memory_order_relaxed);
        if (num_waiting_.fetch_add(1, std::memory_order_acq_rel) == num_threads - 1) {
            num_waiting_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
            if (spins < spins_) {
                pause_briefly();
            } else {
                std::this_thread::yield();
            }
        }
    }

private:
    static constexpr int kFewSpins = 50, kManySpins = 4000;
    const int spins_;
    alignas(64) std::atomic<int> num_waiting_{0};
    alignas(64) std::atomic<uint32_t> round_{0};
};

// One thread's place in the team.
struct Member {
    int thread, num_threads;
    Barrier& barrier;

    void wait() const { barrier.wait(num_threads); }
    Range share(int count) const { return share_of(count, thread, num_threads); }
};

// Runs work(member) on every thread of a team, this one included. OpenMP may give fewer threads than asked for, so the
// number is what the team really has.
template <typename Work>
void run_team(int num_threads, const Work& work) {
    Barrier barrier(num_threads);
#ifdef _OPENMP
    if (num_threads > 1) {
#pragma omp parallel num_threads(num_threads)
        work(Member{omp_get_thread_num(), omp_get_num_threads(), barrier});
        return;
    }
#endif
    (void)num_threads;
    work(Member{0, 1, barrier});
}

}  // namespace ramet
