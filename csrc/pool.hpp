// Threads that share the tasks of one operation, and sleep between operations.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace gemwright {

// A fork-join pool. The caller works too, as thread 0. A worker that has nothing to do looks again for some
// microseconds, which covers the gaps inside a step, and then sleeps: it never burns a core that others could use.
class Pool {
   public:
    // Called as task(index, thread) once for each index; thread is below num_threads() and no two calls share it at
    // the same time.
    using Task = std::function<void(int64_t, int)>;

    explicit Pool(int num_threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int num_threads() const { return num_threads_; }

    // Runs all tasks and returns when the last has ended. Tasks are handed out in rising order to whoever is free.
    // Calls from several threads wait for each other. A forked child starts workers of its own.
    void run(int64_t num_tasks, const Task& task);

   private:
    void start_workers();
    void work(int thread);
    void take_tasks(const Task& task, int64_t num_tasks, int thread);

    const int num_threads_;
    long process_ = 0;
    std::vector<std::thread> workers_;
    std::mutex one_run_;

    // What the workers see of the present run. `round_` changes last, and tells them that there is one.
    const Task* task_ = nullptr;
    int64_t num_tasks_ = 0;
    alignas(64) std::atomic<uint64_t> round_{0};
    alignas(64) std::atomic<int64_t> next_{0};
    alignas(64) std::atomic<int> num_working_{0};
    alignas(64) std::atomic<int> num_asleep_{0};
    bool stops_ = false;
    std::mutex mutex_;
    std::condition_variable wake_;
};

}  // namespace gemwright
