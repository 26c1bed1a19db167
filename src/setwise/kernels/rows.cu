// Small steps of QARe and of the pairwise losses that would otherwise be some fifty launches.

#define EVERY_LANE 0xffffffffu
#define MINUS_INFINITY __int_as_float(0xff800000)

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

// Rows of unit length, one warp a row. The largest entry is divided out first, so that no square over- or
// underflows. out [rows, out_width] gets ``append`` in the column after the last, where it has one; lengths
// [2, rows] the largest entry and the length of what was left. A zero row stays zero, a NaN stays a NaN.
extern "C" __global__ void unit_rows(const float* __restrict__ z, float* __restrict__ out,
                                     float* __restrict__ lengths, int rows, int width, int out_width, double append) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    z += static_cast<size_t>(row) * width;
    out += static_cast<size_t>(row) * out_width;
    float largest = 0.0f;
    for (int i = lane; i < width; i += 32) largest = fmaxf(largest, fabsf(z[i]));
    largest = warp_max(largest);
    const float divisor = largest > 0.0f ? largest : 1.0f;
    float squares = 0.0f;
    for (int i = lane; i < width; i += 32) {
        const float x = z[i] / divisor;
        squares = fmaf(x, x, squares);
    }
    const float length = sqrtf(warp_sum(squares));
    const float inverse = length == 0.0f ? 0.0f : 1.0f / length;
    for (int i = lane; i < width; i += 32) out[i] = z[i] / divisor * inverse;
    if (lane == 0) {
        if (out_width > width) out[width] = static_cast<float>(append);
        lengths[row] = divisor;
        lengths[rows + row] = length;
    }
}

// What a gradient in the unit rows is in the rows themselves: (g - x <x, g>) / length, zero for a zero row. A row whose
// largest entry is below ``shortest`` gets the gradient of one that has it.
extern "C" __global__ void unit_rows_backward(const float* __restrict__ grad, const float* __restrict__ out,
                                              const float* __restrict__ lengths, float* __restrict__ grad_z, int rows,
                                              int width, int out_width, double shortest) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    grad += static_cast<size_t>(row) * out_width;
    out += static_cast<size_t>(row) * out_width;
    grad_z += static_cast<size_t>(row) * width;
    float along = 0.0f;
    for (int i = lane; i < width; i += 32) along = fmaf(grad[i], out[i], along);
    along = warp_sum(along);
    const float least = static_cast<float>(shortest), length = lengths[rows + row];
    const float divisor = lengths[row] < least ? least : lengths[row];  // a NaN stays one
    const float inverse = length == 0.0f ? 0.0f : 1.0f / length;
    for (int i = lane; i < width; i += 32) grad_z[i] = (grad[i] - along * out[i]) * inverse / divisor;
}

// The ordered dot product of two spectra, one warp a set: values [2, r] ascending, and rest [2] repeated, of which
// ``copies`` are sorted in and ``beyond`` are each other's partners. partners [2, r] are those of the values,
// rest_partners [2] the sum of those of the repeated ones, result [1] the product.
extern "C" __global__ void spectra_product(const float* __restrict__ values, const float* __restrict__ rest,
                                           float* __restrict__ partners, float* __restrict__ rest_partners,
                                           float* __restrict__ result, int r, int copies, int beyond, int largest) {
    const int set = threadIdx.x / 32, lane = threadIdx.x % 32, total = r + copies;
    const float *mine = values + set * r, *theirs = values + (1 - set) * r;
    const float my_rest = rest[set], their_rest = rest[1 - set];
    float below = 0.0f, their_below = 0.0f;  // how many values come before the repeated one
    for (int i = lane; i < r; i += 32) {
        below += mine[i] >= my_rest ? 0.0f : 1.0f;
        their_below += theirs[i] >= their_rest ? 0.0f : 1.0f;
    }
    const int before = static_cast<int>(warp_sum(below)), their_before = static_cast<int>(warp_sum(their_below));
    float product = 0.0f, rest_sum = 0.0f;
    for (int place = lane; place < total; place += 32) {
        const int q = largest ? place : total - 1 - place;
        const float other = q < their_before ? theirs[q] : q < their_before + copies ? their_rest : theirs[q - copies];
        if (place >= before && place < before + copies) {
            rest_sum += other;
        } else {
            const int i = place < before ? place : place - copies;
            partners[set * r + i] = other;
            product = fmaf(mine[i], other, product);
        }
    }
    product = warp_sum(product);
    rest_sum = warp_sum(rest_sum) + beyond * their_rest;
    if (lane == 0) {
        rest_partners[set] = rest_sum;
        if (set == 0) result[0] = product + my_rest * rest_sum;
    }
}

// The smoothed maximum of some scores of a row, over the lanes of a warp: ``score(i)`` where ``counts(i)``.
// sparse = 0: log-sum-exp, softmax. sparse = 1: sparsemax. Its threshold T, with the largest score at 0, solves
// sum max(u - T, 0) = 1. Michelot: T of all entries, then of those above it, until they stay the same; it only rises.
struct Maximum {
    float largest, value, threshold, sum;  // the maximum is largest + value
    int sparse;
    template <class Score, class Counts>
    __device__ __forceinline__ Maximum(Score score, Counts counts, int width, int lane, int sparse)
        : largest(MINUS_INFINITY), value(0.0f), threshold(0.0f), sum(0.0f), sparse(sparse) {
        for (int i = lane; i < width; i += 32)
            if (counts(i)) largest = fmaxf(largest, score(i));
        largest = warp_max(largest);
        if (sparse) {
            float before = -1.0f, count = 0.0f;
            threshold = MINUS_INFINITY;
            while (count != before) {
                before = count;
                float u_sum = 0.0f, above = 0.0f;
                for (int i = lane; i < width; i += 32) {
                    const float u = score(i) - largest;
                    if (counts(i) && !(u <= threshold)) {
                        u_sum += u;
                        above += 1.0f;
                    }
                }
                count = warp_sum(above);
                // rounding must not lower it: no end
                threshold = fmaxf(threshold, (warp_sum(u_sum) - 1.0f) / count);
            }
            for (int i = lane; i < width; i += 32) {
                const float u = score(i) - largest;
                if (counts(i) && !(u <= threshold)) value = fmaf(u - threshold, u + threshold, value);
            }
            value = 0.5f * warp_sum(value) + 0.5f;
        } else {
            for (int i = lane; i < width; i += 32)
                if (counts(i)) sum += expf(score(i) - largest);
            sum = warp_sum(sum);
            value = logf(sum);
        }
    }
    // Its argmax: how much of the row is given to a score that counts.
    __device__ __forceinline__ float share(float score) const {
        const float u = score - largest;
        return sparse ? (u <= threshold ? 0.0f : u - threshold) : expf(u) / sum;
    }
};

// The loss of each row of scores theta [rows, width], one warp a row: the smoothed maximum minus the true partner's
// score, and its gradient [rows, width], argmax - partner. Scores are bounded by ``least`` from below, where they have
// no gradient then; ``margin`` is taken off the partner's; column row + itself is left out.
extern "C" __global__ void row_losses(const float* __restrict__ theta, const long long* __restrict__ partners,
                                      float* __restrict__ losses, float* __restrict__ gradient, int rows, int width,
                                      int itself, int sparse, double margin, double least) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    theta += static_cast<size_t>(row) * width;
    gradient += static_cast<size_t>(row) * width;
    const int left_out = row + itself, partner = static_cast<int>(partners[row]);
    const float floor = static_cast<float>(least), off = static_cast<float>(margin);
    auto score = [&](int i) {  // a NaN stays one
        const float x = theta[i] < floor ? floor : theta[i];
        return i == partner ? x - off : x;
    };
    const Maximum best(score, [&](int i) { return i != left_out; }, width, lane, sparse);
    const float loss = best.value + (best.largest - score(partner));
    if (lane == 0) losses[row] = loss + (loss - loss);  // of an infinite score of the partner: NaN, not infinity
    for (int i = lane; i < width; i += 32) {
        const float chosen = i == left_out ? 0.0f : best.share(score(i));
        gradient[i] = theta[i] < floor ? 0.0f : chosen - (i == partner ? 1.0f : 0.0f);
    }
}

// The same where only the sets of rows and columns are known, ``ids`` [rows] and ``others`` [known] of the first
// columns: the smoothed maximum minus that of the columns of the row's set. ``alone``: the last column is in every set;
// it has no bound. ``margin`` is taken off all columns of the set. A row without such a column has no loss.
extern "C" __global__ void set_losses(const float* __restrict__ theta, const long long* __restrict__ ids,
                                      const long long* __restrict__ others, float* __restrict__ losses,
                                      float* __restrict__ gradient, unsigned char* __restrict__ partnered, int rows,
                                      int width, int known, int itself, int sparse, int alone, double margin,
                                      double least) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    theta += static_cast<size_t>(row) * width;
    gradient += static_cast<size_t>(row) * width;
    const int left_out = row + itself, last = alone ? width - 1 : -1;
    const long long id = ids[row];
    const float floor = static_cast<float>(least), off = static_cast<float>(margin);
    auto admissible = [&](int i) { return i == last || (i < known && others[i] == id); };
    auto bounded = [&](int i) { return i != last && theta[i] < floor; };
    auto score = [&](int i) {  // a NaN stays one
        const float x = bounded(i) ? floor : theta[i];
        return admissible(i) ? x - off : x;
    };
    float mine = 0.0f;
    for (int i = lane; i < width; i += 32) mine += admissible(i) ? 1.0f : 0.0f;
    const bool some = warp_sum(mine) > 0.0f;
    if (lane == 0) partnered[row] = some;
    if (!some) {
        if (lane == 0) losses[row] = 0.0f;
        for (int i = lane; i < width; i += 32) gradient[i] = 0.0f;
        return;
    }
    const Maximum best(score, [&](int i) { return i != left_out; }, width, lane, sparse);
    const Maximum inside(score, admissible, width, lane, sparse);
    const float loss = (best.value - inside.value) + (best.largest - inside.largest);
    if (lane == 0) losses[row] = loss + (loss - loss);
    for (int i = lane; i < width; i += 32) {
        const float chosen = i == left_out ? 0.0f : best.share(score(i));
        gradient[i] = bounded(i) ? 0.0f : chosen - (admissible(i) ? inside.share(score(i)) : 0.0f);
    }
}
