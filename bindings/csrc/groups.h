#pragma once

#include <memory>
#include <vector>

#include "group.h"

namespace orch_ccl {

// The groups of this process that have not been destroyed. Any thread may call these functions.
void register_group(const std::shared_ptr<Group>& group);
std::vector<std::shared_ptr<Group>> living_groups();
// Whether the ranks have one core each, which the computation needs, and no link to another host could be kept waiting.
bool have_one_core_on_one_host();

} // namespace orch_ccl
