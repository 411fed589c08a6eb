#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "errors.h"
#include "identity.h"
#include "memory_file.h"

namespace orch_ccl {

constexpr size_t kNotInHeap = SIZE_MAX;

// Memory of this process for tensors that the other ranks of its host read and write in place. Its file is as long as
// the machine's memory; the part that was ever used is mapped and stays allocated. Any thread may call allocate() and
// deallocate(), which lock the heap's mutex.
class Heap {
 public:
  // Returns the heap of this process. Throws the exceptions of MemoryFile if it cannot be created.
  static Heap& get();

  const std::string& id() const { return file_.id(); }
  // Returns null if there is not enough free memory, and in a forked child, because the memory is its parent's.
  void* allocate(size_t bytes);
  void deallocate(void* memory);
  // Returns the offset by which other ranks find this memory, or kNotInHeap.
  size_t heap_offset_of(const void* memory, size_t bytes) const;

 private:
  Heap();
  void add_free(size_t heap_offset, size_t bytes);

  MemoryFile file_;
  std::mutex mutex_;
  std::map<size_t, size_t> free_, allocated_; // offset -> bytes; guarded by mutex_
};

// The heaps of the other ranks of a group, mapped by this process. Empty if the ranks share no heaps.
class Heaps {
 public:
  Heaps() = default;
  // `ids` and `members` are those of all ranks. Throws the exceptions of MemoryFile.
  Heaps(int rank, const std::vector<std::string>& ids, const std::vector<Identity>& members);

  bool empty() const { return files_.empty(); }
  // Returns the address of `bytes` bytes in another rank's heap, at `offset` in the tensor at `heap_offset`, and maps
  // them if necessary. Called under the engine's lock. Throws InvalidHeapOffset if they are not entirely in the heap.
  char* at(int rank, size_t heap_offset, size_t offset, size_t bytes) const;

 private:
  std::vector<std::shared_ptr<MemoryFile>> files_; // indexed by rank; null for this rank
};

} // namespace orch_ccl
