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

// The end of a process is where communication libraries hang: MPI_Finalize waits for all ranks, also for
// one that has just raised. So we look at the exit status first.
//
// - Not 0: say so in the store and leave at once, without finalizing. The launcher sees a rank that left
//   MPI without farewell and stops the others: nobody hangs, and the job's exit code is not 0.
// - 0: wait until all ranks have come here (asleep, not spinning: another one may still be saving its
//   model), then finalize. This works with and without destroy_process_group.
//
// on_exit(3) is what tells the status; Python's atexit cannot. The handler is registered after oneCCL
// and MPI started, so it runs before their static destructors, and ends the process itself, because
// those destructors are what hangs or aborts.

namespace orch_ccl {
namespace {

// From the MPICH ABI, which libmpi.so.12 promises. oneCCL opens that library itself, at run time, and
// there are no MPI headers to build with.
using MpiComm = int;
using MpiRequest = int;
constexpr MpiComm kCommWorld = 0x44000000;
constexpr long kMpiStatusBytes = 64; // at least sizeof(MPI_Status)

template <typename Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

void sleep_ms(long ms) {
  const timespec time{ms / 1000, (ms % 1000) * 1000000};
  nanosleep(&time, nullptr);
}

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
  int yes = 0;
  initialized(&yes);
  if (!yes)
    return false;
  finalized(&yes);
  if (yes)
    return true;
  MpiRequest request;
  char status[kMpiStatusBytes];
  ibarrier(kCommWorld, &request);
  for (int tries = 0, done = 0; !done; ++tries) {
    test(&request, &done, status);
    if (!done)
      sleep_ms(tries < 100 ? 1 : 20);
  }
  finalize();
  return true;
}

// Without MPI nothing needs finalizing, but the last bytes of the last collective may still be on their
// way out of this process; and the one that serves the store should not go first.
void linger() {
  constexpr int limit_ms = 3000;
  for (int waited = 0; waited < limit_ms; waited += 20) {
    bool all = true;
    for (const auto& group : living_groups()) {
      auto store = group->store();
      try {
        for (int rank = 0; store && all && rank < group->size(); ++rank)
          all = store->check({"exit/" + std::to_string(rank)});
      } catch (...) {
        return; // the server has gone, so its rank was done
      }
    }
    if (all)
      break;
    sleep_ms(20);
  }
  sleep_ms(50); // let the others read the same
}

void leave(int status, void*) {
  if (in_forked_child())
    _exit(status); // nothing of the parent's network is ours to end
  if (!transport_started())
    return;
  announce_exit(status);
  if (status == 0 && !finalize_mpi())
    linger();
  fflush(nullptr);
  _exit(status);
}

} // namespace

void install_exit_handler() {
  static std::once_flag once;
  std::call_once(once, [] { on_exit(leave, nullptr); });
}

void leave_before_others() {
  on_exit(leave, nullptr);
}

} // namespace orch_ccl
