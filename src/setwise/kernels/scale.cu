// Entropic one-to-one assignments inside many pairs of sets, one block a pair: ``assignment.scaling`` has the formulas.
//
// Warps take the rows of a side in turn, lanes what is on the other side. Each of the 2 · passes + 1 half passes reads
// every score of the pair once and takes one exponential of it; the last on each side do so twice. The scores turned
// over lie where the shares of the columns will be, so that both sides read along memory.
//
// Not measured yet. What we expect of an H200 at N = 1,024, where an SM begins four instructions of warps a cycle: a
// row takes some 30 for every 32 scores and 100 for its sums, which are two chains of five shuffles. In sets of 32 a
// half pass is one row a warp, about 1,200 cycles; 61 of them take about 40 µs. In sets of 128 it is four rows a warp,
// about 7,000 cycles, in all some 200 µs. A set that is most of a large batch keeps one SM busy, for milliseconds.
//
// After sets.cu. SCORE (float or double) is defined before this text.

// A side of a pair of sets.
struct Side {
    const int* members;   // [count] their places among all rows of this side
    SCORE* raised;        // [count] what is added to their scores: u or v
    const SCORE* scores;  // [all rows of this side, width]
    SCORE* shares;        // the same
    int count, width;
    bool spare;  // their sums may stay below 1
};

// u_i = -t · log Σ_j exp((s_ij + v_j) / t), of ``mine`` against v of ``other``, and the shares where ``last``. ``alone``
// is one more entry of the sum, unless it is ``NEVER``. What is NaN stays NaN; where all is -inf u is 0.
const SCORE NEVER = -3e38f;  // below any score, but the difference to -inf is no NaN

__device__ void balance(const Side& mine, const Side& other, SCORE alone, SCORE t, bool last) {
    const int lane = threadIdx.x % 32;
    const SCORE per_t = 1 / t;
    for (int i = threadIdx.x / 32; i < mine.count; i += THREADS / 32) {
        const size_t row = static_cast<size_t>(mine.members[i]) * mine.width;
        auto entry = [&](int j) { return mine.scores[row + other.members[j]] + other.raised[j]; };
        SCORE most = NEVER, sum = 0;  // of exp((x - most) / t)
        if (lane == 0 && alone != NEVER) most = alone, sum = 1;
        for (int j = lane; j < other.count; j += 32) {
            const SCORE x = entry(j);
            const bool more = x > most;
            const SCORE smaller = exp((more ? most - x : x - most) * per_t);
            sum = more ? sum * smaller + 1 : sum + smaller;
            if (more) most = x;
        }
        SCORE largest = most;
        for (int mask = 16; mask; mask /= 2) {
            const SCORE x = __shfl_xor_sync(EVERY_LANE, largest, mask);
            if (x > largest) largest = x;
        }
        sum *= exp((most - largest) * per_t);
        for (int mask = 16; mask; mask /= 2) sum += __shfl_xor_sync(EVERY_LANE, sum, mask);
        SCORE u = sum == 0 ? 0 : -(largest + t * log(sum));
        const bool below_one = mine.spare && u > 0;
        if (below_one) u = 0;
        if (lane == 0) mine.raised[i] = u;
        if (!last) continue;
        // Not exp((s + u + v) / t): in float32 u may be less exact than t is small.
        const SCORE share = below_one ? exp(largest * per_t) : sum == 0 ? 0 : 1 / sum;
        for (int j = lane; j < other.count; j += 32)
            mine.shares[row + other.members[j]] = share * exp((entry(j) - largest) * per_t);
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) scale_sets(
    const SCORE* scores,     // [rows, columns]
    const long long* ids_a,  // [rows] the set of each row
    const long long* ids_b,  // [columns]
    const SCORE* heats,      // [2] t of the first pass, and the one that is wanted
    SCORE* raised, int* members,  // [rows + columns] each
    SCORE* of_a,  // [rows, columns] shares, whose rows have exact sums; untouched where no set has both
    SCORE* of_b,  // [columns, rows]
    int rows, int columns, int passes, int falling, double score_alone) {
    if (!serves(ids_a)) return;
    const Part in_rows = collect(ids_a, rows, ids_a[blockIdx.x], members);
    const Part in_columns = collect(ids_b, columns, ids_a[blockIdx.x], members + rows);
    const int n = in_rows.count, m = in_columns.count, from = in_rows.first, to = rows + in_columns.first;
    const bool priced = score_alone > NEVER;
    const SCORE alone = priced ? static_cast<SCORE>(score_alone) : NEVER;
    const Side a{members + from, raised + from, scores, of_a, n, columns, !priced && n > m};
    const Side b{members + to, raised + to, of_b, of_b, m, rows, !priced && m > n};
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int i = warp; i < n; i += THREADS / 32)
        for (int j = lane; j < m; j += 32) {
            const size_t row = a.members[i], column = b.members[j];
            of_b[column * rows + row] = scores[row * columns + column];
        }
    for (int j = threadIdx.x; j < m; j += THREADS) b.raised[j] = 0;
    __syncthreads();
    const SCORE first = heats[0], wanted = heats[1], fall = log(wanted / first) / falling;
    for (int pass = 0; pass < passes; ++pass) {
        const SCORE t = pass < falling ? first * exp(fall * pass) : wanted;
        balance(a, b, alone, t, false);
        balance(b, a, alone, t, pass == passes - 1);
    }
    balance(a, b, alone, wanted, true);
}
