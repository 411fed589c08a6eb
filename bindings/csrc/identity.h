#pragma once

#include <string>
#include <vector>

namespace orch_ccl {

// Identifies a rank's process: enough to recognise it in a later group, and to notice from another process of the same
// host that it has died.
struct Identity {
  std::string host; // boot id and pid namespace: two containers on one machine differ
  std::string hostname; // for messages
  long pid = 0;
  unsigned long long start = 0; // clock ticks since boot; differs if the pid is reused

  static Identity of_this_process();
  // Parses the result of text(). Throws std::runtime_error for anything else.
  static Identity parse(const std::string& text);
  std::string text() const;
  bool same_host(const Identity& other) const { return host == other.host; }
  // Valid for processes of this host only. A zombie and a process that is writing a core dump count as dead.
  bool alive() const;
};

bool on_one_host(const std::vector<Identity>& members);

} // namespace orch_ccl
