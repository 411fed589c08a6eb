#include "shared_segment.h"

#include <algorithm>
#include <stdexcept>

namespace orch_ccl {
namespace {

constexpr size_t kMaxSlotBytes = 256 * 1024; // small enough for the slots in use to stay in the second-level cache
constexpr size_t kMaxTotalSlotBytes = 64 * 1024 * 1024; // of all ranks together
constexpr size_t kShareAlignment = 64; // a cache line
// The first page holds the token of the file, followed by the best routes.
constexpr size_t kBestRoutes = MemoryFile::kHeaderBytes;
constexpr int kMaxDigits = 64;

size_t round_up_to_pages(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

size_t header_bytes(int ranks) {
  return kPage + round_up_to_pages(ranks * sizeof(Progress));
}

size_t segment_bytes(int ranks) {
  return header_bytes(ranks) + round_up_to_pages(slot_bytes_for(ranks)) * kSlots * ranks;
}

} // namespace

size_t slot_bytes_for(int ranks) {
  const size_t equal_part = kMaxTotalSlotBytes / (ranks * kSlots);
  const size_t share = std::min(kMaxSlotBytes, equal_part) / ranks / kShareAlignment * kShareAlignment;
  return share * ranks; // a rank's share of a slot begins at a cache line
}

template <typename... Source>
Segment::Segment(int ranks, const Source&... source)
    : file_(source...), ranks_(ranks), slot_bytes_(slot_bytes_for(ranks)) {
  if (file_.bytes() != segment_bytes(ranks))
    throw std::runtime_error("the memory that rank 0 created has the wrong size for this group");
  file_.exclude_from_children();
  file_.map_to(file_.bytes());
}

std::shared_ptr<Segment> Segment::create(int ranks) {
  return std::shared_ptr<Segment>(new Segment(ranks, segment_bytes(ranks)));
}

std::shared_ptr<Segment> Segment::open(const std::string& id, pid_t creator, int ranks) {
  return std::shared_ptr<Segment>(new Segment(ranks, id, creator));
}

Progress& Segment::progress_of(int rank) const {
  return reinterpret_cast<Progress*>(file_.at(kPage))[rank];
}

std::atomic<Route>& Segment::best_route(int kind, int digits) const {
  return reinterpret_cast<std::atomic<Route>*>(file_.at(kBestRoutes))[kind * (kMaxDigits + 1) + digits];
}

char* Segment::slot(int rank, uint64_t round) const {
  const size_t number = rank * kSlots + round % kSlots;
  return file_.at(header_bytes(ranks_) + number * round_up_to_pages(slot_bytes_));
}

} // namespace orch_ccl
