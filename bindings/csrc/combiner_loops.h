// Included once for each set of vector instructions, inside a namespace of its own: no #pragma once. Nothing
// here calls a function from elsewhere, which would be compiled for these instructions and then be shared.

template <typename T>
struct As { // how a number is computed with
  using Wide = T;
  static Wide widen(T value) { return value; }
  static T narrow(Wide value) { return value; }
};

// Integers wrap around, which only unsigned ones may.
template <typename T, typename Unsigned>
struct Wrapping {
  using Wide = T;
  static Wide widen(T value) { return value; }
  static T narrow(Wide value) { return value; }
  static T add(T a, T b) { return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)); }
  static T multiply(T a, T b) { return static_cast<T>(static_cast<Unsigned>(a) * static_cast<Unsigned>(b)); }
};
template <> struct As<int8_t> : Wrapping<int8_t, uint32_t> {};
template <> struct As<uint8_t> : Wrapping<uint8_t, uint32_t> {};
template <> struct As<int16_t> : Wrapping<int16_t, uint32_t> {};
template <> struct As<int32_t> : Wrapping<int32_t, uint32_t> {};
template <> struct As<int64_t> : Wrapping<int64_t, uint64_t> {};

// To the nearest, ties to even, as torch does; NaN stays NaN.
template <>
struct As<BFloat16> {
  using Wide = float;
  static float widen(BFloat16 value) { return __builtin_bit_cast(float, static_cast<uint32_t>(value) << 16); }
  static BFloat16 narrow(float value) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<BFloat16>(value != value ? 0x7fc0u : rounded);
  }
};

template <typename T>
constexpr bool wraps = requires(T a) { As<T>::add(a, a); };

template <Combine by, typename T, typename Wide>
inline Wide combined(Wide a, Wide b) {
  if constexpr (by == Combine::minimum)
    return b < a ? b : a;
  else if constexpr (by == Combine::maximum)
    return a < b ? b : a;
  else if constexpr (wraps<T>)
    return by == Combine::sum ? As<T>::add(a, b) : As<T>::multiply(a, b);
  else
    return by == Combine::sum ? a + b : a * b;
}

constexpr size_t kBlock = 1024; // numbers that stay in the first-level cache

// ivdep: what is written is at most what was read in the same step.
template <Combine by, typename T>
void combine_two(const T* a, const T* b, T* out, size_t numbers) {
#pragma GCC ivdep
  for (size_t i = 0; i < numbers; ++i)
    out[i] = As<T>::narrow(combined<by, T>(As<T>::widen(a[i]), As<T>::widen(b[i])));
}

template <Combine by, typename T>
void combine_many(const T* const* sources, int count, size_t first, T* out, size_t numbers) {
  using Wide = typename As<T>::Wide;
  Wide block[kBlock];
  for (size_t i = 0; i < numbers; ++i)
    block[i] = As<T>::widen(sources[0][first + i]);
  for (int source = 1; source < count; ++source) {
    const T* values = sources[source] + first;
    for (size_t i = 0; i < numbers; ++i)
      block[i] = combined<by, T>(block[i], As<T>::widen(values[i]));
  }
  for (size_t i = 0; i < numbers; ++i)
    out[i] = As<T>::narrow(block[i]);
}

template <Combine by, typename T>
void combine(const void* const* sources, int count, void* out, size_t numbers) {
  const T* const* from = reinterpret_cast<const T* const*>(sources);
  for (size_t first = 0; first < numbers; first += kBlock) {
    const size_t some = numbers - first < kBlock ? numbers - first : kBlock;
    T* to = static_cast<T*>(out) + first;
    if (count == 2)
      combine_two<by, T>(from[0] + first, from[1] + first, to, some);
    else
      combine_many<by, T>(from, count, first, to, some);
  }
}

template <typename T>
Combiner of_type(Combine by) {
  switch (by) {
    case Combine::sum: return combine<Combine::sum, T>;
    case Combine::product: return combine<Combine::product, T>;
    case Combine::minimum: return combine<Combine::minimum, T>;
    case Combine::maximum: return combine<Combine::maximum, T>;
  }
  return nullptr;
}

inline Combiner find(Number number, Combine by) {
  switch (number) {
    case Number::float32: return of_type<float>(by);
    case Number::float64: return of_type<double>(by);
    case Number::bfloat16: return of_type<BFloat16>(by);
    case Number::int8: return of_type<int8_t>(by);
    case Number::uint8: return of_type<uint8_t>(by);
    case Number::int16: return of_type<int16_t>(by);
    case Number::int32: return of_type<int32_t>(by);
    case Number::int64: return of_type<int64_t>(by);
  }
  return nullptr;
}
