#pragma once

#include <atomic>
#include <mutex>

#include <sched.h>
#include <time.h>

namespace orch_ccl {

// A mutex for one kind of thread that locks it continuously (a thread that drives operations) and others that need it
// rarely (the monitor, a caller). With std::mutex the driver locks it again before a thread that it has woken gets a
// core; on a busy machine this continues for minutes, during which a timeout or the death of a rank is not noticed.
class FairMutex : public std::mutex {
 public:
  // For all threads that do not drive operations.
  void lock() {
    ++waiters_;
    std::mutex::lock();
    --waiters_;
  }
  // For a thread that drives operations: lets the threads that wait in lock() go first.
  void lock_after_others() {
    for (int attempt = 0; waiters() > 0; ++attempt)
      yield_or_sleep(attempt);
    std::mutex::lock();
  }
  int waiters() const { return waiters_.load(std::memory_order_relaxed); }

 private:
  static void yield_or_sleep(int attempt) {
    constexpr int max_yields = 16; // a thread on another core may need longer to wake up
    constexpr timespec sleep_time{0, 20'000};
    if (attempt < max_yields)
      sched_yield();
    else
      nanosleep(&sleep_time, nullptr);
  }

  std::atomic<int> waiters_{0};
};

// Holds the mutex as a driver until the end of the block.
class DriverLock {
 public:
  explicit DriverLock(FairMutex& mutex) : mutex_(mutex) { mutex_.lock_after_others(); }
  ~DriverLock() { mutex_.unlock(); }
  DriverLock(const DriverLock&) = delete;

 private:
  FairMutex& mutex_;
};

} // namespace orch_ccl
