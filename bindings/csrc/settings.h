#pragma once

#include <map>
#include <string>

namespace orch_ccl {

using Settings = std::map<std::string, std::string>;

// Variables that were set on purpose, by this package or by a launcher that says so: oneCCL warns of
// each value that is not its default, and of these nobody needs to be told.
void expect_settings(const Settings& settings);

// Starts oneCCL, which reads the environment. What it says of other variables is passed on.
void start_oneccl();

} // namespace orch_ccl
