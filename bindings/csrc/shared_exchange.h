#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>

#include "exchange.h"
#include "heap.h"
#include "presence.h"
#include "shared_segment.h"
#include "step.h"

namespace orch_ccl {

// This rank and `rank` do not ask for the same.
struct OtherCall : std::runtime_error {
  explicit OtherCall(int rank) : runtime_error("ranks call different collectives"), rank(rank) {}
  const int rank;
};

// One rank's end of a group's segment. An exchange takes rounds; in each a rank does three acts:
//
//   stage   copy to its slot what the others need of it
//   reduce  combine its share of the data of all ranks, in the order of the ranks, to the result and to its slot
//   copy    take the others' shares of the result out of their slots
//
// and none of them waits: step() does what can be done now. A tensor that is in its rank's heap needs no slot: the others
// read it where it is, and write to it what all_reduce makes of their shares. A slot is used again kSlots rounds later, so that the
// ranks may be at different acts of different rounds. Every rank gets the same bits, because each number of the
// result is computed once, or (short messages) by all in the same order.
class SharedExchanges {
 public:
  // `heaps`: none if the ranks do not see each other's.
  SharedExchanges(std::shared_ptr<Segment> segment, Heaps heaps, int rank);

  bool has_heaps() const { return !heaps_->empty(); }

  // Called after an error. The other ranks have stopped accessing this rank's tensors when it returns; see leave() in
  // presence.h.
  void leave(const std::function<bool(int)>& alive) { orch_ccl::leave(*segment_, rank_, alive); }

  // The steps of a group are tested in the order in which they were begun here. test() raises OtherCall,
  // RankLeft and InvalidPlace.
  std::shared_ptr<Step> begin(const Exchange& exchange);

 private:
  size_t place_of(const Exchange& exchange) const;
  std::shared_ptr<Routes> routes(const Exchange& exchange, bool in_heap);

  const std::shared_ptr<Segment> segment_;
  const std::shared_ptr<const Heaps> heaps_;
  const int rank_;
  // Of each kind and about this length: what a byte takes depends on both.
  std::map<std::pair<int, int>, std::shared_ptr<Routes>> routes_;
  uint64_t rounds_ = 0; // of all that was begun
};

} // namespace orch_ccl
