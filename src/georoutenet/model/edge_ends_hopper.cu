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

// 128 rows for half of the threads, zeros after the last one.
__device__ __forceinline__ void fetch(uint4* rows, const uint4* states, int first, int pairs) {
  int thread = threadIdx.x % HALF, row = thread / 32 * 2 + thread % 2, piece = thread % 32 / 2;
  uint4* to = rows + piece * PITCH + row;
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
      rows[(4 * c + at.t) * PITCH + at.g + 8 * r] =
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
  extern __shared__ uint4 shared[];
  __shared__ float of_warp[8];
  uint4 *states = shared + FRAGMENTS, *changes = states + STAGES * (PIECES + ONES);  // two of the latter
  Lane at;
  for (int k = threadIdx.x; k < FRAGMENTS; k += blockDim.x) {
    int lane = k % 32, unit = 32 * (k / 32 % 4) + 8 * (lane % 4), f = feature(k / 128, lane / 4);
    word w[4];
#pragma unroll
    for (int p = 0; p < 4; p++)
      w[p] = pack(low(weight[(unit + 2 * p) * WIDTH + f]) * last[unit + 2 * p],
                  low(weight[(unit + 2 * p + 1) * WIDTH + f]) * last[unit + 2 * p + 1]);
    place(shared, k, make_uint4(w[0], w[1], w[2], w[3]));
  }
  for (int stage = 0; stage < STAGES; stage++) fill_ones(states + stage * (PIECES + ONES) + PIECES);
  publish();
  __syncthreads();
  int warp = from_lane((word)threadIdx.x / 32, 0), group = warp / 4 % 2;
  int tiles = (pairs + ROWS - 1) / ROWS, step = gridDim.x, tile = blockIdx.x, stage = 0, which = 0;
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
    fetch(states, e, ROWS * tile, pairs);
    fetch(states + PIECES + ONES, e, ROWS * (tile + step), pairs);
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
