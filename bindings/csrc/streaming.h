#pragma once

#include <cstddef>

#include "routes.h"

namespace orch_ccl {

// Copies to memory that is not read soon, bypassing the caches: the old contents are not read first, and other data
// stays in the caches.
void stream(char* to, const char* from, size_t bytes);

// Copies to memory that another core reads next. The route through the caches uses the processor's string copy, which
// takes ownership of whole cache lines without reading them and needs a third of the time of ordinary stores.
void copy_by_route(char* to, const char* from, size_t bytes, Route route);

} // namespace orch_ccl
