// Both ends of the edge tower backward, see edge_ends.cu, on Hopper: half of a block's warps, two groups, compute what
// belongs to rows, 64 rows a group; the other half, the sums over rows, of 64 of 128 features a group. Rows in shared
// memory are what both kinds of products want: a core is 8 rows with 16 bytes, the cores of the rows in a row.
constexpr int ROWS = 128;          // of a block at a time
constexpr int PITCH = ROWS + 2;    // of 16 bytes, from a piece of the rows to the next; four of 2 rows in different banks
constexpr int PIECES = 16 * PITCH;
constexpr int ONES = PITCH;        // one more piece, of ones: a product with it adds up rows
constexpr int HALF = 256;          // threads for rows, and for sums
constexpr int STAGES = 3;          // of the rows that are read, two on their way

// For products of rows with features; for products of features with features, over rows.
__device__ __forceinline__ Operand rows_in(const uint4* rows) { return operand(rows, 16 * PITCH, 128); }
__device__ __forceinline__ Operand features_in(const uint4* rows) { return operand(rows, 128, 16 * PITCH); }

// Where a row's piece is.
__device__ __forceinline__ int place_of(int row, int piece) { return piece * PITCH + row; }
// 128 rows for half of the threads, zeros after the last one.
__device__ __forceinline__ void fetch(uint4* rows, const uint4* states, int first, int pairs) {
  int thread = threadIdx.x % HALF, row = thread / 32 * 2 + thread % 2, piece = thread % 32 / 2;
  uint4* to = rows + place_of(row, piece);
  const uint4* from = states + (size_t)(first + row) * 16 + piece;
#pragma unroll
  for (int k = 0; k < ROWS / 16; k++) copy16(to + 16 * k, from + 256 * k, first + row + 16 * k < pairs);
  commit_copies();
}
__device__ __forceinline__ void fill_ones(uint4* ones) {
  for (int k = threadIdx.x; k < ROWS; k += blockDim.x) ones[k] = make_uint4(0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u);
}
// A tile to its rows.
__device__ __forceinline__ void put_rows(uint4* rows, const word (&x)[2][16], const Lane& at) {
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int c = 0; c < 4; c++)
      rows[place_of(at.g + 8 * r, 4 * c + at.t)] =
          make_uint4(x[r][4 * c], x[r][4 * c + 1], x[r][4 * c + 2], x[r][4 * c + 3]);
}
template <int N>
__device__ __forceinline__ void hold_all(float (&sums)[N][4]) {
#pragma unroll
  for (int q = 0; q < N; q++)
#pragma unroll
    for (int k = 0; k < 4; k++) hold(sums[q][k]);
}

// With c the gradient of a logit where a unit is on, else 0: the gradient of e is c (last W), and each block's share of
// c^T e is 128 rows, of the sums of c one more; the parameters' gradients follow from them. Then, the sum of the
// logits' gradients.
constexpr int LOGIT_SHARE = (WIDTH + 1) * WIDTH + 4;

#ifdef LOGIT_BACKWARD_WARPS
extern "C" __global__ void __launch_bounds__(LOGIT_BACKWARD_WARPS * 32, 1)
logit_backward(const uint4* e, const unsigned short* weight, const float* last, const word* on, const float* grad,
               uint4* de, float* shares, int pairs) {
  alignas(128) extern __shared__ uint4 shared[];
  __shared__ float of_warp[8];
  uint4 *states = shared + FRAGMENTS, *changes = states + STAGES * (PIECES + ONES);  // two of the latter
  Lane at;
  int warp = from_lane((word)threadIdx.x / 32, 0), group = warp / 4 % 2;
  int tiles = (pairs + ROWS - 1) / ROWS, step = gridDim.x, tile = blockIdx.x, stage = 0, which = 0;
  if (warp >= 8) {
    fetch(states, e, ROWS * tile, pairs);
    fetch(states + PIECES + ONES, e, ROWS * (tile + step), pairs);
  }
  transfer(
      FRAGMENTS,
      [&](int k) {
        int lane = k % 32, unit = 32 * (k / 32 % 4) + 8 * (lane % 4), f = feature(k / 128, lane / 4);
        word w[4];
#pragma unroll
        for (int p = 0; p < 4; p++)
          w[p] = pack(low(weight[(unit + 2 * p) * WIDTH + f]) * last[unit + 2 * p],
                      low(weight[(unit + 2 * p + 1) * WIDTH + f]) * last[unit + 2 * p + 1]);
        return make_uint4(w[0], w[1], w[2], w[3]);
      },
      [&](int k, uint4 v) { place(shared, k, v); });
  for (int stage = 0; stage < STAGES; stage++) fill_ones(states + stage * (PIECES + ONES) + PIECES);
  publish();
  __syncthreads();
  float* share = shares + (size_t)blockIdx.x * LOGIT_SHARE;

  if (warp < 8) {  // rows
    Matrix map = matrix_in(shared);
    int row = 16 * warp + at.g;  // and 8 more
    word bits[2];
    float value[2], sum = 0.0f;
    auto read = [&](int tile) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        int pair = ROWS * tile + row + 8 * r;
        bool inside = pair < pairs;
        bits[r] = inside ? on[(size_t)pair * 4 + at.t] : 0;
        value[r] = inside ? grad[pair] : 0.0f;
      }
    };
    read(tile);
    for (; tile < tiles; tile += step, which ^= 1) {
      word x[2][16];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        word same = pack(value[r], value[r]);
        sum += value[r];
#pragma unroll
        for (int c = 0; c < 4; c++) {
          word even = bits[r] << 2 * c, odd = even << 1;
          x[r][4 * c] = permute<0x9988>(even, 0) & same, x[r][4 * c + 1] = permute<0xbbaa>(even, 0) & same;
          x[r][4 * c + 2] = permute<0x9988>(odd, 0) & same, x[r][4 * c + 3] = permute<0xbbaa>(odd, 0) & same;
        }
      }
      put_rows(changes + which * PIECES + 16 * warp, x, at);
      publish();
      float acc[16][4];
      before_products();
      start_mma<false>(acc, x[0][0], x[1][0], x[0][1], x[1][1], map);
#pragma unroll
      for (int k = 1; k < 8; k++)
        start_mma(acc, x[0][2 * k], x[1][2 * k], x[0][2 * k + 1], x[1][2 * k + 1], map + k * (32 * 128 / 16));
      commit_products();
      read(tile + step);
      barrier(1, 2 * HALF);
      finish(acc, x);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        int pair = ROWS * tile + row + 8 * r;
#pragma unroll
        for (int q = 0; q < 16; q++) x[r][q] = pack(acc[q][2 * r], acc[q][2 * r + 1]);
        if (pair < pairs) put(de + piece(pair, at.t), x[r]);
      }
    }
    for (int mask = 4; mask < 32; mask *= 2) sum += shuffle(sum, mask);
    if (at.lane == 0) of_warp[warp] = sum;
    barrier(2, HALF);
    if (threadIdx.x) return;
    for (int k = 1; k < 8; k++) sum += of_warp[k];
    share[LOGIT_SHARE - 4] = sum;
  } else {
    float total[17][4] = {};
    for (; tile < tiles; tile += step, which ^= 1) {
      wait_for_copies<1>();
      publish();
      wait_for_products();
      barrier(1, 2 * HALF);
      fetch(states + (stage ? stage - 1 : 2) * (PIECES + ONES), e, ROWS * (tile + 2 * step), pairs);
      Operand units = features_in(changes + which * PIECES + 8 * group * PITCH);
      Operand features = features_in(states + stage * (PIECES + ONES));
      before_products();
#pragma unroll
      for (int k = 0; k < ROWS / 16; k++) start_mma<true, true>(total, units + 16 * k, features + 16 * k);
      commit_products();
      stage = stage == 2 ? 0 : stage + 1;
    }
    wait_for_copies();
    wait_for_products();
    hold_all(total);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int unit = 16 * (warp - 8) + at.g + 8 * r;
#pragma unroll
      for (int q = 0; q < 16; q++)
        *(float2*)&share[unit * WIDTH + 8 * q + 2 * at.t] = make_float2(total[q][2 * r], total[q][2 * r + 1]);
      if (at.t == 0) share[WIDTH * WIDTH + unit] = total[16][2 * r];
    }
  }
}
#endif

// Of the sums, a block's share is the second weight's 128 rows, the first one's 16 rows of bases, both biases, and the
// gradients of the centers and of the bandwidth, that in 8 parts. The latter two are sums of left^T b x and left^T b x^2
// times the first weight, with b the bases and x where they are; so b, b x, b x^2 and ones are 7 pieces of a row.
constexpr int BASES = 16;
constexpr int BESIDE = 7 * PITCH;
constexpr int EMBEDDING_SHARE = WIDTH * (WIDTH + BASES + 2) + BASES + 8;
constexpr float ROOT = 1.2011224f;  // of log2 e: exp(-x^2) = 2^-(ROOT x)^2

#ifdef EMBEDDING_BACKWARD_WARPS
extern "C" __global__ void __launch_bounds__(EMBEDDING_BACKWARD_WARPS * 32, 1)
embedding_backward(const float* distance, const float* centers, const float* bandwidth, const unsigned short* weight1,
                   const float* bias1, const unsigned short* weight2, const uint4* grad, float* shares, int pairs) {
  alignas(128) extern __shared__ uint4 shared[];
  __shared__ float of_warp[8][2 * BASES];
  __shared__ float2 center[BASES / 2];
  uint4 *first = shared + FRAGMENTS, *changes = first + 2 * NARROW, *hidden = changes + STAGES * PIECES;
  uint4 *left = hidden + PIECES + ONES, *beside = left + PIECES;
  Lane at;
  int warp = from_lane((word)threadIdx.x / 32, 0), group = warp / 4 % 2;
  int tiles = (pairs + ROWS - 1) / ROWS, step = gridDim.x, tile = blockIdx.x, stage = 0;
  if (warp >= 8) {
    fetch(changes, grad, ROWS * tile, pairs);
    fetch(changes + PIECES, grad, ROWS * (tile + step), pairs);
  }
  transfer<8>(  // the second weight, its outs as they come
      4 * FRAGMENTS,
      [&](int k) {
        const unsigned short* w = weight2 + (k / 512 * 8 + k % 4 * 2) * WIDTH + feature(k / 32 % 16, k % 32 / 4);
        return w[0] | (word)w[WIDTH] << 16;
      },
      [&](int k, word w) { ((word*)shared)[k] = w; });
  // Half of the first product and half of its bias: SiLU wants no more.
  fill_narrow(first, [&](int f, int in) {
    const unsigned short* w = weight1 + f * BASES + in;
    return pack(0.5f * low(w[0]), 0.5f * low(w[1]));
  });
  fill_vector(first + NARROW, bias1, 0.5f);
  float inverse = 1.0f / bandwidth[0], scale = ROOT * inverse;
  if (threadIdx.x < BASES) ((float*)center)[threadIdx.x] = -scale * centers[threadIdx.x];
  fill_ones(hidden + PIECES);
  fill_ones(beside + 6 * PITCH);
  publish();
  __syncthreads();
  // The two groups of rows take turns, so that one computes while the other multiplies. Each waits until its places are
  // free and its gradients here (barriers 1 and 2), and says when its rows are there (3 and 4).
  constexpr int MEETING = HALF + HALF / 2;

  if (warp < 8) {  // rows
    Matrix map = narrow_in(first), biases = narrow_in(first + NARROW), second = matrix_in(shared);
    Operand ones = operand(hidden + PIECES, 128, 128);
    float next[2];
    auto read = [&](int tile) {
#pragma unroll
      for (int r = 0; r < 2; r++) next[r] = distance[min(ROWS * tile + 16 * warp + at.g + 8 * r, pairs - 1)];
    };
    read(tile);
    for (; tile < tiles; tile += step) {
      word basis[4], moments[2][4];
#pragma unroll
      for (int k = 0; k < 4; k++) {
        float2 c = center[at.t + k / 2 * 4];  // of bases 2 t and 2 t + 1 or 8 more, row k % 2
        float x = fmaf(next[k % 2], scale, c.x), y = fmaf(next[k % 2], scale, c.y);
        float a = power2(-x * x), b = power2(-y * y);
        basis[k] = pack(a, b);
        a *= x, b *= y;
        moments[0][k] = pack(a, b), moments[1][k] = pack(a * x, b * y);
      }
      float acc[16][4];
      before_products();
      start_mma<false, false>(acc, ones, biases);
      start_mma(acc, basis[0], basis[1], basis[2], basis[3], map);
      commit_products();
      read(tile + step);
      barrier(1 + group, MEETING);
#pragma unroll
      for (int k = 0; k < 4; k++) {
        word* to = (word*)(beside + place_of(16 * warp + at.g + k % 2 * 8, k / 2)) + at.t;
        to[0] = basis[k], to[2 * 4 * PITCH] = moments[0][k], to[4 * 4 * PITCH] = moments[1][k];
      }
      wait_for_products();
      hold(acc);
      hold(basis[0]), hold(basis[1]), hold(basis[2]), hold(basis[3]);
      word slope[2][16];
#pragma unroll
      for (int c = 0; c < 4; c++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          word x[4];
#pragma unroll
          for (int p = 0; p < 4; p++) {
            float y[2], d[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
              float half = acc[4 * c + p][2 * r + h], t = tangent(half), sigma = fmaf(0.5f, t, 0.5f);
              y[h] = fmaf(half, t, half);
              d[h] = sigma + fmaf(-y[h], sigma, y[h]);
            }
            x[p] = pack(y[0], y[1]), slope[r][4 * c + p] = pack(d[0], d[1]);
          }
          hidden[place_of(16 * warp + at.g + 8 * r, 4 * c + at.t)] = make_uint4(x[0], x[1], x[2], x[3]);
        }
      Operand rows = rows_in(changes + stage * PIECES + 64 * group);
      before_products();
      start_mma<false, false>(acc, rows, second);
#pragma unroll
      for (int k = 1; k < 8; k++) start_mma<true, false>(acc, rows + 2 * k * PITCH, second + k * (32 * 128 / 16));
      commit_products();
      wait_for_products();
      hold(acc);
#pragma unroll
      for (int r = 0; r < 2; r++)
#pragma unroll
        for (int q = 0; q < 16; q++) slope[r][q] = mul2(pack(acc[q][2 * r], acc[q][2 * r + 1]), slope[r][q]);
      put_rows(left + 16 * warp, slope, at);
      publish();
      arrive(3 + group, MEETING);
      stage = stage == 2 ? 0 : stage + 1;
    }
    return;
  }

  float total[17][4] = {}, narrow[7][4] = {};
  wait_for_copies<1>();
  publish();
  if (tile < tiles) arrive(1, MEETING), arrive(2, MEETING);
  for (; tile < tiles; tile += step) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      barrier(3 + h, MEETING);
      // Everyone is through with the rows before these.
      if (h == 0) fetch(changes + (stage ? stage - 1 : 2) * PIECES, grad, ROWS * (tile + 2 * step), pairs);
      Operand outs = features_in(changes + stage * PIECES + 8 * group * PITCH + 64 * h);
      Operand units = features_in(left + 8 * group * PITCH + 64 * h);
      Operand ins = features_in(hidden + 64 * h), bases = features_in(beside + 64 * h);
      before_products();
#pragma unroll
      for (int k = 0; k < 4; k++) {
        start_mma<true, true>(total, outs + 16 * k, ins + 16 * k);
        start_mma<true, true>(narrow, units + 16 * k, bases + 16 * k);
      }
      commit_products();
      wait_for_products();
      if (h == 0) {
        wait_for_copies<1>();
        publish();
      }
      if (tile + step < tiles) arrive(1 + h, MEETING);
    }
    stage = stage == 2 ? 0 : stage + 1;
  }
  wait_for_copies();
  hold_all(total);
  hold_all(narrow);
  float* share = shares + (size_t)blockIdx.x * EMBEDDING_SHARE;
  float* of_bases = share + WIDTH * WIDTH;
  float along[8] = {};  // bases 2 t, 2 t + 1, and 8 more; then the bandwidth's
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int f = 16 * (warp - 8) + at.g + 8 * r;
#pragma unroll
    for (int q = 0; q < 16; q++)
      *(float2*)&share[f * WIDTH + 8 * q + 2 * at.t] = make_float2(total[q][2 * r], total[q][2 * r + 1]);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      int base = 8 * (k / 2) + 2 * at.t + k % 2;
      float w = low(weight1[f * BASES + base]);
      of_bases[base * WIDTH + f] = narrow[k / 2][2 * r + k % 2];
      along[k] = fmaf(w, narrow[2 + k / 2][2 * r + k % 2], along[k]);
      along[4 + k] = fmaf(w, narrow[4 + k / 2][2 * r + k % 2], along[4 + k]);
    }
    if (at.t == 0) of_bases[BASES * WIDTH + f] = narrow[6][2 * r], of_bases[(BASES + 1) * WIDTH + f] = total[16][2 * r];
  }
#pragma unroll
  for (int k = 0; k < 8; k++) {
    for (int mask = 4; mask < 32; mask *= 2) along[k] += shuffle(along[k], mask);
    if (at.g == 0) of_warp[warp - 8][8 * (k / 2) + 2 * at.t + k % 2] = along[k];
  }
  barrier(5, HALF);
  int k = threadIdx.x - HALF;
  if (k >= 2 * BASES - 8) return;
  float sum = 0.0f;
  for (int w = 0; w < 8; w++) sum += k < BASES ? of_warp[w][k] : of_warp[w][k] + of_warp[w][k + 8];
  of_bases[(BASES + 2) * WIDTH + k] = sum * 2.0f * inverse / (k < BASES ? ROOT : ROOT * ROOT);
}
#endif
