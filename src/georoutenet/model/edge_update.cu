// Eqs. edge_proposal and edge_update: forward, and backward to the gradients of states and proposals.
//
// Arithmetic is the bottleneck, and the matrix instructions have time left: they also add up rows and columns, and turn
// bfloat16 into float where they multiply by a diagonal matrix. The proposal u is u / 2 throughout, as
// silu(u) = u / 2 + u / 2 tanh(u / 2).
constexpr word ONE = 0x3f803f80u, HALF = 0x3f003f00u;

// The tiles of a block, in whole numbers of warps that multiply together; some may be beyond the last.
struct Share {
  int first, last;
  __device__ Share(int pairs) {
    int tiles = (pairs + 16 * TOGETHER - 1) / (16 * TOGETHER), share = (tiles + gridDim.x - 1) / gridDim.x;
    first = TOGETHER * share * blockIdx.x;
    last = TOGETHER * min(tiles, share * ((int)blockIdx.x + 1));
  }
};
// The matrix at `fragments`, half of it from now on: all threads between barriers.
__device__ void halve(uint4* fragments) {
  for (int k = threadIdx.x; k < FRAGMENTS; k += blockDim.x) {
    uint4 v = fragments[k];
    fragments[k] = make_uint4(mul2(v.x, HALF), mul2(v.y, HALF), mul2(v.z, HALF), mul2(v.w, HALF));
  }
}
// Division by a number, rounded down, of what is not negative.
struct Divisor {
  word number, inverse;
  __device__ __forceinline__ int operator()(int x) const {
    int quotient = __umulhi(x, inverse);  // or one less than the quotient
    return quotient + (x - quotient * number >= number);
  }
};
// The cities at both ends of pairs: of m sources and n targets an instance. In shared memory.
struct Ends {
  Divisor m, n;
  int last_source, last_target;
  __device__ void set(int sources, int targets, int pairs) {
    m = {(word)sources, 0xffffffffu / sources}, n = {(word)targets, 0xffffffffu / targets};
    last_source = pairs / targets - 1, last_target = pairs / sources - 1;
  }
  // acc = (s_i + t_j) / 2 for the thread's two rows of a tile; beyond the last pair, of any cities.
  __device__ __forceinline__ void take(float (&acc)[16][4], int tile, Lane at, word half, const uint4* source,
                                       const uint4* target) const {
    int first = n(16 * tile), instance = m(first), i = first - instance * m.number, j = 16 * tile - first * n.number;
    const uint4 *s[2], *t[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int column = j + at.g + 8 * r, rows = n(column), other = instance + m(i + rows);
      s[r] = source + piece(min(first + rows, last_source), at.t);
      t[r] = target + piece(min((other - rows) * (int)n.number + column, last_target), at.t);
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
      uint4 a = s[0][4 * c], b = t[0][4 * c], d = s[1][4 * c], e = t[1][4 * c];
      set_mma(acc[4 * c], add2(a.x, b.x), add2(d.x, e.x), half);
      set_mma(acc[4 * c + 1], add2(a.y, b.y), add2(d.y, e.y), half);
      set_mma(acc[4 * c + 2], add2(a.z, b.z), add2(d.z, e.z), half);
      set_mma(acc[4 * c + 3], add2(a.w, b.w), add2(d.w, e.w), half);
    }
  }
};
// What of a word a thread keeps of a diagonal matrix, as mma's right operand of 8 x 8, from its own features' factors.
__device__ __forceinline__ word diagonal(Lane at) { return at.g / 2 != at.t ? 0 : at.g % 2 ? 0xffff0000u : 0xffffu; }

#ifdef UPDATE_FORWARD_WARPS
extern "C" __global__ void __launch_bounds__(UPDATE_FORWARD_WARPS * 32, 1)
update_forward(const uint4* e, const uint4* source, const uint4* target, const unsigned short* weight, const float* gamma,
        const float* beta, uint4* out, float* scales, float* shifts, int m, int n, int pairs) {
  extern __shared__ uint4 shared[];
  __shared__ float2 norm[WIDTH];
  __shared__ Ends ends;
  Lane at;
  fill(shared, weight);
  if (threadIdx.x == 0) ends.set(m, n, pairs);
  for (int f = threadIdx.x; f < WIDTH; f += blockDim.x) norm[f] = make_float2(gamma[f], beta[f]);
  __syncthreads();
  halve(shared);
  publish();
  __syncthreads();
  Matrix map = matrix_in(shared);
  uint4* next = shared + FRAGMENTS + threadIdx.x / 32 * 256 + at.lane;
  word one = diagonal(at) & ONE, half = diagonal(at) & HALF;
  auto fetch = [&](int tile) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const uint4* row = e + piece(min(16 * tile + at.g + 8 * r, pairs - 1), at.t);
#pragma unroll
      for (int c = 0; c < 4; c++) copy16(next + (4 * r + c) * 32, row + 4 * c);
    }
    commit_copies();
  };
  Share share(pairs);
  int tile = share.first + threadIdx.x / 32;
  if (tile < share.last) fetch(tile);
  for (; tile < share.last; tile += UPDATE_FORWARD_WARPS) {
    float acc[16][4];
    word x[2][16];
    ends.take(acc, tile, at, half, source, target);
    wait_for_copies();
    take(x[0], next, 32);
    take(x[1], next + 128, 32);
    start(acc, x, map);
    if (tile + UPDATE_FORWARD_WARPS < share.last) fetch(tile + UPDATE_FORWARD_WARPS);
    finish(acc, x);
    float sum[4] = {}, square[4] = {};  // of row g, and again; of row g + 8, and again
#pragma unroll
    for (int q = 0; q < 16; q++) {
#pragma unroll
      for (int k = 0; k < 4; k++) acc[q][k] = fmaf(acc[q][k], tangent(acc[q][k]), acc[q][k]);
      mma(acc[q], x[0][q], x[1][q], one);
      word y0 = pack(acc[q][0], acc[q][1]), y1 = pack(acc[q][2], acc[q][3]);
      mma(sum, y0, y1, ONE);
      mma(square, mul2(y0, y0), mul2(y1, y1), ONE);
    }
    float scale[2], shift[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float mean = sum[2 * r] * (1.0f / WIDTH);
      scale[r] = rsqrtf(fmaxf(square[2 * r] * (1.0f / WIDTH) - mean * mean, 0.0f) + 1e-5f);
      shift[r] = -mean * scale[r];
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
      for (int q = 0; q < 16; q++) {
        float4 n2 = *(const float4*)&norm[32 * (q / 4) + 8 * at.t + 2 * (q % 4)];
        x[r][q] = pack(fmaf(fmaf(acc[q][2 * r], scale[r], shift[r]), n2.x, n2.y),
                       fmaf(fmaf(acc[q][2 * r + 1], scale[r], shift[r]), n2.z, n2.w));
      }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = 16 * tile + at.g + 8 * r;
      if (row >= pairs) continue;
      if (at.t == 0) scales[row] = scale[r], shifts[row] = shift[r];
      put(out + piece(row, at.t), x[r]);
    }
  }
}
#endif

#ifdef UPDATE_BACKWARD_WARPS
// Sums over the rows of two tiles in shared memory, the second one `apart` from the first: lane (g, t) has features
// 16 column + g + (0, 8) of column 2 t and of column 2 t + 1. A lane gives the addresses of its rows of 8 features.
__device__ __forceinline__ void add_columns(float (&total)[4], float (&other)[4], const uint4* even, const uint4* odd,
                                            int apart, int g) {
#pragma unroll
  for (int column = 0; column < 8; column++) {
    const uint4* row = (column % 2 ? odd : even) + column / 2 * 32;
    word x[4], y[4], here = g == column ? ONE : 0;
    load_transposed(x, row);
    load_transposed(y, row + apart);
    mma(total, x[0], x[1], x[2], x[3], here, here);
    mma(other, y[0], y[1], y[2], y[3], here, here);
  }
}
__device__ __forceinline__ void take4(word (&x)[4], uint4 v) { x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w; }
// total[0] + total[3] += the sum over the words of x, each by its factor; factors: of words 0 and 2 in lanes with even
// g, of words 1 and 3 in the others.
__device__ __forceinline__ void add_row(float (&total)[4], const word (&x)[4], uint2 factors) {
  mma(total, x[0], x[1], x[2], x[3], factors.x, factors.y);
}

extern "C" __global__ void __launch_bounds__(UPDATE_BACKWARD_WARPS * 32, 1)
update_backward(const uint4* e, const uint4* source, const uint4* target, const unsigned short* weight, const float* gamma,
         const float* scales, const float* shifts, const uint4* grad, uint4* de, uint4* du, float* norms, int m, int n,
         int pairs) {
  extern __shared__ uint4 shared[];
  __shared__ Ends ends;
  __shared__ uint4 gain[16];        // gamma in bfloat16
  __shared__ uint2 gain_by_row[32]; // its words 0 and 2, words 1 and 3 of each four
  Lane at;
  fill(shared, weight);
  if (threadIdx.x == 0) ends.set(m, n, pairs);
  fill_transposed(shared + FRAGMENTS, weight);
  for (int k = threadIdx.x; k < 16; k += blockDim.x) {
    const float* four = gamma + 8 * k;
    uint4 v = make_uint4(pack(four[0], four[1]), pack(four[2], four[3]), pack(four[4], four[5]), pack(four[6], four[7]));
    gain[k] = v, gain_by_row[2 * k] = make_uint2(v.x, v.z), gain_by_row[2 * k + 1] = make_uint2(v.y, v.w);
  }
  __syncthreads();
  halve(shared);
  publish();
  __syncthreads();
  Matrix map = matrix_in(shared), transposed = matrix_in(shared + FRAGMENTS);
  // Three tiles for each warp: states, later the norm's results; gradients; products of both. Pieces of 16 bytes lie such
  // that neither eight of two rows nor eight of one column share banks.
  constexpr int CHANGE = 256, PRODUCT = 512;
  uint4* state = shared + 2 * FRAGMENTS + threadIdx.x / 32 * 768;
  int place = 4 * at.g + (at.t ^ at.g / 2);
  int across = at.lane / 16 * 128 + at.lane % 8 * 4 + (at.lane / 8 % 2 ^ at.lane % 8 / 2);
  word kept = diagonal(at), one = kept & ONE, half = kept & HALF;
  auto fetch = [&](int tile) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = 16 * tile + at.g + 8 * r;
      size_t from = piece(min(row, pairs - 1), at.t);
      uint4* to = state + place + 128 * r;
#pragma unroll
      for (int c = 0; c < 4; c++) {
        copy16(to + c * 32, e + from + 4 * c);
        copy16(to + CHANGE + c * 32, grad + from + 4 * c, row < pairs);
      }
    }
    commit_copies();
  };
  float dgamma[4] = {}, dbeta[4] = {};
  Share share(pairs);
  int tile = share.first + threadIdx.x / 32;
  if (tile < share.last) fetch(tile);
  for (; tile < share.last; tile += UPDATE_BACKWARD_WARPS) {
    float acc[16][4], scale[2];
    word x[2][16], slope[2][16], scale2[2], shift2[2], mean[2], along[2];
    ends.take(acc, tile, at, half, source, target);
    wait_for_copies();
    take(x[0], state + place, 32);
    take(x[1], state + place + 128, 32);
    start(acc, x, map);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = min(16 * tile + at.g + 8 * r, pairs - 1);
      scale[r] = scales[row], scale2[r] = pack(scale[r], scale[r]), shift2[r] = pack(shifts[row], shifts[row]);
    }
    finish(acc, x);
    float sum[2][4] = {}, product[2][4] = {};
#pragma unroll
    for (int c = 0; c < 4; c++) {
      uint2 factors = gain_by_row[8 * c + 2 * at.t + at.g % 2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        uint4* here = state + place + (4 * r + c) * 32;
        uint4 v = here[CHANGE];
        word change[4] = {v.x, v.y, v.z, v.w}, y[4], by[4];
        float half_scale = 0.5f * scale[r];
#pragma unroll
        for (int p = 0; p < 4; p++) {
          int q = 4 * c + p;
          float silu[2], s[2];
#pragma unroll
          for (int h = 0; h < 2; h++) {
            float u = acc[q][2 * r + h], t = tangent(u);
            silu[h] = fmaf(u, t, u);
            s[h] = fmaf(silu[h], fmaf(t, -half_scale, half_scale), fmaf(t, half_scale, half_scale));
          }
          slope[r][q] = pack(s[0], s[1]);
          y[p] = fma2(pack(silu[0], silu[1]), scale2[r], fma2(x[r][q], scale2[r], shift2[r]));
          by[p] = mul2(change[p], y[p]);
        }
        add_row(sum[r], change, factors);
        add_row(product[r], by, factors);
        here[0] = make_uint4(y[0], y[1], y[2], y[3]);
        here[PRODUCT] = make_uint4(by[0], by[1], by[2], by[3]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float a = (sum[r][0] + sum[r][3]) * (-1.0f / WIDTH), b = (product[r][0] + product[r][3]) * (-1.0f / WIDTH);
      mean[r] = pack(a, a), along[r] = pack(b, b);
    }
    __syncwarp();
    add_columns(dbeta, dgamma, state + CHANGE + across, state + CHANGE + (across ^ 2), PRODUCT - CHANGE, at.g);
#pragma unroll
    for (int c = 0; c < 4; c++) {
      word factors[4], change[2][4], y[2][4];
      take4(factors, gain[4 * c + at.t]);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const uint4* here = state + place + (4 * r + c) * 32;
        take4(y[r], here[0]), take4(change[r], here[CHANGE]);
      }
#pragma unroll
      for (int p = 0; p < 4; p++) {
        int q = 4 * c + p;
        set_mma(acc[q], change[0][p], change[1][p], fma2(y[0][p], along[0], mean[0]),
                fma2(y[1][p], along[1], mean[1]), factors[p] & kept, one);
#pragma unroll
        for (int r = 0; r < 2; r++) slope[r][q] = mul2(pack(acc[q][2 * r], acc[q][2 * r + 1]), slope[r][q]);
#pragma unroll
        for (int k = 0; k < 4; k++) acc[q][k] *= scale[k / 2];
      }
    }
    __syncwarp();
    if (tile + UPDATE_BACKWARD_WARPS < share.last) fetch(tile + UPDATE_BACKWARD_WARPS);
    start(acc, slope, transposed);
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (16 * tile + at.g + 8 * r < pairs) put(du + piece(16 * tile + at.g + 8 * r, at.t), slope[r]);
    finish(acc, slope);
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
      for (int q = 0; q < 16; q++) x[r][q] = pack(acc[q][2 * r], acc[q][2 * r + 1]);
      if (16 * tile + at.g + 8 * r < pairs) put(de + piece(16 * tile + at.g + 8 * r, at.t), x[r]);
    }
  }
  __syncthreads();
  float* sums = (float*)shared;  // (2, 128) for each warp
  float* mine = sums + threadIdx.x / 32 * 256;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    int f = 16 * (2 * at.t + k % 2) + at.g + 8 * (k / 2);
    mine[f] = dgamma[k], mine[WIDTH + f] = dbeta[k];
  }
  __syncthreads();
  for (int f = threadIdx.x; f < 2 * WIDTH; f += blockDim.x) {
    float sum = 0;
    for (int warp = 0; warp < UPDATE_BACKWARD_WARPS; warp++) sum += sums[warp * 256 + f];
    norms[blockIdx.x * 2 * WIDTH + f] = sum;
  }
}
#endif
