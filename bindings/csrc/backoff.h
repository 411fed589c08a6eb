#pragma once

#include <chrono>

#include <sched.h>
#include <time.h>

namespace orch_ccl {

// CPU time of the calling thread.
inline std::chrono::nanoseconds thread_cpu_time() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Backs off while polling: first spins (optional), then yields, then sleeps. Each polling thread has its own object.
//
// A thread that shares its core with others does not yield: a yield gives away a whole time slice, whereas a thread
// that sleeps soon gets the core back. With a busy process on each core, all_reduce of 100 MB took 0.42 of gloo's time
// with sleeps and 0.6 to 0.8 with yields (2 ranks, EPYC of Zen 3, one run each). A futex instead of the sleeps took
// 0.57 to 1.36, depending on how long a rank spins first.
class Backoff {
 public:
  // `spin_first`: keep the core for kSpinTime before yielding.
  explicit Backoff(bool spin_first) : spin_first_(spin_first) {}

  // Call after each poll. `progressed`: an operation has completed in this poll.
  void pause(bool progressed) {
    const auto now = Clock::now();
    const auto cpu_time = thread_cpu_time();
    if (now - last_pause_end_ - (cpu_time - cpu_time_) > kContentionDelay)
      contended_until_ = now + kContentionMemory;
    if (progressed || cpu_time - cpu_time_ > kDataMovedCpuTime)
      last_progress_ = now;
    else
      back_off(now);
    last_pause_end_ = Clock::now();
    cpu_time_ = thread_cpu_time();
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Millis = std::chrono::milliseconds;

  // A poll that used more CPU time than this has moved data, so more data is likely to follow at once.
  static constexpr auto kDataMovedCpuTime = std::chrono::microseconds(5);
  // About one round trip between hosts. On a busy machine a yield may cost milliseconds.
  static constexpr auto kSpinTime = std::chrono::microseconds(200);
  static constexpr auto kYieldTime = Millis(5);
  static constexpr auto kShortSleepTime = Millis(2000); // idle time after which sleeps become longer
  static constexpr long kShortSleepNs = 20'000;
  static constexpr long kLongSleepNs = 500'000;
  // A thread that was off its core for this long, or whose yield took this long, shares the core with other threads.
  static constexpr auto kContentionDelay = std::chrono::microseconds(50);
  // Sleep instead of yielding for this long after contention was seen: long enough for the next operations, too.
  static constexpr auto kContentionMemory = Millis(100);

  bool contended() const { return Clock::now() < contended_until_; }

  void back_off(Clock::time_point now) {
    const auto idle = now - last_progress_;
    if (spin_first_ && idle < kSpinTime) {
      __builtin_ia32_pause();
    } else if (idle < kYieldTime && !contended()) {
      sched_yield();
      if (spin_first_ && Clock::now() - now > kContentionDelay)
        contended_until_ = now + kContentionMemory;
    } else {
      const timespec sleep{0, idle < kShortSleepTime ? kShortSleepNs : kLongSleepNs};
      nanosleep(&sleep, nullptr);
    }
  }

  const bool spin_first_;
  Clock::time_point last_progress_ = Clock::now();
  Clock::time_point last_pause_end_ = Clock::now();
  std::chrono::nanoseconds cpu_time_ = thread_cpu_time(); // at last_pause_end_
  // Of the thread and not of this object, because a short operation ends before the contention does.
  inline static thread_local Clock::time_point contended_until_;
};

} // namespace orch_ccl
