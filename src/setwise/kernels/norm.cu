// Batch normalisation, residual, ReLU and average pool around the convolutions of conv.cu, and their gradients.
// bf16 images [B, H, W, CHANNELS], eight channels of a pixel to a thread; sums in float32, always in the same order.
//
// After bf16.cu. Defined before, by setwise.kernels.conv_plan: CHANNELS (8, 16, 32 or 64), RELU, RESIDUAL,
// GRAD_RESIDUAL, POOL (0: none, 1: average of 2 x 2, 2: of the whole image), and with a pool HEIGHT and WIDTH before
// it.
//
// What a ReLU lets through after a residual is kept as bits, a byte for eight channels: a sixteenth of the residual, which
// backwards would have to be read twice. Without a residual it follows from c, which is read anyway.
//
// H200, 256 images of 32 x 32 x 16: 7 us forwards, 6 to 8 us and 7 to 9 us backwards, near what the cache can deliver;
// the library takes 15, 6, 11 and 7 us for the normalisation alone.

typedef unsigned char u8;
typedef long long i64;

#define EVERY_LANE 0xffffffffu
#define THREADS 256
#define WARPS (THREADS / 32)
#define PIECES (CHANNELS / 8)  // threads a pixel
#define BATCH 4                // loads on their way at a time

// See conv.cu.
__device__ __forceinline__ void after_the_kernel_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Sums ``parts`` of [2][CHANNELS] each by the whole block, into ``total``. MOMENTS: they are means and sums of squared
// deviations of ``counts`` values each, and become sum and sum of squares of deviations from the first part's mean.
template <bool MOMENTS>
__device__ __forceinline__ void total_of(float total[2][CHANNELS], const float* __restrict__ partial,
                                         const float* __restrict__ counts, int parts) {
    __shared__ float sums[WARPS][2][CHANNELS];
    constexpr int quads = CHANNELS / 4;
    const int quad = threadIdx.x % quads, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float4* rows = reinterpret_cast<const float4*>(partial);
    float4 shift = make_float4(0, 0, 0, 0);
    if (MOMENTS) shift = rows[quad];
    float found[2][4] = {};
#pragma unroll 4
    for (int i = threadIdx.x / quads; i < parts; i += THREADS / quads) {
        const float4 a = rows[2 * i * quads + quad], b = rows[(2 * i + 1) * quads + quad];
        const float first[] = {a.x - shift.x, a.y - shift.y, a.z - shift.z, a.w - shift.w};
        const float second[] = {b.x, b.y, b.z, b.w};
        const float n = MOMENTS ? counts[i] : 1.0f;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            found[0][k] += n * first[k];
            found[1][k] += MOMENTS ? fmaf(n * first[k], first[k], second[k]) : second[k];
        }
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
        for (int mask = 16; mask >= quads; mask /= 2)
            found[k / 4][k % 4] += __shfl_xor_sync(EVERY_LANE, found[k / 4][k % 4], mask);
        if (lane < quads) sums[warp][k / 4][4 * quad + k % 4] = found[k / 4][k % 4];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * CHANNELS; i += THREADS) {
        float sum = 0.0f;
        for (int w = 0; w < WARPS; ++w) sum += sums[w][i / CHANNELS][i % CHANNELS];
        total[i / CHANNELS][i % CHANNELS] = sum;
    }
    __syncthreads();
}

#define MASKED (RESIDUAL && RELU)  // with bits

// The same expression forwards and backwards, so that the ReLU has the same sign. bf16 rounds c by more than what is
// lost here where the mean is much larger than the deviations.
__device__ __forceinline__ float before_relu(float c, float scale, float offset) { return fmaf(scale, c, offset); }

#ifdef NORMALISE
// pool(relu(scale c + offset + residual)) with the statistics of the batch. Keeps scale, offset, mean and 1 / deviation
// in saved [4][CHANNELS] and, where MASKED, what the ReLU lets through; moves the running statistics.
extern "C" __global__ void __launch_bounds__(THREADS)
    normalise(const uint4* __restrict__ c, const uint4* __restrict__ residual, const float* __restrict__ partial,
              int parts, const float* __restrict__ gamma, const float* __restrict__ beta, float* running_mean,
              float* running_var, i64* tracked, double momentum, double epsilon, float* __restrict__ saved,
              uint4* __restrict__ out, u8* __restrict__ through, int items, int pixels) {
    __shared__ float total[2][CHANNELS], scales[CHANNELS], offsets[CHANNELS];
    const int piece = threadIdx.x % PIECES;
    after_the_kernel_before();
#if POOL < 2
    constexpr int window = POOL ? 4 : 1, batch = BATCH / window;
    const int stride = gridDim.x * THREADS;
    uint4 values[batch][window] = {}, others[batch][window] = {};
    auto from = [&](int item, int k) {
#if POOL == 1
        const int p = item / PIECES, x = p % (WIDTH / 2), y = p / (WIDTH / 2);  // y through all images
        return ((2 * y + k / 2) * WIDTH + 2 * x + k % 2) * PIECES + piece;
#else
        return item;
#endif
    };
    auto load = [&](int start) {
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            const int item = start + u * stride;
            if (item >= items) break;
#pragma unroll
            for (int k = 0; k < window; ++k) {
                values[u][k] = c[from(item, k)];
                if (RESIDUAL) others[u][k] = residual[from(item, k)];
            }
        }
    };
    int start = blockIdx.x * THREADS + threadIdx.x;
    load(start);  // on its way while the statistics are summed
#endif
    total_of<true>(total, partial, partial + 2 * parts * CHANNELS, parts);
    if (threadIdx.x < CHANNELS) {
        const int k = threadIdx.x;
        const float n = pixels, away = total[0][k] / n, mean = partial[k] + away;
        const float deviations = fmaxf(total[1][k] - total[0][k] * away, 0.0f), variance = deviations / n;
        const float inverse = rsqrtf(variance + static_cast<float>(epsilon));
        scales[k] = gamma[k] * inverse;
        offsets[k] = fmaf(-scales[k], mean, beta[k]);
        if (blockIdx.x == 0) {
            saved[k] = scales[k];
            saved[CHANNELS + k] = offsets[k];
            saved[2 * CHANNELS + k] = mean;
            saved[3 * CHANNELS + k] = inverse;
            const float share = static_cast<float>(momentum);
            running_mean[k] += share * (mean - running_mean[k]);
            running_var[k] += share * (deviations / (n - 1.0f) - running_var[k]);
            if (k == 0) ++*tracked;
        }
    }
    __syncthreads();
    float scale[8], offset[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        scale[k] = scales[8 * piece + k];
        offset[k] = offsets[8 * piece + k];
    }
    auto add = [&](float sums[8], uint4 value, uint4 other, int place) {
        float v[8], r[8] = {};
        u32 bits = 0;
        unpack8(v, value);
        if (RESIDUAL) unpack8(r, other);
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            const float y = before_relu(v[k], scale[k], offset[k]) + r[k];
            sums[k] += RELU ? fmaxf(y, 0.0f) : y;
            bits |= y > 0.0f ? 1u << k : 0u;
        }
        if (MASKED) through[place] = static_cast<u8>(bits);
    };
#if POOL == 2
    const int image = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (image >= items) return;
    float sums[8] = {};
#pragma unroll 4
    for (int i = lane; i < HEIGHT * WIDTH * PIECES; i += 32) {
        const int from = image * HEIGHT * WIDTH * PIECES + i;
        add(sums, c[from], RESIDUAL ? residual[from] : make_uint4(0, 0, 0, 0), from);
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
        for (int mask = 16; mask >= PIECES; mask /= 2) sums[k] += __shfl_xor_sync(EVERY_LANE, sums[k], mask);
        sums[k] *= 1.0f / (HEIGHT * WIDTH);
    }
    if (lane < PIECES) out[image * PIECES + lane] = pack8(sums);
#else
    for (; start < items; start += batch * stride) {
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            const int item = start + u * stride;
            if (item >= items) break;
            float sums[8] = {};
#pragma unroll
            for (int k = 0; k < window; ++k) add(sums, values[u][k], others[u][k], from(item, k));
#pragma unroll
            for (int k = 0; k < 8; ++k) sums[k] *= 1.0f / window;
            out[item] = pack8(sums);
        }
        load(start + batch * stride);
    }
#endif
}
#endif

#if defined(SUM_GRADIENT) || defined(SPREAD_GRADIENT)
// Where the gradient of the output that ``item`` of the input has a part in is, and how large the part.
__device__ __forceinline__ int grad_of(int item, int piece) {
#if POOL == 0
    return item;
#elif POOL == 1
    const int p = item / PIECES, x = p % WIDTH, y = p / WIDTH;
    return (y / 2 * (WIDTH / 2) + x / 2) * PIECES + piece;
#else
    return item / (HEIGHT * WIDTH * PIECES) * PIECES + piece;
#endif
}

#if POOL == 0
#define PART 1.0f
#elif POOL == 1
#define PART 0.25f
#else
#define PART (1.0f / (HEIGHT * WIDTH))
#endif

// Calls use(item, c, masked gradient) for every item, eight channels each; prepare() while the first are on their way.
// EARLY: nothing but what prepare() reads comes from the kernel before.
template <bool EARLY, typename Prepare, typename Use>
__device__ __forceinline__ void each(const uint4* __restrict__ grad, const uint4* __restrict__ c,
                                     const u8* __restrict__ through, const float* __restrict__ saved, int items,
                                     Prepare prepare, Use use) {
    const int piece = threadIdx.x % PIECES, stride = gridDim.x * THREADS;
    uint4 grads[BATCH] = {}, values[BATCH] = {};
    u32 masks[BATCH] = {};
    auto load = [&](int start) {
#pragma unroll
        for (int u = 0; u < BATCH; ++u) {
            const int item = start + u * stride;
            if (item >= items) break;
            grads[u] = grad[grad_of(item, piece)];
            values[u] = c[item];
            if (MASKED) masks[u] = through[item];
        }
    };
    int start = blockIdx.x * THREADS + threadIdx.x;
    if (EARLY) {
        load(start);
        after_the_kernel_before();
    } else {
        after_the_kernel_before();
        load(start);
    }
    prepare();
    float scale[8], offset[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        scale[k] = saved[8 * piece + k];
        offset[k] = saved[CHANNELS + 8 * piece + k];
    }
    for (; start < items; start += BATCH * stride) {
#pragma unroll
        for (int u = 0; u < BATCH; ++u) {
            const int item = start + u * stride;
            if (item >= items) break;
            float g[8], v[8];
            unpack8(g, grads[u]);
            unpack8(v, values[u]);
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                const bool open = MASKED ? masks[u] >> k & 1u : !RELU || before_relu(v[k], scale[k], offset[k]) > 0.0f;
                g[k] = open ? PART * g[k] : 0.0f;
            }
            use(item, v, g);
        }
        load(start + BATCH * stride);
    }
}

#ifdef SUM_GRADIENT
// Sums of the masked gradient, and of it times the normalised input, of each block: partial [blocks][2][CHANNELS].
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_gradient(const uint4* __restrict__ grad, const uint4* __restrict__ c, const u8* __restrict__ through,
                 const float* __restrict__ saved, float* __restrict__ partial, int items) {
    __shared__ float sums[WARPS][2][CHANNELS];
    const int piece = threadIdx.x % PIECES, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float mean[8], found[2][8] = {};
    auto prepare = [&] {
#pragma unroll
        for (int k = 0; k < 8; ++k) mean[k] = saved[2 * CHANNELS + 8 * piece + k];
    };
    each<false>(grad, c, through, saved, items, prepare, [&](int, const float v[8], const float g[8]) {
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            found[0][k] += g[k];
            found[1][k] = fmaf(g[k], v[k] - mean[k], found[1][k]);
        }
    });
#pragma unroll
    for (int k = 0; k < 16; ++k) {
#pragma unroll
        for (int mask = 16; mask >= PIECES; mask /= 2)
            found[k / 8][k % 8] += __shfl_xor_sync(EVERY_LANE, found[k / 8][k % 8], mask);
        if (lane < PIECES) sums[warp][k / 8][8 * piece + k % 8] = found[k / 8][k % 8];
    }
    __syncthreads();
    if (threadIdx.x < 2 * CHANNELS) {
        const int which = threadIdx.x / CHANNELS, k = threadIdx.x % CHANNELS;
        float sum = 0.0f;
        for (int w = 0; w < WARPS; ++w) sum += sums[w][which][k];
        partial[2 * blockIdx.x * CHANNELS + threadIdx.x] = which ? sum * saved[3 * CHANNELS + k] : sum;
    }
}
#endif

#ifdef SPREAD_GRADIENT
// Gradients of c, of the residual, of gamma and of beta from those sums.
extern "C" __global__ void __launch_bounds__(THREADS)
    spread_gradient(const uint4* __restrict__ grad, const uint4* __restrict__ c, const u8* __restrict__ through,
                    const float* __restrict__ saved, const float* __restrict__ partial, int parts,
                    uint4* __restrict__ grad_c, uint4* __restrict__ grad_residual, float* __restrict__ grad_gamma,
                    float* __restrict__ grad_beta, int items, int pixels) {
    __shared__ float total[2][CHANNELS];
    const int piece = threadIdx.x % PIECES;
    float scale[8], slope[8], constant[8];
    auto prepare = [&] {
        total_of<false>(total, partial, partial, parts);
        if (blockIdx.x == 0 && threadIdx.x < CHANNELS) {
            grad_beta[threadIdx.x] = total[0][threadIdx.x];
            grad_gamma[threadIdx.x] = total[1][threadIdx.x];
        }
        // scale (g - sum g / n - x^ sum (g x^) / n), with x^ = (c - mean) inverse, is scale g + slope c + constant.
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            const int channel = 8 * piece + k;
            scale[k] = saved[channel];
            slope[k] = -scale[k] * saved[3 * CHANNELS + channel] * total[1][channel] / pixels;
            constant[k] = -scale[k] * total[0][channel] / pixels - slope[k] * saved[2 * CHANNELS + channel];
        }
    };
    each<true>(grad, c, through, saved, items, prepare, [&](int item, const float v[8], const float g[8]) {
        float found[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) found[k] = fmaf(scale[k], g[k], fmaf(slope[k], v[k], constant[k]));
        grad_c[item] = pack8(found);
        if (GRAD_RESIDUAL) grad_residual[item] = pack8(g);
    });
}
#endif
#endif

#ifdef SUM_WEIGHTS
// Sums the parts of weight_gradient (conv.cu), always in the same order, into the weights' own layout.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_weights(const float* __restrict__ partial, float* __restrict__ grad, int parts) {
    constexpr int in16 = (IN + 15) / 16 * 16, out16 = (OUT + 15) / 16 * 16, elements = TAPS * out16 * in16;
    __shared__ float sums[WARPS][32];
    const int lane = threadIdx.x % 32, slice = threadIdx.x / 32, element = blockIdx.x * 32 + lane;
    float sum = 0.0f;
    after_the_kernel_before();
#pragma unroll 8
    for (int i = slice; i < parts; i += WARPS) sum += partial[i * elements + element];
    sums[slice][lane] = sum;
    __syncthreads();
    if (slice) return;
    for (int i = 1; i < WARPS; ++i) sum += sums[i][lane];
    const int c = element % in16, o = element / in16 % out16, tap = element / (in16 * out16);
    if (c < IN && o < OUT) grad[LAST ? (o * TAPS + tap) * IN + c : (o * IN + c) * TAPS + tap] = sum;
}
#endif
