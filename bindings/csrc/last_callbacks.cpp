#include "last_callbacks.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "callbacks.h"
#include "proc_stat.h"
#include "torch_compat.h"

// A thread of gloo releases an operation shortly after its waiters have continued, and with it the state of its caller
// (at::ThreadLocalState), which may hold Python objects. Our callback threads do the same. If the interpreter has begun
// to exit by then, it ends the thread by unwinding its stack; a destructor stops the unwinding, and the process aborts
// with "terminate called without an active exception". (Python 3.14 suspends such a thread instead.)

namespace orch_ccl {
namespace {

namespace fs = std::filesystem;
using Millis = std::chrono::milliseconds;

constexpr auto kMaxCallbackWait = Millis(5000); // on a busy machine the threads may wait long for a core
constexpr auto kThreadPollInterval = Millis(5);
constexpr int kRequiredIdlePolls = 3; // in a single poll a thread may be asleep briefly, for example waiting for a lock
constexpr auto kGracePeriod = Millis(50); // for threads that we cannot identify

std::vector<std::string> callback_threads() {
  const auto process = read_proc_stat("/proc/self");
  const auto main = std::to_string(getpid());
  const std::string name = kGlooThreadName ? kGlooThreadName : process ? process->name : "";
  std::vector<std::string> out;
  std::error_code gone;
  for (const auto& thread : fs::directory_iterator("/proc/self/task", gone))
    if (const auto stat = read_proc_stat(thread.path());
        stat && (stat->name == name || stat->name == kCallbackThreadName) && thread.path().filename() != main)
      out.push_back(thread.path());
  return out;
}

bool is_asleep(const std::string& thread) {
  const auto stat = read_proc_stat(thread);
  return !stat || stat->state == 'S';
}

} // namespace

void wait_for_last_callbacks() {
  std::this_thread::sleep_for(kGracePeriod);
  const auto threads = callback_threads();
  const auto deadline = std::chrono::steady_clock::now() + kMaxCallbackWait;
  for (int idle_polls = 0;
       !threads.empty() && idle_polls < kRequiredIdlePolls && std::chrono::steady_clock::now() < deadline;) {
    std::this_thread::sleep_for(kThreadPollInterval);
    idle_polls = std::all_of(threads.begin(), threads.end(), is_asleep) ? idle_polls + 1 : 0;
  }
}

} // namespace orch_ccl
