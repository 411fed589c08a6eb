#include "groups.h"

#include <algorithm>
#include <mutex>

namespace orch_ccl {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<Group>> groups;
};

Registry& registry() {
  static auto* instance = new Registry; // never destroyed: it is used while the process exits
  return *instance;
}

} // namespace

void register_group(const std::shared_ptr<Group>& group) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  auto& groups = registry().groups;
  groups.erase(
      std::remove_if(groups.begin(), groups.end(), [](const auto& weak) { return weak.expired(); }), groups.end());
  groups.push_back(group);
}

std::vector<std::shared_ptr<Group>> living_groups() {
  std::lock_guard<std::mutex> lock(registry().mutex);
  std::vector<std::shared_ptr<Group>> out;
  for (const auto& weak : registry().groups)
    if (auto group = weak.lock())
      out.push_back(std::move(group));
  return out;
}

bool have_one_core_on_one_host() {
  const auto groups = living_groups();
  return std::all_of(
      groups.begin(), groups.end(), [](const auto& group) { return group->on_one_host() && group->threads() == 1; });
}

} // namespace orch_ccl
