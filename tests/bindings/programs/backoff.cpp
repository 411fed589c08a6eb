// Checks by a simulated clock what a thread does between two polls.
#include "backoff.h"

#include <cstdio>
#include <cstdlib>

using namespace orch_ccl;

namespace {

long now_ns = 1'000'000'000; // of all clocks except that of the thread
long used_ns = 0; // processor time of the thread
long yield_ns = 1'000; // until a yield returns
int yields = 0;
int sleeps = 0;
long last_sleep_ns = 0;

void compute(long ns) {
  now_ns += ns;
  used_ns += ns;
}

void check(bool holds, const char* what, int line) {
  if (!holds) {
    std::printf("line %d: %s\n", line, what);
    std::exit(1);
  }
}
#define CHECK(condition) check((condition), #condition, __LINE__)

// Polls without progress for this long, each poll costing 1 us of processor time.
void poll_for(Backoff& backoff, long ns) {
  yields = sleeps = 0;
  for (const long until = now_ns + ns; now_ns < until;) {
    compute(1'000);
    backoff.pause(/*progressed=*/false);
  }
}

} // namespace

// The linker uses these functions instead of those of the C library.
extern "C" int clock_gettime(clockid_t clock, timespec* time) {
  const long ns = clock == CLOCK_THREAD_CPUTIME_ID ? used_ns : now_ns;
  *time = {ns / 1'000'000'000, ns % 1'000'000'000};
  return 0;
}

extern "C" int sched_yield() noexcept {
  ++yields;
  now_ns += yield_ns;
  used_ns += yield_ns < 50'000 ? yield_ns : 0; // a long one is another thread's slice
  return 0;
}

extern "C" int nanosleep(const timespec* time, timespec*) {
  ++sleeps;
  last_sleep_ns = time->tv_nsec;
  now_ns += last_sleep_ns;
  return 0;
}

int main() {
  {
    Backoff backoff(/*spin_first=*/true);
    poll_for(backoff, 190'000);
    CHECK(yields == 0 && sleeps == 0);
    poll_for(backoff, 4'700'000);
    CHECK(yields > 1000 && sleeps == 0);
    poll_for(backoff, 1'000'000);
    CHECK(sleeps > 10);
    poll_for(backoff, 1'000'000'000);
    CHECK(sleeps > 10'000 && last_sleep_ns == 20'000);
    poll_for(backoff, 1'500'000'000);
    CHECK(last_sleep_ns == 500'000);
    backoff.pause(/*progressed=*/true);
    poll_for(backoff, 190'000);
    CHECK(yields == 0 && sleeps == 0);
  }
  {
    Backoff backoff(/*spin_first=*/false);
    poll_for(backoff, 190'000);
    CHECK(yields > 50 && sleeps == 0);
  }
  { // a poll that moves data counts as progress
    Backoff backoff(/*spin_first=*/true);
    poll_for(backoff, 4'000'000);
    compute(6'000);
    backoff.pause(/*progressed=*/false);
    poll_for(backoff, 190'000);
    CHECK(yields == 0 && sleeps == 0);
  }
  { // a thread that was without its core sleeps for 100 ms, and its next operation does, too
    Backoff backoff(/*spin_first=*/false);
    now_ns += 60'000;
    poll_for(backoff, 4'000'000);
    CHECK(yields == 0 && sleeps > 100);
    Backoff next(/*spin_first=*/false);
    poll_for(next, 4'000'000);
    CHECK(yields == 0 && sleeps > 100);
    now_ns += 100'000'000;
    Backoff later(/*spin_first=*/false);
    poll_for(later, 4'000'000);
    CHECK(yields > 1000 && sleeps == 0);
  }
  { // a yield that returns late
    Backoff backoff(/*spin_first=*/true);
    yield_ns = 4'000'000;
    poll_for(backoff, 4'900'000);
    CHECK(yields == 1 && sleeps > 10);
  }
  std::printf("fine\n");
  return 0;
}
