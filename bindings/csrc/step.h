#pragma once

namespace orch_ccl {

// Something under way that goes on while it is tested.
class Step {
 public:
  virtual ~Step() = default;
  virtual bool test() = 0; // true once it is done
};

} // namespace orch_ccl
