// Float32 to bf16, which is its upper half, and back: two to a word, the first one low; eight to 16 bytes.

typedef unsigned int u32;

#ifndef pack  // where the tests have this text on a CPU, it is theirs
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
#endif

__device__ __forceinline__ uint4 pack8(const float v[8]) {
    return make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
}

__device__ __forceinline__ void unpack8(float v[8], uint4 words) {
    const u32 w[] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        v[2 * k] = __uint_as_float(w[k] << 16);
        v[2 * k + 1] = __uint_as_float(w[k] & 0xffff0000u);
    }
}

