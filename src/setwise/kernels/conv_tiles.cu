// What convolve (conv.cu) and weight_gradient (conv_weights.cu) share: convolutions of few channels on tensor cores.
// bf16 images [B, H, W, C], float32 weights, float32 sums.
//
// A block of 256 threads takes tiles of IMAGES x TILE_H x TILE_W output pixels. What a tile reaches of the input lies
// in shared memory, the next tile's on its way there; each tap of the kernel is a matrix product whose rows are pixels
// of it (ldmatrix takes any addresses, so that shifts and strides cost nothing).
//
// After bf16.cu. Defined before, by setwise.kernels.conv_plan: IN, OUT channels; KERNEL (1 or 3), STRIDE; DILATE (2:
// the input is spread out by zeros, which makes the gradient of a stride); IN_H, IN_W as stored, OUT_H, OUT_W; the
// tile; RESIDENT blocks a multiprocessor.

typedef unsigned short bf16;

#define EVERY_LANE 0xffffffffu
#define THREADS 256
#define TAPS (KERNEL * KERNEL)
#define PAD (KERNEL / 2)
#define IN16 ((IN + 15) / 16 * 16)  // a matrix product takes 16 channels at a time
#define OUT16 ((OUT + 15) / 16 * 16)
#define PITCH (IN16 + 8)  // channels from pixel to pixel in shared memory: eight in a row fall on different banks
#define REACH_H ((TILE_H - 1) * STRIDE + KERNEL)
#define REACH_W ((TILE_W - 1) * STRIDE + KERNEL)
#define REACH (IMAGES * REACH_H * REACH_W)
#define PIXELS (IMAGES * TILE_H * TILE_W)

// ---------------------------------------------------------------------------------------------------- instructions

__device__ __forceinline__ u32 address(const void* shared) {
    return static_cast<u32>(__cvta_generic_to_shared(shared));
}

// 16 bytes from global to shared memory, zeros where there is no source.
__device__ __forceinline__ void copy16(bf16* to, const bf16* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address(to)), "l"(from), "r"(there ? 16 : 0));
}

__device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;"); }

// All copies have arrived but those since the last copies_end().
__device__ __forceinline__ void wait_for_earlier_copies() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

__device__ __forceinline__ void load4(u32 found[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found[0]), "=r"(found[1]), "=r"(found[2]), "=r"(found[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void load2(u32 found[2], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(found[0]), "=r"(found[1])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void load2_turned(u32 found[2], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(found[0]), "=r"(found[1])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void load4_turned(u32 found[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found[0]), "=r"(found[1]), "=r"(found[2]), "=r"(found[3])
                 : "r"(from)
                 : "memory");
}

// sums [16, 8] += a [16, 16] b [16, 8]
__device__ __forceinline__ void multiply(float sums[4], const u32 a[4], const u32 b[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Kernels are launched before the one before has ended. What it writes may be read after this.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may start once all blocks are here. After the wait, so that what kernels before the one before have
// written may be read at any time; and each kernel waits, if only at its end, so that none can be overtaken.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---------------------------------------------------------------------------------------------------- tiles

struct Place {
    int image, y, x;
};

__device__ __forceinline__ Place place_of(int tile) {
    constexpr int across = OUT_W / TILE_W, down = OUT_H / TILE_H;
    return {tile / (across * down) * IMAGES, tile / across % down * TILE_H, tile % across * TILE_W};
}

__device__ __forceinline__ int tiles_of(int images) {
    return (images + IMAGES - 1) / IMAGES * (OUT_H / TILE_H) * (OUT_W / TILE_W);
}

// Pixel ``p`` of images of a height and a width, of which the tile has IMAGES.
__device__ __forceinline__ Place pixel(int p, int height, int width) {
    if (IMAGES == 1) return {0, p / width, p % width};
    return {p / (width * height), p / width % height, p % width};
}

// Where the first tap of output pixel ``p`` of the tile finds its input.
__device__ __forceinline__ int reach_of(int p) {
    const Place at = pixel(p, TILE_H, TILE_W);
    return ((at.image * REACH_H + at.y * STRIDE) * REACH_W + at.x * STRIDE) * PITCH;
}

// Starts to load what a tile reaches; outside of the images and between spread pixels there are zeros.
__device__ __forceinline__ void load_input(bf16* to, const bf16* __restrict__ in, int tile, int images) {
    const Place place = place_of(tile);
    in += static_cast<size_t>(place.image) * (IN_H * IN_W * IN);
    constexpr int width = IN % 8 ? 1 : 8, pieces = IN / width;  // channels in a piece, pieces in a pixel
#pragma unroll 4
    for (int i = threadIdx.x; i < REACH * pieces; i += THREADS) {
        const int piece = i % pieces, p = i / pieces;
        const Place at = pixel(p, REACH_H, REACH_W);
        const int x = place.x * STRIDE + at.x - PAD, y = place.y * STRIDE + at.y - PAD;
        // Unsigned: what is below zero is far above as well.
        const bool there = static_cast<u32>(x) < DILATE * IN_W && static_cast<u32>(y) < DILATE * IN_H &&
                           (IMAGES == 1 || place.image + at.image < images) &&
                           (DILATE == 1 || (x % DILATE == 0 && y % DILATE == 0));
        const int from = there ? ((at.image * IN_H + y / DILATE) * IN_W + x / DILATE) * IN + piece * width : 0;
        if (width == 8) {
            copy16(to + p * PITCH + piece * 8, in + from, there);
        } else {
            to[p * PITCH + piece] = there ? in[from] : 0;
        }
    }
}

__device__ __forceinline__ void clear(uint4* memory, int bytes) {
    for (int i = threadIdx.x; i < bytes / 16; i += THREADS) memory[i] = make_uint4(0, 0, 0, 0);
}
