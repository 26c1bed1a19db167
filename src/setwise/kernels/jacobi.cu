// Eigen-decomposition of small symmetric matrices: one-sided Jacobi, one thread block a matrix.
//
// B = A + shift I is positive definite. Rotating pairs of its columns until all are orthogonal gives B V = W D;
// for a positive definite B the orthonormal W are its eigenvectors, so V is never formed.
//
// Order of the rotations: odd-even transposition. Even rounds join the columns at positions (0, 1), (2, 3), ...,
// odd rounds those at (1, 2), (3, 4), ..., and a pair changes places when it has met. Any COLUMNS rounds in a row
// reverse the order, so that every column has met every other one. A unit of LANES threads serves positions
// 2u, 2u+1 or 2u+1, 2u+2: the column at 2u+1 never leaves its registers, the other goes to the next unit and
// comes back from it, by shuffles within a warp and through shared memory between warps.
//
// A column that is clearly not orthogonal to its partner goes where its length belongs (long ones to one end, to
// the other end after the reversal): sorted columns need one or two sweeps fewer.
//
// setwise.kernels.eigh puts #defines of the sizes (its class Plan) and of the tolerances before this text.

#define EVERY_LANE 0xffffffffu
#define TINY 1e-10f  // far below the rounding of lengths near 1, far above the square root of an underflow
#define ENTRIES (4 * VECTORS + SCALARS)
#define WARPS (THREADS / 32)
#define LARGEST_FLOAT 3.402823466e38f
#define TILES ((N + 3) / 4)

struct Column {
    float entry[ENTRIES];  // the rows of this lane; see row_of
    float square;          // squared length of the whole column, kept up by the rotations
};

struct Peak {  // largest cosine (squared) and largest sine of the rotations of a sweep
    float cosine2, sine;
};

// Two units in the last place; rotate() makes up for it.
__device__ __forceinline__ float rsqrt_fast(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float unit_sum(float x) {
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(EVERY_LANE, x, mask);
    return x;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(EVERY_LANE, x, mask);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) x = fmaxf(x, __shfl_xor_sync(EVERY_LANE, x, mask));
    return x;
}

// Sums or maxima of x and of y over the thread block, known to every thread.
template <bool SUM>
__device__ __forceinline__ float2 block_reduce(float x, float y) {
    __shared__ float2 partial[WARPS];
    x = SUM ? warp_sum(x) : warp_max(x);
    y = SUM ? warp_sum(y) : warp_max(y);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = make_float2(x, y);
    __syncthreads();
    float2 all = partial[0];
#pragma unroll
    for (int w = 1; w < WARPS; ++w) {
        all.x = SUM ? all.x + partial[w].x : fmaxf(all.x, partial[w].x);
        all.y = SUM ? all.y + partial[w].y : fmaxf(all.y, partial[w].y);
    }
    __syncthreads();
    return all;
}

// Shared memory, where ``chosen``: by a predicate, since a branch costs more than the access.
__device__ __forceinline__ void load_word(float& x, unsigned from, int chosen) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p ld.shared.f32 %0, [%1]; }"
                 : "+f"(x)
                 : "r"(from), "r"(chosen)
                 : "memory");
}

__device__ __forceinline__ void load_four(float* x, unsigned from, int chosen) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0; @p ld.shared.v4.f32 {%0, %1, %2, %3}, [%4]; }"
                 : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
                 : "r"(from), "r"(chosen)
                 : "memory");
}

__device__ __forceinline__ void store_word(float x, unsigned to, int chosen) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p st.shared.f32 [%1], %0; }"
                 :
                 : "f"(x), "r"(to), "r"(chosen)
                 : "memory");
}

__device__ __forceinline__ void store_four(const float* x, unsigned to, int chosen) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0; @p st.shared.v4.f32 [%4], {%0, %1, %2, %3}; }"
                 :
                 : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(to), "r"(chosen)
                 : "memory");
}

// The row of a lane's i-th entry: 16-byte words of four rows each, then single rows of the remainder.
__device__ __forceinline__ int row_of(int i, int lane) {
    return i < 4 * VECTORS ? 4 * (i / 4 * LANES + lane) + i % 4 : i * LANES + lane;
}

// Column ``index`` of the symmetric matrix whose lower triangle is given; zeros beyond its end.
__device__ __forceinline__ void fetch(Column& column, const float* __restrict__ matrix, int index, int lane) {
#pragma unroll
    for (int i = 0; i < ENTRIES; ++i) {
        const int row = row_of(i, lane);
        column.entry[i] = max(row, index) < N ? matrix[max(row, index) * N + min(row, index)] : 0.0f;
    }
    column.square = 0.0f;
}

// To and from shared memory; the squared length goes along, in the last word of the column.
__device__ __forceinline__ void load(Column& column, const float* from, int lane, bool chosen) {
    const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(from));
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) load_four(column.entry + 4 * i, base + 16 * (i * LANES + lane), chosen);
#pragma unroll
    for (int i = 4 * VECTORS; i < ENTRIES; ++i)
        load_word(column.entry[i], base + 4 * (i * LANES + lane), chosen);
    load_word(column.square, base + 4 * (STRIDE - 1), chosen);
}

__device__ __forceinline__ void store(const Column& column, float* to, int lane, bool chosen) {
    const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(to));
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) store_four(column.entry + 4 * i, base + 16 * (i * LANES + lane), chosen);
#pragma unroll
    for (int i = 4 * VECTORS; i < ENTRIES; ++i)
        store_word(column.entry[i], base + 4 * (i * LANES + lane), chosen);
    store_word(column.square, base + 4 * (STRIDE - 1), chosen && lane == 0);
}

// Take the column over from the unit above or below, within a warp.
__device__ __forceinline__ void from_next(Column& column) {
#pragma unroll
    for (int i = 0; i < ENTRIES; ++i)
        column.entry[i] = __shfl_down_sync(EVERY_LANE, column.entry[i], LANES);
    column.square = __shfl_down_sync(EVERY_LANE, column.square, LANES);
}

__device__ __forceinline__ void from_previous(Column& column) {
#pragma unroll
    for (int i = 0; i < ENTRIES; ++i)
        column.entry[i] = __shfl_up_sync(EVERY_LANE, column.entry[i], LANES);
    column.square = __shfl_up_sync(EVERY_LANE, column.square, LANES);
}

__device__ __forceinline__ float dot(const Column& left, const Column& right) {
    float chain[2] = {0.0f, 0.0f};  // two chains: half the latency
#pragma unroll
    for (int i = 0; i < ENTRIES; ++i)
        chain[i % 2] = fmaf(left.entry[i], right.entry[i], chain[i % 2]);
    return unit_sum(chain[0] + chain[1]);
}

__device__ __forceinline__ void multiply(Column& column, float factor) {
#pragma unroll
    for (int i = 0; i < ENTRIES; ++i) column.entry[i] *= factor;
}

__device__ __forceinline__ void add_diagonal(Column& column, int index, float shift, int lane) {
#pragma unroll
    for (int i = 0; i < ENTRIES; ++i)
        if (index < N && row_of(i, lane) == index) column.entry[i] += shift;
}

__device__ __forceinline__ void normalize(Column& column) {
    column.square = dot(column, column);
    multiply(column, column.square > 0.0f ? 1.0f / sqrtf(column.square) : 0.0f);
}

// Make two columns orthogonal and let them change places, unless their lengths say otherwise.
__device__ __forceinline__ void rotate(Column& left, Column& right, bool active, bool long_left, Peak& peak) {
    // No branches in here: independent pairs are to overlap. Nothing to do is an angle of exactly zero.
    const float product = dot(left, right);
    const float gamma = active ? product : 0.0f;
    const float gamma2 = gamma * gamma, squares = left.square * right.square;
    const float gap = right.square - left.square, width = fabsf(gap) + TINY;
    // The angle of at most 45 degrees: cos 2t = |gap| / hypot(gap, 2 gamma), two reciprocal roots in all.
    const float inverse = rsqrt_fast(fmaf(width, width, 4.0f * gamma2));
    const float cosine2 = fmaf(0.5f * width, inverse, 0.5f);
    const float secant = rsqrt_fast(cosine2);
    float c = cosine2 * secant;
    float s = (gap < 0.0f ? -gamma : gamma) * inverse * secant;
    // One Newton step for c^2 + s^2 = 1: hundreds of rotations must not stretch a column.
    const float correction = 0.5f * fmaf(-c, c, fmaf(-s, s, 1.0f));
    c = fmaf(c, correction, c);
    s = fmaf(s, correction, s);
    const float moved = s * secant * gamma;
    const bool sorted = gamma2 > SORT2 * squares && (long_left ? gap < 0.0f : gap > 0.0f);
    // The turned left column is (c, -s), the turned right one (s, c); signs of eigenvectors are free.
    const bool stay = sorted || !active;
    const float a = stay ? c : s, b = stay ? -s : c;
#pragma unroll
    for (int i = 0; i < ENTRIES; ++i) {
        const float old = left.entry[i];
        left.entry[i] = fmaf(a, old, b * right.entry[i]);
        right.entry[i] = fmaf(b, old, -a * right.entry[i]);
    }
    const float turned_left = left.square - moved, turned_right = right.square + moved;
    left.square = stay ? turned_left : turned_right;
    right.square = stay ? turned_right : turned_left;
    peak.cosine2 = fmaxf(peak.cosine2, gamma2 * reciprocal_fast(squares));  // fmaxf drops the NaN of padding
    peak.sine = fmaxf(peak.sine, fabsf(s));
}

// An upper bound of the spectral norm, |A^2|_F^(1/2): within n^(1/4) of it, where |A|_F is within n^(1/2).
__device__ __forceinline__ float norm_bound(const float* columns) {
    float total = 0.0f;
    for (int t = threadIdx.x; t < TILES * (TILES / 2 + 1); t += THREADS) {
        // Tiles (i, i + d) of 4 x 4, round the corner: half of the symmetric A^2, its other half by weight.
        const int i = t % TILES, d = t / TILES, j = (i + d) % TILES;
        float sum[4][4] = {};
#pragma unroll 4
        for (int k = 0; k < N; ++k) {
            const float4 p = *reinterpret_cast<const float4*>(columns + k * STRIDE + 4 * i);
            const float4 q = *reinterpret_cast<const float4*>(columns + k * STRIDE + 4 * j);
            const float u[4] = {p.x, p.y, p.z, p.w}, v[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (int e = 0; e < 16; ++e) sum[e / 4][e % 4] = fmaf(u[e / 4], v[e % 4], sum[e / 4][e % 4]);
        }
        const float weight = d == 0 || 2 * d == TILES ? 1.0f : 2.0f;
#pragma unroll
        for (int e = 0; e < 16; ++e) total = fmaf(weight * sum[e / 4][e % 4], sum[e / 4][e % 4], total);
    }
    return sqrtf(sqrtf(block_reduce<true>(total, 0.0f).x));
}

// Rayleigh quotients w^T A w of two unit columns. Rounded sines and cosines stretch columns a little, differently
// where they turned more often; the quotient is blind to it, and of second order in what else is wrong with w.
__device__ __forceinline__ float2 quotients(const float* matrix, const Column& u, const float* u_shared,
                                            const Column& v, const float* v_shared, int lane) {
    float a_u[ENTRIES] = {}, a_v[ENTRIES] = {};
#pragma unroll 2
    for (int k = 0; k < N; ++k) {
        Column a;
        load(a, matrix + k * STRIDE, lane, true);
        const float u_k = u_shared[k], v_k = v_shared[k];
#pragma unroll
        for (int i = 0; i < ENTRIES; ++i) {
            a_u[i] = fmaf(a.entry[i], u_k, a_u[i]);
            a_v[i] = fmaf(a.entry[i], v_k, a_v[i]);
        }
    }
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < ENTRIES; ++i) {
        sum.x = fmaf(a_u[i], u.entry[i], sum.x);
        sum.y = fmaf(a_v[i], v.entry[i], sum.y);
    }
    return make_float2(unit_sum(sum.x), unit_sum(sum.y));
}

// Write a column to its place among the eigenvectors, found by counting.
__device__ __forceinline__ void deliver(const Column& column, int index, bool mine, const float* all, float unscale,
                                        float* __restrict__ values, float* __restrict__ vectors, int lane) {
    const float value = all[index];
    float before = 0.0f;
    for (int i = lane; i < COLUMNS; i += LANES)
        before += all[i] < value || (all[i] == value && i < index) ? 1.0f : 0.0f;
    const int rank = static_cast<int>(unit_sum(before));
    if (!mine || rank >= N) return;  // padding comes last
    if (lane == 0) values[rank] = value * unscale;
#pragma unroll
    for (int i = 0; i < ENTRIES; ++i)
        if (row_of(i, lane) < N) vectors[rank * N + row_of(i, lane)] = column.entry[i];
}

// matrices [batch, N, N], lower triangles are read; values [batch, N] ascending; vectors [batch, N, N], one
// eigenvector a row.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    jacobi(const float* __restrict__ matrices, float* __restrict__ values, float* __restrict__ vectors) {
    extern __shared__ float4 memory[];
    float* matrix = reinterpret_cast<float*>(memory);  // [COLUMNS, STRIDE], scaled
    float* columns = matrix + COLUMNS * STRIDE;        // [COLUMNS, STRIDE], by position; for columns on their way
    __shared__ float found[COLUMNS];
    const int thread = threadIdx.x, unit = thread / LANES, lane = thread % LANES;
    matrices += static_cast<size_t>(blockIdx.x) * N * N;
    vectors += static_cast<size_t>(blockIdx.x) * N * N;
    values += static_cast<size_t>(blockIdx.x) * N;

    // Threads that fill the last warp only join in the shuffles; an even COLUMNS leaves the last unit out of odd
    // rounds. Where neither is the case the compiler is to know.
    const bool full = UNITS * LANES == THREADS;
    const bool active = full || unit < UNITS;
    const bool paired = (full && COLUMNS % 2 == 1) || 2 * unit + 2 < COLUMNS;
    // Units whose neighbour is not in their warp, or which have none and leave the column for the next round.
    const bool first = active && unit % (32 / LANES) == 0;
    const bool last = paired && (unit % (32 / LANES) == 32 / LANES - 1 || unit == UNITS - 1);
    const bool keeper = COLUMNS % 2 == 1 && unit == UNITS - 1;  // of the last column, in nobody's hands at first
    float* const home = columns + (active ? 2 * unit * STRIDE : 0);            // position 2u
    float* const away = paired ? home + 2 * STRIDE : home;                     // position 2u + 2
    float* const end = columns + (COLUMNS - 1) * STRIDE;                       // the last position
    const int index = active ? 2 * unit : 0;
    Column even, odd, rest;  // the one that travels, the one that stays, the one at the end
    fetch(even, matrices, index, lane);
    fetch(odd, matrices, index + 1, lane);
    fetch(rest, matrices, COLUMNS - 1, lane);
    float largest = 0.0f;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < ENTRIES; ++i) {
        const float x = fabsf(even.entry[i]), y = fabsf(odd.entry[i]), z = fabsf(rest.entry[i]);
        largest = fmaxf(largest, fmaxf(x, fmaxf(y, z)));
        finite = finite && x <= LARGEST_FLOAT && y <= LARGEST_FLOAT && z <= LARGEST_FLOAT;
    }
    if (__syncthreads_or(!finite)) {
        const float nan = __int_as_float(0x7fffffff);
        for (int i = thread; i < N * N; i += THREADS) vectors[i] = nan;
        for (int i = thread; i < N; i += THREADS) values[i] = nan;
        return;
    }

    // By a power of two, so that nothing is rounded: the largest entry comes near 1.
    largest = block_reduce<false>(largest, 0.0f).x;
    const int power = max(1, min(253, 254 - (__float_as_int(largest) >> 23)));
    const float scale = largest > 0.0f ? __int_as_float(power << 23) : 1.0f;
    const float unscale = largest > 0.0f ? __int_as_float((254 - power) << 23) : 1.0f;
    multiply(even, scale);
    multiply(odd, scale);
    multiply(rest, scale);
    store(even, matrix + index * STRIDE, lane, active);
    store(odd, matrix + (index + 1) * STRIDE, lane, active);
    store(rest, matrix + (COLUMNS - 1) * STRIDE, lane, keeper);
    __syncthreads();
    const float shift = largest > 0.0f ? SHIFT * norm_bound(matrix) : 1.0f;
    add_diagonal(even, index, shift, lane);
    add_diagonal(odd, index + 1, shift, lane);
    add_diagonal(rest, COLUMNS - 1, shift, lane);
    rest.square = dot(rest, rest);
    store(rest, end, lane, keeper);

    bool long_left = true;
    int met = 0;
    for (int sweep = 0; sweep < MAX_SWEEPS; ++sweep) {
        Peak peak = {0.0f, 0.0f};
        even.square = dot(even, even);  // fresh, against the drift of the updates
        odd.square = dot(odd, odd);
        for (int round = 0; round < ROUNDS; round += 2) {
            rotate(even, odd, active, long_left, peak);
            if (++met == COLUMNS) met = 0, long_left = !long_left;
            store(even, home, lane, first);
            from_next(even);
            __syncthreads();
            load(even, away, lane, last);
            rotate(odd, even, paired, long_left, peak);
            if (++met == COLUMNS) met = 0, long_left = !long_left;
            store(even, away, lane, last);
            from_previous(even);
            __syncthreads();
            load(even, home, lane, first);
        }
        // Convergence is quadratic: what is left is about the largest sine times the largest cosine. Below SORT2
        // every pair did meet; columns that were held back to sort them may have missed each other.
        const float2 worst = block_reduce<false>(peak.cosine2, peak.sine);
        if (worst.x <= SORT2 && worst.x * worst.y * worst.y <= TOLERANCE2) break;
    }

    load(rest, end, lane, keeper);
    normalize(even);
    normalize(odd);
    normalize(rest);
    store(even, home, lane, active);
    store(odd, home + STRIDE, lane, active);
    store(rest, end, lane, keeper);
    __syncthreads();
    const float infinity = __int_as_float(0x7f800000);  // for the zero column of the padding, which goes last
    const float2 two = quotients(matrix, even, home, odd, home + STRIDE, lane);
    if (active && lane == 0) {
        found[index] = even.square > 0.0f ? two.x : infinity;
        found[index + 1] = odd.square > 0.0f ? two.y : infinity;
    }
    if (COLUMNS % 2 == 1 && thread / 32 == (UNITS - 1) * LANES / 32) {  // a whole warp, for the shuffles
        const float one = quotients(matrix, rest, end, rest, end, lane).x;
        if (keeper && lane == 0) found[COLUMNS - 1] = one;
    }
    __syncthreads();
    deliver(even, index, active, found, unscale, values, vectors, lane);
    deliver(odd, index + 1, active, found, unscale, values, vectors, lane);
    deliver(rest, COLUMNS - 1, keeper, found, unscale, values, vectors, lane);
}
