#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "errors.h"
#include "exchange.h"
#include "heap.h"
#include "pollable.h"
#include "shared_segment.h"
#include "transfer.h"

namespace orch_ccl {

// One rank's access to a shared memory segment of a group. An exchange is divided into rounds of three phases:
//
//   stage   copy the data that the other ranks need to this rank's slot
//   reduce  combine this rank's share of the data of all ranks, in the order of the ranks, and write it to the result
//           and to this rank's slot
//   copy    copy the other ranks' shares of the result from their slots
//
// No phase waits: Transfer::test() does what is possible at once. A tensor in its rank's heap needs no slot: the other
// ranks read it in place, and all_reduce writes their shares of the result to it. A slot is reused kSlots rounds later,
// so the ranks may be in different phases of different rounds. All ranks get the same bits, because each number of the
// result is computed once, or, for short tensors, by all ranks in the same order.
//
// Used under the engine's lock.
class SegmentAccess {
 public:
  SegmentAccess(std::shared_ptr<Segment> segment, std::shared_ptr<const Heaps> heaps, int rank);

  const Segment& segment() const { return *segment_; }
  // Begins an exchange. Those of a segment must be tested in the order in which they began. Transfer::test() throws
  // CollectiveMismatch, RankLeft and InvalidHeapOffset.
  std::shared_ptr<Transfer> begin(const Exchange& exchange);

 private:
  size_t heap_offset_of(const Exchange& exchange) const;
  std::shared_ptr<RouteSelector> routes(const Exchange& exchange, bool in_heap);

  const std::shared_ptr<Segment> segment_;
  const std::shared_ptr<const Heaps> heaps_;
  const int rank_;
  // By kind of exchange and binary digits of the length, because the cost per byte depends on both.
  std::map<std::pair<int, int>, std::shared_ptr<RouteSelector>> routes_;
  uint64_t rounds_ = 0; // of all exchanges so far
};

// One rank's access to the shared memory of a group. It has a segment for each thread with which a rank may move data:
// a long exchange is divided into stripes, one per segment, and the others use the first segment.
//
// Used under the engine's lock, except for leave().
class SharedExchanges {
 public:
  // `heaps`: empty if the ranks cannot map each other's heaps.
  SharedExchanges(const std::vector<std::shared_ptr<Segment>>& segments, Heaps heaps, int rank);

  bool has_heaps() const { return !heaps_->empty(); }
  int threads() const { return static_cast<int>(segments_.size()); }

  // Called by any thread after an error. When it returns, no thread of any rank accesses this rank's tensors; see
  // leave() in presence.h.
  void leave(const std::function<bool(int)>& alive);

  // Begins an exchange. Those of a group must be tested in the order in which they began. Pollable::test() throws
  // CollectiveMismatch, RankLeft and InvalidHeapOffset.
  std::shared_ptr<Pollable> begin(const Exchange& exchange);

 private:
  const std::shared_ptr<const Heaps> heaps_;
  const int rank_;
  std::vector<std::unique_ptr<SegmentAccess>> segments_;
};

} // namespace orch_ccl
