// Enough of CUDA for kernels of one warp a row to run on a CPU: a thread for each lane, a barrier in each shuffle.
#include <barrier>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>
#define __global__
#define __device__
#define __forceinline__ inline
struct Dimensions {
    int x = 0, y = 0, z = 0;
};
struct Warp {
    std::barrier<> all{32};
    float slots[32];
};
static thread_local Dimensions threadIdx, blockIdx, blockDim;
static thread_local Warp* warp;
static float __shfl_xor_sync(unsigned, float x, int mask) {
    const int lane = threadIdx.x % 32;
    warp->slots[lane] = x;
    warp->all.arrive_and_wait();
    const float other = warp->slots[lane ^ mask];
    warp->all.arrive_and_wait();
    return other;
}
static float __int_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
template <class Kernel, class... Arguments>
void launch(Kernel kernel, int blocks, int threads, Arguments... arguments) {
    for (int block = 0; block < blocks; ++block)
        for (int first = 0; first < threads; first += 32) {
            Warp shared;
            std::vector<std::thread> lanes;
            for (int lane = 0; lane < 32; ++lane)
                lanes.emplace_back([&, lane] {
                    threadIdx.x = first + lane, blockIdx.x = block, blockDim.x = threads, warp = &shared;
                    kernel(arguments...);
                });
            for (auto& one : lanes) one.join();
        }
}
