// The loops of kernels.hpp, written once. Each kernels_<family>.cpp includes this file in its own anonymous namespace
// after defining V: a vector of `V::kLanes` floats F with the arithmetic used below. The `_n` forms read or write the
// first n lanes only; lanes not read are zero. No #include here: this text is compiled for processors that the rest of
// the program must not assume, so nothing of it may be shared with other files.

constexpr float kLargestHalf = 65504.0f;

/// The value is the first operand throughout: V::min and V::max then pass a NaN of it through.
V::F clamp_to_half(V::F value) {
  return V::max_keep(V::min_keep(value, V::set(kLargestHalf)), V::set(-kLargestHalf));
}

/// Of a sum as in `largest`: whether nothing was added that is not finite.
bool is_zero(V::F poison) {
  float lanes[V::kLanes], total = 0;
  V::store(lanes, poison);
  for (std::size_t i = 0; i < V::kLanes; ++i) total += lanes[i];
  return total == 0;
}

/// step(first, lanes) for whole vectors, then once for the rest.
template <class Whole, class Rest>
inline void for_lanes(std::size_t count, Whole whole, Rest rest) {
  std::size_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) whole(i);
  if (i < count) rest(i, count - i);
}

/// Tensors and sums come from memory: the processor's own prefetching ends with each page, so the next one is asked
/// for.
inline void prefetch(const float* at) {
  constexpr std::size_t kPage = 4096;
  if constexpr (V::kLanes > 1) __builtin_prefetch(reinterpret_cast<const char*>(at) + kPage, 1);
}

void to_half(const float* in, std::uint8_t* out, std::size_t count) {
  for_lanes(
      count, [&](std::size_t i) { V::store_half(out + 2 * i, clamp_to_half(V::load(in + i))); },
      [&](std::size_t i, std::size_t n) { V::store_half_n(out + 2 * i, clamp_to_half(V::load_n(in + i, n)), n); });
}

bool to_half_checked(const float* in, std::uint8_t* out, std::size_t count) {
  V::F poison = V::set(0);
  const auto seen = [&](V::F x) {
    poison = V::add(poison, V::sub(x, x));
    return clamp_to_half(x);
  };
  for_lanes(
      count,
      [&](std::size_t i) {
        prefetch(in + i);
        V::store_half(out + 2 * i, seen(V::load(in + i)));
      },
      [&](std::size_t i, std::size_t n) { V::store_half_n(out + 2 * i, seen(V::load_n(in + i, n)), n); });
  return is_zero(poison);
}

void to_half_unclamped(const float* in, std::uint8_t* out, std::size_t count) {
  for_lanes(
      count, [&](std::size_t i) { V::store_half(out + 2 * i, V::load(in + i)); },
      [&](std::size_t i, std::size_t n) { V::store_half_n(out + 2 * i, V::load_n(in + i, n), n); });
}

void from_half(const std::uint8_t* in, float* out, std::size_t count) {
  for_lanes(
      count, [&](std::size_t i) { V::store(out + i, V::load_half(in + 2 * i)); },
      [&](std::size_t i, std::size_t n) { V::store_n(out + i, V::load_half_n(in + 2 * i, n), n); });
}

void add_half(const std::uint8_t* in, float weight, float* out, std::size_t count) {
  const V::F w = V::set(weight);
  for_lanes(
      count,
      [&](std::size_t i) {
        prefetch(out + i);
        V::store(out + i, V::add(V::load(out + i), V::mul(w, V::load_half(in + 2 * i))));
      },
      [&](std::size_t i, std::size_t n) {
        V::store_n(out + i, V::add(V::load_n(out + i, n), V::mul(w, V::load_half_n(in + 2 * i, n))), n);
      });
}

void add_floats(const std::uint8_t* in, float weight, float* out, std::size_t count) {
  const V::F w = V::set(weight);
  for_lanes(
      count,
      [&](std::size_t i) {
        prefetch(out + i);
        V::store(out + i, V::add(V::load(out + i), V::mul(w, V::load_bytes(in + 4 * i))));
      },
      [&](std::size_t i, std::size_t n) {
        V::store_n(out + i, V::add(V::load_n(out + i, n), V::mul(w, V::load_bytes_n(in + 4 * i, n))), n);
      });
}

void difference(const float* a, const float* b, std::uint8_t* out, std::size_t count) {
  for_lanes(
      count, [&](std::size_t i) { V::store_bytes(out + 4 * i, V::sub(V::load(a + i), V::load(b + i))); },
      [&](std::size_t i, std::size_t n) {
        V::store_bytes_n(out + 4 * i, V::sub(V::load_n(a + i, n), V::load_n(b + i, n)), n);
      });
}

void half_difference(const float* a, const std::uint8_t* b, std::uint8_t* out, std::size_t count) {
  for_lanes(
      count,
      [&](std::size_t i) {
        V::store_half(out + 2 * i, clamp_to_half(V::sub(V::load(a + i), V::load_half(b + 2 * i))));
      },
      [&](std::size_t i, std::size_t n) {
        V::store_half_n(out + 2 * i, clamp_to_half(V::sub(V::load_n(a + i, n), V::load_half_n(b + 2 * i, n))), n);
      });
}

void scaled_to_half(const float* in, float mean, float deviation, std::uint8_t* out, std::size_t count) {
  const V::F m = V::set(mean), d = V::set(deviation);
  for_lanes(
      count, [&](std::size_t i) { V::store_half(out + 2 * i, clamp_to_half(V::div(V::sub(V::load(in + i), m), d))); },
      [&](std::size_t i, std::size_t n) {
        V::store_half_n(out + 2 * i, clamp_to_half(V::div(V::sub(V::load_n(in + i, n), m), d)), n);
      });
}

void scaled_from_half(const std::uint8_t* in, float mean, float deviation, float* out, std::size_t count) {
  const V::F m = V::set(mean), d = V::set(deviation);
  for_lanes(
      count, [&](std::size_t i) { V::store(out + i, V::add(V::mul(V::load_half(in + 2 * i), d), m)); },
      [&](std::size_t i, std::size_t n) {
        V::store_n(out + i, V::add(V::mul(V::load_half_n(in + 2 * i, n), d), m), n);
      });
}

void add_scaled_half(const std::uint8_t* in, float mean, float deviation, float weight, float* out, std::size_t count) {
  const V::F m = V::set(mean), d = V::set(deviation), w = V::set(weight);
  for_lanes(
      count,
      [&](std::size_t i) {
        const V::F value = V::add(V::mul(V::load_half(in + 2 * i), d), m);
        V::store(out + i, V::add(V::load(out + i), V::mul(w, value)));
      },
      [&](std::size_t i, std::size_t n) {
        const V::F value = V::add(V::mul(V::load_half_n(in + 2 * i, n), d), m);
        V::store_n(out + i, V::add(V::load_n(out + i, n), V::mul(w, value)), n);
      });
}

void divide(const float* in, float divisor, float* out, std::size_t count) {
  const V::F d = V::set(divisor);
  for_lanes(
      count, [&](std::size_t i) { V::store(out + i, V::div(V::load(in + i), d)); },
      [&](std::size_t i, std::size_t n) { V::store_n(out + i, V::div(V::load_n(in + i, n), d), n); });
}

/// Lane k adds up every sixteenth value from the k-th on, the upper half of the lanes is added to the lower one until
/// one is left, and what makes no sixteen comes last: so for all families, and for the GPU.
Moments moments(const float* in, float pilot, std::size_t count) {
  constexpr std::size_t kSums = 16;
  V::Sums lanes(pilot);
  std::size_t i = 0;
  for (; i + kSums <= count; i += kSums) lanes.add(in + i);
  double sums[kSums], squares[kSums];
  lanes.store(sums, squares);
  for (std::size_t half = kSums / 2; half > 0; half /= 2)
    for (std::size_t lane = 0; lane < half; ++lane) {
      sums[lane] += sums[lane + half];
      squares[lane] += squares[lane + half];
    }
  Moments total{sums[0], squares[0]};
  for (; i < count; ++i) {
    const double d = static_cast<double>(in[i]) - static_cast<double>(pilot);
    total.sum += d;
    total.squares += d * d;
  }
  return total;
}

/// x - x is 0 for what is finite and NaN otherwise, so a sum of these is 0 only if all are finite.
float largest(const float* in, std::size_t count) {
  V::F most = V::set(0), poison = V::set(0);
  const auto see = [&](V::F x) {
    most = V::max_keep(most, V::abs(x));
    poison = V::add(poison, V::sub(x, x));
  };
  for_lanes(
      count, [&](std::size_t i) { see(V::load(in + i)); },
      [&](std::size_t i, std::size_t n) { see(V::load_n(in + i, n)); });
  float lanes[V::kLanes], poisons[V::kLanes];
  V::store(lanes, most);
  V::store(poisons, poison);
  float result = 0, sick = 0;
  for (std::size_t i = 0; i < V::kLanes; ++i) {
    if (lanes[i] > result) result = lanes[i];
    sick += poisons[i];
  }
  return result + sick;
}

bool all_finite(const float* in, std::size_t count) {
  V::F poison = V::set(0);
  const auto see = [&](V::F x) { poison = V::add(poison, V::sub(x, x)); };
  for_lanes(
      count, [&](std::size_t i) { see(V::load(in + i)); },
      [&](std::size_t i, std::size_t n) { see(V::load_n(in + i, n)); });
  return is_zero(poison);
}

std::size_t count_from(const float* in, float least, std::size_t count) {
  const V::F bound = V::set(least);
  V::Counter found;
  for_lanes(
      count, [&](std::size_t i) { found.add(V::abs(V::load(in + i)), bound); },
      [&](std::size_t i, std::size_t n) { found.add(V::abs(V::load_n(in + i, n)), bound); });
  return found.total();
}

std::size_t places_from(const float* in, float least, std::uint16_t* places, std::size_t count) {
  const V::F bound = V::set(least);
  std::size_t found = 0;
  for_lanes(
      count,
      [&](std::size_t i) {
        const unsigned reached = V::reached(V::abs(V::load(in + i)), bound);
        V::put_places(places + found, i, reached);
        found += static_cast<unsigned>(__builtin_popcount(reached));
      },
      [&](std::size_t i, std::size_t n) {
        const unsigned reached = V::reached(V::abs(V::load_n(in + i, n)), bound);
        std::uint16_t here[V::kLanes];
        V::put_places(here, i, reached);
        const auto rest = static_cast<unsigned>(__builtin_popcount(reached));
        __builtin_memcpy(places + found, here, rest * sizeof *here);
        found += rest;
      });
  return found;
}

// Of integers, which the compiler makes wide.
bool all_halves_finite(const std::uint8_t* in, std::size_t count) {
  constexpr std::uint16_t kExponent = 0x7c00;  // all ones: NaN or infinite
  std::uint16_t found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t half;
    __builtin_memcpy(&half, in + 2 * i, 2);
    found |= static_cast<std::uint16_t>((half & kExponent) == kExponent);
  }
  return found == 0;
}

void quantize(const float* in, float shift, float inverse_scale, std::uint8_t* out, std::size_t count) {
  const V::F s = V::set(shift), inverse = V::set(inverse_scale);
  for_lanes(
      count, [&](std::size_t i) { V::store_quantized(out + i, V::mul(V::sub(V::load(in + i), s), inverse)); },
      [&](std::size_t i, std::size_t n) {
        std::uint8_t bytes[V::kLanes];
        V::store_quantized(bytes, V::mul(V::sub(V::load_n(in + i, n), s), inverse));
        __builtin_memcpy(out + i, bytes, n);
      });
}

void find_bins(const float* in, const float* tree, std::uint8_t* out, std::size_t count) {
  const V::Tree search(tree);
  for_lanes(
      count, [&](std::size_t i) { search.store_bins(out + i, V::load(in + i)); },
      [&](std::size_t i, std::size_t n) {
        std::uint8_t bytes[V::kLanes];
        search.store_bins(bytes, V::load_n(in + i, n));
        __builtin_memcpy(out + i, bytes, n);
      });
}

// Eight indices in one load; the table's lines stay in the first-level cache, where loads beat gathers.
void look_up(const std::uint8_t* in, const float* table, float* out, std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    std::uint64_t indices;
    __builtin_memcpy(&indices, in + i, 8);
    for (int k = 0; k < 8; ++k) out[i + static_cast<std::size_t>(k)] = table[indices >> 8 * k & 0xff];
  }
  for (; i < count; ++i) out[i] = table[in[i]];
}

void add_looked_up(const std::uint8_t* in, const float* table, float* out, std::size_t count) {
  float values[1024];
  for (std::size_t at = 0; at < count; at += 1024) {
    const std::size_t here = count - at < 1024 ? count - at : 1024;
    look_up(in + at, table, values, here);
    for_lanes(
        here, [&](std::size_t i) { V::store(out + at + i, V::add(V::load(out + at + i), V::load(values + i))); },
        [&](std::size_t i, std::size_t n) {
          V::store_n(out + at + i, V::add(V::load_n(out + at + i, n), V::load_n(values + i, n)), n);
        });
  }
}

#define COHIVE_CODEC_KERNELS(name)                                                                           \
  {name,       to_half,         to_half_checked, to_half_unclamped, from_half,         add_half, add_floats, \
   difference, half_difference, scaled_to_half,  scaled_from_half,  add_scaled_half,   divide,   moments,    \
   largest,    all_finite,      count_from,      places_from,       all_halves_finite, quantize, find_bins,  \
   look_up,    add_looked_up}
