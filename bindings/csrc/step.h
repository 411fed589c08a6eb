#pragma once

namespace orch_ccl {

// Something under way that goes on while it is tested.
class Step {
 public:
  virtual ~Step() = default;
  // True once it is done. `keen`: whoever asks has nothing else to do with its core.
  virtual bool test(bool keen) = 0;
};

} // namespace orch_ccl
