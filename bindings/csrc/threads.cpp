#include "threads.h"

#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace orch_ccl {
namespace {

// While the computation has the core, moving data on the same core only delays it; once it waits for a
// future, the core is free and these threads get all of it. (A thread that waits in Work.wait() drives
// the operations itself, at its own priority.)
constexpr int kPoliteness = 10;

// What is copied and computed here must not start a second team of OpenMP threads beside the
// computation's.
void stay_single_threaded() {
  using Set = void (*)(int);
  if (auto set = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "omp_set_num_threads")))
    set(1);
}

} // namespace

void become_background_thread(const char* name) {
  prctl(PR_SET_NAME, name);
  stay_single_threaded();
}

void give_way() {
  // The priority of this thread, in Linux, counted from the main one.
  setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, getpid()) + kPoliteness);
}

} // namespace orch_ccl
