#include "shared_exchange.h"

#include <utility>

#include "transfer.h"

namespace orch_ccl {
namespace {

// Binary ones.
int digits(size_t number) {
  int count = 0;
  for (; number > 0; number /= 2)
    ++count;
  return count;
}

} // namespace

SharedExchanges::SharedExchanges(std::shared_ptr<Segment> segment, Heaps heaps, int rank)
    : segment_(std::move(segment)), heaps_(std::make_shared<Heaps>(std::move(heaps))), rank_(rank) {}

std::shared_ptr<Step> SharedExchanges::begin(const Exchange& exchange) {
  const size_t place = place_of(exchange);
  auto transfer = std::make_shared<Transfer>(
      segment_, routes(exchange, place != kNowhere), rank_,
      ExchangeData(segment_, heaps_, rank_, exchange, place, rounds_), rounds_);
  rounds_ = transfer->end();
  return transfer;
}

// Of what this rank gives, if the others can read it there.
size_t SharedExchanges::place_of(const Exchange& exchange) const {
  if (heaps_->empty())
    return kNowhere;
  switch (exchange.kind) {
    case Exchange::all_reduce: // the others write to where they read
      return exchange.in == exchange.out ? Heap::own().place_of(exchange.in, exchange.bytes) : kNowhere;
    case Exchange::reduce_scatter: return Heap::own().place_of(exchange.in, exchange.bytes * segment_->ranks());
    case Exchange::all_gather: return Heap::own().place_of(exchange.in, exchange.bytes);
    default: return kNowhere;
  }
}

// What only one rank gives goes as what all give: it does not see what that costs the others.
std::shared_ptr<Routes> SharedExchanges::routes(const Exchange& exchange, bool in_heap) {
  const auto like = exchange.kind == Exchange::broadcast ? Exchange::all_gather
      : exchange.kind == Exchange::reduce               ? Exchange::all_reduce
                                                        : exchange.kind;
  const int kind = like + (in_heap ? Exchange::kKinds : 0);
  const int length = digits(exchange.bytes);
  auto& found = routes_[{kind, length}];
  if (!found)
    found = std::make_shared<Routes>(segment_->best_route(kind, length));
  return found;
}

} // namespace orch_ccl
