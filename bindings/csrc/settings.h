#pragma once

#include <map>
#include <string>

namespace orch_ccl {

using Settings = std::map<std::string, std::string>;

// Suppresses oneCCL's warnings about these variables, which this package or a launcher sets on purpose. oneCCL warns
// about each value that differs from its default. Any thread may call this, before the first group is created.
void expect_settings(const Settings& settings);

// Initializes oneCCL, which reads the environment, and prints its warnings about other variables. Called by the thread
// that creates a communicator.
void initialize_oneccl();

} // namespace orch_ccl
