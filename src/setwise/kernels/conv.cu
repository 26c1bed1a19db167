// Convolution, forwards and (TURNED) as the gradient of its input. After conv_tiles.cu.
//
// Defined before: OWN of the OUT channels to a block; WARPS_M x WARPS_N warps, which divide pixels and channels; LAST
// (weights are [O, k, k, I] in memory, not [O, I, k, k]); TURNED, STATISTICS, ADD.
//
// H200, 256 images, 16, 32 and 64 channels: 11, 9 and 12 us forwards with the statistics, 9, 9 and 13 us backwards. The
// library takes 31, 9 and 10 us, and 15 us for the statistics, and 37, 9 and 9 us backwards.

#define ROWS (PIXELS / WARPS_M / 16)  // matrix products of a warp, down and across
#define COLUMNS (OWN / WARPS_N / 8)
#define OWN_PITCH (OWN + 8)
#define WEIGHTS_BYTES (2 * TAPS * (TURNED ? IN16 * OWN_PITCH : OWN * PITCH))
#define HELD (TAPS * (IN16 / 16) * COLUMNS * 2 <= 36)  // registers for all weights of a warp

struct __align__(4 * COLUMNS) Words {  // a thread's channels of a pixel
    u32 word[COLUMNS];
};

// Channels are stored in an order that gives each thread neighbours: column 2q + e of product j is channel
// 2 (q COLUMNS + j) + e of the warp's.
__device__ __forceinline__ int row_of(int channel) {
    constexpr int own = 8 * COLUMNS;
    const int r = channel % own, q = r / (2 * COLUMNS), j = r / 2 % COLUMNS;
    return channel / own * own + j * 8 + 2 * q + r % 2;
}

// Weights in bf16 of the OWN output channels of this block (blockIdx.y says which), [TAPS][OWN][PITCH]. TURNED, for the
// gradient of the input: taps reversed, IN and OUT exchanged, [TAPS][IN16][OWN_PITCH], for so they lie in memory.
__device__ __forceinline__ void load_weights(bf16* to, const float* __restrict__ weight) {
    constexpr int inner = TURNED ? OWN : IN, all = TURNED ? OUT : IN;
    constexpr int step = LAST && inner % 4 == 0 ? 4 : 1;
    const int before = blockIdx.y * OWN;
#pragma unroll 12
    for (int i = threadIdx.x * step; i < TAPS * IN * OWN; i += THREADS * step) {
        const int second = LAST ? i % inner : i / TAPS % inner, first = i / (TAPS * inner);
        const int tap = LAST ? i / inner % TAPS : i % TAPS;
        const int row = first + (TURNED ? 0 : before), column = second + (TURNED ? before : 0);
        const float* from = weight + (LAST ? (row * TAPS + tap) * all + column : (row * all + column) * TAPS + tap);
        bf16* place = TURNED ? to + ((TAPS - 1 - tap) * IN16 + first) * OWN_PITCH
                             : to + (tap * OWN + row_of(first)) * PITCH + second;
        if (step == 4) {
            const float4 found = *reinterpret_cast<const float4*>(from);
            const u32 low = pack(found.x, found.y), high = pack(found.z, found.w);
            if (TURNED) {
                *reinterpret_cast<u32*>(place + row_of(second)) = low;
                *reinterpret_cast<u32*>(place + row_of(second + 2)) = high;
            } else {
                *reinterpret_cast<uint2*>(place) = make_uint2(low, high);
            }
        } else {
            place[TURNED ? row_of(second) : 0] = static_cast<bf16>(pack(*from, 0.0f));
        }
    }
}

// Where a lane reads weights: of columns (and of the next eight, where there are two products) and input channels.
__device__ __forceinline__ u32 columns_of(const bf16* weights, int first) {
    const int lane = threadIdx.x % 32, column = first + (COLUMNS % 2 ? 0 : lane / 16 * 8), k = lane / 8 % 2 * 8;
    return address(TURNED ? weights + (k + lane % 8) * OWN_PITCH + column : weights + (column + lane % 8) * PITCH + k);
}

// All products of a warp with 16 input channels from ``k`` on.
__device__ __forceinline__ void load_columns(u32 found[COLUMNS][2], u32 from, int tap, int k) {
    from += 2 * (TURNED ? (tap * IN16 + k) * OWN_PITCH : tap * OWN * PITCH + k);
#pragma unroll
    for (int j = 0; j < COLUMNS; j += 2) {
        const u32 at = from + 2 * j * 8 * (TURNED ? 1 : PITCH);
        if (COLUMNS % 2) {
            TURNED ? load2_turned(found[j], at) : load2(found[j], at);
        } else {
            TURNED ? load4_turned(found[j], at) : load4(found[j], at);
        }
    }
}

// ADD: ``more`` [B, OUT_H, OUT_W, OUT] is added.
// STATISTICS: ``partial`` gets the mean and the sum of squared deviations of each channel of each block,
// [blocks][2][OUT], then the pixels of each block.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    convolve(const bf16* __restrict__ in, const float* __restrict__ weight, const bf16* __restrict__ more,
             bf16* __restrict__ out, float* __restrict__ partial, int images) {
    extern __shared__ uint4 memory[];
    bf16 *weights = reinterpret_cast<bf16*>(memory), *tiles = weights + WEIGHTS_BYTES / 2;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
    const int warp_m = warp % WARPS_M, warp_n = warp / WARPS_M, total = tiles_of(images);
    const int first_out = blockIdx.y * OWN;
    if (IN != IN16) {
        clear(memory, WEIGHTS_BYTES + 2 * 2 * REACH * PITCH);
        __syncthreads();
    }
    if (!TURNED) wait_for_kernel_before();  // else that is weight_gradient, of which nothing is read
    let_next_kernel_start();
    load_input(tiles, in, blockIdx.x, images);
    copies_end();
    load_weights(weights, weight);
    __syncthreads();

    u32 rows[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
        rows[i] = address(tiles + reach_of((warp_m * ROWS + i) * 16 + lane % 16) + lane / 16 * 8);
    const u32 columns = columns_of(weights, warp_n * 8 * COLUMNS);
#if HELD
    u32 held[TAPS][IN16 / 16][COLUMNS][2];
#pragma unroll
    for (int tap = 0; tap < TAPS; ++tap)
#pragma unroll
        for (int k = 0; k < IN16 / 16; ++k) load_columns(held[tap][k], columns, tap, 16 * k);
#endif
    float shift[COLUMNS][2] = {}, sum[COLUMNS][2] = {}, squares[COLUMNS][2] = {};
    int count = 0, stage = 0;
    for (int tile = blockIdx.x; tile < total; tile += gridDim.x, stage ^= 1) {
        const int next = tile + gridDim.x;
        if (next < total) load_input(tiles + (1 - stage) * REACH * PITCH, in, next, images);
        copies_end();
        wait_for_earlier_copies();
        __syncthreads();
        const Place place = place_of(tile);
        const size_t start = static_cast<size_t>(place.image) * (OUT_H * OUT_W * OUT);
        auto there_is = [&](int i, int half) {
            return IMAGES == 1 ||
                   place.image + pixel((warp_m * ROWS + i) * 16 + 8 * half + group, TILE_H, TILE_W).image < images;
        };
        auto offset_of = [&](int i, int half) {
            const Place at = pixel((warp_m * ROWS + i) * 16 + 8 * half + group, TILE_H, TILE_W);
            return ((at.image * OUT_H + place.y + at.y) * OUT_W + place.x + at.x) * OUT + first_out +
                   2 * COLUMNS * (4 * warp_n + quad);
        };
#if ADD
        Words added[ROWS][2];  // on its way while the products are computed
#pragma unroll
        for (int i = 0; i < 2 * ROWS; ++i)
            if (there_is(i / 2, i % 2))
                added[i / 2][i % 2] = *reinterpret_cast<const Words*>(more + start + offset_of(i / 2, i % 2));
#endif
        float sums[ROWS][COLUMNS][4] = {};
#pragma unroll
        for (int tap = 0; tap < TAPS; ++tap) {
#pragma unroll
            for (int k = 0; k < IN16 / 16; ++k) {
                u32 a[ROWS][4];
                const int shifted = stage * REACH * PITCH + (tap / KERNEL * REACH_W + tap % KERNEL) * PITCH + 16 * k;
#pragma unroll
                for (int i = 0; i < ROWS; ++i) load4(a[i], rows[i] + 2 * shifted);
#if HELD
                u32(*b)[2] = held[tap][k];
#else
                u32 b[COLUMNS][2];
                load_columns(b, columns, tap, 16 * k);
#endif
#pragma unroll
                for (int i = 0; i < ROWS; ++i)
#pragma unroll
                    for (int j = 0; j < COLUMNS; ++j) multiply(sums[i][j], a[i], b[j]);
            }
        }
        __syncthreads();  // the next turn loads into this stage
#if STATISTICS
        if (tile == blockIdx.x) {  // deviations are from one of the values: a large mean must not swallow them
#pragma unroll
            for (int j = 0; j < 2 * COLUMNS; ++j)
                shift[j / 2][j % 2] = __shfl_sync(EVERY_LANE, sums[0][j / 2][j % 2], quad);
        }
#endif
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float* row[COLUMNS];
                Words words;
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) row[j] = sums[i][j] + 2 * half;
#if ADD
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) {
                    row[j][0] += __uint_as_float(added[i][half].word[j] << 16);
                    row[j][1] += __uint_as_float(added[i][half].word[j] & 0xffff0000u);
                }
#endif
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) words.word[j] = pack(row[j][0], row[j][1]);
                const bool there = there_is(i, half);
                if (there) {
                    *reinterpret_cast<Words*>(out + start + offset_of(i, half)) = words;
                    ++count;
                }
#if STATISTICS
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const float away = there ? row[j][e] - shift[j][e] : 0.0f;
                        sum[j][e] += away;
                        squares[j][e] = fmaf(away, away, squares[j][e]);
                    }
                }
#endif
            }
        }
    }
#if STATISTICS
    __shared__ float found[WARPS_M][2][OWN], counts[WARPS_M];
#pragma unroll
    for (int mask = 16; mask >= 4; mask /= 2) {
        count += __shfl_xor_sync(EVERY_LANE, count, mask);
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                sum[j][e] += __shfl_xor_sync(EVERY_LANE, sum[j][e], mask);
                squares[j][e] += __shfl_xor_sync(EVERY_LANE, squares[j][e], mask);
            }
    }
    if (group == 0) {
        const float inverse = count ? 1.0f / count : 0.0f;
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int channel = 8 * warp_n * COLUMNS + 2 * (quad * COLUMNS + j) + e;
                found[warp_m][0][channel] = shift[j][e] + sum[j][e] * inverse;
                found[warp_m][1][channel] = fmaxf(squares[j][e] - sum[j][e] * sum[j][e] * inverse, 0.0f);
            }
        if (quad == 0) counts[warp_m] = count;
    }
    __syncthreads();
    if (threadIdx.x < OWN) {  // Chan et al.: two groups' means and sums of squares make those of both
        float n = 0.0f, mean = 0.0f, deviations = 0.0f;
        for (int w = 0; w < WARPS_M; ++w) {
            const float more = counts[w], away = found[w][0][threadIdx.x] - mean;
            if (more == 0.0f) continue;
            n += more;
            mean += away * (more / n);
            deviations += found[w][1][threadIdx.x] + away * away * (more * (n - more) / n);
        }
        const int channel = first_out + threadIdx.x;
        partial[2 * blockIdx.x * OUT + channel] = mean;
        partial[(2 * blockIdx.x + 1) * OUT + channel] = deviations;
        if (channel == 0) partial[2 * gridDim.x * OUT + blockIdx.x] = n;
    }
#endif
    if (TURNED) wait_for_kernel_before();
}
