// Checks which route RouteSelector selects for given costs of rounds.
#include "routes.h"

#include <cstdio>
#include <cstdlib>

using namespace orch_ccl;

namespace {

std::atomic<Route> best{Route::caches};
RouteSelector routes(best);
uint64_t done = 0;

// Each `every`th round is interrupted. Returns how many rounds went through the caches.
int rounds(int count, double caches, double memory, int every = 0) {
  int through = 0;
  const uint64_t first = routes.reserve_rounds(count);
  for (int at = 0; at < count; ++at, ++done) {
    const Route route = routes.route_for(first + at);
    through += route == Route::caches;
    const double cost = route == Route::caches ? caches : memory;
    routes.record(route, first + at, every && at % every == 0 ? 50 * cost : cost);
  }
  return through;
}

void expect(bool holds, const char* what) {
  if (!holds) {
    std::printf("%s: best %d after %lu rounds\n", what, static_cast<int>(routes.best()), done);
    std::exit(1);
  }
}

} // namespace

int main() {
  rounds(64, 1.0, 1.5);
  expect(routes.best() == Route::caches, "the caches are faster");
  expect(rounds(1024, 1.0, 1.5) >= 1024 * 98 / 100, "the slower route is seldom tried");
  rounds(16, 5.0, 1.5);
  expect(routes.best() == Route::memory, "the cores have been moved apart: seen at once");
  expect(rounds(1024, 5.0, 1.5) <= 1024 * 2 / 100, "the slower route is seldom tried, whichever it is");
  rounds(512, 1.0, 1.5);
  expect(routes.best() == Route::caches, "the cores have been moved together: seen at its next turn");
  rounds(2048, 1.0, 1.5, 3);
  expect(routes.best() == Route::caches, "a third of the rounds is interrupted");
  rounds(2048, 1.0, 0.95);
  expect(routes.best() == Route::caches, "about the same");
  std::puts("fine");
  return 0;
}
