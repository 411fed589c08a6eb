#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <oneapi/ccl.hpp>

#include "step.h"

namespace orch_ccl {

// What an operation waits for: oneCCL's event, or a step of our own.
class Event {
 public:
  Event(ccl::event event) : event_(std::move(event)) {}
  Event(std::shared_ptr<Step> step) : step_(std::move(step)) {}
  bool test(bool keen) { return step_ ? step_->test(keen) : event_->test(); }

 private:
  std::optional<ccl::event> event_;
  std::shared_ptr<Step> step_;
};

using Events = std::vector<Event>;

} // namespace orch_ccl
