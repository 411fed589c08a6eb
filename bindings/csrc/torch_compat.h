#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/version.h>

// Differences between the releases of torch. The other files use c10d's interface as of the newest one.
#define TORCH_BEFORE(major, minor) \
  (TORCH_VERSION_MAJOR < (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR < (minor)))

#if TORCH_BEFORE(2, 6)
#error "oneccl_bind_pt builds for torch 2.6 and newer"
#endif

#if TORCH_BEFORE(2, 7)
namespace c10d {
enum class ErrorType { SUCCESS = 0, TIMEOUT = 1, COMM_ERROR = 2, REMOTE_ERROR = 3 };
} // namespace c10d
#endif

namespace orch_ccl {

// c10d::Backend with the methods that older releases lack, so that overriding them compiles. Those releases never call
// them.
class Backend : public c10d::Backend {
 public:
  using c10d::Backend::Backend;

#if TORCH_BEFORE(2, 7)
  virtual c10d::ErrorType getError() = 0;
  virtual void abort() = 0;
  virtual void shutdown() = 0;
  virtual bool supportsTensorAlloc(c10::DeviceIndex device) = 0;
  virtual at::Tensor allocateTensor(long elements, at::TensorOptions options) = 0;
#endif
#if TORCH_BEFORE(2, 9)
  virtual c10::intrusive_ptr<Options> getBackendOptions() = 0;
  virtual void setTimeout(std::chrono::milliseconds timeout) = 0;
#endif
};

// Returns whether the caller continues before the operation has completed. Before 2.8 most options do not contain this;
// true is always correct and only costs a synchronous caller the wake-up of our thread.
template <typename Options>
bool is_async(const Options& options) {
  if constexpr (requires { options.asyncOp; })
    return options.asyncOp;
  else
    return true;
}

// Whether DDP reduces complex gradients as real numbers. It views its own buckets so, but not those of
// allocateTensor().
struct ReducerAccess : c10d::Reducer {
  template <typename T = Bucket>
  static constexpr bool has_real_buckets = requires(T bucket) { bucket.is_complex_bucket; };
};

// The name of the threads that run gloo's operations; before 2.11 it is the name of the process.
#if TORCH_BEFORE(2, 11)
constexpr const char* kGlooThreadName = nullptr;
#else
constexpr const char* kGlooThreadName = "pt_gloo_runloop";
#endif

// Opens another connection to the same store.
#if TORCH_BEFORE(2, 8)
inline c10::intrusive_ptr<c10d::Store> open_another_connection(c10d::Store& store) {
  struct Prefixed : c10d::PrefixStore {
    using PrefixStore::prefix_, PrefixStore::store_;
  };
  struct File : c10d::FileStore {
    using FileStore::numWorkers_;
  };
  if (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(&store))
    return c10::make_intrusive<c10d::PrefixStore>(
        prefixed->*&Prefixed::prefix_, open_another_connection(*(prefixed->*&Prefixed::store_)));
  if (auto* tcp = dynamic_cast<c10d::TCPStore*>(&store)) {
    c10d::TCPStoreOptions options;
    options.port = tcp->getPort();
    options.waitWorkers = false;
    options.timeout = tcp->getTimeout();
    options.useLibUV = tcp->isLibUvBackend();
    return c10::make_intrusive<c10d::TCPStore>(tcp->getHost(), options);
  }
  if (auto* file = dynamic_cast<c10d::FileStore*>(&store))
    return c10::make_intrusive<c10d::FileStore>(file->getPath(), file->*&File::numWorkers_);
  return c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(&store); // a store in this process's memory
}
#else
inline c10::intrusive_ptr<c10d::Store> open_another_connection(c10d::Store& store) {
  return store.clone();
}
#endif

} // namespace orch_ccl
