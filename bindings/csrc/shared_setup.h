#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "identity.h"
#include "shared_exchange.h"

namespace orch_ccl {

// Returns whether ORCH_CCL_SHARED_MEMORY is not 0. It must be the same on all ranks.
bool sharing_allowed();

// What the ranks of a group have agreed on. Either all of them use shared memory or none.
struct Sharing {
  std::unique_ptr<SharedExchanges> exchanges; // or null
  std::string failure_reason; // why ranks of one host cannot share memory, or empty
  bool oversubscribed = false; // more ranks than cores: a waiting rank must let the others run
  std::string no_heaps_reason; // why ranks of one host cannot map each other's heaps, or empty
};

// Sets up shared memory. Called by all ranks when they create a group, if sharing_allowed(). Throws the exceptions of
// the store if a rank does not respond by the deadline.
Sharing share_memory(
    c10d::Store& store, int rank, const std::vector<Identity>& members, std::chrono::steady_clock::time_point deadline);

} // namespace orch_ccl
