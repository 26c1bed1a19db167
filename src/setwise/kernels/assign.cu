// The best one-to-one assignment inside each of many sets, one block a set.
//
// Shortest augmenting paths (Jonker and Volgenant 1987; Crouse 2016): every row of the smaller side in turn takes the
// cheapest way to a free column, on which others give up theirs. Costs are minus the scores. Prices u and v keep all
// reduced costs cost - u - v at 0 or above, and at 0 for pairs that are matched. First each row takes its best column
// if that is still free: of trained embeddings most stay there.
//
// After sets.cu. SCORE (float or double) is defined before this text.

struct Least {
    double value;
    int key;
};

__device__ bool less(double value, int key, const Least& than) {
    return value < than.value || (value == than.value && key < than.key);
}

__device__ void lessen_in_warp(Least& mine) {
    for (int mask = 16; mask; mask /= 2) {
        const double value = __shfl_xor_sync(EVERY_LANE, mine.value, mask);
        const int key = __shfl_xor_sync(EVERY_LANE, mine.key, mask);
        if (less(value, key, mine)) mine = {value, key};
    }
}

const int NOTHING = 0x7fffffff;

extern "C" __global__ void __launch_bounds__(THREADS) assign_sets(
    const SCORE* scores,     // [rows, columns]
    const long long* ids_a,  // [rows] the set of each row
    const long long* ids_b,  // [columns]
    double* prices, double* shortest, int* members, int* before, int* partner, int* scanned,  // [rows + columns] each
    long long* to_b, long long* to_a,  // the partner of each row and column; untouched where there is none
    int rows, int columns) {
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    if (!serves(ids_a)) return;
    const Part of_rows = collect(ids_a, rows, ids_a[blockIdx.x], members);
    const Part of_columns = collect(ids_b, columns, ids_a[blockIdx.x], members + rows);
    const int n = of_rows.count, m = of_columns.count, in_rows = of_rows.first, in_columns = rows + of_columns.first;
    const bool wide = n <= m;
    const int agents = wide ? n : m, objects = wide ? m : n;
    const int *its_rows = members + in_rows, *its_columns = members + in_columns;
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
