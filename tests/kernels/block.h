// Enough of CUDA for a kernel to run on a CPU: a fiber for each thread of a block, changing at shuffles and barriers.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <setjmp.h>
#include <ucontext.h>
#include <vector>
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__
#define __launch_bounds__(...)
using std::exp, std::log, std::max, std::min;  // of float and of double
struct Dimensions {
    int x = 0, y = 0, z = 0;
};
struct float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static Dimensions threadIdx, blockIdx, blockDim, gridDim;

struct Barrier {
    int expected = 0, arrived = 0;
    long generation = 0;
};
struct Fiber {
    ucontext_t start;
    jmp_buf place;  // without the system calls of swapcontext, a hundred times as fast
    bool begun = false, ended = false;
};
static std::vector<Fiber> fibers;
static jmp_buf scheduler;
static Barrier whole;
static std::vector<Barrier> warps;
static std::vector<double> slots;  // holds a float, a double, an int or an unsigned
static int alarm_;
static void yield() {
    const int mine = threadIdx.x;
    if (!_setjmp(fibers[mine].place)) _longjmp(scheduler, 1);
    threadIdx.x = mine;
}
static void wait(Barrier& barrier) {
    const long generation = barrier.generation;
    if (++barrier.arrived == barrier.expected) {
        barrier.arrived = 0, ++barrier.generation;
        return;
    }
    while (barrier.generation == generation) yield();
}
static void __syncthreads() { wait(whole); }
static int __syncthreads_or(int x) {
    if (x) alarm_ = 1;
    wait(whole);
    const int found = alarm_;
    wait(whole);
    alarm_ = 0;
    wait(whole);
    return found;
}
template <class T>
static T exchange(T x, int from) {
    Barrier& warp = warps[threadIdx.x / 32];
    slots[threadIdx.x] = x;
    wait(warp);
    const T other = slots[threadIdx.x / 32 * 32 + from];
    wait(warp);
    return other;
}
template <class T>
static T __shfl_xor_sync(unsigned, T x, int mask) {
    return exchange(x, threadIdx.x % 32 ^ mask);
}
static unsigned __ballot_sync(unsigned, bool x) {
    unsigned found = static_cast<unsigned>(x) << threadIdx.x % 32;
    for (int mask = 1; mask < 32; mask *= 2) found |= __shfl_xor_sync(0, found, mask);
    return found;
}
static int __popc(unsigned x) { return std::popcount(x); }
static bool __any_sync(unsigned, bool x) {
    float found = x;
    for (int mask = 1; mask < 32; mask *= 2) found = std::max(found, __shfl_xor_sync(0, found, mask));
    return found > 0;
}
static float __int_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
static int __float_as_int(float x) {
    int bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}
// As inexact as the device's: up to two units in the last place, always the same for the same operands.
static float __fdividef(float a, float b) {
    const unsigned mixed = (__float_as_int(a) * 2654435761u ^ __float_as_int(b)) * 2246822519u;
    return a / b * (1.0f + (static_cast<int>(mixed >> 30) - 1.5f) * 1.1920929e-7f);
}
static std::function<void()> job;
static void begin() {
    job();
    fibers[threadIdx.x].ended = true;
    _longjmp(scheduler, 1);
}
static void enter(Fiber& fiber) {
    if (_setjmp(scheduler)) return;
    if (fiber.begun) _longjmp(fiber.place, 1);
    fiber.begun = true;
    setcontext(&fiber.start);
}
// Threads take turns in an order of their own: a kernel that lacks a barrier gives other numbers in another order.
static int turn_order = 1;
template <class Kernel, class... Arguments>
void launch(Kernel kernel, int blocks, int threads, Arguments... arguments) {
    const size_t bytes = 1 << 16;
    std::unique_ptr<char[]> stacks(new char[bytes * threads]);
    job = [=] { kernel(arguments...); };
    for (int block = 0; block < blocks; ++block) {
        fibers.assign(threads, {});
        slots.assign(threads, 0.0);
        whole = {threads};
        warps.assign(threads / 32, {32});
        blockIdx.x = block, blockDim.x = threads, gridDim.x = blocks;
        for (int thread = 0; thread < threads; ++thread) {
            ucontext_t& start = fibers[thread].start;
            getcontext(&start);
            start.uc_stack.ss_sp = stacks.get() + bytes * thread;
            start.uc_stack.ss_size = bytes;
            makecontext(&start, begin, 0);
        }
        for (bool some = true; some;) {
            some = false;
            for (int turn = 0; turn < threads; ++turn) {
                const int thread = (turn * (2 * turn_order - 1) % threads + threads) % threads;
                if (fibers[thread].ended) continue;
                some = true;
                threadIdx.x = thread;
                enter(fibers[thread]);
            }
        }
    }
}
