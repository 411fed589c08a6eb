#include "fork_guard.h"

#include <atomic>
#include <mutex>

#include <c10/util/Exception.h>
#include <pthread.h>

namespace orch_ccl {
namespace {
std::atomic<bool> forked{false};
}

void install_fork_guard() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
  });
}

bool in_forked_child() {
  return forked.load(std::memory_order_relaxed);
}

void require_parent_process() {
  TORCH_CHECK(
      !in_forked_child(),
      "ccl: this process was forked after init_process_group, and a forked child cannot use its "
      "parent's connections. Communicate in the parent, or start the child with the 'spawn' method.");
}

} // namespace orch_ccl
