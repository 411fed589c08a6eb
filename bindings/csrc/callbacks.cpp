#include "callbacks.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "threads.h"

namespace orch_ccl {
namespace {

class Callbacks {
 public:
  void add(std::function<void()> call) {
    std::lock_guard<std::mutex> lock(mutex_);
    calls_.push_back(std::move(call));
    if (calls_.size() > idle_)
      std::thread([this] { serve(); }).detach();
    else
      wake_.notify_one();
  }

 private:
  [[noreturn]] void serve() {
    become_background_thread(kCallbackThreads);
    give_way();
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      ++idle_;
      wake_.wait(lock, [this] { return !calls_.empty(); });
      --idle_;
      auto call = std::move(calls_.front());
      calls_.pop_front();
      lock.unlock();
      call();
      call = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> calls_;
  size_t idle_ = 0; // threads that wait, also those that were just woken
};

} // namespace

void call_elsewhere(std::function<void()> call) {
  static auto* instance = new Callbacks; // its threads outlive static destructors
  instance->add(std::move(call));
}

} // namespace orch_ccl
