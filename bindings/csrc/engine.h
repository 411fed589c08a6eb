#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "work.h"

namespace orch_ccl {

// Drives every operation of this process. oneCCL makes progress only while somebody tests its events,
// so either a thread that waits for a result does it (the fast way: no thread switch), or, while nobody
// waits, the communication thread, which leaves the core to the computation as much as it can.
class Engine {
 public:
  static Engine& get();

  void submit(const WorkPtr& work);
  // Returns false if `timeout` (0: none) passed first.
  bool drive(CclWork& work, Millis timeout);
  // Ends all operations of a group with this error, and the group with them.
  void fail_group(Group& group, const std::string& reason);

  // What is going on, for the monitor.
  std::vector<WorkPtr> pending();
  // The interpreter is about to end. Gives what is in flight a last chance, so that another rank does
  // not wait for our part of it. After that, no thread of ours may touch a future or a tensor again:
  // both may belong to Python objects.
  void close(Millis patience);
  // For the monitor: false once closed; else close() waits until the lock is released.
  bool open(std::unique_lock<std::mutex>& lock);

 private:
  Engine();
  struct Done {
    WorkPtr work;
    std::exception_ptr error;
  };
  void communicate();
  bool progress(std::vector<Done>& done);
  void settle(std::vector<Done>& done);
  void complete_future(WorkPtr work);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<Lane, std::deque<WorkPtr>> lanes_;
  std::atomic<int> waiters_{0};
  std::atomic<size_t> pending_{0}; // not completed by oneCCL yet
  std::atomic<size_t> unsettled_{0}; // those, and the ones whose futures are being completed
  std::mutex observers_;
  std::atomic<bool> closed_{false};
};

} // namespace orch_ccl
