// Counts how often a driver overtakes a thread that waits for the same mutex.
#include "fair_mutex.h"

#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

using namespace orch_ccl;

namespace {

constexpr int kTurns = 100;
constexpr int kWork = 20'000; // iterations under the lock, some 10 us

void work() {
  for (int i = 0; i < kWork; ++i)
    asm volatile("");
}

} // namespace

int main() {
  FairMutex mutex;
  std::atomic<bool> done{false};
  int overtaken = 0;
  int holders = 0; // a plain number: a data race if two threads hold the mutex at once
  // With all cores busy a thread that is woken runs late, when the driver may have the mutex again.
  std::vector<std::thread> threads(std::thread::hardware_concurrency());
  for (auto& thread : threads)
    thread = std::thread([&] {
      while (!done)
        work();
    });
  threads.emplace_back([&] {
    while (!done) {
      const DriverLock lock(mutex);
      ++holders;
      overtaken += mutex.waiters() > 0; // began to wait between the driver's check and its lock
      work();
    }
  });
  for (int turn = 0; turn < kTurns; ++turn) {
    std::this_thread::sleep_for(std::chrono::microseconds(200)); // the driver has it again
    std::lock_guard<FairMutex> lock(mutex);
    ++holders;
  }
  done = true;
  for (auto& thread : threads)
    thread.join();
  const bool fair = overtaken <= kTurns;
  if (fair)
    std::printf("fine\n");
  else
    std::printf("overtaken %d times in %d turns\n", overtaken, kTurns);
  return fair ? 0 : 1;
}
