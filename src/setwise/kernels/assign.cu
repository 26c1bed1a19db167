// The best one-to-one assignment inside each of many sets, one block a set.
//
// Shortest augmenting paths (Jonker and Volgenant 1987; Crouse 2016): every row of the smaller side in turn takes the
// cheapest way to a free column, on which others give up theirs. Costs are minus the scores. Prices u and v keep all
// reduced costs cost - u - v at 0 or above, and at 0 for pairs that are matched. First each row takes its best column
// if that is still free: of trained embeddings most stay there.
//
// A set is served by the block of its first row, others return. A set's part of the scratch memory begins after those
// of all sets with smaller ids; rows have [0, rows) of it, columns [rows, rows + columns).
// SCORE (float or double) and THREADS (a multiple of 32) are defined before this text.

struct Least {
    double value;
    int key;
};

__device__ bool less(double value, int key, const Least& than) {
    return value < than.value || (value == than.value && key < than.key);
}

__device__ void lessen_in_warp(Least& mine) {
    for (int mask = 16; mask; mask /= 2) {
        const double value = __shfl_xor_sync(0xffffffffu, mine.value, mask);
        const int key = __shfl_xor_sync(0xffffffffu, mine.key, mask);
        if (less(value, key, mine)) mine = {value, key};
    }
}

const int NOTHING = 0x7fffffff;

// List the places of ``id`` among ids [size] in their order, at members + first; returns their number. ``first`` is how
// many ids are smaller.
__device__ int collect(const long long* ids, int size, long long id, int* members, int* counts, int* smaller,
                       int& first) {
    const int thread = threadIdx.x, chunk = (size + THREADS - 1) / THREADS;
    const int begin = min(size, thread * chunk), end = min(size, begin + chunk);
    int equal = 0, less = 0;
    for (int i = begin; i < end; ++i) equal += ids[i] == id, less += ids[i] < id;
    counts[thread] = equal, smaller[thread] = less;
    __syncthreads();
    int before = 0, total = 0;
    first = 0;
    for (int k = 0; k < THREADS; ++k) {
        before += k < thread ? counts[k] : 0;
        total += counts[k], first += smaller[k];
    }
    for (int i = begin, place = first + before; i < end; ++i)
        if (ids[i] == id) members[place++] = i;
    __syncthreads();
    return total;
}

extern "C" __global__ void __launch_bounds__(THREADS) assign_sets(
    const SCORE* scores,     // [rows, columns]
    const long long* ids_a,  // [rows] the set of each row
    const long long* ids_b,  // [columns]
    double* prices, double* shortest, int* members, int* before, int* partner, int* scanned,  // [rows + columns] each
    long long* to_b, long long* to_a,  // the partner of each row and column; untouched where there is none
    int rows, int columns) {
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const long long id = ids_a[blockIdx.x];
    int earlier = 0;
    for (int i = thread; i < blockIdx.x; i += THREADS) earlier |= ids_a[i] == id;
    if (__syncthreads_or(earlier)) return;
    __shared__ int counts[THREADS], smaller[THREADS];
    int first_a, first_b;
    const int n = collect(ids_a, rows, id, members, counts, smaller, first_a);
    const int m = collect(ids_b, columns, id, members + rows, counts, smaller, first_b);
    const bool wide = n <= m;
    const int agents = wide ? n : m, objects = wide ? m : n;
    const int *its_rows = members + first_a, *its_columns = members + rows + first_b;
    const int in_rows = first_a, in_columns = rows + first_b;
    const int of_agents = wide ? in_rows : in_columns, of_objects = wide ? in_columns : in_rows;
    double *u = prices + of_agents, *v = prices + of_objects, *way = shortest + of_objects;
    int *object_of = partner + of_agents, *agent_of = partner + of_objects;
    int *from = before + of_objects, *seen = scanned + of_objects;
    auto cost = [&](int agent, int object) {
        const int row = its_rows[wide ? agent : object], column = its_columns[wide ? object : agent];
        return -static_cast<double>(scores[static_cast<size_t>(row) * columns + column]);
    };
    const double infinity = 1.7976931348623157e308;  // as far as anything is
    __shared__ double values[2 * THREADS / 32];
    __shared__ int keys[2 * THREADS / 32];
    int turn = 0;

    for (int j = thread; j < objects; j += THREADS) v[j] = 0, agent_of[j] = -1;
    for (int i = warp; i < agents; i += THREADS / 32) {
        Least best{infinity, NOTHING};
        for (int j = lane; j < objects; j += 32) {
            const double x = cost(i, j);
            if (less(x, j, best)) best = {x, j};
        }
        lessen_in_warp(best);
        const bool finite = best.value < infinity && best.value > -infinity;
        if (lane == 0) u[i] = finite ? best.value : 0, object_of[i] = finite ? best.key : -1;
    }
    __syncthreads();
    if (thread == 0)
        for (int i = 0; i < agents; ++i) {
            const int j = object_of[i];
            if (j < 0) continue;
            if (agent_of[j] < 0) agent_of[j] = i;
            else object_of[i] = -1;
        }
    __syncthreads();

    for (int start = 0; start < agents; ++start) {
        if (object_of[start] >= 0) continue;
        // NaN is less than nothing: such a way stays infinite, and leads from ``start`` itself.
        for (int j = thread; j < objects; j += THREADS) way[j] = infinity, from[j] = start, seen[j] = 0;
        double length = 0;
        int i = start, sink = -1;
        while (sink < 0) {
            Least best{infinity, NOTHING};
            const double offset = length - u[i];
            for (int j = thread; j < objects; j += THREADS) {
                if (seen[j]) continue;
                const double x = offset + cost(i, j) - v[j];
                if (x < way[j]) way[j] = x, from[j] = i;
                const int key = agent_of[j] < 0 ? j : j + objects;  // of equal ones a free one, which ends the search
                if (less(way[j], key, best)) best = {way[j], key};
            }
            lessen_in_warp(best);
            const int slot = turn * (THREADS / 32);  // two in turn: one barrier a round is enough
            if (lane == 0) values[slot + warp] = best.value, keys[slot + warp] = best.key;
            __syncthreads();
            best = {values[slot], keys[slot]};
            for (int w = 1; w < THREADS / 32; ++w)
                if (less(values[slot + w], keys[slot + w], best)) best = {values[slot + w], keys[slot + w]};
            turn = 1 - turn;
            length = best.value;
            const int j = best.key < objects ? best.key : best.key - objects;
            if (j % THREADS == thread) seen[j] = 1;
            if (best.key < objects) sink = j;
            else i = agent_of[j];
        }
        for (int j = thread; j < objects; j += THREADS)
            if (seen[j] && j != sink) {
                const double change = length - way[j];
                u[agent_of[j]] += change, v[j] -= change;
            }
        if (thread == 0) u[start] += length;
        __syncthreads();
        if (thread == 0)
            for (int j = sink, agent = -1; agent != start;) {
                agent = from[j];
                agent_of[j] = agent;
                const int next = object_of[agent];
                object_of[agent] = j;
                j = next;
            }
        __syncthreads();
    }
    for (int i = thread; i < agents; i += THREADS) {
        const int j = object_of[i];
        const int row = its_rows[wide ? i : j], column = its_columns[wide ? j : i];
        to_b[row] = column, to_a[column] = row;
    }
}
