#include "pool.hpp"

#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gemwright {

namespace {

// How often an idle worker looks before it sleeps: some 20 microseconds.
constexpr int kLooks = 1000;

inline void pause_briefly() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

Pool::Pool(int num_threads) : num_threads_(num_threads < 1 ? 1 : num_threads) {}

Pool::~Pool() {
    if (process_ != getpid()) {
        // A fork copied the handles of threads that do not exist here: nothing to wait for.
        for (std::thread& worker : workers_) worker.detach();
        return;
    }
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stops_ = true;
        round_.fetch_add(1);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void Pool::start_workers() {
    for (std::thread& worker : workers_) worker.detach();
    workers_.clear();
    num_working_ = 0;
    num_asleep_ = 0;
    process_ = getpid();
    for (int thread = 1; thread < num_threads_; thread++) workers_.emplace_back([this, thread] { work(thread); });
}

void Pool::run(int64_t num_tasks, const Task& task) {
    if (num_tasks <= 0) return;
    if (num_threads_ == 1 || num_tasks == 1) {
        // Alone: but not beside a run of another caller, whose thread 0 uses the same scratch.
        std::lock_guard<std::mutex> alone(one_run_);
        for (int64_t index = 0; index < num_tasks; index++) task(index, 0);
        return;
    }
    std::lock_guard<std::mutex> alone(one_run_);
    if (process_ != getpid()) start_workers();
    task_ = &task;
    num_tasks_ = num_tasks;
    next_.store(0, std::memory_order_relaxed);
    num_working_.store(num_threads_ - 1, std::memory_order_relaxed);
    round_.fetch_add(1);
    if (num_asleep_.load() > 0) {
        std::lock_guard<std::mutex> lock(mutex_);
        wake_.notify_all();
    }
    take_tasks(task, num_tasks, 0);
    // The others end within one task's time; where one has not even been woken, the system may want this core for it.
    for (int looks = 0; num_working_.load(std::memory_order_acquire) > 0; looks++) {
        if (looks < kLooks) {
            pause_briefly();
        } else {
            std::this_thread::yield();
        }
    }
}

void Pool::take_tasks(const Task& task, int64_t num_tasks, int thread) {
    for (;;) {
        const int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
        if (index >= num_tasks) return;
        task(index, thread);
    }
}

void Pool::work(int thread) {
    uint64_t seen = 0;
    for (;;) {
        int looks = 0;
        while (round_.load(std::memory_order_acquire) == seen) {
            if (looks++ < kLooks) {
                pause_briefly();
                continue;
            }
            std::unique_lock<std::mutex> lock(mutex_);
            num_asleep_.fetch_add(1);
            wake_.wait(lock, [&] { return round_.load() != seen; });
            num_asleep_.fetch_sub(1);
        }
        seen = round_.load(std::memory_order_acquire);
        if (stops_) return;
        take_tasks(*task_, num_tasks_, thread);
        num_working_.fetch_sub(1, std::memory_order_release);
    }
}

}  // namespace gemwright
