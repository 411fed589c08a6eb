#include "threads.h"

#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace orch_ccl {
namespace {

// Moving data on the core of the computation delays the computation; once that waits for a future, the core is free and
// these threads get all of it. (A thread in Work.wait() drives the operations itself, at the priority that it has.)
constexpr int kNiceIncrement = 10;

// Copies and reductions on our threads must not start a second team of OpenMP threads.
void use_one_openmp_thread() {
  using Set = void (*)(int);
  if (auto set = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "omp_set_num_threads")))
    set(1);
}

} // namespace

void become_background_thread(const char* name) {
  prctl(PR_SET_NAME, name);
  use_one_openmp_thread();
}

void lower_priority() {
  // In Linux, setpriority() for process 0 applies to the calling thread only.
  setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, getpid()) + kNiceIncrement);
}

} // namespace orch_ccl
