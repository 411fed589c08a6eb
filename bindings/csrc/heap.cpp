#include "heap.h"

#include <algorithm>
#include <system_error>

#include <pthread.h>
#include <unistd.h>

#include "fork_guard.h"

namespace orch_ccl {
namespace {

// Every rank of a host maps those of all others, and has 128 TB of addresses for them.
constexpr size_t kMostAddresses = size_t{256} << 30;

size_t heap_bytes() {
  const size_t memory = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return std::min(kMostAddresses, memory / kPage * kPage);
}

// One mapping of each, however many groups there are. Its descriptor stays open, to map more of it.
std::shared_ptr<MemoryFile> heap_of_other(const std::string& id, pid_t pid) {
  static std::mutex mutex;
  static auto* known = new std::map<std::pair<std::string, pid_t>, std::weak_ptr<MemoryFile>>;
  std::lock_guard<std::mutex> lock(mutex);
  auto& entry = (*known)[{id, pid}];
  if (auto file = entry.lock())
    return file;
  auto file = std::make_shared<MemoryFile>(id, pid);
  if (file->bytes() > kMostAddresses)
    throw std::runtime_error("the heap of process " + std::to_string(pid) + " is too long");
  file->keep_from_children();
  entry = file;
  return file;
}

} // namespace

Heap::Heap() : file_(heap_bytes()), free_{{kPage, file_.bytes() - kPage}} {}

// It is never destroyed: tensors may be there to the process's end.
Heap& Heap::own() {
  static Heap* heap = [] {
    auto* made = new Heap;
    static Heap* one = made;
    pthread_atfork(nullptr, nullptr, [] { one->file_.detach(); });
    return made;
  }();
  return *heap;
}

void* Heap::take(size_t bytes) {
  if (in_forked_child())
    return nullptr;
  const size_t needed = std::max<size_t>(1, (bytes + kPage - 1) / kPage) * kPage;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(free_.begin(), free_.end(), [&](const auto& one) { return one.second >= needed; });
  if (found == free_.end())
    return nullptr;
  const auto [place, length] = *found;
  try {
    file_.map_to(place + needed);
  } catch (const std::system_error&) {
    return nullptr;
  }
  free_.erase(found);
  if (length > needed)
    free_[place + needed] = length - needed;
  taken_[place] = needed;
  return file_.at(place);
}

void Heap::give_back(void* memory) {
  if (in_forked_child()) // somebody may have held the lock at the fork
    return;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto taken = taken_.extract(static_cast<char*>(memory) - file_.at(0));
  add_free(taken.key(), taken.mapped());
}

void Heap::add_free(size_t place, size_t bytes) {
  auto next = free_.lower_bound(place);
  if (next != free_.end() && place + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin())
    if (const auto before = std::prev(next); before->first + before->second == place) {
      before->second += bytes;
      return;
    }
  free_[place] = bytes;
}

size_t Heap::place_of(const void* memory, size_t bytes) const {
  const auto place = reinterpret_cast<uintptr_t>(memory) - reinterpret_cast<uintptr_t>(file_.at(0));
  return place < file_.bytes() && bytes <= file_.bytes() - place ? place : kNowhere;
}

Heaps::Heaps(int rank, const std::vector<std::string>& ids, const std::vector<Identity>& members) {
  for (int other = 0; other < static_cast<int>(ids.size()); ++other)
    files_.push_back(other == rank ? nullptr : heap_of_other(ids[other], static_cast<pid_t>(members[other].pid)));
}

// Each comparison is such that it cannot overflow, whatever `place` is.
char* Heaps::at(int rank, size_t place, size_t offset, size_t bytes) const {
  auto& file = *files_[rank];
  const size_t end = file.bytes();
  if (place < kPage || place > end || offset > end - place || bytes > end - place - offset)
    throw InvalidPlace(rank);
  file.map_to(place + offset + bytes);
  return file.at(place + offset);
}

} // namespace orch_ccl
