// The one definition of a position's cosines and sines, for keys that are stored and for those that are rebuilt.
// Included inside a level's namespace after vectors.hpp.

// cos and sin of float32 angles as a double holds them, rounded once, for |x| < 2^20; half a vector at a time.
typedef double vd __attribute__((vector_size(4 * GEMWRIGHT_LANES)));
typedef int64_t vl __attribute__((vector_size(4 * GEMWRIGHT_LANES)));
typedef float vf_half __attribute__((vector_size(2 * GEMWRIGHT_LANES)));

static inline vd multiply_add(vd x, vd y, vd z) {
#if defined(__AVX512F__) && GEMWRIGHT_LANES == 16
    return reinterpret_cast<vd>(_mm512_fmadd_pd(reinterpret_cast<__m512d>(x), reinterpret_cast<__m512d>(y), reinterpret_cast<__m512d>(z)));
#elif defined(__FMA__) && GEMWRIGHT_LANES == 8
    return reinterpret_cast<vd>(_mm256_fmadd_pd(reinterpret_cast<__m256d>(x), reinterpret_cast<__m256d>(y), reinterpret_cast<__m256d>(z)));
#else
    return x * y + z;
#endif
}

static inline vd all_doubles(double x) { return x - vd{}; }

static inline void cosine_and_sine(vf_half angles, vf_half& cosines, vf_half& sines) {
    const vd x = __builtin_convertvector(angles, vd);
    // Adding 1.5 * 2^52 rounds to the nearest integer and leaves it in the low bits.
    const vd magic = all_doubles(6755399441055744.0);
    const vd shifted = x * 0.63661977236758134308 + magic;
    const vd quarter = shifted - magic;
    const vl turns = reinterpret_cast<vl>(shifted);
    // pi / 2 in two parts; the first has 33 bits, so that its products are exact.
    vd rest = x - quarter * 1.57079632673412561417e+00;
    rest = rest - quarter * 6.07710050650619224932e-11;
    const vd square = rest * rest;
    vd sine = multiply_add(square, all_doubles(-2.50521083854417187751e-8), all_doubles(2.75573192239858906526e-6));
    sine = multiply_add(sine, square, all_doubles(-1.98412698412698412698e-4));
    sine = multiply_add(sine, square, all_doubles(8.33333333333333333333e-3));
    sine = multiply_add(sine, square, all_doubles(-1.66666666666666666667e-1));
    sine = multiply_add(sine * square, rest, rest);
    vd cosine = multiply_add(square, all_doubles(2.08767569878680989792e-9), all_doubles(-2.75573192239858906526e-7));
    cosine = multiply_add(cosine, square, all_doubles(2.48015873015873015873e-5));
    cosine = multiply_add(cosine, square, all_doubles(-1.38888888888888888889e-3));
    cosine = multiply_add(cosine, square, all_doubles(4.16666666666666666667e-2));
    cosine = multiply_add(cosine, square, all_doubles(-0.5));
    cosine = multiply_add(cosine, square, all_doubles(1.0));
    const vl swaps = -(turns & 1);
    const vl a = reinterpret_cast<vl>(sine), b = reinterpret_cast<vl>(cosine);
    const vl sine_bits = ((a & ~swaps) | (b & swaps)) ^ ((turns & 2) << 62);
    const vl cosine_bits = ((b & ~swaps) | (a & swaps)) ^ (((turns + 1) & 2) << 62);
    sines = __builtin_convertvector(reinterpret_cast<vd>(sine_bits), vf_half);
    cosines = __builtin_convertvector(reinterpret_cast<vd>(cosine_bits), vf_half);
}

static inline void cosine_and_sine(vf angles, vf& cosines, vf& sines) {
#if GEMWRIGHT_LANES == 8
#define GEMWRIGHT_LOW 0, 1, 2, 3
#define GEMWRIGHT_HIGH 4, 5, 6, 7
#else
#define GEMWRIGHT_LOW 0, 1, 2, 3, 4, 5, 6, 7
#define GEMWRIGHT_HIGH 8, 9, 10, 11, 12, 13, 14, 15
#endif
    vf_half cosine[2], sine[2];
    cosine_and_sine(__builtin_shufflevector(angles, angles, GEMWRIGHT_LOW), cosine[0], sine[0]);
    cosine_and_sine(__builtin_shufflevector(angles, angles, GEMWRIGHT_HIGH), cosine[1], sine[1]);
    cosines = __builtin_shufflevector(cosine[0], cosine[1], GEMWRIGHT_LOW, GEMWRIGHT_HIGH);
    sines = __builtin_shufflevector(sine[0], sine[1], GEMWRIGHT_LOW, GEMWRIGHT_HIGH);
#undef GEMWRIGHT_LOW
#undef GEMWRIGHT_HIGH
}
