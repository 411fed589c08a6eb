#include "shared_segment.h"

#include <algorithm>
#include <stdexcept>

namespace orch_ccl {
namespace {

constexpr size_t kLongestSlot = 256 * 1024; // with the others' it stays in the second-level cache
constexpr size_t kMost = 64 * 1024 * 1024; // bytes in all
constexpr size_t kLine = 64;
// The first page: the token, and from here on the best routes.
constexpr size_t kBestRoutes = MemoryFile::kHeaderBytes;
constexpr int kDigits = 64;

size_t pages(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

size_t header_bytes(int ranks) {
  return kPage + pages(ranks * sizeof(Progress));
}

size_t segment_bytes(int ranks) {
  return header_bytes(ranks) + pages(slot_bytes_for(ranks)) * kSlots * ranks;
}

} // namespace

size_t slot_bytes_for(int ranks) {
  const size_t fair = kMost / (ranks * kSlots);
  const size_t share = std::min(kLongestSlot, fair) / ranks / kLine * kLine;
  return share * ranks; // a rank's share of a slot begins at a cache line
}

template <typename... Source>
Segment::Segment(int ranks, const Source&... source)
    : file_(source...), ranks_(ranks), slot_bytes_(slot_bytes_for(ranks)) {
  if (file_.bytes() != segment_bytes(ranks))
    throw std::runtime_error("what rank 0 made is not the group's memory");
  file_.keep_from_children();
  file_.map_to(file_.bytes());
}

std::shared_ptr<Segment> Segment::make(int ranks) {
  return std::shared_ptr<Segment>(new Segment(ranks, segment_bytes(ranks)));
}

std::shared_ptr<Segment> Segment::open(const std::string& id, pid_t creator, int ranks) {
  return std::shared_ptr<Segment>(new Segment(ranks, id, creator));
}

Progress& Segment::of(int rank) const {
  return reinterpret_cast<Progress*>(file_.at(kPage))[rank];
}

std::atomic<Route>& Segment::best_route(int kind, int digits) const {
  return reinterpret_cast<std::atomic<Route>*>(file_.at(kBestRoutes))[kind * (kDigits + 1) + digits];
}

char* Segment::slot(int rank, uint64_t round) const {
  const size_t number = rank * kSlots + round % kSlots;
  return file_.at(header_bytes(ranks_) + number * pages(slot_bytes_));
}

} // namespace orch_ccl
