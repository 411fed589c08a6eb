#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "transfer.h"

namespace orch_ccl {

// One rank's part in an exchange that is divided into stripes, which several threads advance at the same time: the
// thread that drives operations, and helpers (helpers.h), which it wakes while data moves. No thread waits for another
// one: a stripe that a helper has left, because its core was needed, is advanced by the next thread that is free.
// The result does not depend on which thread advances which stripe.
class StripedTransfer final : public Pollable, public std::enable_shared_from_this<StripedTransfer> {
 public:
  explicit StripedTransfer(std::vector<std::shared_ptr<Transfer>> transfers);

  // Under the engine's lock. Throws what a stripe has thrown, on whichever thread.
  bool test(bool may_spin) override;
  // For any thread: tests the stripes that no thread is testing, from number `first` on, until data of one has moved.
  // Returns whether it has.
  bool advance(size_t first, bool may_spin);
  // No stripe is left to advance.
  bool finished() const { return remaining_.load(std::memory_order_acquire) == 0 || failed_; }
  size_t stripes() const { return stripes_.size(); }

 private:
  struct Stripe {
    explicit Stripe(std::shared_ptr<Transfer> transfer) : transfer(std::move(transfer)) {}
    const std::shared_ptr<Transfer> transfer;
    std::atomic<bool> busy{false}; // a thread is testing it; that thread may read and write `done`
    bool done = false;
  };

  bool test_stripe(Stripe& stripe, bool may_spin);

  std::vector<std::unique_ptr<Stripe>> stripes_;
  std::atomic<size_t> remaining_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_; // guards error_
  std::exception_ptr error_;
};

} // namespace orch_ccl
