#pragma once

#include <optional>
#include <string>

namespace orch_ccl {

// Of a process or a thread: what proc(5) says in the file `stat` of its folder below /proc.
struct ProcStat {
  std::string name;
  char state = 0;
  unsigned long long start = 0;
};

// Nothing if it has ended.
std::optional<ProcStat> proc_stat(const std::string& folder);

// Whether a process is writing its core dump: it runs no code any more, but exists until the dump is complete.
bool is_dumping_core(const std::string& folder);

std::string first_line(const std::string& path);

} // namespace orch_ccl
