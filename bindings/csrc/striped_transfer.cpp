#include "striped_transfer.h"

#include "helpers.h"

namespace orch_ccl {

StripedTransfer::StripedTransfer(std::vector<std::shared_ptr<Transfer>> transfers) : remaining_(transfers.size()) {
  for (auto& transfer : transfers)
    stripes_.push_back(std::make_unique<Stripe>(std::move(transfer)));
}

bool StripedTransfer::test(bool may_spin) {
  const bool moved = advance(0, may_spin);
  if (failed_) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::rethrow_exception(error_);
  }
  if (finished())
    return true;
  if (moved)
    wake_helpers(shared_from_this());
  return false;
}

bool StripedTransfer::advance(size_t first, bool may_spin) {
  for (size_t i = 0; i < stripes_.size() && !failed_; ++i) {
    auto& stripe = *stripes_[(first + i) % stripes_.size()];
    if (stripe.busy.exchange(true, std::memory_order_acquire))
      continue;
    const bool moved = test_stripe(stripe, may_spin);
    stripe.busy.store(false, std::memory_order_release);
    if (moved)
      return true;
  }
  return false;
}

bool StripedTransfer::test_stripe(Stripe& stripe, bool may_spin) {
  if (stripe.done)
    return false;
  try {
    stripe.done = stripe.transfer->test(may_spin);
  } catch (...) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!error_)
      error_ = std::current_exception();
    failed_ = true;
    return false;
  }
  if (stripe.done)
    remaining_.fetch_sub(1, std::memory_order_acq_rel);
  return stripe.done || stripe.transfer->advanced();
}

} // namespace orch_ccl
