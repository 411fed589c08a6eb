#include "callbacks.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "groups.h"
#include "threads.h"

namespace orch_ccl {
namespace {

class CallbackThreads {
 public:
  void add(std::function<void()> callback) {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(callback));
    if (queue_.size() > idle_threads_)
      std::thread([this] { run_thread(); }).detach();
    else
      wake_.notify_one();
  }

 private:
  [[noreturn]] void run_thread() {
    become_background_thread(kCallbackThreadName);
    if (have_one_core_on_one_host())
      lower_priority();
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      ++idle_threads_;
      wake_.wait(lock, [this] { return !queue_.empty(); });
      --idle_threads_;
      auto callback = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      callback();
      callback = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  size_t idle_threads_ = 0; // including threads that were just woken
};

} // namespace

void run_on_callback_thread(std::function<void()> callback) {
  static auto* instance = new CallbackThreads; // its threads outlive static destructors
  instance->add(std::move(callback));
}

} // namespace orch_ccl
