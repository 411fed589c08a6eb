#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "identity.h"
#include "shared_exchange.h"

namespace orch_ccl {

// True unless ORCH_CCL_SHARED_MEMORY is 0, which must be the same on all ranks.
bool sharing_allowed();

// What the ranks of a group agreed upon: all of them use shared memory, or none.
struct Sharing {
  std::unique_ptr<SharedExchanges> exchanges; // or null
  std::string trouble; // of one host's ranks that cannot
  bool crowded = false; // more ranks than cores: who waits must let the others run
  std::string no_heaps; // why one host's ranks do not see each other's, if so
};

// Where it was asked for, every rank calls it. Raises what the store raises, if a rank does not come until the deadline.
Sharing share_memory(
    c10d::Store& store, int rank, const std::vector<Identity>& members, std::chrono::steady_clock::time_point deadline);

} // namespace orch_ccl
