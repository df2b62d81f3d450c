// The vector types and the few instructions that the kernels of one level are written with.
//
// A file level_*.cpp says how many lanes its level has (GEMWRIGHT_LANES: 8 or 16), opens its own namespace and includes
// this file and the kernels; they exist once a level. All arithmetic that C++ can say on vectors is written so
// (+ - * & >> ...), and lowered by the compiler to what the level has; what it cannot say stands here.
//
// Lanes: `vf` and `vi` have GEMWRIGHT_LANES floats or int32, `vs` twice as many int16.

typedef float vf __attribute__((vector_size(4 * GEMWRIGHT_LANES)));
typedef int32_t vi __attribute__((vector_size(4 * GEMWRIGHT_LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * GEMWRIGHT_LANES)));
typedef int16_t vs __attribute__((vector_size(4 * GEMWRIGHT_LANES)));
typedef uint16_t vus __attribute__((vector_size(4 * GEMWRIGHT_LANES)));

// As they lie in memory, at any address.
typedef vf vf_any __attribute__((aligned(4), may_alias));
typedef vi vi_any __attribute__((aligned(4), may_alias));
typedef vs vs_any __attribute__((aligned(2), may_alias));

constexpr int kLanes = GEMWRIGHT_LANES;

static inline vf load(const float* p) { return *reinterpret_cast<const vf_any*>(p); }
static inline void store(float* p, vf x) { *reinterpret_cast<vf_any*>(p) = x; }
static inline vi load_bits(const void* p) { return *reinterpret_cast<const vi_any*>(p); }
static inline void store_bits(void* p, vi x) { *reinterpret_cast<vi_any*>(p) = x; }
static inline vf all(float x) { return x - vf{}; }
static inline vi all_bits(int32_t x) { return x - vi{}; }
static inline vi as_bits(vf x) { return reinterpret_cast<vi>(x); }
static inline vf as_floats(vi x) { return reinterpret_cast<vf>(x); }
static inline vf to_floats(vi x) { return __builtin_convertvector(x, vf); }
// Where a mask of all ones or all zeros is set, a, elsewhere b.
static inline vf choose(vi mask, vf a, vf b) { return as_floats((as_bits(a) & mask) | (as_bits(b) & ~mask)); }
static inline vf largest(vf a, vf b) { return choose(a > b, a, b); }
static inline vf smallest(vf a, vf b) { return choose(a < b, a, b); }

// x * y + z: rounded once where the level can, else twice. For sums whose bits may differ between levels.
static inline vf multiply_add(vf x, vf y, vf z) {
#if defined(__AVX512F__) && GEMWRIGHT_LANES == 16
    return reinterpret_cast<vf>(_mm512_fmadd_ps(reinterpret_cast<__m512>(x), reinterpret_cast<__m512>(y), reinterpret_cast<__m512>(z)));
#elif defined(__FMA__) && GEMWRIGHT_LANES == 8
    return reinterpret_cast<vf>(_mm256_fmadd_ps(reinterpret_cast<__m256>(x), reinterpret_cast<__m256>(y), reinterpret_cast<__m256>(z)));
#else
    return x * y + z;
#endif
}

// x * y + z rounded once on every level, at the price of a library call a lane where the level has no such instruction.
static inline vf multiply_add_once(vf x, vf y, vf z) {
#if (defined(__AVX512F__) && GEMWRIGHT_LANES == 16) || (defined(__FMA__) && GEMWRIGHT_LANES == 8)
    return multiply_add(x, y, z);
#else
    vf sum;
#pragma GCC unroll 1
    for (int i = 0; i < kLanes; i++) sum[i] = __builtin_fmaf(x[i], y[i], z[i]);
    return sum;
#endif
}

// Each int32 lane: sum + the products of the lane's two pairs of int16.
static inline vi add_products(vs x, vs y, vi sum) {
#if defined(__AVX512VNNI__) && GEMWRIGHT_LANES == 16
    return reinterpret_cast<vi>(_mm512_dpwssd_epi32(reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(x), reinterpret_cast<__m512i>(y)));
#elif defined(__AVX512BW__) && GEMWRIGHT_LANES == 16
    return sum + reinterpret_cast<vi>(_mm512_madd_epi16(reinterpret_cast<__m512i>(x), reinterpret_cast<__m512i>(y)));
#elif defined(__AVX2__) && GEMWRIGHT_LANES == 8
    sum = sum + reinterpret_cast<vi>(_mm256_madd_epi16(reinterpret_cast<__m256i>(x), reinterpret_cast<__m256i>(y)));
    // Keeps the compiler from putting off a chain of additions, whose terms would fill the registers.
    asm("" : "+x"(sum));
    return sum;
#elif defined(__SSE2__) && GEMWRIGHT_LANES == 8 && !defined(__AVX__)
    __m128i a[2], b[2];
    std::memcpy(a, &x, sizeof a);
    std::memcpy(b, &y, sizeof b);
    const __m128i products[2] = {_mm_madd_epi16(a[0], b[0]), _mm_madd_epi16(a[1], b[1])};
    vi wide;
    std::memcpy(&wide, products, sizeof wide);
    return sum + wide;
#else
    // Even and odd int16 of each lane, widened: exact, and plain C++ on vectors.
    const vi a = reinterpret_cast<vi>(x), b = reinterpret_cast<vi>(y);
    return sum + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

typedef uint16_t vus_half __attribute__((vector_size(2 * GEMWRIGHT_LANES), aligned(2), may_alias));

// float16 to float32, exact, subnormals included.
static inline vf widen_halves(const uint16_t* p) {
#if defined(__AVX512F__) && GEMWRIGHT_LANES == 16
    return reinterpret_cast<vf>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__F16C__) && GEMWRIGHT_LANES == 8
    return reinterpret_cast<vf>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
    // A float with the half's fields is 2^112 times too small, also where it is subnormal.
    const vi half = __builtin_convertvector(*reinterpret_cast<const vus_half*>(p), vi), size = half & 0x7FFF;
    const vi wide = as_bits(as_floats(size << 13) * all(0x1p112f));
    return as_floats(wide | ((size >= 0x7C00) & 0x7F800000) | (half & 0x8000) << 16);
#endif
}

typedef uint8_t vub_quarter __attribute__((vector_size(GEMWRIGHT_LANES), aligned(1), may_alias));
typedef int8_t vsb_quarter __attribute__((vector_size(GEMWRIGHT_LANES), aligned(1), may_alias));

// bfloat16 to float32: kLanes neighbors. (The compiler widens what it is shown by halves; the level's own instruction
// takes a whole vector.)
static inline vf widen_bfloat16(const uint16_t* p) {
#if defined(__AVX512F__) && GEMWRIGHT_LANES == 16
    return as_floats(reinterpret_cast<vi>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))) << 16);
#elif defined(__AVX2__) && GEMWRIGHT_LANES == 8
    return as_floats(reinterpret_cast<vi>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))) << 16);
#else
    return as_floats(__builtin_convertvector(*reinterpret_cast<const vus_half*>(p), vi) << 16);
#endif
}
// Bytes to int32: kLanes neighbors, unsigned and signed.
static inline vi widen_bytes(const uint8_t* p) {
#if defined(__AVX512F__) && GEMWRIGHT_LANES == 16
    return reinterpret_cast<vi>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__AVX2__) && GEMWRIGHT_LANES == 8
    return reinterpret_cast<vi>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
    return __builtin_convertvector(*reinterpret_cast<const vub_quarter*>(p), vi);
#endif
}
static inline vi widen_signed_bytes(const int8_t* p) {
#if defined(__AVX512F__) && GEMWRIGHT_LANES == 16
    return reinterpret_cast<vi>(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__AVX2__) && GEMWRIGHT_LANES == 8
    return reinterpret_cast<vi>(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
    return __builtin_convertvector(*reinterpret_cast<const vsb_quarter*>(p), vi);
#endif
}

// The nearest int32, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves the integer in the low bits.
static inline vi round_to_int(vf x) {
    const vf magic = all(12582912.0f);
    return as_bits(x + magic) - as_bits(magic);
}

// The sum of all lanes, in an order that is part of the result: halves onto halves.
static inline float sum_lanes(vf x) {
    float lanes[kLanes];
    store(lanes, x);
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

// exp(x) within about 2 units in the last place; 0 below -87.3, x must not exceed 88. NaN stays NaN.
static inline vf exponential(vf x) {
    const vi vanishes = x <= all(-87.3f);
    const vf bounded = choose(vanishes, all(0.0f), x);
    const vi power = round_to_int(bounded * all(1.44269504f));
    const vf whole = to_floats(power);
    // ln 2 in two parts, the first of which has room for its product with any power.
    vf rest = multiply_add(whole, all(-0.693359375f), bounded);
    rest = multiply_add(whole, all(2.12194440e-4f), rest);
    vf series = all(1.9875691500e-4f);
    series = multiply_add(series, rest, all(1.3981999507e-3f));
    series = multiply_add(series, rest, all(8.3334519073e-3f));
    series = multiply_add(series, rest, all(4.1665795894e-2f));
    series = multiply_add(series, rest, all(1.6666665459e-1f));
    series = multiply_add(series, rest, all(5.0000001201e-1f));
    const vf result = multiply_add(series * rest, rest, rest) + all(1.0f);
    return choose(vanishes, all(0.0f), result * as_floats((power + 127) << 23));
}

// tanh(x) = 1 - 2 / (exp(2 |x|) + 1) with x's sign, its series where that would cancel. NaN stays NaN.
static inline vf hyperbolic_tangent(vf x) {
    const vi sign = as_bits(x) & all_bits(INT32_MIN);
    const vf size = as_floats(as_bits(x) & all_bits(INT32_MAX));
    const vf far = all(1.0f) - all(2.0f) / (exponential(smallest(all(20.0f), size) * all(2.0f)) + all(1.0f));
    const vf square = size * size;
    vf series = all(-5.70498872745e-3f);
    series = multiply_add(series, square, all(2.06390887954e-2f));
    series = multiply_add(series, square, all(-5.37397155531e-2f));
    series = multiply_add(series, square, all(1.33314422036e-1f));
    series = multiply_add(series, square, all(-3.33332819422e-1f));
    const vf near = multiply_add(series * square, size, size);
    return as_floats(as_bits(choose(size < all(0.625f), near, far)) | sign);
}
