// The first part of eigh.cu: what the thread block shares, and Householder's reflections, which make the matrix
// tridiagonal, its entries in registers.
//
// setwise.kernels.eigh defines before this text: N, THREADS (256 or 512).

#define EVERY_LANE 0xffffffffu
#define LARGEST_FLOAT 3.402823466e38f
#define EPSILON 1.1920929e-7f
#define SEPARATION 7.4505806e-9f  // 2^-27
#define FLOOR 1.4901161e-8f       // 2^-26
#define NOTHING 1e-30f            // squares of entries that are zero beside one near 1; below, squares lose their digits
#define TURNS 12                  // of an iteration that takes three to five

#define ROWS (THREADS / 8)                        // of a matrix in registers: eight threads have a row, four columns
#define PLACES ((N + ROWS - 1) / ROWS * ROWS)     // each of 32; rows and columns come last among the places, so that
#define BEFORE (PLACES - N)                       // the first ones are done with soon
#define SLOTS (PLACES / ROWS)
#define CHUNKS (PLACES / 32)
#define GROUPS (THREADS / 4)                      // four threads share a pole, a root, an eigenvector
#define ITEMS ((N + 7) / 8 * 8)                   // of all groups of a warp, so that none misses a shuffle
#define SIXTEENS ((N + 15) / 16)
#define STRIDE (16 * SIXTEENS + 4)                // floats from row to row in shared memory
#define HEIGHT ((N + 3) / 4 * 4)
#define TILES ((HEIGHT / 4 * (HEIGHT / 4) + THREADS - 1) / THREADS)

struct Memory {  // shared by the block
    float vectors[HEIGHT * STRIDE];  // [row][eigenvector], of the blocks joined so far
    float other[HEIGHT * STRIDE];    // [row][eigenvector] of a join; then [reflection][row]
    float reflection[2][PLACES], product[PLACES], scales[HEIGHT];  // up to here four at a time
    float4 roots[N];  // the nearest pole, and the distance from it
    float2 poles[N], sorted[N];
    float diagonal[N], beside[N], tau[N], z[N], again[N];
    float partial[THREADS / 32];
    int order[N];
};

__device__ __forceinline__ float sum_over(float x, int lanes) {
#pragma unroll
    for (int mask = 1; mask < lanes; mask *= 2) x += __shfl_xor_sync(EVERY_LANE, x, mask);
    return x;
}

// Reflections to ``kept`` [N][N], in row k from column k + 1 on.
__device__ __forceinline__ void make_tridiagonal(Memory& memory, const float* matrix, float scale, float* kept) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = 4 * (lane % 8), row = 4 * warp + lane / 8;
    float a[SLOTS][CHUNKS][4];
#pragma unroll
    for (int s = 0; s < SLOTS; ++s)
#pragma unroll
        for (int q = 0; q < CHUNKS; ++q)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int i = s * ROWS + row - BEFORE, j = 32 * q + first + e - BEFORE;
                a[s][q][e] = min(i, j) >= 0 ? scale * matrix[max(i, j) * N + min(i, j)] : 0.0f;
            }
#pragma unroll
    for (int q = BEFORE / 32; q < CHUNKS; ++q) {  // of the columns that are reduced
        const int slot = 32 * q / ROWS;
        for (int place = max(32 * q, BEFORE); place < 32 * q + 32; ++place) {
            const int k = place - BEFORE;
            float* v = memory.reflection[k % 2];  // others may still read the one before
            if (warp == place % ROWS / 4) {
                const bool mine = lane / 8 == place % 4;
                float next = 0.0f, rest = 0.0f;
#pragma unroll
                for (int i = 0; i < 4 * (CHUNKS - q); ++i) {
                    const int j = 32 * (q + i / 4) + first + i % 4;
                    const float x = a[slot][q + i / 4][i % 4];
                    if (j == place + 1) next = x;
                    if (j > place + 1) rest = fmaf(x, x, rest);
                    if (mine && j == place) memory.diagonal[k] = x;
                }
                next = sum_over(next, 8);
                rest = sum_over(rest, 8);
                const bool needed = rest > NOTHING;
                const float length = sqrtf(fmaf(next, next, rest)), beta = next < 0.0f ? length : -length;
                const float inverse = needed ? 1.0f / (next - beta) : 0.0f;
                if (mine) {
#pragma unroll
                    for (int i = 0; i < 4 * (CHUNKS - q); ++i) {
                        const int j = 32 * (q + i / 4) + first + i % 4;
                        const float x = a[slot][q + i / 4][i % 4] * inverse;
                        const float found = j > place + 1 ? x : j == place + 1 && needed ? 1.0f : 0.0f;
                        v[j] = found;
                        if (j > place) kept[k * N + j - BEFORE] = found;
                    }
                    if (first == 0) {
                        memory.tau[k] = needed ? (beta - next) / beta : 0.0f;
                        memory.beside[k] = needed ? beta : next;
                    }
                }
            }
            __syncthreads();
            const float tau = memory.tau[k];
            if (tau == 0.0f) continue;
            float across[CHUNKS][4], p[CHUNKS][4], dot = 0.0f;
#pragma unroll
            for (int c = q; c < CHUNKS; ++c) {
                const float4 four = *reinterpret_cast<const float4*>(v + 32 * c + first);
                across[c][0] = four.x, across[c][1] = four.y, across[c][2] = four.z, across[c][3] = four.w;
            }
#pragma unroll
            for (int s = slot; s < SLOTS; ++s) {
                float chain[4] = {};
#pragma unroll
                for (int c = q; c < CHUNKS; ++c)
#pragma unroll
                    for (int e = 0; e < 4; ++e) chain[e] = fmaf(a[s][c][e], across[c][e], chain[e]);
                const float found = sum_over((chain[0] + chain[1]) + (chain[2] + chain[3]), 8);
                if (first == 0) memory.product[s * ROWS + row] = found;
            }
            __syncthreads();
#pragma unroll
            for (int c = q; c < CHUNKS; ++c) {
                const float4 four = *reinterpret_cast<const float4*>(memory.product + 32 * c + first);
                p[c][0] = four.x, p[c][1] = four.y, p[c][2] = four.z, p[c][3] = four.w;
#pragma unroll
                for (int e = 0; e < 4; ++e) dot = fmaf(across[c][e], p[c][e], dot);
            }
            const float back = 0.5f * tau * tau * sum_over(dot, 8);
#pragma unroll
            for (int c = q; c < CHUNKS; ++c)
#pragma unroll
                for (int e = 0; e < 4; ++e) p[c][e] = fmaf(tau, p[c][e], -back * across[c][e]);
#pragma unroll
            for (int s = slot; s < SLOTS; ++s) {
                const int i = s * ROWS + row;
                const float down = i > place ? v[i] : 0.0f;
                const float w = i > place ? fmaf(tau, memory.product[i], -back * down) : 0.0f;
#pragma unroll
                for (int c = q; c < CHUNKS; ++c)
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        a[s][c][e] = fmaf(-down, p[c][e], fmaf(-w, across[c][e], a[s][c][e]));
            }
        }
    }
}
