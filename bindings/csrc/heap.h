#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "identity.h"
#include "memory_file.h"

namespace orch_ccl {

constexpr size_t kNowhere = SIZE_MAX;

// Memory of this process for tensors that the other ranks of its host read and write where they are. Its file is as long
// as the machine's memory; what was ever used of it is mapped and stays allocated. Any thread may call take() and
// give_back(); they take the heap's own lock.
class Heap {
 public:
  // This process's. Raises what MemoryFile raises.
  static Heap& own();

  const std::string& id() const { return file_.id(); }
  // Null where there is no room, and in a forked child, because the memory is its parent's.
  void* take(size_t bytes);
  void give_back(void* memory);
  // Where it is for the others, or kNowhere.
  size_t place_of(const void* memory, size_t bytes) const;

 private:
  Heap();
  void add_free(size_t place, size_t bytes);

  MemoryFile file_;
  std::mutex mutex_;
  std::map<size_t, size_t> free_, taken_; // place -> bytes
};

// What this rank reads in another rank's shared memory cannot be true.
struct InvalidPlace : std::runtime_error {
  explicit InvalidPlace(int rank) : runtime_error("a place outside a rank's heap"), rank(rank) {}
  const int rank;
};

// The heaps of the other ranks of a group, or none.
class Heaps {
 public:
  Heaps() = default;
  // `ids` and `members` are those of all ranks. Raises what MemoryFile raises.
  Heaps(int rank, const std::vector<std::string>& ids, const std::vector<Identity>& members);

  bool empty() const { return files_.empty(); }
  // `bytes` bytes of another rank's heap, from `offset` in the tensor at `place` on. They are mapped if they are not yet.
  // Called under the engine's lock. Raises InvalidPlace if they are not all in the heap.
  char* at(int rank, size_t place, size_t offset, size_t bytes) const;

 private:
  std::vector<std::shared_ptr<MemoryFile>> files_; // null: this rank's own
};

} // namespace orch_ccl
