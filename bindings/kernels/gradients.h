#pragma once

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

// Whether a backward pass must be computed by operators of torch: with create_graph=True, for what a Python mode or
// subclass has to see, and for gradients whose memory is not their numbers: batches of vmap have none, and that of
// negative views, such as imag() of conj(), has the opposite signs.
inline bool needs_operators(const at::Tensor& gradient) {
  return at::GradMode::is_enabled() || c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Python) ||
      !gradient.has_storage() || gradient.is_neg() || gradient._is_zerotensor() ||
      gradient.unsafeGetTensorImpl()->is_python_dispatch();
}
