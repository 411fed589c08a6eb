#pragma once

#include <cstddef>

#include "routes.h"

namespace orch_ccl {

// A copy to memory that nobody reads soon. It goes past the caches: what is overwritten is not read before, and
// what the caches hold stays.
void stream(char* to, const char* from, size_t bytes);

// A copy to memory that another core reads next. Through the caches it is the processor's string copy, which takes
// whole lines without reading them, and needs a third of the time that stores do.
void hand_over(char* to, const char* from, size_t bytes, Route route);

} // namespace orch_ccl
