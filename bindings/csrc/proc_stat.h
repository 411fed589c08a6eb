#pragma once

#include <optional>
#include <string>

namespace orch_ccl {

// The state of a process or thread, from the file `stat` of its folder in /proc; see proc(5).
struct ProcStat {
  std::string name;
  char state = 0; // for example 'R', 'S' or 'Z'
  unsigned long long start = 0; // clock ticks since boot
};

// Returns nothing if the process or thread has ended.
std::optional<ProcStat> read_proc_stat(const std::string& folder);

// Returns whether a process is writing a core dump: it runs no code, but exists until the dump is complete.
bool is_dumping_core(const std::string& folder);

// Returns "" if the file cannot be read.
std::string first_line(const std::string& path);

} // namespace orch_ccl
