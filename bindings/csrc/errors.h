#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace orch_ccl {

// What ends an operation, apart from errors of oneCCL. Thrown under the engine's lock while operations are driven; the
// engine turns each into a DistBackendError that names the operation and the group.

// A message, or a part of an all_to_all, has another size than its receiver expects. what() is the whole reason.
struct SizeMismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// This rank and `rank` call different collectives, or the same one with different arguments.
struct CollectiveMismatch : std::runtime_error {
  // `details`: both calls, for the error message; empty where only a hash of the other call is known.
  explicit CollectiveMismatch(int rank, std::string details = "")
      : runtime_error("ranks call different collectives"), rank(rank), details(std::move(details)) {}
  const int rank;
  const std::string details;
};

// A rank has left the group after an error, a timeout or abort(): its caller owns its tensors again.
struct RankLeft : std::runtime_error {
  explicit RankLeft(int rank) : runtime_error("a rank has left the group"), rank(rank) {}
  const int rank; // may be this rank
};

// The offset that another rank wrote to shared memory lies outside that rank's heap.
struct InvalidHeapOffset : std::runtime_error {
  explicit InvalidHeapOffset(int rank) : runtime_error("an offset outside a rank's heap"), rank(rank) {}
  const int rank;
};

} // namespace orch_ccl
