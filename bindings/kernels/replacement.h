#pragma once

#include <ATen/ATen.h>
#include <torch/library.h>

// Replaces functions of ATen on CPUs while it is on.
class Replacement {
 public:
  // `implement` adds the functions to the library.
  template <typename Implement>
  void start(const Implement& implement) {
    if (library_)
      return;
    NoWarnings handler;
    const c10::WarningUtils::WarningHandlerGuard guard(&handler);
    library_.emplace(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
    implement(*library_);
  }
  void stop() {
    library_.reset();
  }

 private:
  // torch warns about every replaced kernel.
  struct NoWarnings : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  c10::optional<torch::Library> library_;
};
