#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <oneapi/ccl.hpp>

#include "pollable.h"

namespace orch_ccl {

// A part of an operation that completes later: an event of oneCCL or a transfer through shared memory. Used by the
// thread that drives operations, under the engine's lock.
class Event {
 public:
  Event(ccl::event event) : event_(std::move(event)) {}
  Event(std::shared_ptr<Pollable> pollable) : pollable_(std::move(pollable)) {}
  bool test(bool may_spin) { return pollable_ ? pollable_->test(may_spin) : event_->test(); }

 private:
  std::optional<ccl::event> event_;
  std::shared_ptr<Pollable> pollable_;
};

using Events = std::vector<Event>;

} // namespace orch_ccl
