// After block.h: what kernels of bf16 need besides. Shared memory is static: one block runs at a time.
#undef __shared__
#define __shared__ static
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static float __uint_as_float(unsigned bits) { return __int_as_float(bits); }
static unsigned rounded(float x) {
    const unsigned bits = __float_as_int(x);
    return x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
static unsigned pack(float low, float high) { return rounded(low) | rounded(high) << 16; }
#define pack pack
