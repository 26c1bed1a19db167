// What lies around the matrix products of Deep InfoMax's local scores, and its gradients: rows of CHANNELS in bf16, one
// for each place of an image with the image's own features, and again with those of the image before.
// Eight channels of a row to a thread; sums in float32, always in the same order. What a ReLU lets through is kept as
// bits, a byte for eight channels.
//
// After bf16.cu. Defined before, by setwise.kernels.local: CHANNELS (8, 16, 32, 64, 128 or 256).

typedef unsigned char u8;

#define EVERY_LANE 0xffffffffu
#define THREADS 256
#define WARPS (THREADS / 32)
#define PIECES (CHANNELS / 8)    // threads a row
#define ROWS (THREADS / PIECES)  // that a block takes at a time

// The ReLU of eight channels and its bits. A NaN stays one.
__device__ __forceinline__ u8 relu8(float v[8]) {
    u32 through = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        through |= v[k] <= 0.0f ? 0u : 1u << k;
        v[k] = v[k] <= 0.0f ? 0.0f : v[k];
    }
    return static_cast<u8>(through);
}

// Calls use(row, load(row)) for the thread's own of the rows from ``first`` on, COUNT loads on their way at a time. The
// threads of a block stay together: for what is beyond the last row there is no load, but use().
template <int COUNT, typename Load, typename Use>
__device__ __forceinline__ void each(int first, int rows, int stride, Load load, Use use) {
    for (; first < rows; first += COUNT * stride) {
        const int row = first + threadIdx.x / PIECES;
        decltype(load(0)) values[COUNT] = {};
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (row + i * stride < rows) values[i] = load(row + i * stride);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) use(row + i * stride, values[i]);
    }
}

// Sums of the block's rows, into out [COUNT][CHANNELS].
template <int COUNT>
__device__ __forceinline__ void block_sums(float* __restrict__ out, const float found[COUNT][8]) {
    __shared__ float sums[WARPS][COUNT * CHANNELS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 8 * COUNT; ++i) {
        float sum = found[i / 8][i % 8];
#pragma unroll
        for (int mask = 16; mask >= PIECES; mask /= 2) sum += __shfl_xor_sync(EVERY_LANE, sum, mask);
        if (lane < PIECES) sums[warp][i / 8 * CHANNELS + 8 * lane + i % 8] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < COUNT * CHANNELS; i += THREADS) {
        float sum = 0.0f;
        for (int w = 0; w < WARPS; ++w) sum += sums[w][i];
        out[i] = sum;
    }
}

// h [2][images][size] = relu(places + whole), with the image's own row of whole [images] and with the one before it.
extern "C" __global__ void __launch_bounds__(THREADS)
    hidden(const uint4* __restrict__ places, const float* __restrict__ whole, uint4* __restrict__ h,
           u8* __restrict__ through, int images, int size) {
    const int parts = gridDim.x / images, image = blockIdx.x / parts, before = image ? image - 1 : images - 1;
    const int piece = threadIdx.x % PIECES;
    const size_t start = static_cast<size_t>(image) * size, branch = static_cast<size_t>(images) * size * PIECES;
    float add[2][8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        add[0][k] = whole[image * CHANNELS + 8 * piece + k];
        add[1][k] = whole[before * CHANNELS + 8 * piece + k];
    }
    auto load = [&](int row) { return places[(start + row) * PIECES + piece]; };
    each<4>(blockIdx.x % parts * ROWS, size, parts * ROWS, load, [&](int row, uint4 value) {
        if (row >= size) return;
#pragma unroll
        for (int b = 0; b < 2; ++b) {
            float v[8];
            unpack8(v, value);
#pragma unroll
            for (int k = 0; k < 8; ++k) v[k] += add[b][k];
            const size_t item = b * branch + (start + row) * PIECES + piece;
            through[item] = relu8(v);
            h[item] = pack8(v);
        }
    });
}

// scores [rows] = constant + weight . relu(u + bias), of u [rows].
extern "C" __global__ void __launch_bounds__(THREADS)
    scores(const uint4* __restrict__ u, const float* __restrict__ bias, const float* __restrict__ weight,
           const float* __restrict__ constant, float* __restrict__ out, u8* __restrict__ through, int rows) {
    const int piece = threadIdx.x % PIECES;
    const float more = constant[0];
    float add[8], times[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        add[k] = bias[8 * piece + k];
        times[k] = weight[8 * piece + k];
    }
    auto load = [&](int row) { return u[static_cast<size_t>(row) * PIECES + piece]; };
    each<4>(blockIdx.x * ROWS, rows, gridDim.x * ROWS, load, [&](int row, uint4 value) {
        float v[8], sum = 0.0f;
        unpack8(v, value);
#pragma unroll
        for (int k = 0; k < 8; ++k) v[k] += add[k];
        const u8 bits = relu8(v);
#pragma unroll
        for (int k = 0; k < 8; ++k) sum = fmaf(times[k], v[k], sum);
#pragma unroll
        for (int mask = PIECES / 2; mask > 0; mask /= 2) sum += __shfl_xor_sync(EVERY_LANE, sum, mask);
        if (row >= rows) return;
        through[static_cast<size_t>(row) * PIECES + piece] = bits;
        if (piece == 0) out[row] = sum + more;
    });
}

// out [rows] = grad [rows] in the channels of u + bias that were let through; its sums, partial [blocks][CHANNELS].
extern "C" __global__ void __launch_bounds__(THREADS)
    scores_backward(const float* __restrict__ grad, const u8* __restrict__ through, uint4* __restrict__ out,
                    float* __restrict__ partial, int rows) {
    struct Loaded {
        float grad;
        u32 bits;
    };
    const int piece = threadIdx.x % PIECES;
    float sums[1][8] = {};
    auto load = [&](int row) { return Loaded{grad[row], through[static_cast<size_t>(row) * PIECES + piece]}; };
    each<8>(blockIdx.x * ROWS, rows, gridDim.x * ROWS, load, [&](int row, Loaded loaded) {
        if (row >= rows) return;
        float v[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) sums[0][k] += v[k] = loaded.bits >> k & 1 ? loaded.grad : 0.0f;
        out[static_cast<size_t>(row) * PIECES + piece] = pack8(v);
    });
    block_sums<1>(partial + blockIdx.x * CHANNELS, sums);
}

// out [images][size] = the sum over both branches of grad [2][images][size] where h was let through; its sums over an
// image's places, partial [images][parts][2][CHANNELS].
extern "C" __global__ void __launch_bounds__(THREADS)
    hidden_backward(const uint4* __restrict__ grad, const u8* __restrict__ through, uint4* __restrict__ out,
                    float* __restrict__ partial, int images, int size) {
    struct Loaded {
        uint4 grad[2];
        u32 bits[2];
    };
    const int parts = gridDim.x / images, piece = threadIdx.x % PIECES;
    const size_t start = static_cast<size_t>(blockIdx.x / parts) * size;
    const size_t branch = static_cast<size_t>(images) * size * PIECES;
    float sums[2][8] = {};
    auto load = [&](int row) {
        const size_t own = (start + row) * PIECES + piece, other = branch + own;
        return Loaded{{grad[own], grad[other]}, {through[own], through[other]}};
    };
    each<2>(blockIdx.x % parts * ROWS, size, parts * ROWS, load, [&](int row, const Loaded& loaded) {
        if (row >= size) return;
        float v[2][8];
#pragma unroll
        for (int b = 0; b < 2; ++b) {
            unpack8(v[b], loaded.grad[b]);
#pragma unroll
            for (int k = 0; k < 8; ++k) sums[b][k] += v[b][k] = loaded.bits[b] >> k & 1 ? v[b][k] : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < 8; ++k) v[0][k] += v[1][k];
        out[(start + row) * PIECES + piece] = pack8(v[0]);
    });
    block_sums<2>(partial + static_cast<size_t>(blockIdx.x) * 2 * CHANNELS, sums);
}
