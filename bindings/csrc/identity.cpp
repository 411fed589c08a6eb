#include "identity.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include <unistd.h>

#include "proc_stat.h"

namespace orch_ccl {
namespace {

std::string link_target(const char* path) {
  char target[256];
  const ssize_t size = readlink(path, target, sizeof(target));
  return size > 0 ? std::string(target, static_cast<size_t>(size)) : "?";
}

} // namespace

Identity Identity::of_this_process() {
  Identity self;
  self.host = first_line("/proc/sys/kernel/random/boot_id") + "/" + link_target("/proc/self/ns/pid");
  char name[256] = "?";
  gethostname(name, sizeof(name) - 1);
  self.hostname = name[0] ? name : "?";
  self.pid = getpid();
  if (const auto stat = read_proc_stat("/proc/self"))
    self.start = stat->start;
  return self;
}

std::string Identity::text() const {
  return host + " " + hostname + " " + std::to_string(pid) + " " + std::to_string(start);
}

Identity Identity::parse(const std::string& text) {
  Identity out;
  std::istringstream in(text);
  in >> out.host >> out.hostname >> out.pid >> out.start;
  if (!in || out.pid <= 0)
    throw std::runtime_error("'" + text + "' does not describe a process");
  return out;
}

bool on_one_host(const std::vector<Identity>& members) {
  return std::all_of(members.begin(), members.end(), [&](const auto& member) { return member.same_host(members[0]); });
}

bool Identity::alive() const {
  const auto folder = "/proc/" + std::to_string(pid);
  const auto stat = read_proc_stat(folder);
  return stat && stat->start == start && stat->state != 'Z' && stat->state != 'X' && !is_dumping_core(folder);
}

} // namespace orch_ccl
