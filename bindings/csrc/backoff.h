#pragma once

#include <chrono>

#include <sched.h>
#include <time.h>

namespace orch_ccl {

// Processor time of the calling thread.
inline std::chrono::nanoseconds processor_time() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// What a thread does between two polls: it spins (optional), then yields, then sleeps. Each thread has its own object.
// A thread whose core others want as well does not yield: a yield costs it a whole slice of theirs, and a sleeper soon
// gets the core back. With a busy process on each core, all_reduce of 100 MB took 0.42 of gloo's time with sleeps and
// 0.6 to 0.8 with yields (2 ranks, EPYC of Zen 3, one run each). A futex in place of the sleeps took 0.57 to 1.36,
// depending on how long a rank spins first.
class Backoff {
 public:
  explicit Backoff(bool spin_first) : spin_first_(spin_first) {}

  void pause(bool progressed) {
    const auto now = Clock::now();
    const auto used = processor_time();
    if (now - paused_ - (used - used_) > kContended)
      contended_until_ = now + kContendedFor;
    if (progressed || used - used_ > kDataMovedCpuTime)
      since_ = now;
    else
      back_off(now);
    paused_ = Clock::now();
    used_ = processor_time();
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Millis = std::chrono::milliseconds;

  // A poll that cost more processor time than this has moved data, and more will follow at once.
  static constexpr auto kDataMovedCpuTime = std::chrono::microseconds(5);
  // About a round trip between hosts.
  static constexpr auto kSpinTime = std::chrono::microseconds(200);
  static constexpr auto kYieldTime = Millis(5);
  static constexpr auto kShortSleepTime = Millis(2000);
  // A thread that was without its core for this long, or got it back this late from a yield, shares it.
  static constexpr auto kContended = std::chrono::microseconds(50);
  static constexpr auto kContendedFor = Millis(100);

  bool contended() const { return Clock::now() < contended_until_; }

  void back_off(Clock::time_point now) {
    const auto idle = now - since_;
    if (spin_first_ && idle < kSpinTime) {
      __builtin_ia32_pause();
    } else if (idle < kYieldTime && !contended()) {
      sched_yield();
      if (spin_first_ && Clock::now() - now > kContended)
        contended_until_ = now + kContendedFor;
    } else {
      const timespec time{0, idle < kShortSleepTime ? 20'000 : 500'000}; // ns
      nanosleep(&time, nullptr);
    }
  }

  const bool spin_first_;
  Clock::time_point since_ = Clock::now(); // of the last progress
  Clock::time_point paused_ = Clock::now(); // the end of the last pause
  std::chrono::nanoseconds used_ = processor_time(); // until then
  // Longer than a short operation, so that the next one knows.
  inline static thread_local Clock::time_point contended_until_;
};

} // namespace orch_ccl
