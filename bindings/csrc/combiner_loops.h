// Included once for each level of vector instructions, each time inside another namespace; hence no #pragma once.
// Nothing here may call a function that is defined elsewhere: its code would be compiled for these instructions and
// then be shared with callers on processors without them.

template <typename T>
struct Arithmetic { // the type in which numbers of type T are combined, and the conversions to and from it
  using Wide = T;
  static Wide widen(T value) { return value; }
  static T narrow(Wide value) { return value; }
};

// Integers wrap around on overflow. In C++ only unsigned types may do so.
template <typename T, typename Unsigned>
struct Wrapping {
  using Wide = T;
  static Wide widen(T value) { return value; }
  static T narrow(Wide value) { return value; }
  static T add(T a, T b) { return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)); }
  static T multiply(T a, T b) { return static_cast<T>(static_cast<Unsigned>(a) * static_cast<Unsigned>(b)); }
};
template <> struct Arithmetic<int8_t> : Wrapping<int8_t, uint32_t> {};
template <> struct Arithmetic<uint8_t> : Wrapping<uint8_t, uint32_t> {};
template <> struct Arithmetic<int16_t> : Wrapping<int16_t, uint32_t> {};
template <> struct Arithmetic<int32_t> : Wrapping<int32_t, uint32_t> {};
template <> struct Arithmetic<int64_t> : Wrapping<int64_t, uint64_t> {};

// Rounds to nearest, ties to even, as torch does. NaN stays NaN.
template <>
struct Arithmetic<BFloat16> {
  using Wide = float;
  static float widen(BFloat16 value) { return __builtin_bit_cast(float, static_cast<uint32_t>(value) << 16); }
  static BFloat16 narrow(float value) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<BFloat16>(value != value ? 0x7fc0u : rounded);
  }
};

template <typename T>
constexpr bool wraps = requires(T a) { Arithmetic<T>::add(a, a); };

template <CombineOp op, typename T, typename Wide>
inline Wide combine_values(Wide a, Wide b) {
  if constexpr (op == CombineOp::minimum)
    return b < a ? b : a;
  else if constexpr (op == CombineOp::maximum)
    return a < b ? b : a;
  else if constexpr (wraps<T>)
    return op == CombineOp::sum ? Arithmetic<T>::add(a, b) : Arithmetic<T>::multiply(a, b);
  else
    return op == CombineOp::sum ? a + b : a * b;
}

constexpr size_t kBlockNumbers = 1024; // this many stay in the first-level cache

// ivdep: `out` may be `a` or `b`, but each iteration writes only the element that it has read.
template <CombineOp op, typename T>
void combine_two(const T* a, const T* b, T* out, size_t numbers) {
#pragma GCC ivdep
  for (size_t i = 0; i < numbers; ++i)
    out[i] = Arithmetic<T>::narrow(combine_values<op, T>(Arithmetic<T>::widen(a[i]), Arithmetic<T>::widen(b[i])));
}

template <CombineOp op, typename T>
void combine_many(const T* const* sources, int count, size_t first, T* out, size_t numbers) {
  using Wide = typename Arithmetic<T>::Wide;
  Wide block[kBlockNumbers];
  for (size_t i = 0; i < numbers; ++i)
    block[i] = Arithmetic<T>::widen(sources[0][first + i]);
  for (int source = 1; source < count; ++source) {
    const T* values = sources[source] + first;
    for (size_t i = 0; i < numbers; ++i)
      block[i] = combine_values<op, T>(block[i], Arithmetic<T>::widen(values[i]));
  }
  for (size_t i = 0; i < numbers; ++i)
    out[i] = Arithmetic<T>::narrow(block[i]);
}

template <CombineOp op, typename T>
void combine(const void* const* sources, int count, void* out, size_t numbers) {
  const T* const* inputs = reinterpret_cast<const T* const*>(sources);
  for (size_t first = 0; first < numbers; first += kBlockNumbers) {
    const size_t length = numbers - first < kBlockNumbers ? numbers - first : kBlockNumbers;
    T* output = static_cast<T*>(out) + first;
    if (count == 2)
      combine_two<op, T>(inputs[0] + first, inputs[1] + first, output, length);
    else
      combine_many<op, T>(inputs, count, first, output, length);
  }
}

template <typename T>
Combiner combiner_of_type(CombineOp op) {
  switch (op) {
    case CombineOp::sum: return combine<CombineOp::sum, T>;
    case CombineOp::product: return combine<CombineOp::product, T>;
    case CombineOp::minimum: return combine<CombineOp::minimum, T>;
    case CombineOp::maximum: return combine<CombineOp::maximum, T>;
  }
  return nullptr;
}

inline Combiner find_combiner(NumberType type, CombineOp op) {
  switch (type) {
    case NumberType::float32: return combiner_of_type<float>(op);
    case NumberType::float64: return combiner_of_type<double>(op);
    case NumberType::bfloat16: return combiner_of_type<BFloat16>(op);
    case NumberType::int8: return combiner_of_type<int8_t>(op);
    case NumberType::uint8: return combiner_of_type<uint8_t>(op);
    case NumberType::int16: return combiner_of_type<int16_t>(op);
    case NumberType::int32: return combiner_of_type<int32_t>(op);
    case NumberType::int64: return combiner_of_type<int64_t>(op);
  }
  return nullptr;
}
