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

// A thread of gloo drops an operation a moment after the ones that waited for it went on, and with it what torch kept
// of its caller (at::ThreadLocalState), which may be of Python. So do ours, which run callbacks of futures. If the interpreter has begun to end by then, it
// ends the thread, by unwinding its stack; a destructor does not let that through, and the process aborts:
// "terminate called without an active exception". (Python 3.14 lets such a thread sleep.)

namespace orch_ccl {
namespace {

namespace fs = std::filesystem;
using Millis = std::chrono::milliseconds;

constexpr auto kLimit = Millis(5000); // on a busy machine they may wait long for a core
constexpr auto kBetween = Millis(5);
constexpr int kLooks = 3; // one may be asleep for a moment, as for a lock
constexpr auto kMoment = Millis(50); // for threads that we know nothing of

std::vector<std::string> threads_with_callbacks() {
  const auto process = proc_stat("/proc/self");
  const auto main = std::to_string(getpid());
  const std::string name = kGloosThreads ? kGloosThreads : process ? process->name : "";
  std::vector<std::string> out;
  std::error_code gone;
  for (const auto& thread : fs::directory_iterator("/proc/self/task", gone))
    if (const auto stat = proc_stat(thread.path());
        stat && (stat->name == name || stat->name == kCallbackThreads) && thread.path().filename() != main)
      out.push_back(thread.path());
  return out;
}

bool asleep(const std::string& thread) {
  const auto stat = proc_stat(thread);
  return !stat || stat->state == 'S';
}

} // namespace

void wait_for_last_callbacks() {
  std::this_thread::sleep_for(kMoment);
  const auto threads = threads_with_callbacks();
  const auto until = std::chrono::steady_clock::now() + kLimit;
  for (int looks = 0; !threads.empty() && looks < kLooks && std::chrono::steady_clock::now() < until;) {
    std::this_thread::sleep_for(kBetween);
    looks = std::all_of(threads.begin(), threads.end(), asleep) ? looks + 1 : 0;
  }
}

} // namespace orch_ccl
