// Which rows and columns are of the pair of sets that a block serves: every block that of the row with its number.
// THREADS (of a block, a multiple of 32) is defined before this text.

#define EVERY_LANE 0xffffffffu

// A set's part of scratch memory [rows + columns]: after those of all sets with smaller ids, rows before columns.
struct Part {
    int first, count;
};

// List the places of ``id`` among ids [size] in their order, at members + Part::first. Each warp has a stretch of ids.
__device__ Part collect(const long long* ids, int size, long long id, int* members) {
    __shared__ int equal[THREADS / 32], smaller[THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int stretch = (size + THREADS - 1) / THREADS * 32;
    const int begin = min(size, warp * stretch), end = min(size, begin + stretch);
    int here = 0, less = 0;
    for (int i = begin + lane; i - lane < end; i += 32) {
        here += __popc(__ballot_sync(EVERY_LANE, i < end && ids[i] == id));
        less += __popc(__ballot_sync(EVERY_LANE, i < end && ids[i] < id));
    }
    if (lane == 0) equal[warp] = here, smaller[warp] = less;
    __syncthreads();
    Part found{0, 0};
    int before = 0;
    for (int w = 0; w < THREADS / 32; ++w) {
        before += w < warp ? equal[w] : 0;
        found.first += smaller[w], found.count += equal[w];
    }
    int* place = members + found.first + before;
    for (int i = begin + lane; i - lane < end; i += 32) {
        const unsigned mask = __ballot_sync(EVERY_LANE, i < end && ids[i] == id);
        if (mask >> lane & 1) place[__popc(mask & ((1u << lane) - 1))] = i;
        place += __popc(mask);
    }
    __syncthreads();
    return found;
}

// Whether a block is that of its set's first row; others return.
__device__ bool serves(const long long* ids) {
    int earlier = 0;
    for (int i = threadIdx.x; i < blockIdx.x; i += THREADS) earlier |= ids[i] == ids[blockIdx.x];
    return !__syncthreads_or(earlier);
}
