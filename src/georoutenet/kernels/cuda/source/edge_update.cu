// Eqs. edge_proposal and edge_update: forward, and backward to the gradients of states and proposals, there each warp on
// its own.
//
// Arithmetic is the bottleneck, and the matrix instructions have time left: they also add up rows and columns, and turn
// bfloat16 into float where they multiply by a diagonal matrix. The proposal u is u / 2 throughout, as
// silu(u) = u / 2 + u / 2 tanh(u / 2).
constexpr word ONE = 0x3f803f80u, HALF = 0x3f003f00u;

// A tile on its way there, zeros beyond the last row: whole lines of memory at a time.
__device__ __forceinline__ void fetch(uint4* to, const uint4* from, int tile, int rows, int lane) {
  int left = rows - 16 * tile - lane / 16, place = place_in_tile(lane / 16, lane % 16);
  from += (size_t)tile * 256 + lane;
#pragma unroll
  for (int k = 0; k < 8; k++) copy16(to + k / 4 * 128 + k % 4 * 8 + (place ^ k % 4), from + 32 * k, 2 * k < left);
}
// The thread's row, as `take` does from memory.
__device__ __forceinline__ void take_from_tile(word (&x)[16], const uint4* row, int place) {
#pragma unroll
  for (int c = 0; c < 4; c++) {
    uint4 v = row[further(place, c)];
    x[4 * c] = v.x, x[4 * c + 1] = v.y, x[4 * c + 2] = v.z, x[4 * c + 3] = v.w;
  }
}
// The cities at both ends of pairs: of m sources and n targets an instance. In shared memory.
struct Ends {
  Divisor m, n;
  int last_source, last_target;
  __device__ void set(int sources, int targets, int pairs) {
    m = {(word)sources, 0xffffffffu / sources}, n = {(word)targets, 0xffffffffu / targets};
    last_source = pairs / targets - 1, last_target = pairs / sources - 1;
  }
  // acc = (s_i + t_j) / 2 for the thread's two rows of a tile; beyond the last pair, that of any cities.
  __device__ __forceinline__ void take(float (&acc)[16][4], int tile, Lane at, word half, const uint4* source,
                                       const uint4* target) const {
    const uint4 *s[2], *t[2];
    int first = n(16 * tile), instance = m(first), i = first - instance * m.number, j = 16 * tile - first * n.number;
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

// The forward pass: `then` gets each tile's new states, and an accumulator that is free; warps that share a wgmma
// get there together. What was written to shared memory before is published, too. States and norms go to memory
// if they are to be kept.
template <int WARPS, bool KEEP, class Then>
__device__ __forceinline__ void update(uint4* shared, const uint4* e, const uint4* source, const uint4* target,
                                       const unsigned short* weight, const float* gamma, const float* beta, uint4* out,
                                       float* scales, float* shifts, int m, int n, int pairs, Then then) {
  __shared__ float4 norm[WIDTH / 2];  // gamma, gamma, beta, beta of word q of lane t
  __shared__ Ends ends;
  Lane at;
  uint4* next = shared + FRAGMENTS + threadIdx.x / 32 * 256;
  Share share(pairs);
  int tile = share.first + threadIdx.x / 32;
  if (tile < share.last) fetch(next, e, tile, pairs, at.lane);
  commit_copies();
  fill_half(shared, weight);
  for (int k = threadIdx.x; k < WIDTH / 2; k += blockDim.x) {
    int f = feature(k / 4, 2 * (k % 4));
    norm[k] = make_float4(gamma[f], gamma[f + 1], beta[f], beta[f + 1]);
  }
  if (threadIdx.x == 0) ends.set(m, n, pairs);
  publish();
  __syncthreads();
  Matrix map = matrix_in(shared);
  word kept = diagonal(at);
  for (; tile < share.last; tile += WARPS) {
    float acc[16][4];
    word x[2][16], lane = at.lane;
    keep(lane);
    at.lane = lane & 31, at.g = lane / 4, at.t = lane & 3;  // computed again each time: registers are few
    ends.take(acc, tile, at, kept & HALF, source, target);
    int place = place_in_tile(at.g, at.t);
    wait_for_copies();
    __syncwarp();
    take_from_tile(x[0], next, place);
    take_from_tile(x[1], next + 128, place);
    start(acc, x, map);
    __syncwarp();
    if (tile + WARPS < share.last) fetch(next, e, tile + WARPS, pairs, at.lane);
    commit_copies();
    finish(acc, x);
    word one = kept & ONE;
    float sum[4] = {}, square[4] = {};  // of row g, and again; of row g + 8, and again
#pragma unroll
    for (int q = 0; q < 18; q += 2) {
#pragma unroll
      for (int h = q; h < min(q + 2, 16); h++) {
        float(&two)[4] = acc[h];
#pragma unroll
        for (int k = 0; k < 4; k++) two[k] = fmaf(two[k], tangent(two[k]), two[k]);
        mma(two, x[0][h], x[1][h], one);
      }
      if (q == 0) continue;
      // The ones before, which are there by now.
      word y[4];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float(&two)[4] = acc[q - 2 + h];
        y[2 * h] = pack(two[0], two[1]), y[2 * h + 1] = pack(two[2], two[3]);
      }
      mma(sum, y[0], y[1], y[2], y[3], ONE, ONE);
      mma(square, mul2(y[0], y[0]), mul2(y[1], y[1]), mul2(y[2], y[2]), mul2(y[3], y[3]), ONE, ONE);
    }
    float scale[2], shift[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float mean = sum[2 * r] * (1.0f / WIDTH);
      scale[r] = rsqrtf(fmaxf(square[2 * r] * (1.0f / WIDTH) - mean * mean, 0.0f) + 1e-5f);
      shift[r] = -mean * scale[r];
    }
    int row = 16 * tile + at.g;
    uint4* to = out + (KEEP ? piece(row, at.t) : 0);
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (KEEP && at.t == 0 && row + 8 * r < pairs) scales[row + 8 * r] = scale[r], shifts[row + 8 * r] = shift[r];
#pragma unroll
    for (int c = 0; c < 4; c++) {
#pragma unroll
      for (int p = 0; p < 4; p++) {
        float4 by = norm[4 * (4 * c + p) + at.t];
        float(&two)[4] = acc[4 * c + p];
#pragma unroll
        for (int r = 0; r < 2; r++)
          x[r][4 * c + p] = pack(fmaf(fmaf(two[2 * r], scale[r], shift[r]), by.x, by.z),
                                 fmaf(fmaf(two[2 * r + 1], scale[r], shift[r]), by.y, by.w));
      }
#pragma unroll
      for (int r = 0; r < 2; r++)
        if (KEEP && row + 8 * r < pairs)
          to[128 * r + 4 * c] = make_uint4(x[r][4 * c], x[r][4 * c + 1], x[r][4 * c + 2], x[r][4 * c + 3]);
    }
    then(acc, x, tile, at);
  }
}

#ifdef UPDATE_FORWARD_WARPS
extern "C" __global__ void __launch_bounds__(UPDATE_FORWARD_WARPS * 32, 1)
update_forward(const uint4* e, const uint4* source, const uint4* target, const unsigned short* weight, const float* gamma,
        const float* beta, uint4* out, float* scales, float* shifts, int m, int n, int pairs) {
  alignas(128) extern __shared__ uint4 shared[];
  update<UPDATE_FORWARD_WARPS, true>(shared, e, source, target, weight, gamma, beta, out, scales, shifts, m, n, pairs,
                                     [](float (&)[16][4], const word (&)[2][16], int, Lane&) {});
}
#endif

// The last update, and the head on its states while they are in registers.
template <int WARPS, bool KEEP>
__device__ __forceinline__ void update_logit(uint4* shared, const uint4* e, const uint4* source, const uint4* target,
                                             const unsigned short* weight, const float* gamma, const float* beta,
                                             const unsigned short* head_weight, const float* bias, const float* last,
                                             const float* offset, uint4* out, float* scales, float* shifts,
                                             float* logits, word* on, int m, int n, int pairs) {
  __shared__ Head head;
  uint4* hidden = shared + FRAGMENTS + WARPS * 256;
  head.set(hidden, head_weight, bias, last, offset);
  Matrix map = matrix_in(hidden), biases = narrow_in(hidden + FRAGMENTS);
  update<WARPS, KEEP>(
      shared, e, source, target, weight, gamma, beta, out, scales, shifts, m, n, pairs,
      [&](float (&acc)[16][4], const word (&x)[2][16], int tile, Lane& at) {
        at = Lane();  // again, rather than kept: registers are few
        UnitRow unit(at.t);
        start(acc, unit, biases, x, map);
        finish(acc, unit, x);
        head.finish<KEEP>(acc, tile, at, logits, on, pairs);
      });
}

#ifdef UPDATE_LOGIT_FORWARD_WARPS
extern "C" __global__ void __launch_bounds__(UPDATE_LOGIT_FORWARD_WARPS * 32, 1)
update_logit_forward(const uint4* e, const uint4* source, const uint4* target, const unsigned short* weight,
                     const float* gamma, const float* beta, const unsigned short* head_weight, const float* bias,
                     const float* last, const float* offset, uint4* out, float* scales, float* shifts, float* logits,
                     word* on, int m, int n, int pairs) {
  alignas(128) extern __shared__ uint4 shared[];
  update_logit<UPDATE_LOGIT_FORWARD_WARPS, true>(shared, e, source, target, weight, gamma, beta, head_weight, bias, last,
                                                 offset, out, scales, shifts, logits, on, m, n, pairs);
}
#endif

// The same where no backward pass follows.
#ifdef UPDATE_LOGIT_ALONE_WARPS
extern "C" __global__ void __launch_bounds__(UPDATE_LOGIT_ALONE_WARPS * 32, 1)
update_logit_alone(const uint4* e, const uint4* source, const uint4* target, const unsigned short* weight,
                   const float* gamma, const float* beta, const unsigned short* head_weight, const float* bias,
                   const float* last, const float* offset, float* logits, int m, int n, int pairs) {
  alignas(128) extern __shared__ uint4 shared[];
  update_logit<UPDATE_LOGIT_ALONE_WARPS, false>(shared, e, source, target, weight, gamma, beta, head_weight, bias, last,
                                                offset, nullptr, nullptr, nullptr, logits, nullptr, m, n, pairs);
}
#endif

#ifdef UPDATE_BACKWARD_WARPS
// Sums over the rows of two tiles, the second one with its lower eight rows only: lane (g, t) has features
// 16 column + g + (0, 8) of column 2 t and of column 2 t + 1.
__device__ __forceinline__ void add_columns(float (&total)[4], float (&other)[4], const uint4* tile, const uint4* half,
                                            const Factors& factors, int lane) {
  int matrix = lane / 8, row = lane % 8;
  int both = place_in_tile(row + matrix / 2 * 8, matrix % 2), four = place_in_tile(row, matrix);
#pragma unroll
  for (int c = 0; c < 4; c++) {
    word x[4], y[4], here[4];
    take4(here, factors.columns[c][lane]);
    load_transposed(y, half + further(four, c));
#pragma unroll
    for (int h = 0; h < 2; h++) {
      load_transposed(x, tile + further(both ^ 2 * h, c));
      mma(total, x[0], x[1], x[2], x[3], here[2 * h], here[2 * h + 1]);
      mma(other, y[2 * h], y[2 * h + 1], here[2 * h]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(UPDATE_BACKWARD_WARPS * 32, 1)
update_backward(const uint4* e, const uint4* source, const uint4* target, const unsigned short* weight, const float* gamma,
         const float* scales, const float* shifts, const uint4* grad, uint4* de, uint4* du, float* norms, int m, int n,
         int pairs) {
  alignas(128) extern __shared__ uint4 shared[];
  __shared__ Ends ends;
  __shared__ Factors factors;
  Lane at;
  // For each warp two tiles and a half: states, later the norm's results; gradients; products of both.
  constexpr int CHANGE = 256, PRODUCT = 512;
  uint4* state = shared + 2 * FRAGMENTS + threadIdx.x / 32 * 640;
  int place = place_in_tile(at.g, at.t);
  auto fetch_both = [&](int tile) {
    fetch(state, e, tile, pairs, at.lane);
    fetch(state + CHANGE, grad, tile, pairs, at.lane);
    commit_copies();
  };
  Share share(pairs);
  int tile = share.first + threadIdx.x / 32;
  if (tile < share.last) fetch_both(tile);
  fill_half(shared, weight);
  fill_transposed(shared + FRAGMENTS, weight);
  factors.set(gamma, at);
  if (threadIdx.x == 0) ends.set(m, n, pairs);
  __syncthreads();
  Matrix map = matrix_in(shared), transposed = matrix_in(shared + FRAGMENTS);
  float dgamma[4] = {}, dbeta[4] = {};
  word half = diagonal(at) & HALF;
  for (; tile < share.last; tile += UPDATE_BACKWARD_WARPS) {
    float acc[16][4], scale[2], shift[2];
    word x[2][16], slope[2][16], mean[2], along[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = min(16 * tile + at.g + 8 * r, pairs - 1);
      scale[r] = scales[row], shift[r] = shifts[row];
    }
    ends.take(acc, tile, at, half, source, target);
    wait_for_copies();
    __syncwarp();
    take_from_tile(x[0], state, place);
    take_from_tile(x[1], state + 128, place);
    multiply(acc, x, map);
    // There are some. But without asking the compiler takes its time to pack the slopes and has too few registers.
    bool any = 16 * tile < pairs;
    if (any) {
      float sum[2][4] = {}, product[2][4] = {};
      word scale2[2], shift2[2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        scale2[r] = pack(scale[r], scale[r]), shift2[r] = pack(shift[r], shift[r]);
        scale[r] *= 0.5f;
      }
#pragma unroll
      for (int c = 0; c < 4; c++) {
        uint2 gain = factors.gain[8 * c + 2 * at.t + at.g % 2];
        uint4* here = state + further(place, c);
        word by[2][4];
#pragma unroll
        for (int r = 0; r < 2; r++) {
          word change[4], y[4];
          take4(change, here[CHANGE + 128 * r]);
#pragma unroll
          for (int p = 0; p < 4; p++) {
            int q = 4 * c + p;
            float silu[2], s[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
              float u = acc[q][2 * r + h], t = tangent(u);
              silu[h] = fmaf(u, t, u);
              s[h] = fmaf(silu[h], fmaf(t, -scale[r], scale[r]), fmaf(t, scale[r], scale[r]));
            }
            slope[r][q] = pack(s[0], s[1]);
            y[p] = fma2(pack(silu[0], silu[1]), scale2[r], fma2(x[r][q], scale2[r], shift2[r]));
            by[r][p] = mul2(change[p], y[p]);
          }
          add_row(sum[r], change, gain);
          add_row(product[r], by[r], gain);
          here[128 * r] = make_uint4(y[0], y[1], y[2], y[3]);
        }
        here[PRODUCT] = make_uint4(add2(by[0][0], by[1][0]), add2(by[0][1], by[1][1]), add2(by[0][2], by[1][2]),
                                   add2(by[0][3], by[1][3]));
      }
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float a = (sum[r][0] + sum[r][3]) * (-1.0f / WIDTH), b = (product[r][0] + product[r][3]) * (-1.0f / WIDTH);
        mean[r] = pack(a, a), along[r] = pack(b, b);
      }
    }
    __syncwarp();
    if (any) add_columns(dbeta, dgamma, state + CHANGE, state + PRODUCT, factors, at.lane);
#pragma unroll
    for (int r = 0; r < 2; r++) scale[r] *= 2;
    // acc = change gamma + mean + along y, divided by scale; slope, which has that scale, becomes du.
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const uint4* here = state + further(place, c);
      word y[2][4], change[2][4];
#pragma unroll
      for (int r = 0; r < 2; r++) take4(y[r], here[128 * r]), take4(change[r], here[CHANGE + 128 * r]);
      of_normed(acc, slope, y, change, mean, along, scale, factors, c, at.lane);
    }
    __syncwarp();
    if (tile + UPDATE_BACKWARD_WARPS < share.last) fetch_both(tile + UPDATE_BACKWARD_WARPS);
    multiply(acc, slope, transposed);
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (16 * tile + at.g + 8 * r < pairs) put(du + piece(16 * tile + at.g + 8 * r, at.t), slope[r]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
      for (int q = 0; q < 16; q++) slope[r][q] = pack(acc[q][2 * r], acc[q][2 * r + 1]);
      if (16 * tile + at.g + 8 * r < pairs) put(de + piece(16 * tile + at.g + 8 * r, at.t), slope[r]);
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
