// Gradient of a convolution's weights. After conv_tiles.cu.
//
// Defined before: JOBS_OUT x JOBS_IN pairs of 16 channels to a block.
//
// H200, 256 images: 10 to 11 us for 16, 32 and 64 channels; the library's take 43, 22 and 22 us.

#define OWN_OUT (16 * JOBS_OUT)  // output channels of a block
#define OUT_PITCH (OWN_OUT + 8)
#define JOBS (JOBS_OUT * JOBS_IN)
#define SPLITS (THREADS / 32 / JOBS)  // warps that share a job, each with pixels of its own

// Gradient of the weights, in part: [gridDim.x][TAPS][OUT16][IN16], each block of a row with tiles of its own. A job
// is 16 x 16 channels for all taps, blockIdx.y the output channels.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    weight_gradient(const bf16* __restrict__ in, const bf16* __restrict__ grad, float* __restrict__ partial,
                    int images) {
    extern __shared__ uint4 memory[];
    bf16 *tiles = reinterpret_cast<bf16*>(memory), *grads = tiles + 2 * REACH * PITCH;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
    const int job = warp % JOBS, split = warp / JOBS, job_in = job % JOBS_IN, job_out = job / JOBS_IN;
    const int total = tiles_of(images), first_out = blockIdx.y * OWN_OUT;
    if (IN != IN16 || OUT < OWN_OUT) {
        clear(memory, 2 * 2 * (REACH * PITCH + PIXELS * OUT_PITCH));
        __syncthreads();
    }
    auto load = [&](int tile, int stage) {
        load_input(tiles + stage * REACH * PITCH, in, tile, images);
        const Place place = place_of(tile);
        const bf16* start = grad + static_cast<size_t>(place.image) * (OUT_H * OUT_W * OUT) + first_out;
        constexpr int pieces = (OUT < OWN_OUT ? OUT : OWN_OUT) / 8;
        for (int i = threadIdx.x; i < PIXELS * pieces; i += THREADS) {
            const int piece = i % pieces, p = i / pieces;
            const Place at = pixel(p, TILE_H, TILE_W);
            const int from = ((at.image * OUT_H + place.y + at.y) * OUT_W + place.x + at.x) * OUT + piece * 8;
            const bool there = IMAGES == 1 || place.image + at.image < images;
            copy16(grads + (stage * PIXELS + p) * OUT_PITCH + piece * 8, start + (there ? from : 0), there);
        }
    };
    wait_for_kernel_before();
    let_next_kernel_start();
    load(blockIdx.x, 0);
    copies_end();
    float sums[TAPS][2][4] = {};
    int stage = 0;
    for (int tile = blockIdx.x; tile < total; tile += gridDim.x, stage ^= 1) {
        const int next = tile + gridDim.x;
        if (next < total) load(next, 1 - stage);
        copies_end();
        wait_for_earlier_copies();
        __syncthreads();
        for (int step = split; step < PIXELS / 16; step += SPLITS) {
            // Both matrices have pixels as their inner dimension, but lie pixel by pixel: hence turned.
            u32 a[4];
            const int pa = step * 16 + lane % 8 + lane / 16 * 8, pb = step * 16 + lane % 16;
            load4_turned(a, address(grads + (stage * PIXELS + pa) * OUT_PITCH + job_out * 16 + lane / 8 % 2 * 8));
            const u32 from =
                address(tiles + stage * REACH * PITCH + reach_of(pb) + job_in * 16 + lane / 16 * 8);
#pragma unroll
            for (int tap = 0; tap < TAPS; ++tap) {
                u32 b[4];
                load4_turned(b, from + 2 * (tap / KERNEL * REACH_W + tap % KERNEL) * PITCH);
                multiply(sums[tap][0], a, b);
                multiply(sums[tap][1], a, b + 2);
            }
        }
        __syncthreads();
    }
    float* shared = reinterpret_cast<float*>(memory);  // [SPLITS / 2 * JOBS][8 TAPS][32]
#pragma unroll
    for (int half = SPLITS / 2; half > 0; half /= 2) {
        float* mine = shared + (split % half * JOBS + job) * 8 * TAPS * 32 + lane;
        if (split >= half && split < 2 * half) {
#pragma unroll
            for (int i = 0; i < 8 * TAPS; ++i) mine[32 * i] = sums[i / 8][i / 4 % 2][i % 4];
        }
        __syncthreads();
        if (split < half) {
#pragma unroll
            for (int i = 0; i < 8 * TAPS; ++i) sums[i / 8][i / 4 % 2][i % 4] += mine[32 * i];
        }
        __syncthreads();
    }
    if (split) return;
#pragma unroll
    for (int i = 0; i < 4 * TAPS; ++i) {  // tap, channels from 8 on or not, rows from 8 on or not
        const int tap = i / 4, right = i / 2 % 2, low = i % 2;
        const int o = first_out + job_out * 16 + 8 * low + group, c = job_in * 16 + 8 * right + 2 * quad;
        const float2 both = make_float2(sums[tap][right][2 * low], sums[tap][right][2 * low + 1]);
        *reinterpret_cast<float2*>(partial + ((blockIdx.x * TAPS + tap) * OUT16 + o) * IN16 + c) = both;
    }
}
