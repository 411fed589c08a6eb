#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/version.h>

// What c10d's interface was before the newest torch: all differences between releases are in this file.
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

// c10d::Backend, with the methods that an older torch does not know yet, so that overriding them compiles. Such a
// torch never calls them: it has no way for its users to ask for them.
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

// Whether the caller goes on before the operation is done. Before 2.8 most options do not say: the answer that is
// always right, which costs a synchronous caller the waking of our thread.
template <typename Options>
bool async_of(const Options& options) {
  if constexpr (requires { options.asyncOp; })
    return options.asyncOp;
  else
    return true;
}

// What torch calls the threads that carry out gloo's operations; before 2.11 they have the name of the process.
#if TORCH_BEFORE(2, 11)
constexpr const char* kGloosThreads = nullptr;
#else
constexpr const char* kGloosThreads = "pt_gloo_runloop";
#endif

// Another connection to the same store.
#if TORCH_BEFORE(2, 8)
inline c10::intrusive_ptr<c10d::Store> another_connection(c10d::Store& store) {
  struct Prefixed : c10d::PrefixStore {
    using PrefixStore::prefix_, PrefixStore::store_;
  };
  struct File : c10d::FileStore {
    using FileStore::numWorkers_;
  };
  if (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(&store))
    return c10::make_intrusive<c10d::PrefixStore>(
        prefixed->*&Prefixed::prefix_, another_connection(*(prefixed->*&Prefixed::store_)));
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
  return c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(&store); // in this process' memory
}
#else
inline c10::intrusive_ptr<c10d::Store> another_connection(c10d::Store& store) {
  return store.clone();
}
#endif

} // namespace orch_ccl
