// Symbols that libccl.a expects from Intel's compiler runtime and from ITT (VTune's annotation API).
//
// The archive was built with icx, which replaces memcpy and memset by functions of Intel's runtime, and with ITT, whose
// entry points are function pointers that VTune sets. Null pointers are ITT's documented idle state: no collector is
// attached. All these symbols stay hidden in this extension.

#include <cstring>

extern "C" {

void* _intel_fast_memcpy(void* to, const void* from, size_t size) {
  return std::memcpy(to, from, size);
}

void* _intel_fast_memset(void* to, int value, size_t size) {
  return std::memset(to, value, size);
}

#define IDLE_ITT(name) void* __itt_##name##_ptr__3_0 = nullptr
IDLE_ITT(thread_set_name);
IDLE_ITT(task_begin);
IDLE_ITT(task_end);
IDLE_ITT(string_handle_create);
IDLE_ITT(metadata_add);
IDLE_ITT(event_start);
IDLE_ITT(event_end);
IDLE_ITT(event_create);
IDLE_ITT(domain_create);

} // extern "C"
