#include "shared_exchange.h"

#include <utility>

#include "presence.h"
#include "striped_transfer.h"

namespace orch_ccl {
namespace {

int count_binary_digits(size_t number) {
  int count = 0;
  for (; number > 0; number /= 2)
    ++count;
  return count;
}

} // namespace

SegmentAccess::SegmentAccess(std::shared_ptr<Segment> segment, std::shared_ptr<const Heaps> heaps, int rank)
    : segment_(std::move(segment)), heaps_(std::move(heaps)), rank_(rank) {}

std::shared_ptr<Transfer> SegmentAccess::begin(const Exchange& exchange) {
  const size_t heap_offset = heap_offset_of(exchange);
  auto transfer = std::make_shared<Transfer>(
      segment_, routes(exchange, heap_offset != kNotInHeap), rank_,
      ExchangeData(segment_, heaps_, rank_, exchange, heap_offset, rounds_), rounds_);
  rounds_ = transfer->end();
  return transfer;
}

// Returns the offset of this rank's input in its heap, if the other ranks can read it there.
size_t SegmentAccess::heap_offset_of(const Exchange& exchange) const {
  if (heaps_->empty())
    return kNotInHeap;
  switch (exchange.kind) {
    case Exchange::all_reduce: // the other ranks write the result to where they read the input
      return exchange.in == exchange.out ? Heap::get().heap_offset_of(exchange.in, exchange.bytes) : kNotInHeap;
    case Exchange::reduce_scatter: {
      const size_t bytes_to_last_part = exchange.whole_bytes() * (segment_->ranks() - 1);
      return Heap::get().heap_offset_of(exchange.in, bytes_to_last_part + exchange.bytes);
    }
    case Exchange::all_gather: return Heap::get().heap_offset_of(exchange.in, exchange.bytes);
    default: return kNotInHeap;
  }
}

// broadcast and reduce use the routes of all_gather and all_reduce: in them a rank does not see the costs of the
// others.
std::shared_ptr<RouteSelector> SegmentAccess::routes(const Exchange& exchange, bool in_heap) {
  const auto measured_kind = exchange.kind == Exchange::broadcast ? Exchange::all_gather
      : exchange.kind == Exchange::reduce               ? Exchange::all_reduce
                                                        : exchange.kind;
  const int kind = measured_kind + (in_heap ? Exchange::kKinds : 0);
  const int digits = count_binary_digits(exchange.bytes);
  auto& selector = routes_[{kind, digits}];
  if (!selector)
    selector = std::make_shared<RouteSelector>(segment_->best_route(kind, digits));
  return selector;
}

SharedExchanges::SharedExchanges(const std::vector<std::shared_ptr<Segment>>& segments, Heaps heaps, int rank)
    : heaps_(std::make_shared<Heaps>(std::move(heaps))), rank_(rank) {
  for (const auto& segment : segments)
    segments_.push_back(std::make_unique<SegmentAccess>(segment, heaps_, rank));
}

void SharedExchanges::leave(const std::function<bool(int)>& alive) {
  for (const auto& access : segments_)
    orch_ccl::leave(access->segment(), rank_, alive);
}

std::shared_ptr<Pollable> SharedExchanges::begin(const Exchange& exchange) {
  const int stripes = count_stripes(exchange, threads());
  if (stripes == 1)
    return segments_[0]->begin(exchange);
  std::vector<std::shared_ptr<Transfer>> transfers;
  for (int stripe = 0; stripe < stripes; ++stripe)
    transfers.push_back(segments_[stripe]->begin(stripe_of(exchange, stripe, stripes)));
  return std::make_shared<StripedTransfer>(std::move(transfers));
}

} // namespace orch_ccl
