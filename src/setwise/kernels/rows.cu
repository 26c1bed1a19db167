// Three small steps of QARe that would otherwise be some forty launches.

#define EVERY_LANE 0xffffffffu

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(EVERY_LANE, x, mask);
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
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) largest = fmaxf(largest, __shfl_xor_sync(EVERY_LANE, largest, mask));
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

// What a gradient in the unit rows is in the rows themselves: (g - x <x, g>) / length, zero for a zero row.
extern "C" __global__ void unit_rows_backward(const float* __restrict__ grad, const float* __restrict__ out,
                                              const float* __restrict__ lengths, float* __restrict__ grad_z, int rows,
                                              int width, int out_width) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    grad += static_cast<size_t>(row) * out_width;
    out += static_cast<size_t>(row) * out_width;
    grad_z += static_cast<size_t>(row) * width;
    float along = 0.0f;
    for (int i = lane; i < width; i += 32) along = fmaf(grad[i], out[i], along);
    along = warp_sum(along);
    const float divisor = lengths[row], length = lengths[rows + row];
    const float inverse = length == 0.0f ? 0.0f : 1.0f / length;
    for (int i = lane; i < width; i += 32) grad_z[i] = (grad[i] - along * out[i]) * inverse / divisor;
}

// The ordered dot product of two spectra, one warp a set: values [2, r] ascending, and rest [2] repeated, of which
// ``copies`` are sorted in and ``beyond`` meet each other. met [2, r] is what each value meets in the other set,
// rest_met [2] the sum of what the repeated ones meet, value [1] the product.
extern "C" __global__ void meeting(const float* __restrict__ values, const float* __restrict__ rest,
                                   float* __restrict__ met, float* __restrict__ rest_met, float* __restrict__ value,
                                   int r, int copies, int beyond, int largest) {
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
            met[set * r + i] = other;
            product = fmaf(mine[i], other, product);
        }
    }
    product = warp_sum(product);
    rest_sum = warp_sum(rest_sum) + beyond * their_rest;
    if (lane == 0) {
        rest_met[set] = rest_sum;
        if (set == 0) value[0] = product + my_rest * rest_sum;
    }
}
