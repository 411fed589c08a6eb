#include "process_exit.h"

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <thread>

#include <dlfcn.h>
#include <unistd.h>

#include "communicators.h"
#include "engine.h"
#include "fork_guard.h"
#include "groups.h"
#include "monitor.h"

// Communication libraries tend to hang when a process ends: MPI_Finalize waits for all ranks, also for one that has
// just failed. The exit handler therefore checks the exit status first.
//
// - Not 0: publish the status in the store and exit at once, without finalizing MPI. The launcher notices a rank that
//   has left without MPI_Finalize and stops the others. No rank hangs, and the exit code of the job is not 0.
// - 0: wait until all ranks have reached this point, then finalize MPI. The wait sleeps instead of spinning, because
//   another rank may still be saving its model. This works with and without destroy_process_group.
//
// The handler uses on_exit(3), which passes the exit status, unlike Python's atexit. It is registered after oneCCL and
// MPI have started, so it runs before their static destructors. It ends the process itself, because those destructors
// may hang or abort.

namespace orch_ccl {
namespace {

// From the MPICH ABI, which libmpi.so.12 implements. oneCCL loads that library at run time, and this extension is built
// without MPI headers.
using MpiComm = int;
using MpiRequest = int;
constexpr MpiComm kCommWorld = 0x44000000;
constexpr long kMpiStatusBytes = 64; // at least sizeof(MPI_Status)

// The barrier before MPI_Finalize is polled at the short interval first, for ranks that end together.
constexpr long kShortPollMs = 1;
constexpr long kLongPollMs = 20;
constexpr int kShortPolls = 100;
constexpr int kMaxWaitForRanksMs = 3000;
constexpr long kStoreReadTimeMs = 50; // for the other ranks to read the last status from the store of this one

template <typename Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

void sleep_ms(long ms) {
  const timespec time{ms / 1000, (ms % 1000) * 1000000};
  nanosleep(&time, nullptr);
}

// Returns false if MPI is not in use.
bool finalize_mpi() {
  void* mpi = dlopen("libmpi.so.12", RTLD_NOLOAD | RTLD_LAZY);
  if (!mpi)
    return false;
  auto* initialized = symbol<int(int*)>(mpi, "MPI_Initialized");
  auto* finalized = symbol<int(int*)>(mpi, "MPI_Finalized");
  auto* ibarrier = symbol<int(MpiComm, MpiRequest*)>(mpi, "MPI_Ibarrier");
  auto* test = symbol<int(MpiRequest*, int*, void*)>(mpi, "MPI_Test");
  auto* finalize = symbol<int()>(mpi, "MPI_Finalize");
  if (!initialized || !finalized || !ibarrier || !test || !finalize)
    return false;
  int flag = 0;
  initialized(&flag);
  if (!flag)
    return false;
  finalized(&flag);
  if (flag)
    return true;
  MpiRequest request;
  char status[kMpiStatusBytes];
  ibarrier(kCommWorld, &request);
  for (int tries = 0, done = 0; !done; ++tries) {
    test(&request, &done, status);
    if (!done)
      sleep_ms(tries < kShortPolls ? kShortPollMs : kLongPollMs);
  }
  finalize();
  return true;
}

// Without MPI nothing needs finalizing, but this process may still be sending the last bytes of the last collective,
// and the process that serves the store should not end first.
void wait_for_other_ranks() {
  for (int waited = 0; waited < kMaxWaitForRanksMs; waited += kLongPollMs) {
    bool all_ended = true;
    for (const auto& group : living_groups()) {
      auto store = group->store();
      try {
        for (int rank = 0; store && all_ended && rank < group->size(); ++rank)
          all_ended = store->check({"exit/" + std::to_string(rank)});
      } catch (...) {
        return; // the server has ended, so its rank had finished
      }
    }
    if (all_ended)
      break;
    sleep_ms(kLongPollMs);
  }
  sleep_ms(kStoreReadTimeMs);
}

void handle_exit(int status, void*) {
  if (in_forked_child())
    _exit(status); // the network belongs to the parent
  if (!transport_started())
    return;
  announce_exit(status);
  if (status == 0 && !finalize_mpi())
    wait_for_other_ranks();
  fflush(nullptr);
  _exit(status);
}

} // namespace

void install_exit_handler() {
  static std::once_flag once;
  std::call_once(once, [] { on_exit(handle_exit, nullptr); });
}

void run_exit_handler_first() {
  on_exit(handle_exit, nullptr);
}

} // namespace orch_ccl
