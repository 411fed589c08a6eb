#pragma once

namespace orch_ccl {

// An activity that advances only while it is tested, under the engine's lock.
class Pollable {
 public:
  virtual ~Pollable() = default;
  // Advances as far as possible without waiting and returns whether the activity has completed. `may_spin`: the calling
  // thread waits for the result anyway, so a short busy wait costs nothing.
  virtual bool test(bool may_spin) = 0;
};

} // namespace orch_ccl
