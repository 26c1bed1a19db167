// Views of images: parameters drawn per sample, crop, flip, colour jitter, greyscale and normalisation in one launch.
// setwise/views/draw.py and render.py are the same in plain torch, and say why each step is what it is.
//
// Defined before this text: CHANNELS (1 or 3), HALF_OUT (bfloat16 out, else float), RESIZED (or else a shift of up to
// PADDING), from what the other parameters are drawn, and the SCALE and SHIFT of each channel in the end.

typedef unsigned int u32;
typedef unsigned char u8;
typedef long long i64;

#define EVERY_LANE 0xffffffffu
enum Part { BRIGHTNESS, CONTRAST, SATURATION, HUE };

#if HALF_OUT
typedef unsigned short Out;
__device__ __forceinline__ Out to_out(float x) {  // to the nearest, ties to even; there is no NaN here
    const u32 bits = __float_as_uint(x);
    return static_cast<Out>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
#else
typedef float Out;
__device__ __forceinline__ Out to_out(float x) { return x; }
#endif

struct View {
    int box[4];  // top, left, height, width
    int order[4];
    float factors[4];
    int flip, jitter, grey;
};

// ---------------------------------------------------------------------------------------------------- parameters

__device__ __forceinline__ void philox(u32 c[4], u32 key0, u32 key1) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const u32 high0 = __umulhi(0xD2511F53u, c[0]), low0 = 0xD2511F53u * c[0];
        const u32 high1 = __umulhi(0xCD9E8D57u, c[2]), low1 = 0xCD9E8D57u * c[2];
        c[0] = high1 ^ c[1] ^ key0;
        c[1] = low1;
        c[2] = high0 ^ c[3] ^ key1;
        c[3] = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

// One rounding for each operation, never a fused multiply-add: these are the bits that the CPU gets.
__device__ __forceinline__ double scaled(double x, double factor, double term) {
    return __dadd_rn(__dmul_rn(x, factor), term);
}

__device__ __forceinline__ double uniform(u32 word) { return word * (1.0 / 4294967296.0); }

__device__ __forceinline__ double exponential(double x) {
    const double coefficients[] = EXP_COEFFICIENTS;
    constexpr int last = sizeof(coefficients) / sizeof(double) - 1;
    x *= 1.0 / (1 << EXP_HALVINGS);
    double y = coefficients[last];
#pragma unroll
    for (int k = last - 1; k >= 0; --k) y = scaled(y, x, coefficients[k]);
#pragma unroll
    for (int k = 0; k < EXP_HALVINGS; ++k) y = __dmul_rn(y, y);
    return y;
}

// Draws the view of a sample, by one whole warp: a lane for each block of words, then one for each try of a crop.
__device__ void draw(View* view, i64 sample, i64 seed, i64 epoch, int number, int height, int width,
                     const int fallback[4]) {
    const int lane = threadIdx.x % 32;
    u32 words[4] = {static_cast<u32>(sample), static_cast<u32>(sample >> 32), static_cast<u32>(epoch),
                    16u * number + lane};
    philox(words, static_cast<u32>(seed), static_cast<u32>(seed >> 32));
#if RESIZED
    const int block = lane / 2 % 16;
    u32 mine[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) mine[k] = __shfl_sync(EVERY_LANE, words[k], block);
    const double area = __dmul_rn(scaled(uniform(lane % 2 ? mine[2] : mine[0]), AREA_SPAN, AREA_LOW),
                                  static_cast<double>(height * width));
    const double aspect = exponential(scaled(uniform(lane % 2 ? mine[3] : mine[1]), LOG_ASPECT_SPAN, LOG_ASPECT_LOW));
    int h = static_cast<int>(rint(__dsqrt_rn(__ddiv_rn(area, aspect))));
    int w = static_cast<int>(rint(__dsqrt_rn(__dmul_rn(area, aspect))));
    const bool fits = lane < TRIES && w > 0 && w <= width && h > 0 && h <= height;
    const u32 found = __ballot_sync(EVERY_LANE, fits);
    const int first = found ? __ffs(found) - 1 : 0;
    h = __shfl_sync(EVERY_LANE, h, first);
    w = __shfl_sync(EVERY_LANE, w, first);
#endif
    if (lane == 5) {
#if RESIZED
        view->box[0] = found ? __umulhi(words[0], height - h + 1) : fallback[0];
        view->box[1] = found ? __umulhi(words[1], width - w + 1) : fallback[1];
        view->box[2] = found ? h : fallback[2];
        view->box[3] = found ? w : fallback[3];
#else
        view->box[0] = static_cast<int>(__umulhi(words[0], 2 * PADDING + 1)) - PADDING;
        view->box[1] = static_cast<int>(__umulhi(words[1], 2 * PADDING + 1)) - PADDING;
        view->box[2] = height;
        view->box[3] = width;
#endif
        view->flip = uniform(words[2]) < FLIP;
        view->jitter = uniform(words[3]) < JITTER;
    } else if (lane == 6) {
        const double low[] = FACTORS_LOW, span[] = FACTORS_SPAN;
#pragma unroll
        for (int k = 0; k < 4; ++k) view->factors[k] = __double2float_rn(scaled(uniform(words[k]), span[k], low[k]));
    } else if (lane == 7) {
        u32 code = __umulhi(words[0], 24u);  // of the permutations in lexicographic order
        u32 left = 0x3210;                   // the parts not yet taken, four bits each
        const u32 digits[] = {code / 6, code / 2 % 3, code % 2, 0};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const u32 at = 4 * digits[k];
            view->order[k] = (left >> at) & 15u;
            left = (left & ((1u << at) - 1u)) | (left >> (at + 4) << at);
        }
        view->grey = uniform(words[1]) < GREY;
    }
}

// ---------------------------------------------------------------------------------------------------- pixels

__device__ __forceinline__ float unit(float x) { return __saturatef(x); }

__device__ __forceinline__ float grey_of(const float c[CHANNELS]) {
#if CHANNELS == 3
    return 0.2989f * c[0] + 0.587f * c[1] + 0.114f * c[2];
#else
    return c[0];
#endif
}

// Two neighbours along an axis, and how far it is to the second; a weight is zero outside of the image.
struct Between {
    int at[2];
    float weight[2];
};

__device__ __forceinline__ Between between(int place, int start, int crop, int size) {
    const float x = fmaxf((place + 0.5f) * (static_cast<float>(crop) / size) - 0.5f, 0.0f);
    const int near = min(static_cast<int>(x), crop - 1), far = min(near + 1, crop - 1);
    const float share = x - near;
    Between found;
    found.at[0] = start + near;
    found.at[1] = start + far;
    found.weight[0] = 1.0f - share;
    found.weight[1] = share;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        if (found.at[k] < 0 || found.at[k] >= size) {
            found.at[k] = 0;
            found.weight[k] = 0.0f;
        }
    }
    return found;
}

// The pixel of the crop, enlarged and flipped, that comes to lie at ``place``, in [0, 1].
__device__ __forceinline__ void pixel(float c[CHANNELS], const u8* __restrict__ image, const View& view, int place,
                                      int height, int width) {
    const int y = place / width, x = place - y * width;
    const Between row = between(y, view.box[0], view.box[2], height);
    const Between column = between(view.flip ? width - 1 - x : x, view.box[1], view.box[3], width);
#pragma unroll
    for (int k = 0; k < CHANNELS; ++k) {
        const u8 *plane = image + static_cast<size_t>(k) * height * width;
        const u8 *above = plane + row.at[0] * width, *under = plane + row.at[1] * width;
        const float top = column.weight[0] * above[column.at[0]] + column.weight[1] * above[column.at[1]];
        const float bottom = column.weight[0] * under[column.at[0]] + column.weight[1] * under[column.at[1]];
        c[k] = (row.weight[0] * top + row.weight[1] * bottom) * (1.0f / 255.0f);
    }
}

__device__ __forceinline__ void shift_hue(float c[CHANNELS], float turns) {
#if CHANNELS == 3
    const float low = fminf(c[0], fminf(c[1], c[2])), chroma = fmaxf(c[0], fmaxf(c[1], c[2])) - low;
    const float ratio = chroma > 0.0f ? (c[1] + c[2] - c[0] - low) / chroma : 0.0f;
    float hue = copysignf(1.0f + ratio, c[1] - c[2]) + 6.0f * turns;
    hue -= 6.0f * rintf(hue * (1.0f / 6.0f));
    const float centre[] = {0.0f, 2.0f, -2.0f};
#pragma unroll
    for (int k = 0; k < 3; ++k) c[k] = low + chroma * unit(fabsf(fabsf(hue - centre[k]) - 3.0f) - 1.0f);
#endif
}

__device__ __forceinline__ void change(float c[CHANNELS], int part, float factor, float mean) {
    if (part == BRIGHTNESS) {
#pragma unroll
        for (int k = 0; k < CHANNELS; ++k) c[k] = unit(factor * c[k]);
    } else if (part == HUE) {
        shift_hue(c, factor);
    } else if (part == CONTRAST || CHANNELS == 3) {  // saturation of one channel changes nothing
        const float other = (1.0f - factor) * (part == CONTRAST ? mean : grey_of(c));
#pragma unroll
        for (int k = 0; k < CHANNELS; ++k) c[k] = unit(factor * c[k] + other);
    }
}

__device__ float block_sum(float x) {
    __shared__ float sums[32];
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(EVERY_LANE, x, mask);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0.0f;
    for (int k = 0; k < blockDim.x / 32; ++k) sum += sums[k];
    return sum;
}

// The whole view, by one thread block. Contrast needs the mean of what the parts before it make of the image; they are
// computed twice, which is cheaper than to keep the pixels, and sets no limit to their number.
__device__ void render(const View& view, const u8* __restrict__ image, Out* __restrict__ out, int height, int width,
                       int channel_step, int pixel_step) {
    const int pixels = height * width;
    float c[CHANNELS], mean = 0.0f;
    if (view.jitter) {
        for (int p = threadIdx.x; p < pixels; p += blockDim.x) {
            pixel(c, image, view, p, height, width);
            for (int k = 0; k < 4 && view.order[k] != CONTRAST; ++k) {
                change(c, view.order[k], view.factors[view.order[k]], 0.0f);
            }
            mean += grey_of(c);
        }
        mean = block_sum(mean) / pixels;
    }
    const float scale[] = SCALE, shift[] = SHIFT;
    for (int p = threadIdx.x; p < pixels; p += blockDim.x) {
        pixel(c, image, view, p, height, width);
        if (view.jitter) {
            for (int k = 0; k < 4; ++k) change(c, view.order[k], view.factors[view.order[k]], mean);
        }
        const float grey = grey_of(c);
#pragma unroll
        for (int k = 0; k < CHANNELS; ++k) {
            const float value = view.grey ? grey : c[k];
            out[static_cast<size_t>(k) * channel_step + static_cast<size_t>(p) * pixel_step] =
                to_out(value * scale[k] + shift[k]);
        }
    }
}

// ---------------------------------------------------------------------------------------------------- kernels

// Only the parameters: a warp for each sample.
extern "C" __global__ void draw_views(const i64* __restrict__ samples, const i64* __restrict__ seed,
                                      const i64* __restrict__ epoch, int* __restrict__ box, u8* __restrict__ flip,
                                      u8* __restrict__ jitter, float* __restrict__ factors, int* __restrict__ order,
                                      u8* __restrict__ grey, int number, int height, int width, int top, int left,
                                      int crop_height, int crop_width) {
    __shared__ View view;
    const int fallback[] = {top, left, crop_height, crop_width}, b = blockIdx.x, k = threadIdx.x;
    draw(&view, samples[b], *seed, *epoch, number, height, width, fallback);
    __syncwarp();
    if (k < 4) {
        box[4 * b + k] = view.box[k];
        factors[4 * b + k] = view.factors[k];
        order[4 * b + k] = view.order[k];
    } else if (k == 4) {
        flip[b] = view.flip;
        jitter[b] = view.jitter;
        grey[b] = view.grey;
    }
}

// Only the pixels, from given parameters: a thread block for each image.
extern "C" __global__ void apply_views(const u8* __restrict__ images, const int* __restrict__ box,
                                       const u8* __restrict__ flip, const u8* __restrict__ jitter,
                                       const float* __restrict__ factors, const int* __restrict__ order,
                                       const u8* __restrict__ grey, Out* __restrict__ out, int height, int width,
                                       int channel_step, int pixel_step) {
    __shared__ View view;
    const int b = blockIdx.x, k = threadIdx.x;
    if (k < 4) {
        view.box[k] = box[4 * b + k];
        view.factors[k] = factors[4 * b + k];
        view.order[k] = order[4 * b + k] & 3;  // whatever is given, nothing outside of ``factors`` is read
    } else if (k == 4) {
        view.flip = flip[b];
        view.jitter = jitter[b];
        view.grey = grey[b];
    }
    __syncthreads();
    const size_t size = static_cast<size_t>(CHANNELS) * height * width;
    render(view, images + b * size, out + b * size, height, width, channel_step, pixel_step);
}

// Both: a thread block for each image (x) and view (y), into out [views, B, ...].
extern "C" __global__ void views(const u8* __restrict__ images, const i64* __restrict__ samples,
                                 const i64* __restrict__ seed, const i64* __restrict__ epoch, Out* __restrict__ out,
                                 int height, int width, int top, int left, int crop_height, int crop_width,
                                 int first, int channel_step, int pixel_step) {
    __shared__ View view;
    const int fallback[] = {top, left, crop_height, crop_width}, b = blockIdx.x;
    if (threadIdx.x < 32) draw(&view, samples[b], *seed, *epoch, first + blockIdx.y, height, width, fallback);
    __syncthreads();
    const size_t size = static_cast<size_t>(CHANNELS) * height * width;
    out += (static_cast<size_t>(blockIdx.y) * gridDim.x + b) * size;
    render(view, images + b * size, out, height, width, channel_step, pixel_step);
}
