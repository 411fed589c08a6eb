#pragma once

#include <atomic>
#include <mutex>

#include <sched.h>
#include <time.h>

namespace orch_ccl {

// A mutex that one kind of thread takes again and again (a thread that drives operations), while others need it now and
// then (the monitor, a caller). std::mutex is not enough: the driver takes it again before a thread that it has woken
// gets a core, on a busy machine for minutes on end, so that a timeout or the death of a rank is not noticed.
class FairMutex : public std::mutex {
 public:
  // For all threads but the drivers.
  void lock() {
    ++waiting_;
    std::mutex::lock();
    --waiting_;
  }
  // For a thread that drives operations: lets those go first that wait in lock().
  void lock_after_others() {
    for (int tries = 0; waiting() > 0; ++tries)
      give_way(tries);
    std::mutex::lock();
  }
  int waiting() const { return waiting_.load(std::memory_order_relaxed); }

 private:
  static void give_way(int tries) {
    constexpr int yields = 16; // a thread on another core may need longer to wake up
    constexpr timespec pause{0, 20'000};
    if (tries < yields)
      sched_yield();
    else
      nanosleep(&pause, nullptr);
  }

  std::atomic<int> waiting_{0};
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
