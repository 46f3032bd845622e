// NAR4TSP's edge layer with its batch norm: `nar4tsp_triton` says what is computed. At most 8 heads.
//
// A warp has tiles of 16 consecutive pairs. Products with diagonal matrices turn bfloat16 into float and multiply it by
// a factor of every feature; a float factor is the sum of two bfloat16 numbers there.
constexpr word ONE = 0x3f803f80u, HALF = 0x3f003f00u;

// Pairs of n cities an instance. In shared memory.
struct Pairs {
  Divisor n, square;
  int last;  // city of all
  __device__ void set(int cities, int pairs) {
    n = {(word)cities, 0xffffffffu / cities};
    square = {(word)(cities * cities), 0xffffffffu / (cities * cities)};
    last = pairs / cities - 1;
  }
  // acc = s_i + t_j for the thread's two rows of a tile; beyond the last pair, of any cities.
  __device__ __forceinline__ void take(float (&acc)[16][4], int tile, Lane at, word one, const uint4* source,
                                       const uint4* target) const {
    const uint4 *s[2], *t[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int pair = 16 * tile + at.g + 8 * r, i = n(pair), j = square(pair) * (int)n.number + pair - i * (int)n.number;
      s[r] = source + piece(min(i, last), at.t);
      t[r] = target + piece(min(j, last), at.t);
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
      uint4 a = s[0][4 * c], b = t[0][4 * c], d = s[1][4 * c], e = t[1][4 * c];
      set_mma(acc[4 * c], add2(a.x, b.x), add2(d.x, e.x), one);
      set_mma(acc[4 * c + 1], add2(a.y, b.y), add2(d.y, e.y), one);
      set_mma(acc[4 * c + 2], add2(a.z, b.z), add2(d.z, e.z), one);
      set_mma(acc[4 * c + 3], add2(a.w, b.w), add2(d.w, e.w), one);
    }
  }
  // The place of a pair's first head in (B, heads, n, n); the others' are `square` apart.
  __device__ __forceinline__ word by_head(int pair, int heads) const {
    return square(pair) * (heads - 1) * square.number + pair;
  }
};
// x W^T for x whose word q has features 8 q + 2 t + (0, 1), as `load_matrices` delivers them.
__device__ void fill_straight(uint4* fragments, const unsigned short* weight) {
#pragma unroll 4
  for (int k = threadIdx.x; k < FRAGMENTS; k += blockDim.x) {
    const word* row = (const word*)(weight + feature(k / 128, k % 32 / 4) * WIDTH + 32 * (k / 32 % 4)) + k % 4;
    place(fragments, k, make_uint4(row[0], row[4], row[8], row[12]));
  }
}

// acc = a b, of 16 ins
__device__ __forceinline__ void multiply_narrow(float (&acc)[16][4], const word (&a)[4], Matrix b) {
#ifdef HOPPER
  before_products();
  start_mma<false>(acc, a[0], a[1], a[2], a[3], b);
  commit_products();
  wait_for_products();
  hold(acc);
  hold(a[0]), hold(a[1]), hold(a[2]), hold(a[3]);
#else
  clear(acc);
  add_narrow(acc, a[0], a[1], a[2], a[3], b);
#endif
}

// A warp's tile in shared memory: its pieces of 16 bytes lie such that neither eight of two rows nor eight of one column
// share banks.
constexpr int PIECES = 256;
struct Place {
  int mine, down, across;
  __device__ Place(Lane at) {
    int matrix = at.lane / 8, row = at.lane % 8;
    mine = 4 * at.g + (at.t ^ at.g / 2);
    // Rows of four 8 x 8 matrices: rows 0 to 7 and 8 to 15 of a column of 16 bytes, then of the next; or both columns of
    // rows 0 to 7, then of rows 8 to 15.
    down = matrix % 2 * 128 + 4 * row + (matrix / 2 ^ row / 2);
    across = matrix / 2 * 128 + 4 * row + (matrix % 2 ^ row / 2);
  }
  // The lane's pieces of a tile, without waiting; zeros beyond the last pair.
  __device__ __forceinline__ void fetch(uint4* to, const uint4* from, int tile, int pairs, Lane at) const {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = 16 * tile + at.g + 8 * r;
      const uint4* first = from + piece(min(row, pairs - 1), at.t);
#pragma unroll
      for (int c = 0; c < 4; c++) copy16(to + mine + (4 * r + c) * 32, first + 4 * c, row < pairs);
    }
  }
  // The tile as a left operand, straight.
  __device__ __forceinline__ void load(word (&x)[2][16], const uint4* tile) const {
#pragma unroll
    for (int k = 0; k < 8; k++) {
      word four[4];
      load_matrices(four, tile + k / 2 * 32 + (k % 2 ? down ^ 2 : down));
      x[0][2 * k] = four[0], x[1][2 * k] = four[1], x[0][2 * k + 1] = four[2], x[1][2 * k + 1] = four[3];
    }
  }
  // 16 of its features for all pairs, transposed: rows are features.
  __device__ __forceinline__ void load_column(word (&x)[4], const uint4* tile, int column) const {
    load_transposed(x, tile + column / 2 * 32 + (column % 2 ? across ^ 2 : across));
  }
};

#if defined(NAR4TSP_FORWARD_WARPS) || defined(NAR4TSP_FIRST_FORWARD_WARPS)
// p = tanh(W x + s_i + t_j) / 2 + x scale + offset, and the block's sums of p and p^2. FIRST: x is a distance.
template <int WARPS, bool FIRST>
__device__ __forceinline__ void forward(uint4* shared, const uint4* x, const float* scale, const float* offset,
                                        const void* weight, const uint4* source, const uint4* target, uint4* p,
                                        float* sums, int n, int pairs) {
  __shared__ Pairs all;
  __shared__ Diagonals scales;
  alignas(16) __shared__ float offsets[WIDTH], weights[WIDTH], factors[WIDTH];
  Lane at;
  Place place(at);
  Share share(pairs);
  uint4* out = shared + (FIRST ? 0 : FRAGMENTS) + threadIdx.x / 32 * (FIRST ? 1 : 3) * PIECES;
  uint4 *input = out + PIECES, *next = input + PIECES;
  auto fetch = [&](uint4* to, int tile) {
    if (tile < share.last) place.fetch(to, x, tile, pairs, at);
    commit_copies();
  };
  int tile = share.first + threadIdx.x / 32;
  if (!FIRST) {
    fetch(input, tile);
    fill_straight(shared, (const unsigned short*)weight);
    set_diagonals(scales, scale, 1.0f, at);
  }
  for (int f = threadIdx.x; f < WIDTH; f += blockDim.x) {
    offsets[f] = offset[f];
    if (FIRST) weights[f] = ((const float*)weight)[f], factors[f] = scale[f];
  }
  if (threadIdx.x == 0) all.set(n, pairs);
  publish();
  __syncthreads();
  Matrix map = matrix_in(shared);
  word one = diagonal(at) & ONE;
  float sum[4] = {}, square[4] = {};
  for (; tile < share.last; tile += WARPS) {
    float acc[16][4], distance[2];
    if (FIRST)
#pragma unroll
      for (int r = 0; r < 2; r++) distance[r] = ((const float*)x)[min(16 * tile + at.g + 8 * r, pairs - 1)];
    all.take(acc, tile, at, one, source, target);
    if (!FIRST) {
      fetch(next, tile + WARPS);
      wait_for_copies<1>();
      __syncwarp();
      word state[2][16];
      place.load(state, input);
      multiply(acc, state, map);
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
      float level[8], factor[8], by[8];
      word diagonals[2][4];
      take8(level, offsets + 32 * c + 8 * at.t);
      if (FIRST) take8(factor, factors + 32 * c + 8 * at.t), take8(by, weights + 32 * c + 8 * at.t);
      word state[2][4];
      if (!FIRST) {
#pragma unroll
        for (int r = 0; r < 2; r++)
          take4(diagonals[r], scales[2 * c + r][at.lane]), take4(state[r], input[place.mine + (4 * r + c) * 32]);
      }
#pragma unroll
      for (int k = 0; k < 4; k++) {
        int q = 4 * c + k;
        float(&y)[4] = acc[q];
#pragma unroll
        for (int e = 0; e < 4; e++) {
          int f = 2 * k + e % 2;
          float rest = FIRST ? fmaf(distance[e / 2], factor[f], level[f]) : level[f];
          y[e] = fmaf(0.5f, tangent(FIRST ? fmaf(distance[e / 2], by[f], y[e]) : y[e]), rest);
        }
        if (!FIRST)
          mma(y, state[0][k], state[1][k], state[0][k], state[1][k], diagonals[k / 2][k % 2 * 2],
              diagonals[k / 2][k % 2 * 2 + 1]);
      }
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = 16 * tile + at.g + 8 * r;
      word y[16];
#pragma unroll
      for (int q = 0; q < 16; q++) y[q] = row < pairs ? pack(acc[q][2 * r], acc[q][2 * r + 1]) : 0;
      if (row < pairs) put(p + piece(row, at.t), y);
#pragma unroll
      for (int c = 0; c < 4; c++)
        out[place.mine + (4 * r + c) * 32] = make_uint4(y[4 * c], y[4 * c + 1], y[4 * c + 2], y[4 * c + 3]);
    }
    __syncwarp();
    // A square is the sum of two bfloat16 numbers.
#pragma unroll
    for (int column = 0; column < 8; column++) {
      word y[4], above[4], below[4], here = at.g == column ? ONE : 0;
      place.load_column(y, out, column);
#pragma unroll
      for (int k = 0; k < 4; k++) above[k] = mul2(y[k], y[k]), below[k] = fma2(y[k], y[k], above[k] ^ 0x80008000u);
      mma(sum, y[0], y[1], y[2], y[3], here, here);
      mma(square, above[0], above[1], above[2], above[3], here, here);
      mma(square, below[0], below[1], below[2], below[3], here, here);
    }
    uint4* other = input;
    input = next, next = other;
  }
  __syncthreads();
  float* of_warps = (float*)shared;  // (2, 128) for each warp
  float* mine = of_warps + threadIdx.x / 32 * 2 * WIDTH + at.g;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    int f = 16 * (2 * at.t + k % 2) + 8 * (k / 2);
    mine[f] = sum[k], mine[WIDTH + f] = square[k];
  }
  __syncthreads();
  for (int f = threadIdx.x; f < 2 * WIDTH; f += blockDim.x) {
    float total = 0;
    for (int warp = 0; warp < WARPS; warp++) total += of_warps[warp * 2 * WIDTH + f];
    sums[blockIdx.x * 2 * WIDTH + f] = total;
  }
}
#endif

#ifdef NAR4TSP_FORWARD_WARPS
extern "C" __global__ void __launch_bounds__(NAR4TSP_FORWARD_WARPS * 32, 1)
nar4tsp_forward(const uint4* x, const float* scale, const float* offset, const unsigned short* weight,
                const uint4* source, const uint4* target, uint4* p, float* sums, int n, int pairs) {
  alignas(128) extern __shared__ uint4 shared[];
  forward<NAR4TSP_FORWARD_WARPS, false>(shared, x, scale, offset, weight, source, target, p, sums, n, pairs);
}
#endif

#ifdef NAR4TSP_FIRST_FORWARD_WARPS
extern "C" __global__ void __launch_bounds__(NAR4TSP_FIRST_FORWARD_WARPS * 32, 1)
nar4tsp_first_forward(const uint4* x, const float* scale, const float* offset, const float* weight,
                      const uint4* source, const uint4* target, uint4* p, float* sums, int n, int pairs) {
  alignas(128) extern __shared__ uint4 shared[];
  forward<NAR4TSP_FIRST_FORWARD_WARPS, true>(shared, x, scale, offset, weight, source, target, p, sums, n, pairs);
}
#endif

#ifdef NAR4TSP_FINISH_WARPS
// From the blocks' sums to scale', offset', mean and 1 / deviation, and the scores' affine map. One block.
extern "C" __global__ void __launch_bounds__(NAR4TSP_FINISH_WARPS * 32, 1)
nar4tsp_finish(const float4* sums, const float* gamma, const unsigned short* score, float* scale, float* offset,
               float* moments, unsigned short* scaled, float* constant, int parts, int pairs, int heads) {
  constexpr int LANES = NAR4TSP_FINISH_WARPS / 2, COLUMNS = 2 * WIDTH / 4;
  __shared__ float4 shares[LANES][COLUMNS];
  __shared__ float factors[WIDTH], means[WIDTH];
  float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
  for (int part = threadIdx.x / COLUMNS; part < parts; part += LANES) {
    float4 v = sums[part * COLUMNS + threadIdx.x % COLUMNS];
    total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
  }
  shares[threadIdx.x / COLUMNS][threadIdx.x % COLUMNS] = total;
  __syncthreads();
  for (int f = threadIdx.x; f < WIDTH; f += blockDim.x) {
    float sum = 0, square = 0;
    for (int lane = 0; lane < LANES; lane++) {
      const float* share = (const float*)shares[lane];
      sum += share[f], square += share[WIDTH + f];
    }
    float mean = sum / pairs, inverse = rsqrtf(fmaxf(square / pairs - mean * mean, 0.0f) + 1e-5f);
    factors[f] = gamma[f] * inverse, means[f] = mean;
    scale[f] = factors[f], offset[f] = -mean * factors[f];
    moments[f] = mean, moments[WIDTH + f] = inverse;
  }
  __syncthreads();
  for (int k = threadIdx.x; k < WIDTH * heads; k += blockDim.x)
    scaled[k] = pack(low(score[k]) * factors[k / heads], 0.0f);
  for (int head = threadIdx.x / 32; head < heads; head += NAR4TSP_FINISH_WARPS) {
    float sum = 0;
    for (int f = threadIdx.x % 32; f < WIDTH; f += 32) sum -= low(score[f * heads + head]) * factors[f] * means[f];
#pragma unroll
    for (int mask = 16; mask; mask /= 2) sum += shuffle(sum, mask);
    if (threadIdx.x % 32 == 0) constant[head] = sum;
  }
}
#endif

#ifdef NAR4TSP_SCORES_WARPS
// p scaled + constant, (B, heads, n, n)
extern "C" __global__ void __launch_bounds__(NAR4TSP_SCORES_WARPS * 32, 4)
nar4tsp_scores(const uint4* p, const unsigned short* scaled, const float* constant, unsigned short* scores, int n,
               int heads, int pairs) {
  __shared__ Pairs all;
  Lane at;
  if (threadIdx.x == 0) all.set(n, pairs);
  word map[16];  // mma's right operand: head g
#pragma unroll
  for (int q = 0; q < 16; q++) {
    const unsigned short* two = scaled + feature(q, 2 * at.t) * heads + at.g;
    map[q] = at.g < heads ? two[0] | (word)two[heads] << 16 : 0;
  }
  float level[2];
#pragma unroll
  for (int h = 0; h < 2; h++) level[h] = 2 * at.t + h < heads ? constant[2 * at.t + h] : 0.0f;
  __syncthreads();
  int tiles = (pairs + 15) / 16;
  for (int tile = blockIdx.x * NAR4TSP_SCORES_WARPS + threadIdx.x / 32; tile < tiles;
       tile += gridDim.x * NAR4TSP_SCORES_WARPS) {
    word x[2][16];
#pragma unroll
    for (int r = 0; r < 2; r++) take(x[r], p + piece(min(16 * tile + at.g + 8 * r, pairs - 1), at.t), 4);
    float acc[4] = {level[0], level[1], level[0], level[1]}, more[4] = {};
#pragma unroll
    for (int q = 0; q < 16; q += 4) {
      mma(acc, x[0][q], x[1][q], x[0][q + 1], x[1][q + 1], map[q], map[q + 1]);
      mma(more, x[0][q + 2], x[1][q + 2], x[0][q + 3], x[1][q + 3], map[q + 2], map[q + 3]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = 16 * tile + at.g + 8 * r, inside = row < pairs ? heads : 0;
      word both = pack(acc[2 * r] + more[2 * r], acc[2 * r + 1] + more[2 * r + 1]);
      word to = all.by_head(row, heads) + 2 * at.t * all.square.number;
      if (2 * at.t < inside) scores[to] = both;
      if (2 * at.t + 1 < inside) scores[to + all.square.number] = both >> 16;
    }
  }
}
#endif

#ifdef NAR4TSP_SCORE_SUMS_WARPS
// The block's sums of p^T grad (128, 8) and of grad (8), with zeros beyond the last head. Most pairs are out of reach and have no gradient at all:
// their states are not read.
extern "C" __global__ void __launch_bounds__(NAR4TSP_SCORE_SUMS_WARPS * 32, 1)
nar4tsp_score_sums(const uint4* p, const unsigned short* grad, float* products, float* sums, int n, int heads, int pairs) {
  alignas(128) extern __shared__ uint4 shared[];
  __shared__ Pairs all;
  Lane at;
  Place place(at);
  uint4* slots = shared + threadIdx.x / 32 * 2 * PIECES;
  if (threadIdx.x == 0) all.set(n, pairs);
  __syncthreads();
  // mma's right operand: head g, pairs 2 t, 2 t + 1, and the same plus 8.
  auto read = [&](word (&b)[2], int tile) {
    word one[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      int row = 16 * tile + 2 * at.t + k % 2 + 8 * (k / 2);
      one[k] = row < pairs && at.g < heads ? grad[all.by_head(row, heads) + at.g * all.square.number] : 0;
    }
    b[0] = one[0] | one[1] << 16, b[1] = one[2] | one[3] << 16;
  };
  auto fetch = [&](uint4* to, const word (&b)[2], int tile) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      word even = votes(b[r] & 0x7fffu), odd = votes(b[r] & 0x7fff0000u);
      bool any = (at.g % 2 ? odd : even) & 0x11111111u << at.g / 2;  // of the heads of row g
      const uint4* row = p + piece(min(16 * tile + at.g + 8 * r, pairs - 1), at.t);
#pragma unroll
      for (int c = 0; c < 4; c++) copy16(to + place.mine + (4 * r + c) * 32, row + 4 * c, any);
    }
    commit_copies();
  };
  float acc[8][4] = {}, total[4] = {};
  word now[2], next[2], later[2];
  int tiles = (pairs + 15) / 16, step = gridDim.x * NAR4TSP_SCORE_SUMS_WARPS, slot = 0;
  int tile = blockIdx.x * NAR4TSP_SCORE_SUMS_WARPS + threadIdx.x / 32;
  read(now, tile);
  read(next, tile + step);
  fetch(slots, now, tile);
  for (; tile < tiles; tile += step, slot ^= PIECES) {
    fetch(slots + (slot ^ PIECES), next, tile + step);
    read(later, tile + 2 * step);
    wait_for_copies<1>();
    __syncwarp();
#pragma unroll
    for (int column = 0; column < 8; column++) {
      word a[4];
      place.load_column(a, slots + slot, column);
      mma(acc[column], a[0], a[1], a[2], a[3], now[0], now[1]);
    }
    mma(total, ONE, ONE, ONE, ONE, now[0], now[1]);
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 2; k++) now[k] = next[k], next[k] = later[k];
  }
  wait_for_copies();
  __syncthreads();
  constexpr int SIZE = 8 * WIDTH + 8;
  float* of_warps = (float*)shared;
  float* mine = of_warps + threadIdx.x / 32 * SIZE;
#pragma unroll
  for (int k = 0; k < 4; k++) {
#pragma unroll
    for (int column = 0; column < 8; column++)
      mine[(16 * column + at.g + 8 * (k / 2)) * 8 + 2 * at.t + k % 2] = acc[column][k];
    if (at.g == 0 && k < 2) mine[8 * WIDTH + 2 * at.t + k] = total[k];
  }
  __syncthreads();
  for (int k = threadIdx.x; k < SIZE; k += blockDim.x) {
    float sum = 0;
    for (int warp = 0; warp < NAR4TSP_SCORE_SUMS_WARPS; warp++) sum += of_warps[warp * SIZE + k];
    (k < 8 * WIDTH ? products + blockIdx.x * 8 * WIDTH : sums + blockIdx.x * 8 - 8 * WIDTH)[k] = sum;
  }
}
#endif

#ifdef NAR4TSP_NORM_BACKWARD_WARPS
// From those sums and the gradients of scale' and offset' to what statistics and scores add to dp (slope, level, scaled),
// and to the gradients of gamma and score. A block has 8 features.
extern "C" __global__ void __launch_bounds__(NAR4TSP_NORM_BACKWARD_WARPS * 32, 1)
nar4tsp_norm_backward(const float4* products, const float4* sums, const float* grad_scale, const float* grad_offset,
                      const unsigned short* score, const float* scale, const float* offset, const float* moments,
                      float* slope, float* level, unsigned short* scaled, float* dgamma, unsigned short* dscore, int parts,
                      int heads, int pairs) {
  __shared__ float4 shares[NAR4TSP_NORM_BACKWARD_WARPS][18];
  __shared__ float totals[72];  // of 8 features, 8 heads; of 8 heads
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane < 18) {
    const float4* from = lane < 16 ? products + 16 * blockIdx.x + lane : sums + lane - 16;
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
    for (int part = warp; part < parts; part += NAR4TSP_NORM_BACKWARD_WARPS) {
      float4 v = from[part * (lane < 16 ? 2 * WIDTH : 2)];
      total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
    }
    shares[warp][lane] = total;
  }
  __syncthreads();
  for (int k = threadIdx.x; k < 72; k += blockDim.x) {
    totals[k] = 0;
    for (int warp = 0; warp < NAR4TSP_NORM_BACKWARD_WARPS; warp++) totals[k] += ((const float*)shares[warp])[k];
  }
  __syncthreads();
  for (int k = threadIdx.x; k < 8 * heads; k += blockDim.x) {
    int f = 8 * blockIdx.x + k / heads, head = k % heads;
    scaled[f * heads + head] = pack(low(score[f * heads + head]) * scale[f], 0.0f);
    float change = scale[f] * totals[k / heads * 8 + head] + offset[f] * totals[64 + head];
    dscore[f * heads + head] = pack(change, 0.0f);
  }
  if (threadIdx.x < 8) {
    int f = 8 * blockIdx.x + threadIdx.x;
    float of_scale = grad_scale[f], of_offset = grad_offset[f], mean = moments[f], inverse = moments[WIDTH + f];
    for (int head = 0; head < heads; head++) {
      float factor = low(score[f * heads + head]);
      of_scale += factor * totals[threadIdx.x * 8 + head], of_offset += factor * totals[64 + head];
    }
    float of_gamma = (of_scale - mean * of_offset) * inverse, along = -scale[f] * inverse * of_gamma / pairs;
    dgamma[f] = of_gamma;
    slope[f] = along;
    level[f] = -scale[f] * of_offset / pairs - along * mean;
  }
}
#endif

#if defined(NAR4TSP_BACKWARD_WARPS) || defined(NAR4TSP_FIRST_BACKWARD_WARPS)
// dp / 2 = (grad + p slope + level + grad_scores scaled^T) / 2, du = dp tanh'(u) / 2, dx = dp scale + du W; and the
// block's sum of dp x. FIRST: x is a distance; instead of its gradient, the sum of du x is computed.
template <int WARPS, bool FIRST>
__device__ __forceinline__ void backward(uint4* shared, const uint4* grad, const unsigned short* grad_scores,
                                         const unsigned short* scaled, const float* slope, const float* level,
                                         const uint4* p, const uint4* x, const float* scale, const void* weight,
                                         const uint4* source, const uint4* target, uint4* dx, uint4* du, float* sums,
                                         float* weights, int n, int heads, int pairs) {
  __shared__ Pairs all;
  __shared__ Diagonals slopes;
  alignas(16) __shared__ float factors[WIDTH];  // of acc to dx; FIRST: of the distance to u
  constexpr int STATE = PIECES, INPUT = 2 * PIECES;
  Lane at;
  Place place(at);
  uint4* narrow = shared + (FIRST ? 0 : 2 * FRAGMENTS);
  uint4* change = narrow + NARROW + threadIdx.x / 32 * (FIRST ? 2 : 3) * PIECES;
  auto fetch = [&](int tile) {
    place.fetch(change, grad, tile, pairs, at);
    place.fetch(change + STATE, p, tile, pairs, at);
    if (!FIRST) place.fetch(change + INPUT, x, tile, pairs, at);
    commit_copies();
  };
  Share share(pairs);
  int tile = share.first + threadIdx.x / 32;
  if (tile < share.last) fetch(tile);
  if (!FIRST) {
    fill_straight(shared, (const unsigned short*)weight);
    fill_transposed(shared + FRAGMENTS, (const unsigned short*)weight);
  }
  fill_narrow(narrow, [&](int f, int in) {
    float a = 0.5f * level[f], b = a - low(pack(a, 0.0f)), c = b - low(pack(b, 0.0f));
    if (in >= 8) return in == 8 ? pack(a, b) : in == 10 ? pack(c, 0.0f) : 0;
    return mul2((in < heads ? scaled[f * heads + in] : 0) | (in + 1 < heads ? scaled[f * heads + in + 1] : 0) << 16, HALF);
  });
  set_diagonals(slopes, slope, 0.5f, at);
  for (int f = threadIdx.x; f < WIDTH; f += blockDim.x) factors[f] = FIRST ? ((const float*)weight)[f] : 2 * scale[f];
  if (threadIdx.x == 0) all.set(n, pairs);
  publish();
  __syncthreads();
  Matrix map = matrix_in(shared), transposed = matrix_in(shared + FRAGMENTS);
  Matrix scores = narrow_in(narrow);
  word unit = at.t == 0 ? ONE : at.t == 1 ? ONE >> 16 : 0;  // the level comes in three parts
  word one = diagonal(at) & ONE, half = diagonal(at) & HALF;
  float total[FIRST ? 2 : 1][4] = {};
  for (; tile < share.last; tile += WARPS) {
    float acc[16][4], distance[2];
    word left[2][16], of_heads[4] = {0, 0, unit, unit};
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = 16 * tile + at.g + 8 * r, inside = row < pairs ? heads : 0;
      word first = all.by_head(row, heads) + 2 * at.t * all.square.number;
      if (FIRST) distance[r] = row < pairs ? ((const float*)x)[row] : 0.0f;
      word a = 2 * at.t < inside ? grad_scores[first] : 0;
      word b = 2 * at.t + 1 < inside ? grad_scores[first + all.square.number] : 0;
      of_heads[r] = a | b << 16;
    }
    all.take(acc, tile, at, one, source, target);
    wait_for_copies();
    __syncwarp();
    if (FIRST) {
#pragma unroll
      for (int c = 0; c < 4; c++) {
        float factor[8];
        take8(factor, factors + 32 * c + 8 * at.t);
#pragma unroll
        for (int k = 0; k < 16; k++)
          acc[4 * c + k / 4][k % 4] = fmaf(distance[k / 2 % 2], factor[k / 4 * 2 + k % 2], acc[4 * c + k / 4][k % 4]);
      }
    } else {
      word state[2][16];
      place.load(state, change + INPUT);
      multiply(acc, state, map);
    }
    // In a block of its own, or the compiler takes its time to pack the slopes and has too few registers. Beyond the
    // last pair no sum needs them but that of du x.
    if (16 * tile < pairs) {
#pragma unroll
      for (int q = 0; q < 16; q++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          float a = tangent(acc[q][2 * r]), b = tangent(acc[q][2 * r + 1]);
          left[r][q] = pack(fmaf(-a, a, 1.0f), fmaf(-b, b, 1.0f));
        }
    } else if (FIRST) {
#pragma unroll
      for (int q = 0; q < 16; q++) left[0][q] = left[1][q] = 0;
    }
    multiply_narrow(acc, of_heads, scores);
#pragma unroll
    for (int c = 0; c < 4; c++) {
      word state[2][4], step[2][4], by[2][4], slope[2][4];
      float factor[8];
      uint4* here[2] = {change + place.mine + c * 32, change + place.mine + (4 + c) * 32};
#pragma unroll
      for (int r = 0; r < 2; r++) {
        take4(state[r], here[r][STATE]), take4(step[r], here[r][0]), take4(slope[r], slopes[2 * c + r][at.lane]);
        if (!FIRST) take4(by[r], here[r][INPUT]);
      }
      if (!FIRST) take8(factor, factors + 32 * c + 8 * at.t);
#pragma unroll
      for (int k = 0; k < 4; k++) {
        float(&d)[4] = acc[4 * c + k];
        mma(d, state[0][k], state[1][k], step[0][k], step[1][k], slope[k / 2][k % 2 * 2], half);
        mma(d, state[0][k], state[1][k], slope[k / 2][k % 2 * 2 + 1]);
#pragma unroll
        for (int r = 0; r < 2; r++) {
          word both = pack(d[2 * r], d[2 * r + 1]);
          left[r][4 * c + k] = mul2(both, left[r][4 * c + k]);
          by[r][k] = FIRST ? pack(d[2 * r] * distance[r], d[2 * r + 1] * distance[r]) : mul2(both, by[r][k]);
#pragma unroll
          for (int h = 0; h < 2; h++)
            if (!FIRST) d[2 * r + h] *= factor[2 * k + h];
        }
      }
#pragma unroll
      for (int r = 0; r < 2; r++) {
        here[r][0] = make_uint4(by[r][0], by[r][1], by[r][2], by[r][3]);
        if (!FIRST) continue;
        word x2 = pack(distance[r], distance[r]);
        const word(&l)[16] = left[r];
        here[r][STATE] = make_uint4(mul2(l[4 * c], x2), mul2(l[4 * c + 1], x2), mul2(l[4 * c + 2], x2), mul2(l[4 * c + 3], x2));
      }
    }
    __syncwarp();
#pragma unroll
    for (int column = 0; column < 8; column++) {
      word here = at.g == column ? ONE : 0;
#pragma unroll
      for (int k = 0; k < (FIRST ? 2 : 1); k++) {
        word products[4];
        place.load_column(products, change + k * STATE, column);
        mma(total[k], products[0], products[1], products[2], products[3], here, here);
      }
    }
    __syncwarp();
    if (tile + WARPS < share.last) fetch(tile + WARPS);
    if (!FIRST) start(acc, left, transposed);
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (16 * tile + at.g + 8 * r < pairs) put(du + piece(16 * tile + at.g + 8 * r, at.t), left[r]);
    if (FIRST) continue;
    finish(acc, left);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      word out[16];
#pragma unroll
      for (int q = 0; q < 16; q++) out[q] = pack(acc[q][2 * r], acc[q][2 * r + 1]);
      if (16 * tile + at.g + 8 * r < pairs) put(dx + piece(16 * tile + at.g + 8 * r, at.t), out);
    }
  }
  __syncthreads();
  constexpr int SIZE = FIRST ? 2 * WIDTH : WIDTH;
  float* of_warps = (float*)shared;
  float* mine = of_warps + threadIdx.x / 32 * SIZE + at.g;
#pragma unroll
  for (int k = 0; k < SIZE / 32; k++)
    mine[k / 4 * WIDTH + 16 * (2 * at.t + k % 2) + 8 * (k % 4 / 2)] = k < 4 ? 2 * total[0][k] : total[k / 4][k % 4];
  __syncthreads();
  for (int f = threadIdx.x; f < SIZE; f += blockDim.x) {
    float sum = 0;
    for (int warp = 0; warp < WARPS; warp++) sum += of_warps[warp * SIZE + f];
    (f < WIDTH ? sums : weights)[blockIdx.x * WIDTH + f % WIDTH] = sum;
  }
}
#endif

#ifdef NAR4TSP_BACKWARD_WARPS
extern "C" __global__ void __launch_bounds__(NAR4TSP_BACKWARD_WARPS * 32, 1)
nar4tsp_backward(const uint4* grad, const unsigned short* grad_scores, const unsigned short* scaled, const float* slope,
                 const float* level, const uint4* p, const uint4* x, const float* scale, const unsigned short* weight,
                 const uint4* source, const uint4* target, uint4* dx, uint4* du, float* sums, int n, int heads, int pairs) {
  alignas(128) extern __shared__ uint4 shared[];
  backward<NAR4TSP_BACKWARD_WARPS, false>(shared, grad, grad_scores, scaled, slope, level, p, x, scale, weight, source,
                                          target, dx, du, sums, nullptr, n, heads, pairs);
}
#endif

#ifdef NAR4TSP_FIRST_BACKWARD_WARPS
extern "C" __global__ void __launch_bounds__(NAR4TSP_FIRST_BACKWARD_WARPS * 32, 1)
nar4tsp_first_backward(const uint4* grad, const unsigned short* grad_scores, const unsigned short* scaled,
                       const float* slope, const float* level, const uint4* p, const uint4* x, const float* weight,
                       const uint4* source, const uint4* target, uint4* du, float* sums, float* weights, int n,
                       int heads, int pairs) {
  alignas(128) extern __shared__ uint4 shared[];
  backward<NAR4TSP_FIRST_BACKWARD_WARPS, true>(shared, grad, grad_scores, scaled, slope, level, p, x, nullptr, weight,
                                               source, target, nullptr, du, sums, weights, n, heads, pairs);
}
#endif
