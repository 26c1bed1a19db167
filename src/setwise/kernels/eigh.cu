// Eigen-decomposition of small symmetric matrices, one thread block a matrix: Householder's reflections make the matrix
// tridiagonal (tridiagonal.cu, the text before this one), Cuppen's divide and conquer decomposes that, the reflections
// bring the eigenvectors back.
//
// Joining two halves is the eigenproblem of D + rho z z^T, whose eigenvalues are the roots of a secular equation, one
// between every two poles d_j. Nothing is deflated: poles that lie closer than SEPARATION are pushed apart, and weights
// z_j are at least FLOOR (the matrix has its largest entry near 1), which changes it by less than rounding does, and
// lets every matrix take the same path. Poles are sums of two floats, roots are kept as distances from the nearest
// pole, and z is then computed again such that these roots are exact (Gu and Eisenstat): the eigenvectors are
// orthogonal however close the roots are.

// --------------------------------------------------------------------------------------------- divide and conquer

struct Block {  // of 2 * half rows, the last one perhaps of fewer; the halves meet at ``cut``
    int start, cut, end;
    bool joined;  // there is a second half
};

__device__ __forceinline__ Block block_of(int i, int half) {
    const int start = i & ~(2 * half - 1);
    return {start, start + half, min(start + 2 * half, N), start + half < N};
}

__device__ __forceinline__ float minus(float2 a, float2 b) { return (a.x - b.x) + (a.y - b.y); }

// How many of the poles from ``start`` to ``end`` come before this one: always a permutation.
__device__ __forceinline__ int rank_of(const float2* poles, int i, int start, int end) {
    const float2 own = poles[i];
    float before = 0.0f;
#pragma unroll 4
    for (int j = start + threadIdx.x % 4; j < end; j += 4) {
        const float2 x = poles[j];
        const bool tie = x.x == own.x && (x.y < own.y || (x.y == own.y && j < i));
        before += x.x < own.x || tie ? 1.0f : 0.0f;
    }
    return static_cast<int>(sum_over(before, 4));
}

// The root of 1 / rho + sum z_j^2 / (d_j - x) after pole i: the nearest pole, and the distance from it.
//
// Gragg's iteration: a function with both neighbouring poles that agrees in value, slope and curvature has its root
// next. With y_j = mu / (d_j - origin - mu), all in [-1, 1], and the equation times mu, nothing overflows, and
// ``origin_weight`` and ``far`` are sums of positive terms. After the last pole the far one is replaced by a slope.
__device__ __forceinline__ float4 root_after(const Memory& memory, int i, Block block, float inverse_rho) {
    const int thread = threadIdx.x % 4;
    const bool last = i == block.end - 1;
    const float2 own = memory.poles[i], next = memory.poles[last ? i : i + 1];
    float gap = last ? -2.0f : minus(next, own), value = 0.0f, total = 0.0f;
#pragma unroll 4
    for (int j = block.start + thread; j < block.end; j += 4) {
        const float z2 = memory.z[j] * memory.z[j];
        value += __fdividef(z2, minus(memory.poles[j], own) - 0.5f * gap);
        total += z2;
    }
    value = inverse_rho + sum_over(value, 4);
    total = sum_over(total, 4);
    if (last) gap = __fdividef(total, inverse_rho);
    const bool right = !last && value < 0.0f;
    const float sign = right ? -1.0f : 1.0f, inverse_gap = last ? 0.0f : __fdividef(sign, gap);
    const float2 origin = right ? next : own;
    const float least = memory.z[right ? i + 1 : i] * memory.z[right ? i + 1 : i];
    float low = 0.0f, high = last ? gap : 0.5f * gap, mu = sign * 0.5f * gap;
    bool done = !block.joined;
    for (int turn = 0; turn < TURNS && __any_sync(EVERY_LANE, !done); ++turn) {
        float f = 0.0f, size = 0.0f, far = 0.0f, weight = 0.0f;
#pragma unroll 4
        for (int j = block.start + thread; j < block.end; j += 4) {
            const float z = memory.z[j], delta = minus(memory.poles[j], origin);
            const float inverse = __fdividef(1.0f, delta - mu), y = mu * inverse;
            const float zy = z * z * y, zyy = zy * y;
            f += zy;
            size += fabsf(zy);
            far = fmaf(zyy, delta * inverse, far);
            weight = fmaf(zyy * y, fmaf(delta, inverse_gap, -1.0f), weight);
        }
        f = fmaf(inverse_rho, mu, sum_over(f, 4));
        size = fmaf(inverse_rho, fabsf(mu), sum_over(size, 4));
        far = sum_over(far, 4);
        weight = fmaxf(sum_over(weight, 4), least);
        done = done || fabsf(f) <= 4.0f * EPSILON * size;
        const float distance = fabsf(mu);
        if (f < 0.0f) low = distance;
        if (f > 0.0f) high = distance;
        // square x^2 - linear x + weight = 0 for x, the next distance over this one.
        const float part = mu * inverse_gap, rest = 1.0f - part, slope = far * rest * rest;
        const float square = fmaf(part, f + weight, -slope), linear = fmaf(part, weight, f + weight) - slope;
        const float root = sqrtf(fmaxf(fmaf(linear, linear, -4.0f * square * weight), 0.0f));
        const float x = linear >= 0.0f ? __fdividef(2.0f * weight, linear + root)
                                       : __fdividef(linear - root, 2.0f * square);
        float better = distance * x;
        if (!(better >= low && better <= high && better > 0.0f))
            better = low > 0.0f ? sqrtf(low) * sqrtf(high) : 0.015625f * high;
        if (!done) mu = sign * better;
    }
    return make_float4(origin.x, origin.y, mu, 0.0f);
}

__device__ __forceinline__ float minus_root(float2 pole, float4 root) {
    return ((pole.x - root.x) + (pole.y - root.y)) - root.z;
}

struct Tile {  // four rows and four columns of a join, if it is one
    int row, column;
    Block block;
    bool here;
};

__device__ __forceinline__ Tile tile_of(int tile, int half) {
    const int id = threadIdx.x + tile * THREADS, width = (min(2 * half, N) + 3) / 4, row = 4 * (id / width);
    const Block block = block_of(row, half);
    const int column = block.start + 4 * (id % width);
    return {row, column, block, row < N && column < N && block.joined};
}

// All products of the halves' eigenvectors with those of their joins, four rows and four columns at a time.
__device__ __forceinline__ void multiply(Memory& memory, int half) {
    float sums[TILES][4][4] = {};
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        const auto [row, column, block, here] = tile_of(tile, half);
        if (!here) continue;
        // Of two rows each, the halves share a tile; beside them there are zeros.
        const int from = half < 4 || row < block.cut ? block.start : block.cut;
        const int to = half < 4 || row >= block.cut ? block.end : block.cut;
        for (int k = from; k < to; k += 4) {
            float4 left[4];
#pragma unroll
            for (int r = 0; r < 4; ++r) left[r] = *reinterpret_cast<float4*>(memory.vectors + (row + r) * STRIDE + k);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float4 right = *reinterpret_cast<float4*>(memory.other + (k + e) * STRIDE + column);
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    const float x = e == 0 ? left[r].x : e == 1 ? left[r].y : e == 2 ? left[r].z : left[r].w;
                    sums[tile][r][0] = fmaf(x, right.x, sums[tile][r][0]);
                    sums[tile][r][1] = fmaf(x, right.y, sums[tile][r][1]);
                    sums[tile][r][2] = fmaf(x, right.z, sums[tile][r][2]);
                    sums[tile][r][3] = fmaf(x, right.w, sums[tile][r][3]);
                }
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        const auto [row, column, block, here] = tile_of(tile, half);
        if (!here) continue;
        const float4 scale = *reinterpret_cast<float4*>(memory.scales + column);
#pragma unroll
        for (int r = 0; r < 4; ++r)
            *reinterpret_cast<float4*>(memory.vectors + (row + r) * STRIDE + column) =
                make_float4(scale.x * sums[tile][r][0], scale.y * sums[tile][r][1], scale.z * sums[tile][r][2],
                            scale.w * sums[tile][r][3]);
    }
}

// Eigenvectors and eigenvalues of the tridiagonal matrix, to memory.vectors and memory.poles.
__device__ __forceinline__ void conquer(Memory& memory) {
    const int group = threadIdx.x / 4, thread = threadIdx.x % 4;
    for (int i = threadIdx.x; i < HEIGHT * STRIDE; i += THREADS) {
        memory.vectors[i] = i / STRIDE == i % STRIDE ? 1.0f : 0.0f;
        memory.other[i] = 0.0f;
    }
    for (int i = threadIdx.x; i < HEIGHT; i += THREADS) memory.scales[i] = 0.0f;
    for (int i = threadIdx.x; i < N; i += THREADS) {
        const float before = i > 0 ? fabsf(memory.beside[i - 1]) : 0.0f;
        const float after = i < N - 1 ? fabsf(memory.beside[i]) : 0.0f;
        memory.poles[i] = make_float2(memory.diagonal[i] - before - after, 0.0f);
    }
    __syncthreads();
    for (int half = 1; half < N; half *= 2) {
        for (int item = group; item < ITEMS; item += GROUPS) {  // poles in order, and their weights
            const int i = min(item, N - 1);
            const Block block = block_of(i, half);
            const int to = block.start + rank_of(memory.poles, i, block.start, block.end);
            if (!block.joined || thread || item >= N) continue;
            const float* row = memory.vectors + (i < block.cut ? block.cut - 1 : block.cut) * STRIDE;
            const float z = i < block.cut || memory.beside[block.cut - 1] > 0.0f ? row[i] : -row[i];
            memory.sorted[to] = memory.poles[i];
            memory.order[to] = i;
            memory.z[to] = fabsf(z) >= FLOOR ? z : z < 0.0f ? -FLOOR : FLOOR;
        }
        __syncthreads();
        for (int item = group; item < ITEMS; item += GROUPS) {  // apart from one another
            const int i = min(item, N - 1);
            const Block block = block_of(i, half);
            const float2 own = memory.sorted[i];
            float more = 0.0f;
#pragma unroll 4
            for (int j = block.start + thread; j < i && block.joined; j += 4)
                more = fmaxf(more, fmaf(static_cast<float>(i - j), SEPARATION, minus(memory.sorted[j], own)));
            more = fmaxf(more, __shfl_xor_sync(EVERY_LANE, more, 1));
            more = fmaxf(more, __shfl_xor_sync(EVERY_LANE, more, 2));
            if (!block.joined || thread || item >= N) continue;
            const float low = own.y + more, high = own.x + low;
            memory.poles[i] = make_float2(high, low - (high - own.x));
        }
        __syncthreads();
        for (int item = group; item < ITEMS; item += GROUPS) {
            const int i = min(item, N - 1);
            const Block block = block_of(i, half);
            const float rho = block.joined ? fmaxf(fabsf(memory.beside[block.cut - 1]), FLOOR) : 1.0f;
            const float4 root = root_after(memory, i, block, 1.0f / rho);
            if (block.joined && !thread && item < N) memory.roots[i] = root;
        }
        __syncthreads();
        for (int item = group; item < ITEMS; item += GROUPS) {  // z for which these are the roots
            const int i = min(item, N - 1);
            const Block block = block_of(i, half);
            const float2 own = memory.poles[i];
            float product = 1.0f;
#pragma unroll 4
            for (int j = block.start + thread; j < block.end && block.joined; j += 4) {
                const float away = minus_root(own, memory.roots[j]);
                if (j == block.end - 1) {
                    product *= -away;
                } else {
                    product *= away / minus(own, memory.poles[j < i ? j : j + 1]);
                }
            }
            product *= __shfl_xor_sync(EVERY_LANE, product, 1);
            product *= __shfl_xor_sync(EVERY_LANE, product, 2);
            if (!block.joined || thread || item >= N) continue;
            memory.again[i] = copysignf(sqrtf(fmaxf(product, 0.0f)), memory.z[i]);
        }
        __syncthreads();
        for (int item = group; item < ITEMS; item += GROUPS) {  // eigenvectors of the joins
            const int i = min(item, N - 1);
            const Block block = block_of(i, half);
            const float4 root = block.joined ? memory.roots[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            float squares = 0.0f;
#pragma unroll 4
            for (int j = block.start + thread; j < block.end && block.joined; j += 4) {
                const float x = memory.again[j] / minus_root(memory.poles[j], root);
                squares = fmaf(x, x, squares);
                if (item < N) memory.other[memory.order[j] * STRIDE + i] = x;
            }
            squares = sum_over(squares, 4);
            if (block.joined && !thread && item < N) memory.scales[i] = 1.0f / sqrtf(squares);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < N; i += THREADS) {
            if (!block_of(i, half).joined) continue;
            const float4 root = memory.roots[i];
            const float low = root.y + root.z, high = root.x + low, part = high - root.x;
            memory.poles[i] = make_float2(high, (root.x - (high - part)) + (low - part));
        }
        if (half == 1) {
            for (int i = threadIdx.x; i < 2 * N; i += THREADS) {
                const int row = i / 2, column = row / 2 * 2 + i % 2;
                if (block_of(row, half).joined)
                    memory.vectors[row * STRIDE + column] = memory.scales[column] * memory.other[row * STRIDE + column];
            }
        } else {
            multiply(memory, half);
        }
        __syncthreads();
    }
}

// ------------------------------------------------------------------------------------------------------- together

// The eigenvectors of the matrix from those of the tridiagonal one, by the reflections in ``vectors``, where they
// go themselves, one a row. Four threads have an eigenvector, rows 16 u + 4 thread + e each.
__device__ __forceinline__ void deliver(Memory& memory, float unscale, float* values, float* vectors) {
    const int group = threadIdx.x / 4, thread = threadIdx.x % 4;
    for (int i = threadIdx.x; i < N * 16 * SIXTEENS; i += THREADS) {
        const int k = i / (16 * SIXTEENS), j = i % (16 * SIXTEENS);
        memory.other[k * STRIDE + j] = j > k && j < N ? vectors[k * N + j] : 0.0f;
    }
    __syncthreads();
    for (int item = group; item < ITEMS; item += GROUPS) {
        const int i = min(item, N - 1);
        float x[SIXTEENS][4];
#pragma unroll
        for (int u = 0; u < SIXTEENS; ++u)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int j = 16 * u + 4 * thread + e;
                x[u][e] = j < N ? memory.vectors[j * STRIDE + i] : 0.0f;
            }
#pragma unroll
        for (int block = SIXTEENS - 1; block >= 0; --block) {  // of rows that reflections begin in
            for (int k = min(16 * block + 14, N - 2); k >= max(16 * block - 1, 0); --k) {
                const float tau = memory.tau[k];
                float v[SIXTEENS][4], dot[4] = {};
#pragma unroll
                for (int u = block; u < SIXTEENS; ++u) {
                    const float4 four =
                        *reinterpret_cast<float4*>(memory.other + k * STRIDE + 16 * u + 4 * thread);
                    v[u][0] = four.x, v[u][1] = four.y, v[u][2] = four.z, v[u][3] = four.w;
#pragma unroll
                    for (int e = 0; e < 4; ++e) dot[e] = fmaf(v[u][e], x[u][e], dot[e]);
                }
                const float part = -tau * sum_over((dot[0] + dot[1]) + (dot[2] + dot[3]), 4);
#pragma unroll
                for (int u = block; u < SIXTEENS; ++u)
#pragma unroll
                    for (int e = 0; e < 4; ++e) x[u][e] = fmaf(part, v[u][e], x[u][e]);
            }
        }
        const int rank = rank_of(memory.poles, i, 0, N);
        if (item >= N) continue;
        if (thread == 0) values[rank] = unscale * memory.poles[i].x;
#pragma unroll
        for (int u = 0; u < SIXTEENS; ++u)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int j = 16 * u + 4 * thread + e;
                if (j < N) vectors[rank * N + j] = x[u][e];
            }
    }
}

// matrices [batch, N, N], lower triangles are read; values [batch, N] ascending; vectors [batch, N, N], one
// eigenvector a row.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    eigh(const float* __restrict__ matrices, float* values, float* vectors) {
    extern __shared__ float4 shared[];
    Memory& memory = *reinterpret_cast<Memory*>(shared);
    matrices += static_cast<size_t>(blockIdx.x) * N * N;
    vectors += static_cast<size_t>(blockIdx.x) * N * N;
    values += static_cast<size_t>(blockIdx.x) * N;
    float largest = 0.0f;
    bool finite = true;
    for (int i = threadIdx.x; i < N * N; i += THREADS) {
        if (i % N > i / N) continue;
        const float x = fabsf(matrices[i]);
        largest = fmaxf(largest, x);
        finite = finite && x <= LARGEST_FLOAT;
    }
    if (__syncthreads_or(!finite)) {
        const float nan = __int_as_float(0x7fffffff);
        for (int i = threadIdx.x; i < N * N; i += THREADS) vectors[i] = nan;
        for (int i = threadIdx.x; i < N; i += THREADS) values[i] = nan;
        return;
    }
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) largest = fmaxf(largest, __shfl_xor_sync(EVERY_LANE, largest, mask));
    if (threadIdx.x % 32 == 0) memory.partial[threadIdx.x / 32] = largest;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < THREADS / 32; ++w) largest = fmaxf(largest, memory.partial[w]);
    // By a power of two, so that nothing is rounded: the largest entry comes near 1.
    const int power = max(1, min(253, 254 - (__float_as_int(largest) >> 23)));
    const float scale = __int_as_float(power << 23);
    const float unscale = largest > 0.0f ? __int_as_float((254 - power) << 23) : 0.0f;
    make_tridiagonal(memory, matrices, scale, vectors);
    __syncthreads();
    conquer(memory);
    deliver(memory, unscale, values, vectors);
}
