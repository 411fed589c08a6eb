#include "heap.h"

#include <algorithm>
#include <system_error>

#include <pthread.h>
#include <unistd.h>

#include "fork_guard.h"

namespace orch_ccl {
namespace {

// Each rank maps the heaps of all other ranks of its host into an address space of 128 TB.
constexpr size_t kMaxHeapBytes = size_t{256} << 30;

size_t heap_bytes() {
  const size_t memory = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return std::min(kMaxHeapBytes, memory / kPage * kPage);
}

// Opens each heap once, for all groups. The descriptor stays open, so that more of the heap can be mapped.
std::shared_ptr<MemoryFile> map_heap_of(const std::string& id, pid_t pid) {
  static std::mutex mutex;
  static auto* files = new std::map<std::pair<std::string, pid_t>, std::weak_ptr<MemoryFile>>;
  std::lock_guard<std::mutex> lock(mutex);
  auto& entry = (*files)[{id, pid}];
  if (auto file = entry.lock())
    return file;
  auto file = std::make_shared<MemoryFile>(id, pid);
  if (file->bytes() > kMaxHeapBytes)
    throw std::runtime_error("the heap of process " + std::to_string(pid) + " is too large");
  file->exclude_from_children();
  entry = file;
  return file;
}

} // namespace

Heap::Heap() : file_(heap_bytes()), free_{{kPage, file_.bytes() - kPage}} {}

// Never destroyed: tensors may use it until the process ends.
Heap& Heap::get() {
  static Heap* heap = [] {
    static auto* created = new Heap;
    pthread_atfork(nullptr, nullptr, [] { created->file_.detach(); });
    return created;
  }();
  return *heap;
}

void* Heap::allocate(size_t bytes) {
  if (in_forked_child())
    return nullptr;
  const size_t needed = std::max<size_t>(1, (bytes + kPage - 1) / kPage) * kPage;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto range =
      std::find_if(free_.begin(), free_.end(), [&](const auto& candidate) { return candidate.second >= needed; });
  if (range == free_.end())
    return nullptr;
  const auto [heap_offset, length] = *range;
  try {
    file_.map_to(heap_offset + needed);
  } catch (const std::system_error&) {
    return nullptr;
  }
  free_.erase(range);
  if (length > needed)
    free_[heap_offset + needed] = length - needed;
  allocated_[heap_offset] = needed;
  return file_.at(heap_offset);
}

void Heap::deallocate(void* memory) {
  if (in_forked_child()) // another thread may have held the lock at the fork
    return;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto allocation = allocated_.extract(static_cast<char*>(memory) - file_.at(0));
  add_free(allocation.key(), allocation.mapped());
}

void Heap::add_free(size_t heap_offset, size_t bytes) {
  auto next = free_.lower_bound(heap_offset);
  if (next != free_.end() && heap_offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin())
    if (const auto before = std::prev(next); before->first + before->second == heap_offset) {
      before->second += bytes;
      return;
    }
  free_[heap_offset] = bytes;
}

size_t Heap::heap_offset_of(const void* memory, size_t bytes) const {
  const auto heap_offset = reinterpret_cast<uintptr_t>(memory) - reinterpret_cast<uintptr_t>(file_.at(0));
  return heap_offset < file_.bytes() && bytes <= file_.bytes() - heap_offset ? heap_offset : kNotInHeap;
}

Heaps::Heaps(int rank, const std::vector<std::string>& ids, const std::vector<Identity>& members) {
  for (int other = 0; other < static_cast<int>(ids.size()); ++other)
    files_.push_back(other == rank ? nullptr : map_heap_of(ids[other], static_cast<pid_t>(members[other].pid)));
}

// None of the comparisons can overflow, whatever `heap_offset` is.
char* Heaps::at(int rank, size_t heap_offset, size_t offset, size_t bytes) const {
  auto& file = *files_[rank];
  const size_t end = file.bytes();
  if (heap_offset < kPage || heap_offset > end || offset > end - heap_offset || bytes > end - heap_offset - offset)
    throw InvalidHeapOffset(rank);
  file.map_to(heap_offset + offset + bytes);
  return file.at(heap_offset + offset);
}

} // namespace orch_ccl
