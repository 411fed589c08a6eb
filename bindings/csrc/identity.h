#pragma once

#include <string>
#include <vector>

namespace orch_ccl {

// Who a rank is, beyond its number: enough to recognise the same process in a later group, and to see
// from another process of the same host that it has died.
struct Identity {
  std::string host; // boot id and pid namespace: two containers on one machine differ
  std::string hostname; // for messages
  long pid = 0;
  unsigned long long start = 0; // clock ticks since boot; a recycled pid has another one

  static Identity of_this_process();
  // Raises std::runtime_error for any other text.
  static Identity parse(const std::string& text);
  std::string text() const;
  bool same_host(const Identity& other) const { return host == other.host; }
  // Only meaningful for processes of this host. A zombie counts as dead, and so does a process that dumps core.
  bool alive() const;
};

bool on_one_host(const std::vector<Identity>& members);

} // namespace orch_ccl
