#include "shared_exchange.h"

#include <utility>

#include "transfer.h"

namespace orch_ccl {
namespace {

int count_binary_digits(size_t number) {
  int count = 0;
  for (; number > 0; number /= 2)
    ++count;
  return count;
}

} // namespace

SharedExchanges::SharedExchanges(std::shared_ptr<Segment> segment, Heaps heaps, int rank)
    : segment_(std::move(segment)), heaps_(std::make_shared<Heaps>(std::move(heaps))), rank_(rank) {}

std::shared_ptr<Pollable> SharedExchanges::begin(const Exchange& exchange) {
  const size_t heap_offset = heap_offset_of(exchange);
  auto transfer = std::make_shared<Transfer>(
      segment_, routes(exchange, heap_offset != kNotInHeap), rank_,
      ExchangeData(segment_, heaps_, rank_, exchange, heap_offset, rounds_), rounds_);
  rounds_ = transfer->end();
  return transfer;
}

// Returns the offset of this rank's input in its heap, if the other ranks can read it there.
size_t SharedExchanges::heap_offset_of(const Exchange& exchange) const {
  if (heaps_->empty())
    return kNotInHeap;
  switch (exchange.kind) {
    case Exchange::all_reduce: // the other ranks write the result to where they read the input
      return exchange.in == exchange.out ? Heap::get().heap_offset_of(exchange.in, exchange.bytes) : kNotInHeap;
    case Exchange::reduce_scatter: return Heap::get().heap_offset_of(exchange.in, exchange.bytes * segment_->ranks());
    case Exchange::all_gather: return Heap::get().heap_offset_of(exchange.in, exchange.bytes);
    default: return kNotInHeap;
  }
}

// broadcast and reduce use the routes of all_gather and all_reduce: in them a rank does not see the costs of the
// others.
std::shared_ptr<RouteSelector> SharedExchanges::routes(const Exchange& exchange, bool in_heap) {
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

} // namespace orch_ccl
