#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "memory_file.h"

namespace orch_ccl {

constexpr size_t kNowhere = SIZE_MAX;

// Memory of this process for tensors that the other ranks of its host read and write where they are. It is as long as
// the machine's memory and takes what was used of it, which it keeps, as ranks do with all their memory.
class Heap {
 public:
  // This process's. Raises what MemoryFile raises.
  static Heap& own();

  const std::string& id() const { return file_.id(); }
  // Null where there is no room, and in a forked child, whose parent goes on with it.
  void* take(size_t bytes);
  void give_back(void* memory);
  // Where it is for the others, or kNowhere.
  size_t place_of(const void* memory, size_t bytes) const;
  char* at(size_t place) const { return file_.at(place); }

 private:
  Heap();
  void add_free(size_t place, size_t bytes);

  MemoryFile file_;
  std::atomic<size_t> used_to_; // beyond it nothing was ever taken
  std::mutex mutex_;
  std::map<size_t, size_t> free_, taken_; // place -> bytes
};

// Those of a group's ranks, or none.
class Heaps {
 public:
  Heaps() = default;
  // Raises what MemoryFile raises.
  Heaps(int rank, const std::vector<std::string>& ids);

  bool empty() const { return begins_.empty(); }
  char* at(int rank, size_t place) const { return begins_[rank] + place; }

 private:
  std::vector<char*> begins_;
  std::vector<std::shared_ptr<MemoryFile>> others_;
};

} // namespace orch_ccl
