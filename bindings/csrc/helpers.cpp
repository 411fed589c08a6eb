#include "helpers.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "threads.h"

namespace orch_ccl {
namespace {

// A helper that finds nothing to do sleeps after this time. It is woken when data moves again.
constexpr auto kIdleTime = std::chrono::microseconds(100);

class Helpers {
 public:
  void wake(const std::shared_ptr<StripedTransfer>& transfer) {
    if (threads_ + 1 >= transfer->stripes() && sleeping_ == 0)
      return;
    std::lock_guard<std::mutex> lock(mutex_);
    transfer_ = transfer;
    ++calls_;
    for (; threads_ + 1 < transfer->stripes(); ++threads_)
      std::thread([this, number = threads_ + 1] { run_thread(number); }).detach();
    wake_.notify_all();
  }

 private:
  [[noreturn]] void run_thread(size_t number) {
    become_background_thread("ccl-helper");
    lower_priority(); // helpers take what the computation leaves idle
    std::unique_lock<std::mutex> lock(mutex_);
    for (uint64_t seen = 0;;) {
      ++sleeping_;
      wake_.wait(lock, [&] { return calls_ != seen; });
      --sleeping_;
      seen = calls_;
      auto transfer = transfer_.lock();
      lock.unlock();
      if (transfer)
        advance(*transfer, number);
      transfer = nullptr;
      lock.lock();
    }
  }

  static void advance(StripedTransfer& transfer, size_t number) {
    using Clock = std::chrono::steady_clock;
    auto last_move = Clock::now();
    while (!transfer.finished()) {
      if (transfer.advance(number, /*may_spin=*/false))
        last_move = Clock::now();
      else if (Clock::now() - last_move > kIdleTime)
        return;
      else
        __builtin_ia32_pause();
    }
  }

  std::mutex mutex_; // guards transfer_ and calls_
  std::condition_variable wake_;
  std::weak_ptr<StripedTransfer> transfer_; // of the last call of wake()
  uint64_t calls_ = 0;
  std::atomic<size_t> threads_{0}, sleeping_{0};
};

} // namespace

void wake_helpers(const std::shared_ptr<StripedTransfer>& transfer) {
  static auto* helpers = new Helpers; // its threads outlive static destructors
  helpers->wake(transfer);
}

} // namespace orch_ccl
